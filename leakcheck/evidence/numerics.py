"""How finely a target computes, seen from outside, and the gap that rounding cannot explain.

A gap is the log-odds, in nats, of two tokens at one position: their difference of logits. Two runs
of an honest target may differ where it is small, as rounding depends on the size of the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FLOOR_BF16 = 1.0
"""Least gap, in nats, that is no rounding of bfloat16, and where the type is unknown: four times
the largest that a public investigation of an honest server met."""
FLOOR_FP16 = 0.25
FLOOR_FP32 = 0.05
_COARSEST, _FINEST = 1, 10
_BF16_FINEST = 2.0**-5
"""Above this only bfloat16 rounds logits so coarsely; float16 has it for logits of 32 to 64."""
_POSITIONS = 50
_SHARE = 0.95
_TOLERANCE = 1e-3
_MARGIN = 8
_DECIMALS = (0.01, 0.001)
_QUANTA, _NULL_GAPS = 8, 3


def quantum(gaps: Sequence[Sequence[float]]) -> float | None:
    """The step of the lattice that a target's logits lie on, in nats; None if there is none.

    `gaps` holds, for each position, the log-probabilities of its top tokens (or their distances
    from any of them): the differences of two are differences of logits. The step is the largest
    2 ** -j, j from 1 to 10, such that at least 95 % of the pairwise differences lie within 0.001 of
    a multiple, and within an eighth of the step: the interval must not be hit by chance alone, as
    it would be in at most a quarter of the cases; nor is a step looked for that is less than eight
    units of the last decimal, where all values have two or three. Differences of nothing (ties) fit
    any step and say nothing. None below 50 positions with a difference, and for float32 or values
    that were altered on the way. bfloat16 rounds a logit between 16 and 32 to 0.125, float16 to
    0.0156.
    """
    found = [_differences(position) for position in gaps]
    useful = [each for each in found if len(each)]
    if len(useful) < _POSITIONS:
        return None
    differences = np.concatenate(useful)
    values = np.concatenate([np.asarray(position, dtype=float) for position in gaps])
    values = values[np.isfinite(values)]
    unit = next((unit for unit in _DECIMALS if _near(values, unit, unit / 100).all()), 0.0)
    for j in range(_COARSEST, _FINEST + 1):
        step = 2.0**-j
        near = _near(differences, step, min(_TOLERANCE, step / _MARGIN))
        if step >= _MARGIN * unit and float(near.mean()) >= _SHARE:
            return step
    return None


def floor_of(step: float | None) -> float:
    """The least telling gap, in nats, for a target of this `quantum`.

    FLOOR_BF16 from 2 ** -5 on and where it is None (a target without a lattice may compute in
    float32, or hide what it computes in); FLOOR_FP16 below. FLOOR_FP32 is for those who know.
    """
    return FLOOR_BF16 if step is None or step >= _BF16_FINEST else FLOOR_FP16


def gap_threshold(
    quantum: float | None, largest_null_gap: float | None, floor: float = FLOOR_BF16
) -> float:
    """The gap at the first divergence, in nats, above which rounding is no explanation.

    max(8 quanta, 3 times the largest gap among neutral companions, floor). `quantum` is that of
    the target or None, `largest_null_gap` the largest seen where no companion carried anything, or
    None if nothing diverged there. A larger gap is a suspicion, to be confirmed by replays: heavy
    tails pass any threshold now and then. Raises ValueError for a negative value.
    """
    values = {
        "quantum": quantum or 0.0,
        "largest_null_gap": largest_null_gap or 0.0,
        "floor": floor,
    }
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} is {value}; it must not be negative")
    return max(_QUANTA * values["quantum"], _NULL_GAPS * values["largest_null_gap"], floor)


def _near(values: NDArray[np.float64], step: float, tolerance: float) -> NDArray[np.bool_]:
    away = np.abs(values - step * np.round(values / step))
    return np.asarray(away <= tolerance)


def _differences(position: Sequence[float]) -> list[float]:
    pairs = itertools.combinations(position, 2)
    return [gap for a, b in pairs if _TOLERANCE < (gap := abs(a - b)) < np.inf]
