"""Arms and levels: scipy's own tests, full enumeration, and short simulations with a fixed seed."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakcheck import evidence

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
LEVELS = np.repeat([2, 4, 8, 16], 60)
ONE_EACH = np.ones(240)


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


@given(COUNTS, st.floats(0, 1))
def test_the_binomial_tail_agrees_with_scipy(counts, probability):
    events, trials = counts
    wanted = stats.binom.sf(events - 1, trials, probability)
    found = evidence.at_least(events, trials, probability)
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-300)


def test_a_probability_above_1_is_certain_and_one_below_0_refused():
    assert evidence.at_least(3, 3, 1.5) == 1.0
    with pytest.raises(
        ValueError, match=r"probability is -0\.5; it must be a number of at least 0"
    ):
        evidence.at_least(1, 3, -0.5)


def test_signs_are_those_of_the_binomial_test():
    assert evidence.sign_one_sided(7, 0) == pytest.approx(1 / 128)
    assert evidence.sign_one_sided(0, 0) == 1.0
    wanted = stats.binomtest(9, 12, alternative="greater").pvalue
    assert evidence.sign_one_sided(9, 3) == pytest.approx(wanted)


def difference(treated, others):
    return treated.mean() - others.mean()


def by_window(values, arms, windows, **kwargs):
    kwargs = {"statistic": difference, "rng": np.random.default_rng(1), "rounds": 199, **kwargs}
    return evidence.permutation_by_window(values, arms, windows, **kwargs)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), max_size=12), st.integers(1, 40))
def test_a_permutation_p_is_never_0_and_never_above_1(rows, rounds):
    values, arms = [v for v, _ in rows], [a for _, a in rows]
    p = by_window(values, arms, range(len(rows)), rounds=rounds)
    assert 1 / (rounds + 1) <= p <= 1


def test_a_difference_that_no_permutation_reaches_still_has_a_p():
    assert by_window(range(40), [False] * 20 + [True] * 20, range(40), rounds=50) == 1 / 51


def test_a_permutation_p_comes_near_that_of_all_arrangements():
    rng = np.random.default_rng(3)
    values = rng.normal(size=9) + np.array([1.2] * 4 + [0] * 5)
    seen = difference(values[:4], values[4:])
    all_of_them = [
        difference(values[list(c)], np.delete(values, list(c))) >= seen - 1e-12
        for c in itertools.combinations(range(9), 4)
    ]
    p = by_window(values, [True] * 4 + [False] * 5, range(9), rounds=4000)
    assert p == pytest.approx(np.mean(all_of_them), abs=0.02)  # three standard errors


def test_windows_are_permuted_whole():
    """Two windows have two arrangements, however many requests they hold: no p below one half."""
    p = by_window([1] * 50 + [0] * 50, [True] * 50 + [False] * 50, [7] * 50 + [8] * 50)
    assert 0.4 < p < 0.6


def test_an_empty_arm_has_nothing_to_permute():
    assert by_window([1, 2], [True, True], [0, 1]) == 1.0
    assert by_window([], [], []) == 1.0


def test_a_window_with_both_arms_is_named():
    with pytest.raises(ValueError, match="window 5 has requests of both arms"):
        by_window([1, 2, 3], [True, True, False], [4, 5, 5])


def test_unlike_lengths_are_refused():
    with pytest.raises(ValueError, match="3 values, 2 arms and 3 windows"):
        by_window([1, 2, 3], [True, False], [1, 2, 3])


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds is 0; at least 1 is needed"):
        by_window([1, 2], [True, False], [1, 2], rounds=0)
    with pytest.raises(ValueError, match="rounds is 0; at least 1 is needed"):
        evidence.not_monotone([2], [0], [1], rng=np.random.default_rng(0), rounds=0)


def clustered(rng, windows, size, rate, icc):
    """Events of `size` requests a window, which share a chance drawn for the window."""
    a, b = (share * (1 - icc) / icc for share in (rate, 1 - rate))
    return rng.binomial(size, rng.beta(a, b, windows))


def test_requests_of_a_window_break_fisher_and_not_the_permutation_of_windows():
    """200 honest runs of two equal arms, ICC 0.3; the standard error at 5 % is 1.5 %."""
    rng = np.random.default_rng(5)
    naive, ours = [], []
    for _ in range(200):
        counts = clustered(rng, 80, 16, 0.05, 0.3)
        treated, others = int(counts[:40].sum()), int(counts[40:].sum())
        naive.append(evidence.fisher_one_sided(treated, 640, others, 640) <= 0.05)
        arms = [True] * 40 + [False] * 40
        ours.append(by_window(counts, arms, range(80), rng=rng, rounds=99) <= 0.05)
    assert np.mean(naive) > 0.15
    assert np.mean(ours) <= 0.05 + 2 * 0.015


def test_independent_hazards_have_the_slope_1():
    """100 fits of a hazard of 2 % a companion; the standard error of the mean slope is 0.03."""
    rng = np.random.default_rng(6)
    chance = 1 - 0.98 ** (LEVELS - 1.0)
    fits = [evidence.dose_response(LEVELS, rng.random(240) < chance, ONE_EACH) for _ in range(100)]
    assert np.mean([fit.slope for fit in fits]) == pytest.approx(1, abs=0.12)
    covered = [abs(fit.slope - 1) <= 1.96 * fit.slope_error for fit in fits]
    assert np.mean(covered) >= 0.9


def test_exact_rates_are_found_again():
    levels, trials = np.array([2, 3, 5, 9, 17]), np.full(5, 10.0**9)
    chance = -np.expm1(-np.exp(-4 + 2 * np.log(levels - 1.0)))
    fit = evidence.dose_response(levels, np.round(chance * trials), trials)
    assert (fit.intercept, fit.slope) == pytest.approx((-4, 2), abs=1e-3)
    assert fit.rate(5) == pytest.approx(chance[2], rel=1e-3)


def test_windows_one_by_one_are_fitted_as_their_sums():
    rng = np.random.default_rng(8)
    hits = rng.random(240) < 0.3
    apart = evidence.dose_response(LEVELS, hits, ONE_EACH)
    summed = [hits[level == LEVELS].sum() for level in (2, 4, 8, 16)]
    together = evidence.dose_response([2, 4, 8, 16], summed, [60] * 4)
    assert apart.slope == pytest.approx(together.slope, abs=1e-3)
    assert apart.slope_error == pytest.approx(together.slope_error, rel=1e-2)


def test_a_jump_is_steep_and_has_no_error():
    fit = evidence.dose_response([2, 4, 8, 16], [0, 0, 0, 30], [60] * 4)
    assert fit.slope > 10
    assert fit.slope_error is None
    assert fit.rate(16) == pytest.approx(0.5, abs=0.01)
    assert fit.rate(1000) == 1.0


@pytest.mark.parametrize(
    ("levels", "events", "trials"),
    [([2, 4], [0, 0], [9, 9]), ([2, 4], [9, 9], [9, 9]), ([4, 4], [1, 3], [9, 9])],
)
def test_a_curve_of_nothing_is_refused(levels, events, trials):
    with pytest.raises(ValueError, match="a curve needs two levels, an event and a trial without"):
        evidence.dose_response(levels, events, trials)


def test_a_request_alone_is_no_level():
    with pytest.raises(ValueError, match="a level is 1; a request alone"):
        evidence.dose_response([1, 4], [1, 3], [9, 9])


def test_impossible_columns_are_refused():
    with pytest.raises(ValueError, match="2 levels, 1 events and 2 trials"):
        evidence.dose_response([2, 4], [1], [9, 9])
    with pytest.raises(ValueError, match="10 events of 9 trials"):
        evidence.not_monotone([2, 4], [1, 10], [9, 9], rng=np.random.default_rng(0))


def falls(rng, chances, rounds=99):
    hits = rng.random(240) < np.repeat(chances, 60)
    return evidence.not_monotone(LEVELS, hits, ONE_EACH, rng=rng, rounds=rounds)


@pytest.mark.parametrize("chances", [(0.1,) * 4, (0.02, 0.05, 0.1, 0.3), (0.1, 0.1, 0.1, 0.2)])
def test_rates_that_never_fall_are_called_falling_in_at_most_5_percent(chances):
    """100 runs; the standard error at 5 % is 2.2 %."""
    rng = np.random.default_rng(9)
    assert np.mean([falls(rng, chances) <= 0.05 for _ in range(100)]) <= 0.05 + 2 * 0.022


def test_a_peak_is_no_monotone_curve():
    assert falls(np.random.default_rng(10), (0.02, 0.3, 0.3, 0.05), rounds=999) < 0.01


def test_rates_that_rise_have_nothing_to_explain():
    hits = np.concatenate([np.arange(60) < k for k in (3, 6, 12, 30)])
    rng = np.random.default_rng(11)
    assert evidence.not_monotone(LEVELS, hits, ONE_EACH, rng=rng, rounds=99) == 1.0
