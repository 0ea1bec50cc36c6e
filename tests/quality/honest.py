"""Claims 2 and 3: an honest target of which a third of the answers differ in company.

A run is a whole mixed-batch-differential: 60 windows of 4 recipients, alone twice and in three
companies, and the replays that the decision asks for. Logits are rounded to an eighth and err with
heavy tails (t with 3 degrees of freedom); half of the error, in variance, comes back with the shape
of the batch, as that of kernels does, the rest is fresh. What is decided, and which replays are
sent, is left to leakcheck's own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from leakcheck.checks import _mixed, _suspects
from leakcheck.checks._mixed import Trial
from leakcheck.checks._suspects import Replays, Suspect
from leakcheck.checks._trajectories import Comparison
from leakcheck.traffic.mixed_batch import (
    ALONE,
    ALONE_AGAIN,
    COMPANIES,
    NEUTRAL,
    OTHER_NEUTRAL,
    PLANTED,
)
from quality.values import Effort, Result, share

WINDOWS, RECIPIENTS, POSITIONS = 60, 4, 64
PAYLOADS = WINDOWS * RECIPIENTS
QUANTUM, TOP = 0.125, 20.0
NEAR = 0.3
SCALE, TAILS = 0.055, 3
LIMIT = 0.01
RUNS = 1500
CELLS = (ALONE, ALONE_AGAIN, *COMPANIES)
Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers to payloads, a row each: whether each place takes the first of two tokens, and how
    far the logits of the two are apart.
    """

    first: Flags
    gap: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An honest target, and the payloads of one run. `gaps` [payloads, places] lie between the two
    likeliest tokens, `lower` says whose index is lower, which decides ties. `again` is the part of
    the error that comes back, by cell: one for alone, one for all companies; or one for each
    company, as no honest target has it.
    """

    rng: Generator
    gaps: Numbers
    lower: Flags
    again: dict[str, Numbers]

    def answers(self, cell: str, payload: int | None = None, times: int = 1) -> Answers:
        """To all payloads once, or to one of them so many times."""
        own, lower, again = self.gaps, self.lower, self.again[cell]
        if payload is not None:
            own, lower, again = own[[payload]], lower[[payload]], again[:, [payload]]
        fresh = self.rng.standard_t(TAILS, (2, max(times, len(own)), POSITIONS))
        error = SCALE * (again + fresh) / 2**0.5
        first = np.round((TOP + error[0]) / QUANTUM)
        second = np.round((TOP - own + error[1]) / QUANTUM)
        gap = (first - second) * QUANTUM
        return Answers(first=np.where(gap == 0, lower, gap > 0), gap=np.abs(gap))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of one run: `diverged` of `PAYLOADS` planted answers differ from those alone."""

    accused: bool
    suspected: bool
    diverged: int


def accused(rng: Generator, effort: Effort) -> Result:
    """A verdict of corruption; a leak would take somebody's content, and there is none."""
    runs = [_run(rng) for _ in range(effort.pick(10, RUNS))]
    diverged = sum(each.diverged for each in runs) / len(runs) / PAYLOADS
    return share(
        "2a",
        f"an honest target, {PAYLOADS} answers in planted company: called corrupt",
        sum(each.accused for each in runs),
        len(runs),
        at_most=LIMIT,
        errors=0,
        note=f"{100 * diverged:.0f} % of its answers in company differ from those alone",
    )


def suspected(rng: Generator, effort: Effort) -> Result:
    """Why there are replays."""
    runs = [_run(rng) for _ in range(effort.pick(10, RUNS))]
    return share(
        "2b",
        "the same: some difference suspected, so that replays are sent",
        sum(each.suspected for each in runs),
        len(runs),
        at_most=0.3,
        expected="(more than 2a)",
    )


def accused_by_company(rng: Generator, effort: Effort) -> Result:
    """A target whose rounding follows the very texts of the company: no kernel does that."""
    runs = [_run(rng, follows=True) for _ in range(effort.pick(10, RUNS))]
    return share(
        "2c",
        "the same, if its rounding followed what companions say, not how many they are",
        sum(each.accused for each in runs),
        len(runs),
        at_most=0.1,
        expected="(no promise)",
        note="companies whose prompts have other lengths in tokens come to such a target as other "
        "shapes of the batch; replays of one company against one other cannot tell that from "
        "content, and only the threshold keeps the target from being accused",
    )


