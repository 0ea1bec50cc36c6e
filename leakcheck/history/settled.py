"""Windows that were planned and not played, because their scenario was settled before."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from leakcheck.records import Plan, Request, RunEvent


def names(events: Iterable[RunEvent]) -> frozenset[str]:
    """The scenarios that ended before their budget of windows."""
    return frozenset(event.detail for event in events if event.kind == "settled")


def windows(plan: Plan) -> int:
    """How many windows a plan has, replays left out."""
    return len({request.window for request in plan.requests if request.replays is None})


def played(plan: Plan, started: Collection[str], events: Iterable[RunEvent]) -> Plan:
    """The plan without the windows after the last one of which anything was sent, if its scenario
    was settled. Requests missing from windows before that are none of its doing, and stay.
    """
    if plan.scenario.name not in names(events):
        return plan
    numbers = [r.window for r in plan.requests if r.replays is None and r.id in started]
    if not numbers:
        return plan
    last = max(numbers)
    return replace(plan, requests=tuple(r for r in plan.requests if _kept(r, last)))


def _kept(request: Request, last: int) -> bool:
    return request.replays is not None or request.window <= last
