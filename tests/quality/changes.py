"""Claim 10: a probe that runs for ever, by e-SR: rare false alarms, and how late the right one is.

R = (1 + R) L after every probe, L the likelihood ratio of a leak in 1 % of probes against what a
false match makes of them; alarm at R >= A.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from leakcheck import evidence
from quality.values import Effort, Result, quantile, share

LEAK = 0.01
SURE = 1e6
LATE = "563 were expected; that was too few: 10,000 runs of the same recursion have 678"


def run_length(rng: Generator, effort: Effort) -> Result:
    """The mean number of probes to a false alarm is at least A."""
    limit, base, longest = 1e3, 1e-3, 60_000
    lengths = [
        min(_alarm(rng, base, base, longest, limit), longest) for _ in range(effort.pick(60, 2000))
    ]
    mean = float(np.mean(lengths))
    error = float(np.std(lengths, ddof=1)) / math.sqrt(len(lengths))
    return Result(
        number="10a",
        claim="mean run length to a false alarm, A = 1,000",
        expected="at least 1,000",
        measured=mean,
        standard_error=error,
        trials=len(lengths),
        holds=mean + 3 * error >= limit,
        unit="probes",
        note=f"streams were cut at {longest:,} probes, which makes the mean too small if anything",
    )


def false_alarm(rng: Generator, effort: Effort) -> Result:
    """R - t is a martingale: P(alarm within m) <= m / A."""
    probes, base = 20_000, 1e-4
    runs = effort.pick(60, 4000)
    events = sum(math.isfinite(_alarm(rng, base, base, probes, SURE)) for _ in range(runs))
    return share(
        "10b",
        "false alarm within 20,000 probes, A = 1,000,000",
        events,
        runs,
        at_most=probes / SURE,
    )


def delay(rng: Generator, effort: Effort) -> Result:
    """Half of the alarms."""
    times = _delays(rng, effort.pick(200, 10_000))
    claim = "delay at a leak in 1 % of probes, false matches in 0.01 %, half of the runs"
    return quantile("10c", claim, times, 0.5, unit="probes", about=270, slack=8)


def late_delay(rng: Generator, effort: Effort) -> Result:
    """Nearly all alarms."""
    times = _delays(rng, effort.pick(200, 10_000))
    claim = "the same, 95 % of the runs"
    return quantile(
        "10d",
        claim,
        times,
        0.95,
        unit="probes",
        about=678,
        slack=15,
        note=LATE,
    )


def _delays(rng: Generator, runs: int) -> list[float]:
    return [_alarm(rng, LEAK + 1e-4, 1e-4, 5000, SURE) for _ in range(runs)]


def _alarm(rng: Generator, rate: float, base: float, probes: int, limit: float) -> float:
    """The probe that alarms, from 1; inf if none does."""
    hit, miss = (evidence.likelihood_ratio(x, base, LEAK) for x in (1, 0))
    values = np.where(rng.random(probes) < rate, hit, miss)
    for at, level in enumerate(evidence.shiryaev_roberts(values.tolist()), start=1):
        if level >= limit:
            return float(at)
    return math.inf
