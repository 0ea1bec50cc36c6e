"""Replays of answers that parted from the same alone: their company again, and another one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from leakcheck.checks import _suspects as rule
from leakcheck.checks import alone
from leakcheck.checks._mixed import threshold, trials
from leakcheck.history import History
from leakcheck.records import Request

_LEFT_OUT = 2


def replays(history: History, windows: Iterator[int]) -> Iterator[Request]:
    """The next replays of every suspect of a scenario; none when there is nothing left to ask.

    Each is a phase of the suspect's window, in a window of its own: that in which it parted, and
    one with other companions, in turn, so that no drift of the target favours one. Up to
    `_LEFT_OUT` companions are left out, others each time and the same places of both phases:
    rounding follows the shape of the batch, which is another one then, and content stays. Payloads
    are unchanged, so no phrase has a second owner.
    """
    of = trials(history)
    accused = rule.suspects(of, threshold(history, of))
    level = rule.level(accused)
    for suspect in accused:
        company, hot = rule.more(suspect, rule.replays(history, suspect), level)
        for n in company:
            pair = [(suspect.request, rule.SAME), (suspect.swapped, rule.OTHER)]
            for name, cell in pair if n % 2 else pair[::-1]:
                yield from _phase(history, name, cell, n, next(windows))
        if history.provenance.facts.samples is True:
            for n in hot:
                yield _hot(history.by_id(suspect.request), n, next(windows))


def most(per_phase: int) -> int:
    """How many requests these replays can be at the very most, of a scenario."""
    return rule.MOST_SUSPECTS * (2 * rule.MOST * per_phase + rule.MARGINS)


def _phase(history: History, name: str, cell: str, n: int, window: int) -> Iterator[Request]:
    """What was sent together with a request, once more, but for some companions."""
    first = history.by_id(name)
    requests = history.requests
    together = requests[(requests["window"] == first.window) & (requests["phase"] == first.phase)]
    kind = "same" if cell == rule.SAME else "other"
    companions = list(together.loc[together["role"] == "companion", "id"])
    rng = random.Random(f"{first.window}/{n}")
    out = rng.sample(range(len(companions)), min(n % (_LEFT_OUT + 1), len(companions) // 4))
    left_out = {companions[at] for at in out}
    for each in together["id"]:
        if each in left_out:
            continue
        request = history.by_id(str(each))
        yield replace(
            request,
            id=f"{request.id}-{kind}-{n}",
            window=window,
            phase=0,
            cell=cell,
            replays=request.id,
        )


def _hot(request: Request, n: int, window: int) -> Request:
    """Alone at temperature 1, from all of the distribution, with a seed of its own."""
    hot = replace(request.sampling, temperature=1.0, top_p=None, seed=n)
    again = alone(request, name=f"margin-{n}", window=window, cell=rule.MARGIN)
    return replace(again, sampling=hot)
