"""How many requests were in flight at one time, by a sweep over sorted intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """For each interval: the largest number in flight during it, itself included, and whether
    another interval intersects it.
    """

    peak: Integers
    with_any: Flags


def company(starts: Integers, ends: Integers, counts: Flags) -> Company:
    """Company of each interval [start, end), in any unit of time, in O(n log n).

    Only intervals with `counts` are company; the others are asked about too. Intervals that touch
    do not intersect; an empty one is taken to last one unit.
    """
    ends = np.maximum(ends, starts + 1)
    opening, closing = np.sort(starts[counts]), np.sort(ends[counts])
    meeting = np.searchsorted(opening, ends, "left") - np.searchsorted(closing, starts, "right")
    times, level = _levels(opening, closing)
    if times.size == 0:
        return Company(peak=np.ones_like(starts), with_any=np.zeros(starts.shape, bool))
    first = np.searchsorted(times, starts, "right")
    last = np.searchsorted(times, ends, "left")
    return Company(
        peak=_range_max(level, first, last) + ~counts,
        with_any=(meeting - counts) > 0,
    )


def _levels(opening: Integers, closing: Integers) -> tuple[Integers, Integers]:
    """Times at which the number in flight changes, and that number: level[0] before all of them,
    level[k + 1] from times[k] on.
    """
    change = np.concatenate([np.ones_like(opening), -np.ones_like(closing)])
    times, place = np.unique(np.concatenate([opening, closing]), return_inverse=True)
    steps = np.zeros(times.size, np.int64)
    np.add.at(steps, place, change)
    return times, np.concatenate([np.zeros(1, np.int64), np.cumsum(steps)])


def _range_max(values: Integers, first: NDArray[Any], last: NDArray[Any]) -> Integers:
    """Largest of values[first..last], both included, for arrays of ranges (a sparse table)."""
    width = np.frexp((last - first + 1).astype(float))[1] - 1
    result = np.zeros(first.shape, np.int64)
    row = values
    for power in range(int(width.max(initial=0)) + 1):
        here = width == power
        result[here] = np.maximum(row[first[here]], row[last[here] - (1 << power) + 1])
        row = np.maximum(row[: -(1 << power)], row[1 << power :])
    return result
