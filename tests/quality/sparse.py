"""Claim 11: a rare gross failure, and how well several tests see it.

A trial is one answer of 128 tokens beside the reference; gaps and noise lie on the lattice of a
16-bit model. In some trials the logits are thrown about from some place on, with nobody's content
in them. The comparisons (KS, MMD on the mean difference of a trial) are what other tools use; the
rule for the gap at the first difference is leakcheck's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from scipy import stats

from leakcheck import evidence
from quality.values import Effort, Result, share

POSITIONS = 128
NEAR = 0.3
"""The share of places, in free text, at which two tokens are at all close."""
QUANTUM = 0.125
NOISE, THROWN = 0.05, 3.0
LEVEL = 0.01
NULL = 400
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """A number a trial: `gap` of the reference at the first difference (0 without one), `moved`,
    the mean difference of log-odds up to there; and whether it differs at all.
    """

    gap: Numbers
    moved: Numbers
    parts: npt.NDArray[np.bool_]


def gap_rule(rng: Generator, effort: Effort) -> Result:
    """The gap at the first difference of recipients with wide margins: what leakcheck sends."""
    return _gap(rng, effort.pick(40, 600), "11a", treated=40, share_of=0.1)


def gap_rule_rare(rng: Generator, effort: Effort) -> Result:
    """The same, 2 % of trials."""
    return _gap(rng, effort.pick(40, 600), "11b", treated=200, share_of=0.02)


def gap_rule_free_text(rng: Generator, effort: Effort) -> Result:
    """The same of recipients that write freely, a third of whose honest answers part."""
    runs, treated, share_of = effort.pick(40, 600), 40, 0.1
    events = sum(_gap_fires(rng, treated, share_of, NEAR) for _ in range(runs))
    return share(
        "11c",
        f"the same, free text: {share_of:.0%} of {treated} trials thrown about: power",
        events,
        runs,
        at_least=0.5,
        expected="(90 % was hoped for)",
        note="in free text half of what is thrown about parts at a near-tie first, and three times "
        "the largest honest gap is a high bar where noise has heavy tails: with 1 nat as the only "
        "bar about 84 % are found, and 5 % of honest runs suspected before replays (11d: with the "
        "bar as it is). This is why recipients have wide margins",
    )


def gap_rule_honest(rng: Generator, effort: Effort) -> Result:
    """The same where nothing is thrown about: before any replay."""
    runs = effort.pick(40, 600)
    events = sum(_gap_fires(rng, 200, 0.0, NEAR) for _ in range(runs))
    return share(
        "11d",
        "the same, free text of an honest target, 200 trials: suspected before any replay",
        events,
        runs,
        at_most=0.02,
    )


def kolmogorov_smirnov(rng: Generator, effort: Effort) -> Result:
    """KS on the mean difference of a trial."""
    return _rival(rng, effort.pick(40, 600), "11e", "KS", treated=40, share_of=0.1)


def maximum_mean_discrepancy(rng: Generator, effort: Effort) -> Result:
    """The same, with a permutation test on the energy distance."""
    return _rival(rng, effort.pick(60, 400), "11g", "MMD", treated=40, share_of=0.1)


def kolmogorov_smirnov_rare(rng: Generator, effort: Effort) -> Result:
    """KS, 2 % of trials."""
    return _rival(rng, effort.pick(40, 600), "11f", "KS", treated=200, share_of=0.02)


def _gap(rng: Generator, runs: int, number: str, *, treated: int, share_of: float) -> Result:
    events = sum(_gap_fires(rng, treated, share_of, 0.0) for _ in range(runs))
    claim = f"the rule for gaps, wide margins, {share_of:.0%} of {treated} trials thrown about"
    return share(number, f"{claim}: power", events, runs, at_least=0.9)


def _gap_fires(rng: Generator, treated: int, share_of: float, near: float) -> bool:
    null = _trials(rng, NULL, 0.0, near)
    seen = _trials(rng, treated, share_of, near)
    threshold = evidence.gap_threshold(QUANTUM, float(null.gap.max()), evidence.FLOOR_BF16)
    return bool((seen.gap > threshold).any())


def _rival(
    rng: Generator, runs: int, number: str, name: str, *, treated: int, share_of: float
) -> Result:
    events = 0
    for _ in range(runs):
        ours, theirs = (_trials(rng, treated, each, NEAR).moved for each in (share_of, 0.0))
        events += (_ks(ours, theirs) if name == "KS" else _mmd(rng, ours, theirs)) <= LEVEL
    claim = f"{name}, {share_of:.0%} of {treated} trials thrown about: power at 1 %, free text"
    return share(number, claim, events, runs, at_most=0.15)


def _ks(ours: Numbers, theirs: Numbers) -> float:
    return float(stats.ks_2samp(ours, theirs).pvalue)


def _mmd(rng: Generator, ours: Numbers, theirs: Numbers) -> float:
    pooled = np.concatenate([ours, theirs])
    scale = np.median(np.abs(pooled[:, None] - pooled[None]))
    kernel = np.exp(-(((pooled[:, None] - pooled[None]) / scale) ** 2))
    statistic = partial(_discrepancy, kernel)
    arms = np.repeat([1.0, -1.0], [len(ours), len(theirs)])
    seen = statistic(arms)
    drawn = [statistic(rng.permutation(arms)) for _ in range(199)]
    return (1 + sum(each >= seen for each in drawn)) / (1 + len(drawn))


def _discrepancy(kernel: Numbers, arms: Numbers) -> float:
    return float(arms @ kernel @ arms)


def _trials(rng: Generator, count: int, share_of: float, near: float) -> Trials:
    """Both answers have rounded logits; in some trials those in company are thrown about from some
    place on.
    """
    shape = count, POSITIONS
    close = rng.random(shape) < near
    gaps = np.where(close, rng.exponential(2.0, shape), rng.uniform(3, 8, shape))
    first, second = (_noise(rng, shape) for _ in range(2))
    thrown = np.flatnonzero(rng.random(count) < share_of)
    for row, place in zip(thrown, rng.integers(0, POSITIONS, len(thrown)), strict=True):
        second[row, place:] += THROWN * rng.standard_normal(POSITIONS - place)
    reference, company = _rounded(gaps + first), _rounded(gaps + second)
    leads = np.sign(reference) + (reference == 0)  # of two equal ones the reference takes the first
    other = np.where(rng.random(shape) < 0.5, 1.0, -1.0)  # whose index is lower is anyone's guess
    picks = np.where(company == 0, np.where(reference == 0, leads, leads * other), np.sign(company))
    parts = picks != leads
    at = np.where(parts.any(axis=1), parts.argmax(axis=1), POSITIONS - 1)
    rows = np.arange(count)
    together = np.arange(POSITIONS) <= at[:, None]
    moved = np.abs(company - reference)
    return Trials(
        gap=np.where(parts.any(axis=1), np.abs(reference[rows, at]), 0.0),
        moved=(moved * together).sum(axis=1) / together.sum(axis=1),
        parts=parts.any(axis=1),
    )


def _noise(rng: Generator, shape: tuple[int, int]) -> Numbers:
    """Heavy tails, and runs that are noisier than others."""
    scale = NOISE * rng.lognormal(0.0, 0.3, (shape[0], 1))
    return np.asarray(scale * rng.standard_t(4, shape))


def _rounded(values: Numbers) -> Numbers:
    return np.round(values / QUANTUM) * QUANTUM
