"""Numbers as a tired reader takes them: counts, times, odds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def odds(times: float) -> str:
    """The N of "at most 1 in N" in words, rounded down so that the claim stays true: `4,200`."""
    for size, name in _LARGE:
        if times >= size:
            return f"{_down(min(times / size, 1000)):g} {name}"
    return f"{max(1, int(_down(times))):,}"


def times(evidence: Mapping[str, Any], events: str, trials: str) -> str:
    """`5 of 6` where both are counts and something was tried; else nothing."""
    some, all_ = evidence.get(events), evidence.get(trials)
    if type(some) is not int or type(all_) is not int or not 0 <= some <= all_ or not all_:
        return ""
    return f"{some} of {all_}"


def none_of(windows: int) -> str:
    """`None of 450 windows`."""
    return "0 of 1 window" if windows == 1 else f"None of {windows} windows"


def many(number: int, name: str) -> str:
    """`1 window`, `2 windows`."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _down(value: float) -> float:
    """Two digits, never more than `value`."""
    if value < 100:  # noqa: PLR2004 (two digits already)
        return float(math.floor(value + 1e-9))
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.floor(value / step + 1e-9) * step
