"""Replays that confirm a suspicion: the same payload alone, alone and hot, in its window again.

Those of differences (`checks.divergence`) are planned in `diverted`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from leakcheck.analyzer import diverted
from leakcheck.checks import alone, divergence, own_answer
from leakcheck.history import History
from leakcheck.records import Request

FIRST_WINDOW = 1_000_000
"""Replays have windows of their own, from this number up, counted over all scenarios."""
WINDOWS = 4
"""Windows of a scenario that are sent again, spread like the suspects."""
_HOT_STEPS = (8, own_answer.HOT_REPLAYS)
_WINDOW_STEPS = (3, own_answer.WINDOW_REPLAYS)
"""How many replays there are after each step; later ones for who can still be confirmed."""


def confirmations(history: History, *, limit: int = 12) -> tuple[Request, ...]:
    """What to send next to confirm a suspicion; to be asked again after it was sent, until empty.

    Of lost answers: first up to `limit` suspects a scenario are sent alone; then those that always
    kept their ticket are sent alone at temperature 1, and last the windows of those that kept it
    there too. A weak model is found out cheaply by the first step, a near-tie by the second.
    `own_answer` says how often each is sent. Where the target does not follow temperature there is
    only the first step. Of differences beyond the noise: see `diverted`. New requests have
    `replays` set and the payload unchanged. Nothing is sent for a scenario that shows somebody
    else's content already: a leak needs no such confirmation.
    """
    taken = int(history.requests["window"].max()) + 1 if len(history.requests) else 0
    windows = itertools.count(max(FIRST_WINDOW, taken))
    replays: list[Request] = []
    for name in history.scenarios():
        part = history.scenario(name)
        checks = {check.name for check in part.plans[0].scenario.checks}
        if (part.planted["owner"] == "foreign").any():
            continue
        if own_answer.CHECK in checks:
            replays += _next_step(part, limit, windows)
        if divergence.CHECK in checks:
            replays += diverted.replays(part, windows)
    return tuple(replays)


def most(*, per_phase: int, per_window: int, limit: int = 12) -> int:
    """How many requests the replays of one scenario can be at the very most."""
    tickets = limit * (own_answer.ALONE_REPLAYS + own_answer.HOT_REPLAYS)
    tickets += WINDOWS * own_answer.WINDOW_REPLAYS * per_window
    return tickets + diverted.most(per_phase)


def _next_step(history: History, limit: int, windows: Iterator[int]) -> Iterator[Request]:
    states = own_answer.ticket_states(history)
    cells = (own_answer.ALONE, own_answer.HOT, own_answer.IN_WINDOW)
    sent = history.requests[history.requests["cell"].isin(cells)]
    if sent.empty:
        for suspect in _suspects(states, limit)["id"]:
            for n in range(1, own_answer.ALONE_REPLAYS + 1):
                yield _alone(history.by_id(suspect), n, next(windows))
    elif history.provenance.facts.samples is True:
        yield from _after_alone(history, states, sent, windows)


def _after_alone(
    history: History, states: pd.DataFrame, sent: pd.DataFrame, windows: Iterator[int]
) -> Iterator[Request]:
    """The hot replays, then the windows; a step is planned by how many replays there are."""
    steady = {name: of for name, of in own_answer.replays(states).items() if of.steady}
    done = int((sent["cell"] == own_answer.IN_WINDOW).groupby(sent["replays"]).sum().max())
    hot = int((sent["cell"] == own_answer.HOT).groupby(sent["replays"]).sum().max())
    more = _range(hot, _HOT_STEPS)
    if more and not done:
        left = [name for name, of in steady.items() if of.clear(hot)]
        for name in left:
            for n in more:
                yield _hot(history.by_id(name), n, next(windows))
        if left:
            return
    left = [name for name, of in steady.items() if of.clear() and of.loses(done)]
    by_window = history.requests.groupby("window")["id"]
    for window in _spread(sorted({history.by_id(name).window for name in left}), WINDOWS):
        together = [history.by_id(request_id) for request_id in by_window.get_group(window)]
        for n in _range(done, _WINDOW_STEPS):
            yield from _window(together, n, next(windows))


def _range(planned: int, steps: tuple[int, ...]) -> range:
    """Numbers of the replays of the next step, after so many; empty after the last."""
    return range(planned + 1, min((s for s in steps if s > planned), default=planned) + 1)


def _suspects(states: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Lost answers: one of each window, spread over all that lost any, before a second one."""
    lost = states[states["lost"] & ~states["replay"]]
    turn = lost.groupby("window").cumcount()
    first, others = lost[turn == 0], lost[turn > 0]
    if len(first) > limit:
        return first.iloc[_spread(range(len(first)), limit)]
    return pd.concat([first, others.iloc[turn[turn > 0].argsort(kind="stable")]]).head(limit)


def _spread(values: Sequence[int], limit: int) -> list[int]:
    """At most so many of the values, evenly from the first to the last."""
    at = np.linspace(0, len(values) - 1, min(limit, len(values))).round()
    return [values[int(each)] for each in at]


def _alone(request: Request, n: int, window: int) -> Request:
    return alone(request, name=f"alone-{n}", window=window, cell=own_answer.ALONE)


def _hot(request: Request, n: int, window: int) -> Request:
    """Alone at temperature 1, from all of the distribution, with a seed of its own."""
    hot = replace(request.sampling, temperature=1.0, top_p=None, seed=n)
    again = alone(request, name=f"hot-{n}", window=window, cell=own_answer.HOT)
    return replace(again, sampling=hot)


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
