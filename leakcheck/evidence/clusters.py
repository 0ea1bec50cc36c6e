"""Rates of requests, whose windows are the clusters: estimates for the report, never a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leakcheck.evidence.bounds import CONFIDENCE, require_counts, require_share, upper_bound

LEAST_WINDOWS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRate:
    """`events` of `trials` in `windows`, with an interval that allows for what a window shares."""

    events: int
    trials: int
    windows: int
    low: float
    high: float
    confidence: float

    @property
    def value(self) -> float:
        """The plain fraction."""
        return self.events / self.trials


def cluster_bootstrap(
    events: ArrayLike,
    trials: ArrayLike,
    *,
    rng: np.random.Generator,
    rounds: int = 2000,
    confidence: float = CONFIDENCE,
) -> ClusterRate:
    """The rate of `events` among requests, with a two-sided percentile interval.

    One entry for each window: requests with the event, and requests. Whole windows are drawn with
    replacement, `rounds` times (Davison and Hinkley, Bootstrap Methods, 1997, 3.8): answers of one
    window share a batch and a bug, and an interval over single answers would be too narrow by the
    root of 1 + (size - 1) * correlation. Where no request (or each one) has the event, resampling
    shows nothing else; that end of the interval is then the Clopper-Pearson bound over windows,
    times the largest window over the mean one. An estimate: approximate, and too narrow where few
    windows have an event. Raises ValueError below 30 windows with trials, for entries of unlike
    number, impossible counts and rounds below 1.
    """
    require_share("confidence", confidence)
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; at least 1 is needed")
    hits, of = (
        np.asarray(events, dtype=np.int64).ravel(),
        np.asarray(trials, dtype=np.int64).ravel(),
    )
    if len(hits) != len(of):
        raise ValueError(f"{len(hits)} events and {len(of)} trials; one each is needed")
    for wrong in np.flatnonzero((hits < 0) | (hits > of))[:1]:
        require_counts(int(hits[wrong]), int(of[wrong]))
    hits, of = hits[of > 0], of[of > 0]
    windows = len(of)
    if windows < LEAST_WINDOWS:
        raise ValueError(f"{windows} windows; a bootstrap needs at least {LEAST_WINDOWS}")
    drawn = rng.multinomial(windows, np.full(windows, 1 / windows), size=rounds)
    tail = (1 - confidence) / 2
    low, high = np.quantile((drawn @ hits) / (drawn @ of), (tail, 1 - tail))
    unseen = min(1.0, upper_bound(0, windows, 1 - tail) * float(of.max() / of.mean()))
    total, size = int(hits.sum()), int(of.sum())
    return ClusterRate(
        events=total,
        trials=size,
        windows=windows,
        low=1 - unseen if total == size else float(low),
        high=unseen if total == 0 else float(high),
        confidence=confidence,
    )
