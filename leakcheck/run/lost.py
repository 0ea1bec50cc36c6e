"""What a target that is gone was asked last: the request at which it died is the best evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from leakcheck import history
from leakcheck.checks import liveness, who
from leakcheck.records import Observation, Request
from leakcheck.runner import pulse

PAUSE_S = 5.0
"""Before the one request that asks a target which seems dead whether it is."""
_NAMED = 4


def knock(folder: Path) -> Request:
    """What to ask it."""
    return liveness.knock(history.read(folder))


def epitaph(folder: Path, knocked: Request) -> str | None:
    """What befell a target that did not answer `knocked` either, in one sentence; None where it
    did, or was not sent that.
    """
    run = history.read(folder)
    last = run.answer(knocked.id)
    if last is None or pulse.alive(last):
        return None
    every = [run.attempt(row) for row in run.observations.index]
    seen = [each for each in every if each.request_id != knocked.id]
    dead = since(seen)
    if not dead:
        return None
    first, more = dead[0], len(dead) - 1
    asked = [run.by_id(each.request_id) for each in dead]
    windows = len({(each.scenario, each.window) for each in asked})
    error, _ = Counter(each.error or "no reason given" for each in dead).most_common(1)[0]
    where = "in its window" if windows == 1 else f"in {windows} windows"
    return (
        f"{who(run.by_id(first.request_id), window=True)} is the first that got no answer"
        f"{_beside(seen, first)}; nor did {more} more {where}, nor one sent alone {PAUSE_S:g} s "
        f"later; most often: {error}"
    )


def since(seen: Sequence[Observation]) -> list[Observation]:
    """The attempts without a sign of life that were sent, or ended, after all that showed one, in
    the order in which they ended: a gateway fails at once while answers before it still arrive.
    """
    living = [each for each in seen if pulse.alive(each)]
    sent_ns = max((each.start_ns for each in living), default=-1)
    over_ns = max((each.end_ns for each in living), default=-1)
    dead = [
        each
        for each in seen
        if pulse.alive(each) is False and (each.start_ns > sent_ns or each.end_ns > over_ns)
    ]
    return sorted(dead, key=lambda each: each.end_ns)


def _beside(seen: Sequence[Observation], first: Observation) -> str:
    """Who else was in flight when that one ended."""
    names = [
        each.request_id
        for each in seen
        if each is not first and each.start_ns < first.end_ns < each.end_ns
    ]
    if not names:
        return ", alone"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f", with {', '.join(names[:_NAMED])}{more} in flight beside it"
