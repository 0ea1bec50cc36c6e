"""Planted candidates against phantoms: exact whatever the answers and the scorer do.

Phantoms are drawn as the planted candidate was and never sent. Where nothing leaks, the planted one
is any of them with equal chance given all flags: no model of the target is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

PHANTOM_STAKES = (0.01, 0.05, 0.2, 0.5, 0.9)
"""Shares of the evidence put at risk, one bet each: small ones last where phantoms hit often."""

Shown = tuple[bool, int, int]
"""Planted shows; candidates that show, the planted one included; candidates, likewise."""


def phantom_bets(shown: Iterable[Shown], *, sources: int) -> tuple[float, ...]:
    """The e-values of one window, one for each of PHANTOM_STAKES.

    Of a source with F > 0 of K candidates showing, (1 - stake) + stake * [planted shows] * K / F:
    its mean is exactly 1 over the K equally likely places of the planted one. A source of which
    nothing shows is not bet on: F does not say which one is planted, and so it costs nothing.
    `shown` holds the sources of the window with any hit (those without may be left out); the mean
    is taken over all `sources` of it, which keeps it an e-value under any dependence within the
    window. Raises ValueError for counts that cannot be, and for more entries than `sources`.
    """
    gains = [_gain(each) for each in shown]
    if sources < max(1, len(gains)):
        raise ValueError(
            f"sources is {sources}; it must be at least 1 and count the {len(gains)} that show"
        )
    gain = math.fsum(gains) / sources
    return tuple(1 + stake * gain for stake in PHANTOM_STAKES)


def phantom_p(shown: Iterable[Shown]) -> float:
    """The chance of at least so many planted hits if nothing leaks: for one look at the end.

    Each entry's planted candidate shows with the chance F / K, given its flags: the number that do
    is Poisson-binomial, and its tail exact. One entry a window: the sources of a window are not
    independent of each other (`phantom_bets` allows for that). Entries of which nothing shows may
    be left out. Raises ValueError for counts that cannot be.
    """
    entries = list(shown)
    for entry in entries:
        _require(entry)
    return poisson_binomial_tail(
        [count / candidates for _, count, candidates in entries],
        sum(planted for planted, _, _ in entries),
    )


def poisson_binomial_tail(probabilities: Sequence[float], events: int) -> float:
    """P(at least `events` of independent trials with these `probabilities`), exactly.

    By convolution, one trial at a time; the tail itself is summed, of positive terms, so that a
    tiny one keeps its digits. len(probabilities) * events steps. Raises ValueError for a
    probability outside 0..1 and for negative `events`.
    """
    if events < 0:
        raise ValueError(f"events is {events}; counts are not negative")
    chances = np.asarray(probabilities, dtype=float)
    if not bool(np.all((chances >= 0) & (chances <= 1))):
        wrong = next(p for p in probabilities if not 0 <= p <= 1)
        raise ValueError(f"a probability is {wrong}; it must lie within 0..1")
    if events == 0:
        return 1.0
    below = np.zeros(events)  # below[k]: exactly k so far
    below[0] = 1.0
    tail = 0.0
    for p in chances:
        tail += float(below[-1]) * float(p)
        below[1:] = below[1:] * (1 - p) + below[:-1] * p
        below[0] *= 1 - p
    return min(1.0, tail)


def _gain(entry: Shown) -> float:
    _require(entry)
    planted, count, candidates = entry
    if not count:
        return 0.0
    return candidates / count - 1 if planted else -1.0


def _require(entry: Shown) -> None:
    planted, count, candidates = entry
    if not planted <= count <= candidates - (not planted):
        does = "shows" if planted else "does not show"
        raise ValueError(
            f"{count} of {candidates} candidates show, the planted one {does}; it counts as one"
        )
