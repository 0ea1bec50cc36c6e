"""Evidence that may be looked at after every window, and the change detectors of a monitor.

An e-process has a mean of at most 1 where its null hypothesis holds, at whatever look one stops; by
Ville's inequality (1939) it ever reaches 1 / alpha with a chance of at most alpha. All are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from leakcheck.evidence.bounds import log_beta, log_likelihood, require_counts, require_share
from leakcheck.evidence.combine import LARGEST, capped_exp, mean_of_exp, require_e_value

SIGN_RATES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_GRID_STEP = 3.0
"""Neighbours in the grid of rates differ by at most this factor: a bet on the wrong one of them
loses little."""
_GRID_LEAST = 4


def certificate(trials: int, leaks: int, detect: float) -> float:
    """The e-value against leaks in at least `detect` of the windows: reaches 20 at 95 %.

    (1 - detect) ** -trials while nothing leaked, else 0: the likelihood ratio of "never" to
    `detect`, and smaller to any higher rate. It crosses 1 / alpha exactly where the one-sided
    Clopper-Pearson bound of no event falls to `detect` (299 trials for 1 %), with free looks
    before. `detect` may be what is to be excluded times a `running_lower_bound` of the share of
    leaks that would show: what may go wrong are the two errors together. At most 1e300. Raises
    ValueError unless 0 <= leaks <= trials and 0 < detect < 1.
    """
    require_counts(leaks, trials)
    require_share("detect", detect)
    return 0.0 if leaks else capped_exp(-trials * math.log1p(-detect))


def certificate_mixture(trials: int, leaks: int, detect: float) -> float:
    """As `certificate`, but it survives a leak or two and may recover.

    Half the evidence is bet on "never", half on a rate drawn from Beta(1/2, 1 / (2 detect)) *cut
    off at `detect`*: without the cut it would certify almost every target that leaks in several
    times `detect` of its windows, as their rate is in the prior too. It reaches 20 after
    325 clean windows for 1 %, and after 743 with one leak. At most 1e300. Raises ValueError unless
    0 <= leaks <= trials and 0 < detect < 1.
    """
    require_counts(leaks, trials)
    require_share("detect", detect)
    from scipy import special  # noqa: PLC0415 - half a second to import

    a, b, clean = 0.5, 0.5 / detect, trials - leaks
    within = special.betainc(a + leaks, b + clean, detect)
    if within > 0:
        log = log_beta(a + leaks, b + clean) - log_beta(a, b) + math.log(within)
        log -= math.log(special.betainc(a, b, detect)) + log_likelihood(detect, leaks, clean)
        drawn = capped_exp(log)
    else:  # so many leaks that the rate is hardly below `detect`
        drawn = 0.0
    return (certificate(trials, leaks, detect) + drawn) / 2


def windows_to_certify(detect: float, *, alpha: float = 0.05) -> int:
    """Clean trials after which `certificate` reaches 1 / alpha.

    ln(alpha) / ln(1 - detect), rounded up: 299 for 1 % at 0.05, 59 for 5 %. Raises ValueError
    unless both are strictly between 0 and 1.
    """
    require_share("detect", detect)
    require_share("alpha", alpha)
    # a hair less than the quotient, so that rounding noise does not add a window
    return max(1, math.ceil(math.log(alpha) / math.log1p(-detect) - 1e-9))


def sprt_mixture(events: int, trials: int, p0: float) -> float:
    """The e-value against events being no more frequent than `p0`.

    The mean of the likelihood ratios (q / p0) ** events ((1 - q) / (1 - p0)) ** (trials - events)
    over a geometric grid of q between p0 and 1, neighbours a factor of at most 3 apart: Wald's
    sequential test (1945), mixed. At most 1e300. Raises ValueError unless 0 <= events <= trials and
    0 < p0 < 1.
    """
    require_counts(events, trials)
    require_share("p0", p0)
    points = max(_GRID_LEAST, math.ceil(-math.log(p0) / math.log(_GRID_STEP)))
    null = log_likelihood(p0, events, trials - events)
    grid = (p0 ** (k / points) for k in range(1, points))
    return mean_of_exp([log_likelihood(q, events, trials - events) - null for q in grid])


def sign_e_value(ups: int, downs: int) -> float:
    """The e-value against ups being no likelier than downs, of paired arms: ties are left out.

    The mean over q of SIGN_RATES of (2 q) ** ups (2 (1 - q)) ** downs: likelihood ratios against a
    fair coin. For rare events about as fast as the two-by-two e-variable of Turner, Ly and Grunwald
    (2024). At most 1e300. Raises ValueError for a negative count.
    """
    if min(ups, downs) < 0:
        raise ValueError(f"{ups} ups and {downs} downs; counts are not negative")
    fair = (ups + downs) * math.log(2)
    return mean_of_exp([fair + log_likelihood(q, ups, downs) for q in SIGN_RATES])


def likelihood_ratio(x: bool, p0: float, p1: float) -> float:
    """How much likelier `x` is at the rate `p1` than at `p0`: one step for the detectors below.

    p1 / p0 for an event, (1 - p1) / (1 - p0) for none: of mean 1 at p0, and at most 1 below it
    where p1 > p0. Raises ValueError unless 0 < p0 < p1 < 1.
    """
    require_share("p0", p0)
    require_share("p1", p1)
    if p1 <= p0:
        raise ValueError(f"p1 is {p1}; it must be above p0, which is {p0}")
    return p1 / p0 if x else (1 - p1) / (1 - p0)


def shiryaev_roberts(values: Iterable[float], start: float = 0.0) -> tuple[float, ...]:
    """The e-SR detector after each of `values`: R = (1 + R) * value, at most 1e300.

    Shin, Ramdas and Rinaldo (E-detectors, 2024). Where each value has mean <= 1 given those before
    (nothing has changed), R minus the number of steps is a supermartingale: the mean number of
    steps to a false alarm "R >= A" is at least A, and an alarm comes within m steps with a chance
    of at most m / A. So for m steps a year and a chance c of a false alarm in it, A = m / c.
    `start` is the last R of a state that goes on. Raises ValueError for a value or start that is
    negative or not a number.
    """
    require_e_value(start)
    path: list[float] = []
    at = min(LARGEST, start)
    for value in values:
        require_e_value(value)
        at = min(LARGEST, (1 + at) * value)
        path.append(at)
    return tuple(path)


def cusum(values: Iterable[float], start: float = 0.0) -> tuple[float, ...]:
    """Page's CUSUM after each of `values`: C = max(0, C + ln(value)), in nats.

    Page (Biometrika 41, 1954). exp(C) is the largest product of the values since some step, or 1,
    and `shiryaev_roberts` the sum of these products: where C reaches ln(A) > 0, R has reached A. So
    its guarantees hold here too: the mean number of steps to a false alarm "C >= ln(A)" is at least
    A, and an alarm comes within m steps with a chance of at most m / A. `start` is the last C of a
    state that goes on. Raises ValueError for a value that is negative or not a number, and for a
    negative start.
    """
    require_e_value(start)
    path: list[float] = []
    at = start
    for value in values:
        require_e_value(value)
        at = max(0.0, at + (math.log(min(LARGEST, value)) if value else -math.inf))
        path.append(at)
    return tuple(path)
