"""Two arms, or many levels: does it matter which? Exact tests and permutations of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakcheck.evidence.bounds import require_counts

_EXACT_RANKS = 8
_STEEPEST = 20.0
"""Limit of a fitted slope: a jump from no event to some has no steepest one."""
_ROUNDING = 1e-9

Statistic = Callable[[NDArray[np.float64], NDArray[np.float64]], float]


def fisher_one_sided(events: int, trials: int, other_events: int, other_trials: int) -> float:
    """The chance of at least `events` in the first arm if arms do not matter.

    Fisher's exact test, one-sided: with all events and both arm sizes given, the number in the
    first arm is hypergeometric. 1.0 when an arm is empty. Raises ValueError unless the counts of
    both arms are 0 <= events <= trials.
    """
    require_counts(events, trials)
    require_counts(other_events, other_trials)
    from scipy import special  # noqa: PLC0415 - half a second to import; scipy.stats takes two

    def ways(of: int, chosen: NDArray[np.int_] | int) -> NDArray[np.float64]:
        logs = special.gammaln(np.add(chosen, 1)) + special.gammaln(np.subtract(of, chosen) + 1)
        return np.asarray(special.gammaln(of + 1) - logs)

    total = events + other_events
    splits = np.arange(events, min(total, trials) + 1)
    logs = ways(trials, splits) + ways(other_trials, total - splits)
    return min(1.0, float(np.exp(logs - ways(trials + other_trials, total)).sum()))


def at_least(events: int, trials: int, probability: float) -> float:
    """The chance of at least `events` in `trials` of this `probability`: the binomial tail.

    A probability above 1 counts as 1. Raises ValueError unless 0 <= events <= trials, and for a
    probability that is negative or not a number.
    """
    require_counts(events, trials)
    if not probability >= 0:
        raise ValueError(f"probability is {probability}; it must be a number of at least 0")
    if not events:
        return 1.0
    from scipy import special  # noqa: PLC0415 - half a second to import

    return float(special.betainc(events, trials - events + 1, min(1.0, probability)))


def later(those: Sequence[int], others: Sequence[int]) -> float:
    """The chance that `those` positions lie so far behind the `others` if all orders are as likely.

    Mann and Whitney's rank test, one-sided; exact where one side has at most eight positions, else
    by the normal approximation, which is a little too large in the tail. 1.0 when a side is empty.
    """
    if not those or not others:
        return 1.0
    from scipy import stats  # noqa: PLC0415 - two seconds to import

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
    return at_least(ups, ups + downs, 0.5)


def permutation_by_window(
    values: Sequence[float],
    arms: Sequence[bool],
    windows: Sequence[int],
    *,
    statistic: Statistic,
    rng: np.random.Generator,
    rounds: int = 9999,
) -> float:
    """The chance of so large a `statistic` if the arm of a window does not matter.

    One value, arm (True: treated) and window for each request. The arms of whole windows are
    permuted, `rounds` times: requests of one window share too much to be permuted singly.
    `statistic(treated, others)` gets the values of both arms; what is large speaks against chance.
    p = (1 + permutations at least as large) / (rounds + 1), exact at any size where arms were drawn
    at random (Phipson and Smyth, 2010), and never 0; 1.0 where an arm is empty. Raises ValueError
    for sequences of unlike length, a window with both arms, and rounds below 1.
    """
    if not len(values) == len(arms) == len(windows):
        raise ValueError(
            f"{len(values)} values, {len(arms)} arms and {len(windows)} windows; one each is needed"
        )
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; at least 1 is needed")
    numbers, treated = np.asarray(values, dtype=float), np.asarray(arms, dtype=bool)
    labels, first, of = np.unique(np.asarray(windows), return_index=True, return_inverse=True)
    arm = treated[first]
    if not np.array_equal(arm[of], treated):
        mixed = labels[of[np.flatnonzero(arm[of] != treated)[0]]]
        raise ValueError(f"window {mixed} has requests of both arms; a window belongs to one")
    if not len(arm) or bool(arm.all()) or not bool(arm.any()):
        return 1.0
    seen = statistic(numbers[treated], numbers[~treated])
    seen -= _ROUNDING * abs(seen)  # the same sum in another order counts as equal
    as_large = 0
    for _ in range(rounds):
        drawn = rng.permutation(arm)[of]
        as_large += statistic(numbers[drawn], numbers[~drawn]) >= seen
    return (1 + as_large) / (rounds + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoseResponse:
    """log(-log(1 - p)) = intercept + slope * log(level - 1), as fitted.

    `slope` near 1: each companion adds the same hazard exp(intercept), independently; near 2:
    pairs of companions matter; near its limit of 20, a jump (a capacity was exceeded).
    `slope_error` is the standard error, of the observed information; None where the counts leave
    the slope open, as at a jump.
    """

    intercept: float
    slope: float
    slope_error: float | None

    def rate(self, level: float) -> float:
        """The fitted chance of an event at this `level` (> 1): a fraction."""
        with np.errstate(over="ignore"):
            hazard = np.exp(self.intercept + self.slope * np.log(level - 1))
            return float(-np.expm1(-hazard))


def dose_response(levels: ArrayLike, events: ArrayLike, trials: ArrayLike) -> DoseResponse:
    """How the rate of events grows with concurrency: a binomial fit with the cloglog link.

    One entry for each level, or for each window: `levels` are requests together in the target, as
    measured (> 1), of which `level` - 1 are companions; 1 - p = (1 - h) ** companions makes the
    slope 1. Maximum likelihood (McCullagh and Nelder, Generalized Linear Models, 1989), by
    scipy.optimize. An estimate for the report, no test. Raises ValueError for entries of unlike
    number, impossible counts, levels of 1 or less, and where there is nothing to fit: fewer than
    two levels with trials, no event, or nothing but events.
    """
    dose, hits, of = _columns(levels, events, trials)
    if bool((dose <= 1).any()):
        raise ValueError(f"a level is {dose.min():g}; a request alone (1) has no companions")
    apart = len(np.unique(dose[of > 0]))
    if apart < 2 or not 0 < hits.sum() < of.sum():  # noqa: PLR2004 - a line has two points
        raise ValueError(
            f"{hits.sum():g} events of {of.sum():g} trials at {apart} levels;"
            " a curve needs two levels, an event and a trial without one"
        )
    from scipy import optimize  # noqa: PLC0415 - half a second to import

    x = np.log(dose - 1)
    centre = float(np.average(x, weights=of))
    start = float(np.log(-np.log1p(-hits.sum() / of.sum())))

    def loss(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        hazard = np.exp(np.clip(at[0] + at[1] * (x - centre), -700, 30))
        p = np.maximum(-np.expm1(-hazard), 1e-300)
        score = hazard * (hits * np.exp(-hazard) / p - (of - hits))
        value = -float(np.sum(hits * np.log(p) - (of - hits) * hazard))
        return value, -np.array([score.sum(), (score * (x - centre)).sum()])

    bounds = [(None, None), (-_STEEPEST, _STEEPEST)]
    found = optimize.minimize(loss, [start, 0.0], jac=True, method="L-BFGS-B", bounds=bounds)
    level, slope = (float(each) for each in found.x)
    return DoseResponse(
        intercept=level - slope * centre, slope=slope, slope_error=_slope_error(loss, found.x)
    )


def not_monotone(
    levels: ArrayLike,
    events: ArrayLike,
    trials: ArrayLike,
    *,
    rng: np.random.Generator,
    rounds: int = 9999,
) -> float:
    """The chance of rates that fall so much with the level if the level did not matter.

    One entry for each window. Statistic: how much likelier the counts are with a free rate at each
    level than with rates that never fall (isotonic regression). Levels are permuted over the
    windows, `rounds` times: exact where they do not matter, and conservative where rates rise with
    them, since equal rates are the least favourable case (Robertson, Wright and Dykstra, Order
    Restricted Statistical Inference, 1988). p = (1 + at least as large) / (rounds + 1). Raises
    ValueError for entries of unlike number, impossible counts, and rounds below 1.
    """
    dose, hits, of = _columns(levels, events, trials)
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; at least 1 is needed")
    names, at = np.unique(dose, return_inverse=True)

    def fall(at: NDArray[np.intp]) -> float:
        k = np.bincount(at, weights=hits, minlength=len(names)).astype(np.float64)
        n = np.bincount(at, weights=of, minlength=len(names)).astype(np.float64)
        k, n = k[n > 0], n[n > 0]
        return _log_likelihood(k, n, k / n) - _log_likelihood(k, n, _never_falling(k / n, n))

    seen = fall(at) - _ROUNDING
    as_large = sum(fall(rng.permutation(at)) >= seen for _ in range(rounds))
    return (1 + as_large) / (rounds + 1)


def _columns(
    levels: ArrayLike, events: ArrayLike, trials: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    dose, hits, of = (np.asarray(each, dtype=float).ravel() for each in (levels, events, trials))
    if not len(dose) == len(hits) == len(of):
        raise ValueError(
            f"{len(dose)} levels, {len(hits)} events and {len(of)} trials; one each is needed"
        )
    wrong = np.flatnonzero(~((hits >= 0) & (hits <= of)))
    if len(wrong):
        require_counts(int(hits[wrong[0]]), int(of[wrong[0]]))
    return dose, hits, of


def _slope_error(
    loss: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]],
    at: NDArray[np.float64],
) -> float | None:
    """From the curvature of `loss`, by central differences of its gradient."""
    step = 1e-4
    rows = [(loss(at + step * e)[1] - loss(at - step * e)[1]) / (2 * step) for e in np.eye(2)]
    (a, b), (c, d) = rows
    spread = a / (a * d - b * c) if a * d - b * c > 0 else -1.0
    return float(np.sqrt(spread)) if 0 < spread < _STEEPEST**2 else None


def _never_falling(rates: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest rates that never fall: neighbours that do are pooled."""
    pools: list[tuple[float, float, int]] = []
    for rate, weight in zip(rates.tolist(), weights.tolist(), strict=True):
        mean, mass, size = rate, weight, 1
        while pools and pools[-1][0] >= mean:
            before, its_mass, its_size = pools.pop()
            mean = (before * its_mass + mean * mass) / (its_mass + mass)
            mass, size = mass + its_mass, size + its_size
        pools.append((mean, mass, size))
    return np.repeat([mean for mean, _, _ in pools], [size for _, _, size in pools])


def _log_likelihood(
    hits: NDArray[np.float64], of: NDArray[np.float64], p: NDArray[np.float64]
) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        yes = np.where(hits > 0, hits * np.log(p), 0.0)
        no = np.where(of > hits, (of - hits) * np.log1p(-p), 0.0)
    return float(np.sum(yes + no))
