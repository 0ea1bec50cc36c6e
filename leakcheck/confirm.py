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
REPEATS = 2


def confirmations(history: History, *, limit: int = 4) -> tuple[Request, ...]:
    """What to send after all windows: replays for up to `limit` lost answers a scenario.

    Each suspect is sent alone twice, and its window twice, as new requests with `replays` set and
    the payload unchanged. Empty where nothing was lost, and for scenarios that have replays.
    """
    windows = itertools.count(FIRST_WINDOW)
    replays: list[Request] = []
    for name in history.scenarios():
        part = history.scenario(name)
        checks = {check.name for check in part.plans[0].scenario.checks}
        if own_answer.CHECK in checks and part.requests["replays"].isna().all():
            replays += _of_scenario(part, limit, windows)
    return tuple(replays)


def _of_scenario(history: History, limit: int, windows: Iterator[int]) -> Iterator[Request]:
    suspects = _suspects(history, limit)
    for suspect in suspects["id"]:
        for n in range(1, REPEATS + 1):
            yield _alone(history.by_id(suspect), n, next(windows))
    by_window = history.requests.groupby("window")["id"]
    for window in suspects["window"].drop_duplicates():
        together = [history.by_id(i) for i in by_window.get_group(window)]
        for n in range(1, REPEATS + 1):
            yield from _window(together, n, next(windows))


def _suspects(history: History, limit: int) -> pd.DataFrame:
    """Lost answers, one of each window before a second of any."""
    states = own_answer.ticket_states(history)
    lost = states[states["lost"]]
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
