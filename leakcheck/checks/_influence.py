"""Whether it matters to answers which company has the passphrases, however little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakcheck import evidence
from leakcheck.checks._mixed import Trial
from leakcheck.traffic.mixed_batch import COMPANIES, PLANTED

ALPHA = 0.01
ROUNDS = 9999
SEED = 0
"""Of the permutations: the same run gets the same figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """The p-values, adjusted by Holm's method, of more differences from the answer alone in planted
    company, and of larger differences of log-probabilities before; over so many windows.
    """

    windows: int
    diverged: float
    drift: float

    @property
    def p(self) -> float:
        """The smaller of the two."""
        return min(self.diverged, self.drift)


def influence(trials: Sequence[Trial]) -> Influence:
    """The randomisation test: the three companies of a window came in random order, with texts
    drawn at random in much the same shape, so that which of them is the planted one is chance,
    unless it matters what the companions say, or that they say passphrases.
    p = (1 + draws at least as large) / (rounds + 1).
    """
    by_window: dict[int, list[Trial]] = {}
    for trial in trials:
        if all(cell in trial.compared for cell in COMPANIES):
            by_window.setdefault(trial.window, []).append(trial)
    of = list(by_window.values())
    diverged = [
        [sum(t.compared[cell].at is not None for t in window) for cell in COMPANIES]
        for window in of
    ]
    drift = [
        [max(t.compared[cell].drift or 0.0 for t in window) for cell in COMPANIES] for window in of
    ]
    rng = np.random.default_rng(SEED)
    p_values = [_permuted(np.array(each, float), rng) for each in (diverged, drift)]
    adjusted = evidence.holm(p_values)
    return Influence(windows=len(of), diverged=adjusted[0], drift=adjusted[1])


def _permuted(values: NDArray[np.float64], rng: np.random.Generator) -> float:
    """The chance of so large a sum in the planted column, if within each row any column might be
    the planted one. 1.0 where columns do not differ.
    """
    if not values.size or not np.ptp(values, axis=1).any():
        return 1.0
    values = values - values.mean(axis=1, keepdims=True)
    seen = values[:, COMPANIES.index(PLANTED)].sum()
    seen -= 1e-9 * max(1.0, abs(seen))  # the same sum in another order counts as equal
    as_large = 0
    for _ in range(ROUNDS):
        columns = rng.integers(values.shape[1], size=len(values))
        as_large += bool(values[np.arange(len(values)), columns].sum() >= seen)
    return (1 + as_large) / (ROUNDS + 1)
