"""E-values of many simulated windows at once, made of `evidence.phantom_bets` and its like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from leakcheck import evidence

Logs = npt.NDArray[np.float64]


@cache
def phantom(planted: bool, showing: int, candidates: int) -> tuple[float, ...]:
    """The bets on a window with one source that shows."""
    return evidence.phantom_bets([(planted, showing, candidates)], sources=1)


def phantom_logs(planted: npt.NDArray[np.bool_], showing: Logs, candidates: int) -> Logs:
    """Logarithms of the bets, a row a window; a window in which nothing shows bets nothing."""
    quiet = (0.0,) * len(phantom(True, 1, candidates))
    rows = [
        tuple(map(math.log, phantom(bool(p), int(n), candidates))) if n else quiet
        for p, n in zip(planted, showing, strict=True)
    ]
    return np.array(rows)


def evidence_after(logs: Logs) -> Logs:
    """The logarithm of the e-value after each window: `evidence.merge` of all up to there."""
    total = np.cumsum(logs, axis=0)
    most = total.max(axis=1)
    return np.asarray(most + np.log(np.exp(total - most[:, None]).mean(axis=1)))


def first_reaching(logs: Logs, threshold: float) -> float:
    """The first window at which the e-value reaches a threshold, from 1; inf if it never does.

    `evidence.merge` is asked at that window and at the one before, so that what is counted is its
    decision.
    """
    reached = np.flatnonzero(evidence_after(logs) >= math.log(threshold))
    if not len(reached):
        return math.inf
    at = int(reached[0])
    if merged(logs[: at + 1]) < threshold * (1 - 1e-9) or merged(logs[:at]) > threshold:
        raise AssertionError(f"evidence.merge does not agree at window {at + 1}")
    return at + 1.0


def merged(logs: Logs) -> float:
    """`evidence.merge` of the windows that bet anything."""
    rows: Sequence[Sequence[float]] = np.exp(logs[np.any(logs != 0, axis=1)]).tolist()
    return evidence.merge(rows) if rows else 1.0
