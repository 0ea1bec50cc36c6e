"""Evidence put together: over windows, over tiers and scenarios, over tests. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

LARGEST = 1e300
"""Where e-values end: far beyond any decision, and still a number that JSON can hold."""
_WEIGHTS_OFF = 1e-9


def merge(per_window: Sequence[Sequence[float]]) -> float:
    """The e-value of all windows: each bet's product over them, then the mean over bets.

    `per_window` holds one row a window, one e-value a bet. Each row's factors must have mean <= 1
    given the windows before, where nothing leaks; then so has the product at every look (Ville,
    1939: it ever reaches 1 / alpha with a chance of at most alpha), and so has the mean of several
    such processes, however they depend on each other (Vovk and Wang, Annals of Statistics 49,
    2021). 1.0 without windows; computed in logarithms, at most `LARGEST`. Raises ValueError for
    rows of unlike or no length and for a factor that is negative or not a number.
    """
    if not per_window:
        return 1.0
    bets = len(per_window[0])
    if not bets:
        raise ValueError("a window has 0 bets; at least one e-value a window is needed")
    logs: list[list[float]] = [[] for _ in range(bets)]
    for row in per_window:
        if len(row) != bets:
            raise ValueError(f"a window has {len(row)} bets; the first one has {bets}")
        for of_bet, factor in zip(logs, row, strict=True):
            require_e_value(factor)
            of_bet.append(math.log(factor) if factor else -math.inf)
    return mean_of_exp([_sum(of_bet) for of_bet in logs])


def weighted(e_values: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean of `e_values`: an e-value again, however they depend on each other.

    Vovk and Wang (2021), as for `merge`. At most `LARGEST`. Raises ValueError unless there is one
    weight each, none negative, which sum to 1, and for an e-value that is negative or no number.
    """
    if len(e_values) != len(weights):
        raise ValueError(f"{len(weights)} weights for {len(e_values)} e-values; one each is needed")
    if min(weights, default=0) < 0 or not abs(math.fsum(weights) - 1) <= _WEIGHTS_OFF:
        raise ValueError(f"the weights are {list(weights)}; none may be negative, their sum is 1")
    for value in e_values:
        require_e_value(value)
    pairs = zip(e_values, weights, strict=True)
    return math.fsum(min(LARGEST, value) * weight for value, weight in pairs)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values, in the order given: reject where one is at most alpha.

    Holm (Scandinavian Journal of Statistics 6, 1979): the k-th smallest of m times m - k + 1, never
    below those before it, at most 1. The chance of any false rejection is at most alpha under any
    dependence. Raises ValueError for a value that is not within 0..1.
    """
    for value in p_values:
        if not 0 <= value <= 1:
            raise ValueError(f"a p-value is {value}; it must lie within 0..1")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = running
    return tuple(adjusted)


def capped_exp(log: float) -> float:
    """The exponential of `log`, at most `LARGEST`."""
    return LARGEST if log >= math.log(LARGEST) else math.exp(log)


def mean_of_exp(logs: Sequence[float]) -> float:
    """The mean of the exponentials of `logs`, at most `LARGEST`; no step of it overflows."""
    top = max(logs)
    if math.isinf(top):
        return LARGEST if top > 0 else 0.0
    return capped_exp(top + math.log(math.fsum(math.exp(log - top) for log in logs) / len(logs)))


def require_e_value(value: float) -> None:
    """Raises ValueError for a negative value and for one that is not a number."""
    if not value >= 0:
        raise ValueError(f"an e-value is {value}; it must be a number of at least 0")


def _sum(logs: Sequence[float]) -> float:
    """Their exact sum; -inf where one is (nothing wins back what a bet has lost)."""
    return -math.inf if -math.inf in logs else math.fsum(logs)
