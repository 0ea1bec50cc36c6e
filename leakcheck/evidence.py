"""Exact statistics for rare events: intervals, sample sizes, two arms. Pure functions.

The unit of every count is the window: answers of one window share a batch, a cache state and a
bug, so counting them as if they were independent promises more than was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from scipy import stats

from leakcheck.records import Rate

CONFIDENCE = 0.95
_EXACT_RANKS = 8


def rate(events: int, trials: int) -> Rate:
    """`events` of `trials` with the exact two-sided 95 % interval and one-sided 95 % bounds.

    Clopper and Pearson (Biometrika 26, 1934): the limits are the rates at which what was seen is
    only just not too improbable. Two-sided leaves 2.5 % on each side, one-sided 5 % on one.
    Without trials nothing is known: every interval is 0..1. Raises ValueError unless
    0 <= events <= trials.
    """
    tail = (1 - CONFIDENCE) / 2
    return Rate(
        events=events,
        trials=trials,
        low=lower_bound(events, trials, 1 - tail),
        high=upper_bound(events, trials, 1 - tail),
        lower=lower_bound(events, trials),
        upper=upper_bound(events, trials),
    )


def upper_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided Clopper-Pearson upper bound of a rate.

    The p with P(X <= events | trials, p) = 1 - confidence, which is the `confidence` quantile of
    Beta(events + 1, trials - events); with no event 1 - (1 - confidence) ** (1 / trials), about
    3 / trials at 95 %. Raises ValueError unless 0 <= events <= trials.
    """
    _require_counts(events, trials)
    if events == trials:
        return 1.0
    if events == 0:
        return float(-math.expm1(math.log1p(-confidence) / trials))
    return float(stats.beta.ppf(confidence, events + 1, trials - events))


def lower_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided Clopper-Pearson lower bound of a rate.

    The p with P(X >= events | trials, p) = 1 - confidence, which is the 1 - `confidence` quantile
    of Beta(events, trials - events + 1). Raises ValueError unless 0 <= events <= trials.
    """
    _require_counts(events, trials)
    if events == 0:
        return 0.0
    if events == trials:
        return float(math.exp(math.log1p(-confidence) / trials))
    return float(stats.beta.ppf(1 - confidence, events, trials - events + 1))


def windows_needed(leak_rate: float, power: float = CONFIDENCE) -> int:
    """Windows after which a leak of `leak_rate` a window has shown at least once.

    n = ln(1 - power) / ln(1 - leak_rate), rounded up. `leak_rate` is the visible rate: that of the
    leak times the echo rate. Raises ValueError unless both are strictly between 0 and 1.
    """
    for name, value in (("leak_rate", leak_rate), ("power", power)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}; it must lie strictly between 0 and 1")
    # a hair less than the quotient, so that rounding noise does not add a window
    return max(1, math.ceil(math.log1p(-power) / math.log1p(-leak_rate) - 1e-9))


def fisher_one_sided(events: int, trials: int, other_events: int, other_trials: int) -> float:
    """The chance of at least `events` in the first arm if arms do not matter.

    Fisher's exact test, one-sided: with all events and both arm sizes given, the number in the
    first arm is hypergeometric. 1.0 when an arm is empty. Raises ValueError unless the counts of
    both arms are 0 <= events <= trials.
    """
    _require_counts(events, trials)
    _require_counts(other_events, other_trials)
    total = events + other_events
    tail = stats.hypergeom.sf(events - 1, trials + other_trials, total, trials)
    return min(1.0, float(tail))


def at_least(events: int, trials: int, probability: float) -> float:
    """The chance of at least `events` in `trials` of this `probability`: the binomial tail.

    Raises ValueError unless 0 <= events <= trials.
    """
    _require_counts(events, trials)
    return min(1.0, float(stats.binom.sf(events - 1, trials, min(1.0, probability))))


def later(those: Sequence[int], others: Sequence[int]) -> float:
    """The chance that `those` positions lie so far behind the `others` if all orders are as likely.

    Mann and Whitney's rank test, one-sided; exact where one side has at most eight positions, else
    by the normal approximation, which is a little too large in the tail. 1.0 when a side is empty.
    """
    if not those or not others:
        return 1.0
    exact = min(len(those), len(others)) <= _EXACT_RANKS
    method: Literal["exact", "asymptotic"] = "exact" if exact else "asymptotic"
    return float(stats.mannwhitneyu(those, others, alternative="greater", method=method).pvalue)


def sign_one_sided(ups: int, downs: int) -> float:
    """The chance of at least `ups` ups among `ups` + `downs` signs if either way is as likely.

    The exact sign test, one-sided: Binomial(ups + downs, 1/2). 1.0 without signs. Raises ValueError
    for a negative count.
    """
    if min(ups, downs) < 0:
        raise ValueError(f"{ups} ups and {downs} downs; counts are not negative")
    return min(1.0, float(stats.binom.sf(ups - 1, ups + downs, 0.5)))


def _require_counts(events: int, trials: int) -> None:
    if not 0 <= events <= trials:
        raise ValueError(f"{events} events of {trials} trials; events must be between 0 and trials")
