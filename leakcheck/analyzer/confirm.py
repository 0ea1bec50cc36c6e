"""Replays that confirm a suspicion: the same payload alone, and in its whole window once more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from leakcheck.checks import own_answer
from leakcheck.history import History
from leakcheck.records import Request

FIRST_WINDOW = 1_000_000
"""Replays have windows of their own, from this number up, counted over all scenarios."""


def confirmations(history: History, *, limit: int = 4) -> tuple[Request, ...]:
    """What to send next to confirm lost answers; to be asked again after it was sent, until empty.

    First up to `limit` suspects a scenario are sent alone, `own_answer.REPEATS` times each; then
    the windows of those that always kept their ticket alone, as often. A weak model is found out
    cheaply by the first step. New requests have `replays` set and the payload unchanged. Nothing
    is sent for a scenario that shows somebody else's content already: a leak needs no such
    confirmation.
    """
    taken = int(history.requests["window"].max()) + 1 if len(history.requests) else 0
    windows = itertools.count(max(FIRST_WINDOW, taken))
    replays: list[Request] = []
    for name in history.scenarios():
        part = history.scenario(name)
        checks = {check.name for check in part.plans[0].scenario.checks}
        if own_answer.CHECK in checks and not (part.planted["owner"] == "foreign").any():
            replays += _next_step(part, limit, windows)
    return tuple(replays)


def _next_step(history: History, limit: int, windows: Iterator[int]) -> Iterator[Request]:
    states = own_answer.ticket_states(history)
    sent = history.requests[history.requests["replays"].notna()]
    if sent.empty:
        for suspect in _suspects(states, limit)["id"]:
            for n in range(1, own_answer.REPEATS + 1):
                yield _alone(history.by_id(suspect), n, next(windows))
    elif not (sent["cell"] == own_answer.IN_WINDOW).any():
        by_window = history.requests.groupby("window")["id"]
        kept = states[states["replay"]].groupby("replays")["own"].agg(["sum", "all"])
        steady = kept.index[kept["all"] & (kept["sum"] >= own_answer.REPEATS)]
        for window in sorted({history.by_id(suspect).window for suspect in steady}):
            together = [history.by_id(request_id) for request_id in by_window.get_group(window)]
            for n in range(1, own_answer.REPEATS + 1):
                yield from _window(together, n, next(windows))


def _suspects(states: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Lost answers, one of each window before a second of any."""
    lost = states[states["lost"] & ~states["replay"]]
    turn = lost.groupby("window").cumcount()
    return lost.iloc[turn.argsort(kind="stable")].head(limit)


def _alone(request: Request, n: int, window: int) -> Request:
    return replace(
        request,
        id=f"{request.id}-alone-{n}",
        window=window,
        phase=0,
        start_offset_s=0.0,
        cell=own_answer.ALONE,
        partner=None,
        shared_tokens=None,
        twin=None,
        replays=request.id,
        abort_after_s=None,
        abort_after_chunks=None,
    )


def _window(together: list[Request], n: int, window: int) -> Iterator[Request]:
    """The whole window once more; links between its requests lead to their replays."""
    ids = {request.id: f"{request.id}-again-{n}" for request in together}
    for request in together:
        yield replace(
            request,
            id=ids[request.id],
            window=window,
            cell=own_answer.IN_WINDOW,
            partner=ids.get(request.partner or "", request.partner),
            twin=ids.get(request.twin or "", request.twin),
            replays=request.id,
        )
