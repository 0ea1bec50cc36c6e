"""One claim that was tried, and how much is tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

ERRORS_ALLOWED = 3.0
"""Standard errors by which a figure may miss what is expected of it."""

FEW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is simulated: `long` for the published figures, else for every test run."""

    long: bool = False

    def pick(self, short: int, long: int) -> int:
        """The number that goes with this effort."""
        return long if self.long else short


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A row of the table. `number` is that of the claim and a letter for its parts.

    `measured` and `standard_error` are None where nothing was measured, `holds` where there is
    nothing to hold. `unit`: `%` (a share, kept as 0..1) or what it counts. `note`: what the figure
    leaves out, or where it differs from what was expected.
    """

    number: str
    claim: str
    expected: str
    measured: float | None
    standard_error: float | None
    trials: int
    holds: bool | None
    unit: str = "%"
    note: str = ""


Claim = Callable[[Generator, Effort], Result]


def share(
    number: str,
    claim: str,
    events: int,
    trials: int,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    about: float | None = None,
    slack: float = 0.0,
    errors: float = ERRORS_ALLOWED,
    expected: str = "",
    note: str = "",
) -> Result:
    """A share of trials against a limit or an expected value.

    A limit is missed where the share is beyond it by more than `errors` standard errors (of a share
    that lies at the limit); an expected value where it is further off than that plus `slack`.
    """
    measured = events / trials
    says, holds = [], True
    for word, limit, sign in (("at most", at_most, 1), ("at least", at_least, -1)):
        if limit is not None:
            says.append(f"{word} {percent(limit)}")
            holds &= sign * (measured - limit) <= errors * binomial_error(limit, trials)
    if about is not None:
        says.append(f"about {percent(about)}")
        holds &= abs(measured - about) <= slack + errors * binomial_error(about, trials)
    return Result(
        number=number,
        claim=claim,
        expected=expected or ", ".join(says),
        measured=measured,
        standard_error=binomial_error((events + 0.5) / (trials + 1), trials),
        trials=trials,
        holds=holds,
        note=note,
    )


def quantile(
    number: str,
    claim: str,
    values: Sequence[float],
    level: float,
    *,
    unit: str,
    about: float | None = None,
    at_most: float | None = None,
    slack: float = 0.0,
    note: str = "",
) -> Result:
    """A quantile of simulated values (inf: never) against what is expected of it."""
    ordered = np.sort(np.asarray(values, dtype=float))
    measured, error = float(ordered[_rank(level, len(ordered))]), quantile_error(ordered, level)
    says, holds = "", True
    if about is not None:
        says = f"about {about:g}"
        holds = abs(measured - about) <= slack + ERRORS_ALLOWED * error
    if at_most is not None:
        says = f"at most {at_most:g}"
        holds = measured <= at_most + ERRORS_ALLOWED * error
    return Result(
        number=number,
        claim=claim,
        expected=says,
        measured=measured,
        standard_error=error,
        trials=len(ordered),
        holds=bool(holds),
        unit=unit,
        note=note,
    )


def exactly(number: str, claim: str, expected: float, measured: float, unit: str) -> Result:
    """A figure that no chance touches."""
    return Result(
        number=number,
        claim=claim,
        expected=f"exactly {expected:g}",
        measured=measured,
        standard_error=0.0,
        trials=1,
        holds=measured == expected,
        unit=unit,
    )


def binomial_error(probability: float, trials: int) -> float:
    """Standard error of a share."""
    return math.sqrt(max(0.0, probability * (1 - probability)) / trials)


def quantile_error(ordered: np.ndarray, level: float) -> float:
    """Standard error of a quantile, from the order statistics a binomial error on either side; of
    few values half of their range, of one it is not known (inf).
    """
    size = len(ordered)
    if size < FEW:
        return float(ordered[-1] - ordered[0]) / 2 if size > 1 else math.inf
    off = binomial_error(level, size)
    low = float(ordered[_rank(max(0.0, level - off), size)])
    high = float(ordered[_rank(min(1.0, level + off), size)])
    return (high - low) / 2 if math.isfinite(high) else math.inf


def _rank(level: float, size: int) -> int:
    return min(size - 1, max(0, math.ceil(level * size) - 1))


def percent(value: float) -> str:
    """A share as text."""
    return f"{100 * value:.3g} %"
