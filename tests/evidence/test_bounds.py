"""Exact statistics against published values, scipy's own tests and full enumeration."""

import bisect
import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from leakcheck import evidence

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_no_event_in_299_windows_excludes_a_leak_rate_of_one_percent():
    assert evidence.rate(0, 299).upper == pytest.approx(0.009969, abs=1e-6)
    assert evidence.rate(0, 298).upper > 0.01


def test_no_event_in_300_windows_gives_the_published_bounds():
    rate = evidence.rate(0, 300)
    assert rate.upper == pytest.approx(0.00994, abs=5e-6)
    assert rate.high == pytest.approx(0.0122, abs=5e-5)
    assert (rate.low, rate.lower) == (0.0, 0.0)


def test_no_trial_says_nothing():
    rate = evidence.rate(0, 0)
    assert (rate.low, rate.high, rate.lower, rate.upper) == (0.0, 1.0, 0.0, 1.0)
    assert rate.value is None


@given(COUNTS)
def test_the_interval_is_that_of_the_exact_binomial_test(counts):
    events, trials = counts
    rate = evidence.rate(events, trials)
    wanted = stats.binomtest(events, trials).proportion_ci(0.95, method="exact")
    assert (rate.low, rate.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


@given(COUNTS)
def test_one_sided_bounds_lie_inside_the_two_sided_interval_and_around_the_fraction(counts):
    rate = evidence.rate(*counts)
    assert rate.low <= rate.lower <= rate.value <= rate.upper <= rate.high


@given(COUNTS)
def test_bounds_of_the_complement_are_mirrored(counts):
    events, trials = counts
    mirrored = 1 - evidence.lower_bound(trials - events, trials)
    assert evidence.upper_bound(events, trials) == pytest.approx(mirrored, abs=1e-9)


@given(st.integers(1, 30), st.floats(0.001, 0.999))
def test_the_upper_bound_covers_the_true_rate_in_at_least_95_percent_of_all_outcomes(trials, true):
    covered = sum(
        stats.binom.pmf(events, trials, true)
        for events in range(trials + 1)
        if evidence.upper_bound(events, trials) >= true
    )
    assert covered >= 0.95 - 1e-9


@given(st.integers(1, 30), st.floats(0.001, 0.999))
def test_the_two_sided_interval_covers_the_true_rate_in_at_least_95_percent(trials, true):
    rates = [evidence.rate(events, trials) for events in range(trials + 1)]
    covered = sum(stats.binom.pmf(r.events, trials, true) for r in rates if r.low <= true <= r.high)
    assert covered >= 0.95 - 1e-9


@pytest.mark.parametrize(
    ("leak_rate", "power", "windows"),
    [(0.05, 0.8, 32), (0.05, 0.95, 59), (0.01, 0.9, 230), (0.01, 0.95, 299), (0.001, 0.95, 2995)],
)
def test_windows_needed_are_the_published_ones(leak_rate, power, windows):
    assert evidence.windows_needed(leak_rate, power) == windows


@given(st.floats(1e-4, 0.9), st.floats(0.01, 0.999))
def test_windows_needed_suffice_and_one_fewer_does_not(leak_rate, power):
    windows = evidence.windows_needed(leak_rate, power)
    assert 1 - (1 - leak_rate) ** windows >= power - 1e-6
    assert windows == 1 or 1 - (1 - leak_rate) ** (windows - 1) < power + 1e-6


def test_a_certain_leak_rate_is_refused():
    with pytest.raises(ValueError, match=r"leak_rate is 1\.0"):
        evidence.windows_needed(1.0)


@pytest.mark.parametrize("counts", [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match=f"{counts[0]} events of {counts[1]} trials"):
        evidence.rate(*counts)


def test_a_rate_that_was_always_seen_has_a_lower_bound_below_one():
    assert evidence.rate(60, 60).lower == pytest.approx(math.exp(math.log(0.05) / 60))


PROPORTIONS = st.floats(1e-6, 1 - 1e-6)


@given(COUNTS, PROPORTIONS)
def test_bounds_grow_with_the_events(counts, confidence):
    events, trials = counts
    more = min(events + 1, trials)
    for bound in (evidence.lower_bound, evidence.upper_bound, evidence.running_lower_bound):
        assert bound(events, trials, confidence) <= bound(more, trials, confidence) + 1e-12


@given(COUNTS, st.floats(0.5, 0.99), st.floats(0.5, 0.99))
def test_more_confidence_gives_wider_bounds(counts, one, another):
    less, more = sorted((one, another))
    assert evidence.lower_bound(*counts, more) <= evidence.lower_bound(*counts, less) + 1e-12
    assert evidence.upper_bound(*counts, more) >= evidence.upper_bound(*counts, less) - 1e-12
    running = evidence.running_lower_bound
    assert running(*counts, more) <= running(*counts, less) + 1e-12


@given(COUNTS)
def test_more_trials_without_an_event_lower_the_upper_bound(counts):
    events, trials = counts
    assert evidence.upper_bound(events, trials + 1) <= evidence.upper_bound(events, trials)


@given(COUNTS, PROPORTIONS)
def test_a_bound_for_every_look_is_never_above_that_for_one_look(counts, confidence):
    running = evidence.running_lower_bound(*counts, confidence)
    assert 0 <= running <= evidence.lower_bound(*counts, confidence)


@given(COUNTS, PROPORTIONS)
def test_the_running_bound_is_where_the_mixture_reaches_its_limit(counts, confidence):
    events, trials = counts
    p = evidence.running_lower_bound(events, trials, confidence)
    if p < 1e-12:
        return
    misses = trials - events
    mixture = special.betaln(0.5 + events, 0.5 + misses) - special.betaln(0.5, 0.5)
    reached = mixture - special.xlogy(events, p) - special.xlog1py(misses, -p)
    assert reached == pytest.approx(-math.log1p(-confidence), abs=1e-6)


def test_one_lost_echo_of_501_keeps_the_running_bound_above_97_percent():
    assert (
        0.97 < evidence.running_lower_bound(500, 501, 0.99) < evidence.lower_bound(500, 501, 0.99)
    )


def _least_above(true, trials):
    """The fewest events whose running bound lies above the true rate."""
    running = functools.partial(evidence.running_lower_bound, trials=trials)
    return bisect.bisect(range(trials + 1), true, key=running)


@pytest.mark.parametrize("true", [0.02, 0.5, 0.97])
def test_a_running_bound_is_ever_above_the_rate_in_at_most_5_percent_of_runs(true):
    """600 runs of 1000 trials, looked at 154 times; the standard error at 5 % is 0.9 %."""
    rng = np.random.default_rng(20)
    seen = (rng.random((600, 1000)) < true).cumsum(axis=1)
    looks = np.array([*range(1, 60), *range(60, 1001, 10)])
    too_many = np.array([_least_above(true, n) for n in looks.tolist()])
    assert (seen[:, looks - 1] >= too_many).any(axis=1).mean() <= 0.05


def test_entropy_is_that_of_the_published_table():
    assert evidence.entropy_needed(64 * 63, 1000, 8) == pytest.approx(54.8, abs=0.1)
    assert evidence.entropy_needed(1000 * 999, 2000, 16) == pytest.approx(64.8, abs=0.1)
    assert evidence.entropy_needed(1000 * 999 * 10_000, 2000, 16) == pytest.approx(78.1, abs=0.1)


@given(st.integers(1, 10**9), st.integers(1, 10**5), st.integers(1, 100), st.floats(1e-12, 0.1))
def test_that_many_bits_keep_the_union_bound(pairs, starts, variants, false_match):
    bits = evidence.entropy_needed(pairs, starts, variants, false_match)
    assert pairs * starts * variants / 2**bits == pytest.approx(false_match)


def test_no_pairs_are_refused():
    with pytest.raises(ValueError, match="pairs is 0; it must be at least 1"):
        evidence.entropy_needed(0, 1000, 8)


@pytest.mark.parametrize(
    "bound", [evidence.lower_bound, evidence.upper_bound, evidence.running_lower_bound]
)
def test_certainty_is_refused(bound):
    with pytest.raises(ValueError, match="confidence is 1; it must lie strictly between 0 and 1"):
        bound(3, 10, 1)