def any_difference(rng: Generator, effort: Effort) -> Result:
    """What calling any difference a leak would make of the same runs."""
    runs = [_run(rng) for _ in range(effort.pick(10, 300))]
    return share(
        "3a",
        f'an honest target, "any difference is a leak", {PAYLOADS} answers: accused',
        sum(each.diverged > 0 for each in runs),
        len(runs),
        at_least=0.99,
        errors=0,
    )


def any_difference_of_few(rng: Generator, effort: Effort) -> Result:
    """The same with forty answers."""
    runs, few, events = effort.pick(10, 300), 40, 0
    for _ in range(runs):
        target = _target(rng, follows=False)
        alone, mixed = target.answers(ALONE), target.answers(PLANTED)
        events += bool((alone.first[:few] != mixed.first[:few]).any())
    claim = f"the same, {few} answers"
    return share("3b", claim, events, runs, at_least=0.99, errors=0)


# --- one run -------------------------------------------------------------------------------------


def _run(rng: Generator, *, follows: bool = False) -> Run:
    target = _target(rng, follows=follows)
    answers = {cell: target.answers(cell) for cell in CELLS}
    trials = [_trial(answers, payload) for payload in range(PAYLOADS)]
    rule = _mixed.threshold(cast("Any", _Silent()), trials)
    found = _suspects.suspects(trials, rule)
    level = _suspects.level(found)
    confirmed = any(
        _suspects.confirmed(each, _replayed(target, answers, each, level), level) for each in found
    )
    planted = [each.compared[PLANTED] for each in trials]
    return Run(
        accused=confirmed,
        suspected=bool(found),
        diverged=sum(each.at is not None for each in planted),
    )


class _Silent:
    """A history that has no log-probabilities to show: the type of the logits is not known then,
    and the threshold that of the coarsest, which is this target's.
    """

    def answer(self, request_id: str) -> None:
        """None of any request."""


def _target(rng: Generator, *, follows: bool) -> Target:
    shape = PAYLOADS, POSITIONS
    near = rng.random(shape) < NEAR
    once, shared = (rng.standard_t(TAILS, (2, *shape)) for _ in range(2))
    again = {ALONE: once, ALONE_AGAIN: once}
    for cell in COMPANIES:
        again[cell] = rng.standard_t(TAILS, (2, *shape)) if follows else shared
    return Target(
        rng=rng,
        gaps=np.where(near, rng.exponential(2.0, shape), rng.uniform(3, 8, shape)),
        lower=rng.random(shape) < 0.5,
        again=again,
    )


def _trial(answers: dict[str, Answers], payload: int) -> Trial:
    rows = {cell: _row(each, payload) for cell, each in answers.items()}
    return Trial(
        window=payload // RECIPIENTS,
        free=True,
        sent={cell: f"{payload} {cell}" for cell in CELLS},
        compared={cell: _compared(rows[ALONE], rows[cell]) for cell in CELLS[1:]},
        neutrals=_compared(rows[NEUTRAL], rows[OTHER_NEUTRAL]),
    )


def _row(answers: Answers, row: int) -> Answers:
    return Answers(first=answers.first[row], gap=answers.gap[row])


def _compared(reference: Answers, other: Answers) -> Comparison:
    """Where two answers part, and by how much the reference preferred its own token."""
    parts = np.flatnonzero(reference.first != other.first)
    if not len(parts):
        return Comparison(at=None)
    at = int(parts[0])
    return Comparison(at=at, took=f"{bool(other.first[at])}", gap=float(reference.gap[at]))


def _replayed(
    target: Target, answers: dict[str, Answers], suspect: Suspect, level: float
) -> Replays:
    """Every replay that `_suspects.more` asks for, answered."""
    payload = int(suspect.request.split()[0])
    reference = _row(answers[ALONE], payload)
    counts = Replays(
        planned=0,
        same=0,
        same_again=0,
        other=0,
        other_again=0,
        margins=0,
        hot=0,
        hot_otherwise=0,
    )
    while True:
        numbers, hot = _suspects.more(suspect, counts, level)
        if not numbers and not hot:
            return counts
        assert not hot, "the gap is known, so nothing is sent at temperature 1"
        again = [0, 0]
        for place, company in enumerate((suspect.company, suspect.other)):
            seen = target.answers(company, payload, len(numbers))
            ways = [_compared(reference, _row(seen, n)).way for n in range(len(numbers))]
            again[place] = sum(way == suspect.comparison.way for way in ways)
        counts = Replays(
            planned=counts.planned + len(numbers),
            same=counts.same + len(numbers),
            same_again=counts.same_again + again[0],
            other=counts.other + len(numbers),
            other_again=counts.other_again + again[1],
            margins=0,
            hot=0,
            hot_otherwise=0,
        )
