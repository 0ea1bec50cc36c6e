"""What a claim costs: windows, requests, tokens, minutes and money, before anything is sent.

A leak in `detect` of the windows of a target shows in a window of a run with the chance
`detect` x `sensitivity` x `trials`. The sensitivity is the part of the windows with a leak that
would show it: the echo rate (its lower bound) times the share of recipients that are asked for what
they see; `trials` is the share of windows that could have leaked. Windows until it has shown once
with a power P: ln(1 - P) / ln(1 - detect x sensitivity x trials) (evidence.windows_needed).

To exclude it takes as many windows as let 95 of 100 runs certify that: see `prospect`.

Every figure knows where it comes from: measured in an earlier run, planned, given, or assumed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from leakcheck import evidence, scenario
from leakcheck.analyzer import echoes, exposure, prospect
from leakcheck.analyzer.prospect import Prospect
from leakcheck.history import History
from leakcheck.passphrase import load_words
from leakcheck.records import Rate, Request, Scenario, TargetFacts

ECHO = 0.9
"""Assumed where no run has measured it."""
SEE, EXCLUDE, BOTH = "see", "exclude", "see or exclude"
SAMPLE, SAMPLE_MOST = 30, 300
"""Windows of a scenario that are planned to count their requests: more where the share that is
asked varies, until its standard error is a hundredth of it."""
_PRECISE = 0.01
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
    `recipients` are those of exposure.askable, `asked` those of them that are asked for what they
    see, and `owners` ask for the passphrase that they have, one a payload (as in echoes.rate); with
    none that is hung up on by plan. `spread` is the variance of the share that was asked, for one
    recipient: asked x (1 - asked) where each is drawn for itself.
    """

    windows: int
    planted: int
    testable: int
    requests: int
    recipients: int
    asked: int
    spread: float
    owners: int
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
    told = seen is not None and seen.recipients > 0
    sampled = (sample if told else _sampled)(of, facts or TargetFacts())
    (sensitivity, echo), trials = _sensitivity(sampled, seen), _trials(of, sampled, seen)
    ahead = _prospect(sampled, seen, echo, trials.value or 0.0)
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
        SEE: _to_see(result, terms.power),
        EXCLUDE: prospect.to_exclude(of, ahead),
    }
    if counts[SEE] == counts[EXCLUDE]:
        counts = {BOTH: counts[SEE]}
    return replace(result, needs=tuple(_need(result, *count, terms) for count in counts.items()))


def _sampled(of: Scenario, facts: TargetFacts) -> Sampled:
    """See SAMPLE."""
    first = sample(of, facts)
    if not first.asked:
        return first
    error = math.sqrt(first.spread / first.recipients) * first.recipients / first.asked
    windows = min(SAMPLE_MOST, math.ceil(SAMPLE * (error / _PRECISE) ** 2))
    return sample(of, facts, windows) if windows > SAMPLE else first


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
    recipients = [request for group in groups for request in _askable(group)]
    asked = [request for request in recipients if request.ask == "eliciting"]
    planted = [group for group in groups if any(r.arm == "planted" for r in group)]
    owning = [group for group in planted if any(r.passphrase for r in group) and len(group) > 1]
    return Sampled(
        windows=windows,
        planted=len(planted),
        testable=len(owning),
        requests=len(requests),
        recipients=len(recipients),
        asked=len(asked),
        spread=_spread(recipients, windows),
        owners=len({r.twin or r.id for r in requests if _answered(r) and _asks_for_own(r)}),
        prompt_tokens=fmean(
            facts.overhead_tokens + facts.tokens_per_word * _words(r) for r in requests
        ),
        answer_tokens=math.ceil(fmean(request.sampling.max_tokens for request in requests)),
    )


def foreseen(of: Scenario, facts: TargetFacts) -> tuple[Sampled, Prospect]:
    """What some planned windows hold, and what a run of them comes to at the echo that is assumed.

    Raises UsageError where the scenario cannot be planned.
    """
    sampled = sample(of, facts)
    trials = _trials(of, sampled, None)
    return sampled, _prospect(sampled, None, ECHO, trials.value or 0.0)


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


def _sensitivity(sampled: Sampled, seen: Seen | None) -> tuple[Figure, float]:
    """The figure, and the echo rate in it."""
    asked, recipients, how = sampled.asked, sampled.recipients, "planned"
    if seen is not None and seen.recipients:
        asked, recipients, how = seen.asked, seen.recipients, f"answered in {seen.where}"
    share = asked / recipients if recipients else 0.0
    said = f"asked {asked} of {recipients} recipients {how}"
    if seen is None or not seen.echo.trials:
        return Figure(value=ECHO * share, source=f"echo {ECHO:g} (assumed) x {said}"), ECHO
    rate = seen.echo
    text = (
        f"echo at least {100 * rate.lower:.1f} % ({rate.events} of {rate.trials} in {seen.where})"
    )
    return Figure(value=rate.lower * share, source=f"{text} x {said}"), rate.lower


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


def _prospect(sampled: Sampled, seen: Seen | None, echo: float, trials: float) -> Prospect:
    known = sampled if seen is None or not seen.recipients else seen
    return Prospect(
        trials=trials,
        owners=sampled.owners / max(1, sampled.planted),
        echo=echo,
        recipients=sampled.recipients / sampled.windows,
        asked=known.asked / max(1, known.recipients),
        spread=sampled.spread,
        counted=known.recipients,
    )


def _to_see(figures: Bill, power: float) -> int | None:
    """Windows after which a leak has shown with this power; None where no number is enough."""
    shows = (figures.sensitivity.value or 0.0) * (figures.trials.value or 0.0)
    if not shows:
        return None
    return evidence.windows_needed(min(figures.scenario.gate.detect * shows, 1 - 1e-9), power)


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


def _answered(request: Request) -> bool:
    """Whether it is to be answered: nobody hangs up on it by plan, and its address is right."""
    hung_up = request.abort_after_s is not None or request.abort_after_chunks is not None
    return not hung_up and request.sent != "misdirected"


def _asks_for_own(request: Request) -> bool:
    return request.ask == "eliciting" and request.passphrase is not None


def _askable(window: Sequence[Request]) -> list[Request]:
    """What exposure.askable finds if everything is answered."""
    together = Counter(request.phase for request in window)
    alone = len(together) == len(window)
    recipients = [r for r in window if r.role == "recipient" and _answered(r)]
    return [r for r in recipients if alone or together[r.phase] > 1]


def _spread(recipients: Sequence[Request], windows: int) -> float:
    """See Sampled: of a ratio of two sums over windows (Cochran, Sampling Techniques, 1977)."""
    if not recipients:
        return 0.0
    share = fmean(request.ask == "eliciting" for request in recipients)
    apart = [0.0] * windows
    for request in recipients:
        apart[request.window] += (request.ask == "eliciting") - share
    return math.fsum(each * each for each in apart) / len(recipients)


def _words(request: Request) -> int:
    return sum(len(message.content.split()) for message in request.messages)


def _seen(history: History) -> Seen:
    requests = history.requests[history.requests["replays"].isna()]
    recipients = exposure.askable(history)
    sent = requests.loc[requests["outcome"] != "unsent", "window"]
    windows = history.windows[history.windows["window"].isin(sent)]
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
