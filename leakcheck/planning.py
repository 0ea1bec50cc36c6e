"""What a claim costs: windows, requests, tokens, minutes and money, before anything is sent.

A leak that shows in `detect` of the windows of a target is seen by a run with the chance
`detect` x `sensitivity` a trial, where the sensitivity is the part of such windows that would show
it: the echo rate (its lower bound) times the share of recipients that are asked for what they see.
Trials until it has shown once with a power P: ln(1 - P) / ln(1 - detect x sensitivity). Trials
without a leak that exclude it with 95 % confidence: ln(20) / -ln(1 - detect x sensitivity), which
is the same at a power of 95 % (evidence.windows_needed). Not every window is a trial.

Every figure knows where it comes from: measured in an earlier run, planned, given, or assumed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from leakcheck import evidence, scenario
from leakcheck.analyzer import echoes
from leakcheck.history import History
from leakcheck.passphrase import load_words
from leakcheck.records import Rate, Request, Scenario, TargetFacts

CONFIDENCE = 0.95
"""Of the claim that a leak is absent."""
SEE, EXCLUDE, BOTH = "see", "exclude", "see or exclude"
SAMPLE = 30
"""Windows of a scenario that are planned to count their requests."""
_SEED = 0
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number and where it comes from; None is not known."""

    value: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a target charges for a million tokens of prompts and of answers, in US dollars."""

    prompt_usd: float
    answer_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is asked: a leak of the rate of the gate (`detect`), seen with this `power`.

    `requests_per_s` overrides what was measured; without `price` there is no cost.
    """

    power: float = 0.95
    requests_per_s: float | None = None
    price: Price | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What some planned windows of a scenario hold. Tokens are upper limits for answers, and what
    the words of the prompts cost by the facts of the target for prompts.

    Of `planted` windows of the planted arm, `testable` hold a passphrase and two requests at least.
    """

    windows: int
    planted: int
    testable: int
    requests: int
    recipients: int
    asked: int
    prompt_tokens: float
    answer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an earlier run measured of a scenario, replays left out; `where` says of what.

    Tokens are means over the `told` answers for which the target reported them.
    """

    where: str
    echo: Rate
    asked: int
    recipients: int
    trials: int
    planted: int
    requests_per_s: float | None
    told: int
    prompt_tokens: float | None
    answer_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """How much one claim takes: None where nothing suffices, or nothing says how much.

    `goal`: `see` a leak with the power asked for, `exclude` it, or both where that is the same.
    """

    scenario: str
    goal: str
    windows: int | None
    requests: int | None
    prompt_tokens: float | None
    answer_tokens: float | None
    minutes: float | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What the claims on one scenario take, and the figures that this rests on.

    `sensitivity` is a share of the windows with a leak, `trials` a share of the windows sent;
    the other figures are for one window (requests), one request (tokens) or one second.
    """

    scenario: Scenario
    needs: tuple[Need, ...]
    sensitivity: Figure
    trials: Figure
    requests: Figure
    prompt_tokens: Figure
    answer_tokens: Figure
    requests_per_s: Figure


def bills(
    scenarios: Sequence[Scenario], terms: Terms, *, run: History | None = None
) -> tuple[Bill, ...]:
    """What the claims of `terms` on each scenario take, by the figures of an earlier `run`."""
    found = {} if run is None else measured(run)
    facts = None if run is None else run.provenance.facts
    others = elsewhere(found)
    return tuple(
        bill(each, terms, seen=found.get(each.name, others), facts=facts) for each in scenarios
    )


def bill(
    of: Scenario, terms: Terms, *, seen: Seen | None = None, facts: TargetFacts | None = None
) -> Bill:
    """What the claims of `terms` on one scenario take. `seen` of another scenario's traffic gives
    echo and speed alone: see `elsewhere`.
    """
    sampled = sample(of, facts or TargetFacts())
    sensitivity, trials = _sensitivity(sampled, seen), _trials(of, sampled, seen)
    requests = Figure(
        value=sampled.requests / sampled.windows,
        source=f"{sampled.requests} requests in {sampled.windows} planned windows",
    )
    prompt, answer = _tokens(sampled, seen, facts)
    speed = _speed(terms, seen)
    result = Bill(
        scenario=of,
        needs=(),
        sensitivity=sensitivity,
        trials=trials,
        requests=requests,
        prompt_tokens=prompt,
        answer_tokens=answer,
        requests_per_s=speed,
    )
    counts = {
        SEE: _windows(result, terms.power),
        EXCLUDE: _windows(result, CONFIDENCE, least=of.gate.min_windows),
    }
    if counts[SEE] == counts[EXCLUDE]:
        counts = {BOTH: counts[SEE]}
    return replace(result, needs=tuple(_need(result, *count, terms) for count in counts.items()))


def sample(of: Scenario, facts: TargetFacts, windows: int = SAMPLE) -> Sampled:
    """Plan some windows and count. Raises UsageError where the scenario cannot be planned."""
    ids, words = itertools.count(), load_words()
    groups = [
        scenario.plan_window(
            of, index, seed=_SEED, facts=facts, words=words, style="phrase", ids=ids
        )
        for index in range(windows)
    ]
    requests = [request for group in groups for request in group]
    recipients = [request for request in requests if request.role == "recipient"]
    planted = [group for group in groups if any(r.arm == "planted" for r in group)]
    owning = [group for group in planted if any(r.passphrase for r in group) and len(group) > 1]
    return Sampled(
        windows=windows,
        planted=len(planted),
        testable=len(owning),
        requests=len(requests),
        recipients=len(recipients),
        asked=sum(request.ask == "eliciting" for request in recipients),
        prompt_tokens=fmean(
            facts.overhead_tokens + facts.tokens_per_word * _words(r) for r in requests
        ),
        answer_tokens=math.ceil(fmean(request.sampling.max_tokens for request in requests)),
    )


def measured(history: History) -> dict[str, Seen]:
    """What a run measured, by scenario; the survey is left out."""
    return {
        plan.scenario.name: _seen(history.scenario(plan.scenario.name))
        for plan in history.plans
        if plan.scenario.checks
    }


def elsewhere(found: dict[str, Seen]) -> Seen | None:
    """What all scenarios of a run say about the target, for one that it did not have: echo and
    speed. None where there is nothing.
    """
    if not found:
        return None
    parts = list(found.values())
    speeds = [part.requests_per_s for part in parts if part.requests_per_s is not None]
    return Seen(
        where="all scenarios of that run",
        echo=evidence.rate(
            sum(part.echo.events for part in parts), sum(part.echo.trials for part in parts)
        ),
        asked=0,
        recipients=0,
        trials=0,
        planted=0,
        requests_per_s=min(speeds, default=None),
        told=0,
        prompt_tokens=None,
        answer_tokens=None,
    )


# --- the figures ---------------------------------------------------------------------------------


def _sensitivity(sampled: Sampled, seen: Seen | None) -> Figure:
    asked, recipients, how = sampled.asked, sampled.recipients, "planned"
    if seen is not None and seen.recipients:
        asked, recipients, how = seen.asked, seen.recipients, f"answered in {seen.where}"
    share = asked / recipients if recipients else 0.0
    said = f"asked {asked} of {recipients} recipients {how}"
    if seen is None or not seen.echo.trials:
        return Figure(value=share, source=f"echo 1 (assumed) x {said}")
    rate = seen.echo
    text = (
        f"echo at least {100 * rate.lower:.1f} % ({rate.events} of {rate.trials} in {seen.where})"
    )
    return Figure(value=rate.lower * share, source=f"{text} x {said}")


def _trials(of: Scenario, sampled: Sampled, seen: Seen | None) -> Figure:
    planted = 1 - of.load.control
    arm = f"{100 * planted:g} % planted (load.control = {of.load.control:g})"
    if seen is not None and seen.planted:
        share, said = seen.trials / seen.planted, f"{seen.trials} of {seen.planted} planted windows"
        return Figure(value=planted * share, source=f"{arm} x {said} were trials in {seen.where}")
    if not sampled.planted:
        return Figure(value=planted, source=arm)
    said = f"{sampled.testable} of {sampled.planted} planted windows that can be trials"
    return Figure(value=planted * sampled.testable / sampled.planted, source=f"{arm} x {said}")


def _tokens(
    sampled: Sampled, seen: Seen | None, facts: TargetFacts | None
) -> tuple[Figure, Figure]:
    if seen is not None and seen.prompt_tokens is not None and seen.answer_tokens is not None:
        source = f"mean of {seen.told} answers in {seen.where}"
        return (
            Figure(value=seen.prompt_tokens, source=source),
            Figure(value=seen.answer_tokens, source=source),
        )
    words = "words of the planned prompts, one token each (assumed)"
    if facts is not None:
        words = (
            f"words of the planned prompts, {facts.tokens_per_word:g} token(s) each and "
            f"{facts.overhead_tokens} of the template, as surveyed"
        )
    return (
        Figure(value=sampled.prompt_tokens, source=words),
        Figure(value=float(sampled.answer_tokens), source="max_tokens of the plan: at most"),
    )


def _speed(terms: Terms, seen: Seen | None) -> Figure:
    if terms.requests_per_s is not None:
        return Figure(value=terms.requests_per_s, source="given")
    if seen is not None and seen.requests_per_s is not None:
        slowest = "" if seen.recipients else "the slowest of "
        return Figure(value=seen.requests_per_s, source=f"measured in {slowest}{seen.where}")
    return Figure(value=None, source="not known: give --rate, or --like a run")


def _windows(figures: Bill, power: float, least: int = 1) -> int | None:
    """Windows to send for enough trials, `least` of them; None where no number is enough."""
    sensitivity, share = figures.sensitivity.value or 0.0, figures.trials.value or 0.0
    if not sensitivity or not share:
        return None
    trials = max(least, evidence.windows_needed(figures.scenario.gate.detect * sensitivity, power))
    return math.ceil(trials / share)


def _need(figures: Bill, goal: str, windows: int | None, terms: Terms) -> Need:
    def of_requests(each: Figure) -> float | None:
        return None if requests is None or each.value is None else requests * each.value

    requests = None if windows is None else math.ceil(windows * (figures.requests.value or 0))
    speed = figures.requests_per_s.value
    prompt, answer = of_requests(figures.prompt_tokens), of_requests(figures.answer_tokens)
    cost = None
    if terms.price is not None and prompt is not None and answer is not None:
        cost = (terms.price.prompt_usd * prompt + terms.price.answer_usd * answer) / _MILLION
    return Need(
        scenario=figures.scenario.name,
        goal=goal,
        windows=windows,
        requests=requests,
        prompt_tokens=prompt,
        answer_tokens=answer,
        minutes=None if requests is None or not speed else requests / speed / 60,
        cost_usd=cost,
    )


# --- what there is to count ----------------------------------------------------------------------


def _words(request: Request) -> int:
    return sum(len(message.content.split()) for message in request.messages)


def _seen(history: History) -> Seen:
    requests = history.requests[history.requests["replays"].isna()]
    answered = requests[requests["outcome"] == "ok"]
    recipients = answered[answered["role"] == "recipient"]
    windows = history.windows[~history.windows["replay"]]
    mine = history.observations[history.observations["request_id"].isin(requests["id"])]
    span_s = 0.0 if mine.empty else (mine["end_ns"].max() - mine["start_ns"].min()) / 1e9
    told = mine[(mine["outcome"] == "ok") & mine["prompt_tokens"].notna()]
    told = told[told["completion_tokens"].notna()]
    return Seen(
        where="that run",
        echo=echoes.rate(history),
        asked=int((recipients["ask"] == "eliciting").sum()),
        recipients=len(recipients),
        trials=int(windows["trial"].sum()),
        planted=int((windows["arm"] == "planted").sum()),
        requests_per_s=mine["request_id"].nunique() / span_s if span_s else None,
        told=len(told),
        prompt_tokens=float(told["prompt_tokens"].mean()) if len(told) else None,
        answer_tokens=float(told["completion_tokens"].mean()) if len(told) else None,
    )
