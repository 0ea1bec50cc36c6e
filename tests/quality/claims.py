"""The twelve claims: every function that tries a part of one, in the order of the table."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from quality import (
    certificates,
    changes,
    clusters,
    honest,
    inside,
    peeking,
    phantoms,
    settled,
    sparse,
    times,
    verbatim,
)
from quality.values import Claim, Effort, Result


def not_built(_rng: Generator, _effort: Effort) -> Result:
    """Claim 9 waits for its subject."""
    return Result(
        number="9a",
        claim="the exact smallest set of requests is found in at least 95 % of reductions",
        expected="at least 95 %",
        measured=None,
        standard_error=None,
        trials=0,
        holds=None,
        note="not built yet: leakcheck has no reduction to the smallest traffic that still leaks; "
        "when it has, it is tried here at chances of 0.1, 0.3 and 0.7 that a leak shows again",
    )


SIMULATED: tuple[Claim, ...] = (
    verbatim.per_pair,
    verbatim.biased,
    verbatim.per_run,
    honest.accused,
    honest.suspected,
    honest.accused_by_company,
    honest.any_difference,
    honest.any_difference_of_few,
    times.verbatim_median,
    times.verbatim_late,
    times.phantom_median,
    times.phantom_sure,
    times.phantom_noisy,
    times.phantom_noisy_sure,
    times.two_arms,
    clusters.answers_as_if_independent,
    clusters.windows_that_leak,
    clusters.windows_permuted,
    clusters.bound_covers,
    clusters.interval_covers,
    clusters.bootstrap_covers,
    clusters.none_of_many_recipients,
    phantoms.exact_test,
    phantoms.exact_test_arbitrary,
    phantoms.e_value,
    phantoms.e_value_favourite,
    phantoms.directed,
    phantoms.directed_arbitrary,
    settled.altered_tiers,
    peeking.phantoms,
    peeking.phantoms_often,
    peeking.directed,
    peeking.mixture,
    peeking.signs,
    peeking.running_bound,
    peeking.fisher,
    settled.evidence_although_honest,
    certificates.leaking_passes,
    certificates.leaking_passes_mixture,
    certificates.leaking_more_passes_mixture,
    certificates.clean_passes,
    certificates.clean_passes_mixture,
    settled.certified_although_leaking,
    settled.windows_to_clean,
    not_built,
    changes.run_length,
    changes.false_alarm,
    changes.delay,
    changes.late_delay,
    sparse.gap_rule,
    sparse.gap_rule_rare,
    sparse.gap_rule_free_text,
    sparse.gap_rule_honest,
    sparse.kolmogorov_smirnov,
    sparse.kolmogorov_smirnov_rare,
    sparse.maximum_mean_discrepancy,
    inside.foreign_float32,
    inside.foreign_bfloat16,
    inside.positions_float32,
    inside.positions_bfloat16,
    inside.mask_float32,
    inside.mask_bfloat16,
    inside.healthy,
)
"""What needs no target; each gets a random generator of its own."""


def name_of(claim: Claim) -> str:
    """Where a claim stands: its file and function."""
    return f"{claim.__module__.rpartition('.')[2]}.{claim.__name__}"


def order(result: Result) -> tuple[float, str]:
    """The order of rows."""
    digits = "".join(c for c in result.number if c.isdigit())
    return float(digits or math.inf), result.number


def try_one(name: str, effort: Effort, seed: int) -> Result:
    """One claim, with random numbers that depend on its name and the seed alone."""
    claim = next(each for each in SIMULATED if name_of(each) == name)
    return claim(np.random.default_rng([seed, *name.encode()]), effort)


def try_alone(name: str, effort: Effort, seed: int) -> list[Result]:
    """As `try_one`, in a list like those that end to end makes."""
    return [try_one(name, effort, seed)]
