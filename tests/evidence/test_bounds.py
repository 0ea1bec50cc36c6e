"""Exact statistics against published values, scipy's own tests and full enumeration."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

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


@given(COUNTS, COUNTS)
def test_fisher_agrees_with_scipy(arm, other):
    table = [[arm[0], arm[1] - arm[0]], [other[0], other[1] - other[0]]]
    wanted = stats.fisher_exact(table, alternative="greater").pvalue
    assert evidence.fisher_one_sided(*arm, *other) == pytest.approx(wanted, rel=1e-6, abs=1e-12)


def test_seven_events_against_none_are_needed_in_equal_arms_for_one_percent():
    assert evidence.fisher_one_sided(7, 1000, 0, 1000) < 0.01
    assert evidence.fisher_one_sided(6, 1000, 0, 1000) > 0.01


def test_an_empty_arm_decides_nothing():
    assert evidence.fisher_one_sided(3, 10, 0, 0) == 1.0
    assert evidence.fisher_one_sided(0, 0, 3, 10) == 1.0


@pytest.mark.parametrize("counts", [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match=f"{counts[0]} events of {counts[1]} trials"):
        evidence.rate(*counts)


def test_a_rate_that_was_always_seen_has_a_lower_bound_below_one():
    assert evidence.rate(60, 60).lower == pytest.approx(math.exp(math.log(0.05) / 60))
