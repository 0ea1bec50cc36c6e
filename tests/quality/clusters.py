"""Claim 5: recipients of one window share a batch and a bug; only whole windows are independent."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from leakcheck import evidence
from quality.values import Effort, Result, share

RECIPIENTS = 16
WINDOWS = 60
RATE, ICC = 0.05, 0.3
LEVEL = 0.05

Counts = npt.NDArray[np.int64]


def answers_as_if_independent(rng: Generator, effort: Effort) -> Result:
    """Fisher over recipients, two arms that are the same: what leakcheck does not do."""
    runs = effort.pick(400, 10_000)
    answers = WINDOWS * RECIPIENTS
    events = sum(
        evidence.fisher_one_sided(int(x.sum()), answers, int(y.sum()), answers) <= LEVEL
        for x, y in (_arms(rng) for _ in range(runs))
    )
    return share(
        "5a",
        "false alarms at 5 % of Fisher's test over recipients, correlation .3 within a window",
        events,
        runs,
        about=0.22,
        slack=0.03,
        note="what a test that ignores windows does; leakcheck has no such test",
    )


def windows_that_leak(rng: Generator, effort: Effort) -> Result:
    """Fisher over windows with any event."""
    runs = effort.pick(400, 10_000)
    events = sum(
        evidence.fisher_one_sided(int((x > 0).sum()), WINDOWS, int((y > 0).sum()), WINDOWS) <= LEVEL
        for x, y in (_arms(rng) for _ in range(runs))
    )
    return share("5b", "the same over windows", events, runs, at_most=LEVEL)


def windows_permuted(rng: Generator, effort: Effort) -> Result:
    """Recipients again, with whole windows permuted."""
    runs = effort.pick(80, 2000)
    windows = np.repeat(np.arange(2 * WINDOWS), RECIPIENTS)
    arms = windows < WINDOWS
    events = 0
    for _ in range(runs):
        counts = np.concatenate(_arms(rng))
        values = (np.arange(RECIPIENTS) < counts[:, None]).ravel().astype(float)
        p = evidence.permutation_by_window(
            values.tolist(), arms.tolist(), windows.tolist(), statistic=_more, rng=rng, rounds=199
        )
        events += p <= LEVEL
    claim = "the same over recipients, whole windows permuted"
    return share("5c", claim, events, runs, at_most=LEVEL)


def bound_covers(rng: Generator, effort: Effort) -> Result:
    """The upper bound of the leak rate over windows, with clustered leaks."""
    runs, windows, rate = effort.pick(1000, 50_000), 300, 0.01
    truth = _any_event(rate, ICC)
    counts = [int((_cluster(rng, windows, rate, ICC) > 0).sum()) for _ in range(runs)]
    bounds = {count: evidence.upper_bound(count, windows) for count in set(counts)}
    covered = sum(bounds[count] >= truth for count in counts)
    return share(
        "5d",
        f"the bound over {windows} windows covers the true share of windows that leak "
        f"({100 * truth:.2g} %)",
        covered,
        runs,
        at_least=0.95,
    )


def interval_covers(rng: Generator, effort: Effort) -> Result:
    """Two-sided intervals of the same."""
    runs, windows, rate = effort.pick(1000, 20_000), 100, 0.05
    truth = _any_event(rate, ICC)
    counts = [int((_cluster(rng, windows, rate, ICC) > 0).sum()) for _ in range(runs)]
    rates = {count: evidence.rate(count, windows) for count in set(counts)}
    covered = sum(rates[count].low <= truth <= rates[count].high for count in counts)
    return share(
        "5e", f"the interval over {windows} windows covers it", covered, runs, at_least=0.95
    )


def bootstrap_covers(rng: Generator, effort: Effort) -> Result:
    """What is said of recipients, as an estimate: whole windows drawn again."""
    runs, windows, rate = effort.pick(200, 3000), 100, 0.05
    covered = 0
    for _ in range(runs):
        counts = _cluster(rng, windows, rate, ICC)
        sizes = np.full(windows, RECIPIENTS)
        found = evidence.cluster_bootstrap(counts, sizes, rng=rng, rounds=400)
        covered += found.low <= rate <= found.high
    return share(
        "5f",
        "cluster bootstrap of a recipient rate of 5 %, 100 windows: covers",
        covered,
        runs,
        about=0.95,
        slack=0.05,
        note="an estimate for the report, no bound: a little short of 95 %, as bootstraps of rare "
        "events are",
    )


def none_of_many_recipients(rng: Generator, effort: Effort) -> Result:
    """Why 0 of 300 recipients is not a bound of 1 %."""
    runs, windows = effort.pick(2000, 100_000), round(300 / RECIPIENTS)
    none = sum(_cluster(rng, windows, 0.01, 0.5).sum() == 0 for _ in range(runs))
    return share(
        "5g",
        f"no leak seen in {windows * RECIPIENTS} recipients although 1 % of them leak "
        "(correlation .5); 5 % if they were independent",
        none,
        runs,
        about=0.55,
        slack=0.02,
    )


def _more(treated: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> float:
    return float(treated.mean() - others.mean())


def _arms(rng: Generator) -> tuple[Counts, Counts]:
    return _cluster(rng, WINDOWS, RATE, ICC), _cluster(rng, WINDOWS, RATE, ICC)


def _cluster(rng: Generator, windows: int, rate: float, icc: float) -> Counts:
    """Recipients with an event in each window: beta-binomial."""
    a, b = _beta(rate, icc)
    return rng.binomial(RECIPIENTS, rng.beta(a, b, size=windows))


def _beta(rate: float, icc: float) -> tuple[float, float]:
    size = 1 / icc - 1
    return rate * size, (1 - rate) * size


def _any_event(rate: float, icc: float) -> float:
    """The chance that a window has any."""
    a, b = _beta(rate, icc)
    log_none = math.lgamma(b + RECIPIENTS) - math.lgamma(b)
    log_none -= math.lgamma(a + b + RECIPIENTS) - math.lgamma(a + b)
    return 1 - math.exp(log_none)
