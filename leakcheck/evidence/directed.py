"""Which candidate is the answer drawn to? Scores of the planted one against all the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SOFT_BETS = tuple(itertools.product((0.02, 0.1, 0.5), (1.0, 3.0)))
"""(stake, kappa): a softmax of kappa times the scores says how much is bet on each candidate."""
STAND_OUT_BETS = tuple(itertools.product((0.3, 0.9), (2.0, 4.0, 8.0)))
"""(stake, lead): all of the stake on the best, where it leads the second by so many MADs."""
_CLIP = 8.0
_NOTHING = 1e-12
"""A MAD so small a part of the largest deviation is rounding, and dividing by it may overflow."""


def directed_bets(
    scores: Sequence[float], planted: int, *, floor: float = 0.0
) -> tuple[float, ...]:
    """The e-values of one window: one for each of SOFT_BETS, then of STAND_OUT_BETS.

    `scores` are those of all K candidates, higher means nearer to the answer: log-probabilities in
    nats (less each candidate's mean among neutral companions, which sharpens and is not needed), or
    any score of texts; `planted` is the index of the one that was sent, drawn uniformly at random.
    With z = (score - median) / MAD over the candidates, a soft bet is
    (1 - stake) + stake * K * softmax(kappa * clip(z, -8, 8))[planted], and a stand-out bet
    (1 - stake) + stake * K * [planted is the best] where the best leads the second by more than
    `lead`, else 1. Both have the mean 1 over the K equally likely places of the planted one,
    whatever the scores: what is bet depends on the unordered set of them only. `floor` is the least
    MAD, in units of the scores (half the quantum of the target, `quantum`): many scores on one
    point of a lattice would make it zero. Where it is zero, or next to it, the standard deviation
    stands in.
    Raises ValueError for fewer than two candidates, an index that is none of theirs, a score that
    is not finite, and a negative floor.
    """
    values = np.asarray(scores, dtype=float)
    candidates = len(values)
    if candidates < 2:  # noqa: PLR2004 - with one alone there is nothing to compare
        raise ValueError(f"{candidates} scores; at least two candidates are needed")
    if not 0 <= planted < candidates:
        raise ValueError(f"planted is {planted}; it must be an index of {candidates} scores")
    if not bool(np.isfinite(values).all()):
        raise ValueError(f"the scores are {list(scores)}; all must be finite")
    if not floor >= 0:
        raise ValueError(f"floor is {floor}; it must not be negative")
    z = _standardised(values, floor)
    soft = [
        1 - stake + stake * candidates * float(_softmax(kappa * np.clip(z, -_CLIP, _CLIP))[planted])
        for stake, kappa in SOFT_BETS
    ]
    second, best = np.sort(z)[-2:]
    won = candidates if z[planted] == best else 0
    stand_out = [
        1 - stake + stake * won if best - second > lead else 1.0 for stake, lead in STAND_OUT_BETS
    ]
    return (*soft, *stand_out)


def _standardised(values: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    away = values - np.median(values)
    scale = max(float(np.median(np.abs(away))), floor)
    if scale <= _NOTHING * float(np.abs(away).max()):
        scale = float(values.std())
    return away / scale if scale else np.zeros_like(values)


def _softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(z - z.max())
    return np.asarray(powers / powers.sum())
