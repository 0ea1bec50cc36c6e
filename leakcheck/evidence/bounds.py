"""Exact bounds of a rate, and how much must be seen for them. Pure functions.

The unit of every count is the window: answers of one window share a batch, a cache state and a
bug, so counting them as if they were independent promises more than was seen.
"""

from __future__ import annotations

import math

from leakcheck.records import Rate

CONFIDENCE = 0.95
ECHO_CONFIDENCE = 0.99
"""Of the lower bound of the echo rate, at all looks together."""
EXCLUSION_CONFIDENCE = 0.96
"""Of what shows, so that both together may go wrong in 5 % and a clean verdict holds at 95 %."""
_HALVINGS = 60
"""Of the interval that a root is looked for in: leaves 1e-18 of it."""


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
    3 / trials at 95 %. Raises ValueError unless 0 <= events <= trials and 0 < confidence < 1.
    """
    require_counts(events, trials)
    require_share("confidence", confidence)
    if events == trials:
        return 1.0
    if events == 0:
        return float(-math.expm1(math.log1p(-confidence) / trials))
    from scipy import special  # noqa: PLC0415 - half a second to import

    return float(special.betaincinv(events + 1, trials - events, confidence))


def lower_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided Clopper-Pearson lower bound of a rate.

    The p with P(X >= events | trials, p) = 1 - confidence, which is the 1 - `confidence` quantile
    of Beta(events, trials - events + 1). Raises ValueError unless 0 <= events <= trials and
    0 < confidence < 1.
    """
    require_counts(events, trials)
    require_share("confidence", confidence)
    if events == 0:
        return 0.0
    if events == trials:
        return float(math.exp(math.log1p(-confidence) / trials))
    from scipy import special  # noqa: PLC0415 - half a second to import

    return float(special.betaincinv(events, trials - events + 1, 1 - confidence))


def running_lower_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """Lower bound of a rate that holds at every look: P(ever above the rate) <= 1 - confidence.

    Lower end of the time-uniform confidence sequence of Howard, Ramdas, McAuliffe and Sekhon
    (Annals of Statistics 49, 2021) for 0/1 data: the rates p at which the mixture
    B(1/2 + events, 1/2 + trials - events) / B(1/2, 1/2) / (p ** events (1 - p) ** (trials -
    events)), an e-process by Ville's inequality, has not reached 1 / (1 - confidence). The prior
    Beta(1/2, 1/2) is that of Krichevsky and Trofimov: about the same price at every rate, so that
    500 of 501 at 99 % stay above 0.97. Never above `lower_bound`. Raises ValueError unless
    0 <= events <= trials and 0 < confidence < 1.
    """
    require_counts(events, trials)
    require_share("confidence", confidence)
    if events == 0:
        return 0.0
    misses = trials - events
    mixed = log_beta(0.5 + events, 0.5 + misses) - log_beta(0.5, 0.5)
    enough = mixed + math.log1p(-confidence)  # rejected where the log-likelihood is at most this
    low, high = 0.0, events / trials
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        rejected = middle == 0 or log_likelihood(middle, events, misses) <= enough
        low, high = (middle, high) if rejected else (low, middle)
    return low


def windows_needed(leak_rate: float, power: float = CONFIDENCE) -> int:
    """Windows after which a leak of `leak_rate` a window has shown at least once.

    n = ln(1 - power) / ln(1 - leak_rate), rounded up. `leak_rate` is the visible rate: that of the
    leak times the echo rate. Raises ValueError unless both are strictly between 0 and 1.
    """
    require_share("leak_rate", leak_rate)
    require_share("power", power)
    # a hair less than the quotient, so that rounding noise does not add a window
    return max(1, math.ceil(math.log1p(-power) / math.log1p(-leak_rate) - 1e-9))


def entropy_needed(pairs: int, starts: int, variants: int, false_match: float = 1e-9) -> float:
    """Bits a passphrase needs so that any match in a run is chance at most once in 1 / false_match.

    log2(pairs * starts * variants / false_match): by the union bound, whatever the answers say. A
    passphrase drawn uniformly from 2 ** bits is matched by an answer with `starts` places a match
    may begin at, in `variants` forms, with a chance of at most starts * variants / 2 ** bits;
    `pairs` counts (answer, passphrase of another request) looked at in all windows. Raises
    ValueError for counts below 1 and unless 0 < false_match < 1.
    """
    require_share("false_match", false_match)
    for name, value in (("pairs", pairs), ("starts", starts), ("variants", variants)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    return math.log2(pairs) + math.log2(starts) + math.log2(variants) - math.log2(false_match)


def log_beta(a: float, b: float) -> float:
    """The logarithm of the Beta function."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def log_likelihood(p: float, events: int, misses: int) -> float:
    """The logarithm of p ** events (1 - p) ** misses, for 0 < p < 1."""
    return events * math.log(p) + misses * math.log1p(-p)


def require_counts(events: int, trials: int) -> None:
    """Raises ValueError unless 0 <= events <= trials."""
    if not 0 <= events <= trials:
        raise ValueError(f"{events} events of {trials} trials; events must be between 0 and trials")


def require_share(name: str, value: float) -> None:
    """Raises ValueError unless `value` is strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}; it must lie strictly between 0 and 1")
