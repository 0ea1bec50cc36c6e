"""What a budget is spent on: which scenarios are played, with how many windows, to show what.

Each scenario gets windows by what it needs, all the same share of it. One that could not be judged
with its share is left out and named, the dearest first: fewer claims that hold rather than many
that are open. Where nobody asked for a leak rate, a clean verdict asks for the one that the windows
can exclude, and no less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakcheck import planning, scenario, survey
from leakcheck.analyzer import prospect
from leakcheck.budget import spending
from leakcheck.budget.spending import Use
from leakcheck.errors import UsageError
from leakcheck.passphrase import load_words
from leakcheck.records import Caps, Pace, Scenario, TargetFacts
from leakcheck.report.counting import many
from leakcheck.survey import audition

TEMPLATE_TOKENS, TOKENS_PER_WORD = 20, 2.0
"""What is assumed of prompts: no tokenizer is known."""
ROUGH = 0.25
"""The leak rate that a scenario must be able to exclude at least, to be worth its requests."""
_SMALLER = 8
"""Requests at one time in windows that a budget makes smaller: more windows show more."""
_REPLAYS = 0.1
"""Of a cap, kept for replays at most."""
_HALVINGS = 40
_NEAR = 1e-6
_SHARES: tuple[float, ...] = tuple(
    each / 1000 for each in (*range(1, 20), *range(20, 100, 5), *range(100, 510, 10))
)
"""Leak rates that are spoken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotted:
    """A scenario with the windows that it gets. `excludes` is the leak rate (of windows) that they
    can exclude if nothing leaks; None for none.
    """

    path: Path
    name: str
    windows: int
    requests: int
    excludes: float | None
    overrides: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """What is played and what is left out. `planned` is what that uses, the survey included."""

    played: tuple[Allotted, ...]
    left_out: tuple[str, ...]
    planned: Use
    caps: Caps
    cut: bool

    def sentences(self, pace: Pace | None) -> Iterator[str]:
        """The budget, in words: what is sent at most, what that can show, what is left out."""
        most = [f"at most {self.caps.requests:,} requests"] if self.caps.requests else []
        if self.caps.tokens:
            most.append(f"at most {self.caps.tokens:,} tokens")
        if self.caps.cost_usd:
            most.append(f"at most ${self.caps.cost_usd:,.2f}")
        rest = "the rest is for" if most else "and besides there may be"
        plan = f"{self.planned.requests:,} requests are planned, {rest} retries and replays"
        minutes = _minutes(self.planned.requests, pace)
        yield f"budget: {', '.join(most) or 'no caps'}; {plan}{minutes}"
        if not self.cut:
            return
        told = ", ".join(
            f"{each.name} {_percent(each.excludes)} ({many(each.windows, 'window')})"
            for each in self.played
        )
        yield f"without a leak this can exclude leaks in so many windows of each scenario: {told}"
        if self.left_out:
            yield (
                "left out, as they could not be judged with this budget: "
                f"{', '.join(self.left_out)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A scenario, what a window of it uses, and how many it needs at least and at best."""

    path: Path
    of: Scenario
    ahead: prospect.Prospect
    each: Use
    least: int
    best: int


def allot(
    paths: Sequence[Path], overrides: Mapping[str, Any], caps: Caps, *, keys: int = 1
) -> Allotment:
    """Plan to a budget. What fits as it is stays as it is. A target is met with each of `keys`.

    Raises UsageError where the caps leave no room for any of the scenarios.
    """
    capped = caps.requests or caps.tokens or caps.cost_usd
    whole = [scenario.read(path, overrides) for path in paths]
    sampled = [planning.foreseen(each, TargetFacts(reports_logprobs=True)) for each in whole]
    uses = [_use(of, each.load.windows) for each, (of, _) in zip(whole, sampled, strict=True)]
    first = before(whole, caps, keys=keys)
    if not capped or fits(caps, [first, *uses], reserve=0.0):
        played = tuple(
            Allotted(
                path=path,
                name=each.name,
                windows=each.load.windows,
                requests=used.requests,
                excludes=each.gate.detect,
                overrides={},
            )
            for path, each, used in zip(paths, whole, uses, strict=True)
        )
        planned = sum(uses, first)
        return Allotment(played=played, left_out=(), planned=planned, caps=caps, cut=False)
    every = [_candidate(path, overrides) for path in paths]
    cheapest = min(reversed(every), key=lambda c: c.least * c.each.requests)
    least = _times(cheapest.each, cheapest.least)
    if not fits(caps, [first, least]):
        would = enough(caps, lambda raised: before(whole, raised, keys=keys) + least)
        raise UsageError(_too_small(cheapest, least + first, caps, would))
    return _cut(every, first, caps, overrides)


def _too_small(of: _Candidate, need: Use, caps: Caps, would: Caps) -> str:
    return (
        f"the budget is too small ({flags(caps)}): {of.of.name}, the scenario that takes least, "
        f"needs {need.requests:,} requests and about {rounded(need.tokens):,} tokens for "
        f"{many(of.least, 'window')} with all that comes before, and replays besides; "
        f"enough for it is {flags(would)}"
    )


def _cut(
    every: Sequence[_Candidate], first: Use, caps: Caps, overrides: Mapping[str, Any]
) -> Allotment:
    kept = list(every)
    while not fits(caps, [first, *(_times(c.each, c.least) for c in kept)]):
        kept.remove(max(kept, key=lambda c: c.least * c.each.requests))
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        uses = [_times(c.each, _windows(c, middle)) for c in kept]
        low, high = (middle, high) if fits(caps, [first, *uses]) else (low, middle)
    played = tuple(_allotted(c, _windows(c, low), overrides) for c in kept)
    names = {each.name for each in played}
    uses = [_times(c.each, _windows(c, low)) for c in kept]
    return Allotment(
        played=played,
        left_out=tuple(c.of.name for c in every if c.of.name not in names),
        planned=sum(uses, first),
        caps=caps,
        cut=True,
    )


def excludes(of: Scenario, ahead: prospect.Prospect, windows: int) -> float | None:
    """The smallest leak rate, of those that the gate may ask for, that so many windows will most
    likely exclude; None for none.
    """
    detect: float = of.gate.detect
    for rate in (detect, *(each for each in _SHARES if each > detect)):
        needed = prospect.to_exclude(replace(of, gate=replace(of.gate, detect=rate)), ahead)
        if needed is not None and needed <= windows:
            return rate
    return None


def each_use(prompt_words: float, answer_tokens: float, requests: float = 1.0) -> Use:
    """What requests use by estimate, rounded up."""
    prompt = TEMPLATE_TOKENS + TOKENS_PER_WORD * prompt_words
    return Use(
        requests=math.ceil(requests),
        prompt_tokens=math.ceil(requests * prompt),
        answer_tokens=math.ceil(requests * answer_tokens),
    )


def _candidate(path: Path, overrides: Mapping[str, Any]) -> _Candidate:
    of = scenario.read(path, overrides)
    facts = TargetFacts(reports_logprobs=True)
    if "load.requests" not in overrides and of.load.requests > _SMALLER:
        try:
            smaller = scenario.read(path, {**overrides, "load.requests": _SMALLER})
            sampled, ahead = planning.foreseen(smaller, facts)
            of = smaller
        except UsageError:  # its traffic needs more at one time
            sampled, ahead = planning.foreseen(of, facts)
    else:
        sampled, ahead = planning.foreseen(of, facts)
    most = of.load.windows
    rough = of.gate.detect if "gate.detect" in overrides else max(ROUGH, of.gate.detect)
    best = most if "load.windows" in overrides else _needed(of, ahead, of.gate.detect) or most
    least = best if "load.windows" in overrides else _needed(of, ahead, rough) or most
    return _Candidate(
        path=path,
        of=of,
        ahead=ahead,
        each=_use(sampled, 1),
        least=min(least, most),
        best=min(best, most),
    )


def _needed(of: Scenario, ahead: prospect.Prospect, detect: float) -> int | None:
    return prospect.to_exclude(replace(of, gate=replace(of.gate, detect=detect)), ahead)


def _windows(of: _Candidate, share: float) -> int:
    return max(of.least, math.floor(share * of.best))


def _allotted(of: _Candidate, windows: int, overrides: Mapping[str, Any]) -> Allotted:
    rate = excludes(of.of, of.ahead, windows)
    own: dict[str, Any] = {"load.windows": windows, "load.requests": of.of.load.requests}
    if "gate.detect" not in overrides and rate is not None:
        own["gate.detect"] = rate
    return Allotted(
        path=of.path,
        name=of.of.name,
        windows=windows,
        requests=_times(of.each, windows).requests,
        excludes=rate,
        overrides=own,
    )


def _use(of: planning.Sampled, windows: int) -> Use:
    return each_use(of.prompt_tokens, of.answer_tokens, of.requests / of.windows * windows)


def _times(each: Use, windows: int) -> Use:
    return Use(
        requests=each.requests * windows,
        prompt_tokens=each.prompt_tokens * windows,
        answer_tokens=each.answer_tokens * windows,
    )


def before(scenarios: Sequence[Scenario], caps: Caps, *, keys: int = 1) -> Use:
    """The most that comes before the first window, with so many API keys."""
    words = max(each.load.passphrase_words for each in scenarios)
    plan = survey.plan(
        seed=0, words=load_words(), style="phrase", ids=itertools.count(), length=words
    )
    return each_use(
        60.0, 32.0, len(plan.requests) + audition.most(caps.requests)
    ) + spending.meeting(keys)


def fits(caps: Caps, parts: Sequence[Use], *, reserve: float = _REPLAYS) -> bool:
    """Whether all parts together leave a share of `reserve` of the caps."""
    of = sum(parts, Use())
    room = 1 - reserve
    return (
        (caps.requests is None or of.requests <= room * caps.requests)
        and (caps.tokens is None or of.tokens <= room * caps.tokens)
        and (caps.cost_usd is None or spending.cost_usd(caps, of) <= room * caps.cost_usd)
    )


def enough(caps: Caps, need: Callable[[Caps], Use], *, reserve: float = _REPLAYS) -> Caps:
    """The caps that are there, raised until what is needed with such caps fits."""
    while not fits(caps, [of := need(caps)], reserve=reserve):
        room = 1 - reserve
        cents = None if caps.cost_usd is None else round(100 * caps.cost_usd)
        cost = _raised(cents, 100 * spending.cost_usd(caps, of) / room)
        caps = replace(
            caps,
            requests=_raised(caps.requests, of.requests / room),
            tokens=_raised(caps.tokens, of.tokens / room),
            cost_usd=None if cost is None else cost / 100,
        )
    return caps


def _raised(cap: int | None, need: float) -> int | None:
    if cap is None or need < cap - _NEAR:
        return cap
    return max(cap + 1, math.ceil(need - _NEAR))


def _minutes(requests: int, pace: Pace | None) -> str:
    if pace is None or pace.requests is None:
        return ""
    least = math.ceil(requests * pace.per_s / pace.requests / 60)
    return f", which takes {many(least, 'minute')} at least at the pace"


def _percent(rate: float | None) -> str:
    return "none" if rate is None else f"{100 * rate:.3g} %"


def rounded(number: float) -> int:
    """Two digits are as much as an estimate is worth."""
    return int(float(f"{number:.2g}"))


def flags(caps: Caps) -> str:
    """The caps as they are asked for on the command line."""
    given = {
        "--max-requests": caps.requests,
        "--max-tokens-total": caps.tokens,
        "--max-cost": caps.cost_usd,
    }
    return ", ".join(f"{flag} {value}" for flag, value in given.items() if value is not None)
