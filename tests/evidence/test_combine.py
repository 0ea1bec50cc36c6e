"""Merging against exact arithmetic, Holm against its closure over all subsets."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck import evidence

ROWS = st.integers(1, 5).flatmap(
    lambda bets: st.lists(
        st.lists(st.floats(0.1, 10), min_size=bets, max_size=bets), min_size=1, max_size=8
    )
)
P_VALUES = st.lists(st.floats(0, 1), max_size=6)


@given(ROWS)
def test_merged_is_the_mean_over_bets_of_the_products_over_windows(rows):
    products = [math.prod(of_bet) for of_bet in zip(*rows, strict=True)]
    assert evidence.merge(rows) == pytest.approx(sum(products) / len(products))


@given(ROWS)
def test_the_order_of_the_windows_does_not_matter(rows):
    assert evidence.merge(rows) == pytest.approx(evidence.merge(rows[::-1]), rel=1e-12)


def test_no_window_says_nothing():
    assert evidence.merge([]) == 1.0


def test_thousands_of_factors_neither_overflow_nor_vanish():
    assert evidence.merge([[10.0, 0.5]] * 5000) == evidence.LARGEST
    assert evidence.merge([[0.5]] * 5000) == 0.0
    up_and_down = [[1e6, 1e-6]] * 3000 + [[1e-6, 1e6]] * 3000
    assert evidence.merge(up_and_down) == pytest.approx(1.0)


def test_infinity_is_capped():
    assert evidence.merge([[math.inf, 1.0]]) == evidence.LARGEST
    assert evidence.weighted([math.inf, 0.0], [1.0, 0.0]) == evidence.LARGEST


def test_what_a_bet_has_lost_it_does_not_win_back():
    assert evidence.merge([[0.0, 2.0], [math.inf, 2.0]]) == pytest.approx(2.0)


@pytest.mark.parametrize("wrong", [-0.1, math.nan])
def test_what_is_no_e_value_is_refused(wrong):
    with pytest.raises(ValueError, match=r"an e-value is .*; it must be a number of at least 0"):
        evidence.merge([[1.0], [wrong]])
    with pytest.raises(ValueError, match=r"an e-value is .*; it must be a number of at least 0"):
        evidence.weighted([wrong], [1.0])


def test_windows_of_unlike_bets_are_refused():
    with pytest.raises(ValueError, match="a window has 1 bets; the first one has 2"):
        evidence.merge([[1.0, 2.0], [1.0]])
    with pytest.raises(ValueError, match="a window has 0 bets"):
        evidence.merge([[]])


@given(st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_a_weighted_mean_lies_between_the_least_and_the_largest(values):
    mean = evidence.weighted(values, [1 / len(values)] * len(values))
    assert min(values) - 1e-9 <= mean <= max(values) + 1e-9


def test_the_tiers_of_a_scenario_are_weighed():
    assert evidence.weighted([200.0, 1.0, 1.0, 1.0], [0.35, 0.35, 0.15, 0.15]) == pytest.approx(
        70.65
    )


@pytest.mark.parametrize("weights", [[0.5, 0.4], [1.5, -0.5], [math.nan, 1.0]])
def test_weights_that_do_not_sum_to_1_are_refused(weights):
    with pytest.raises(ValueError, match="none may be negative, their sum is 1"):
        evidence.weighted([1.0, 1.0], weights)


def test_a_missing_weight_is_refused():
    with pytest.raises(ValueError, match="1 weights for 2 e-values"):
        evidence.weighted([1.0, 1.0], [1.0])


def closure(p_values, place):
    """Holm as the closed Bonferroni test: the largest of |S| times min(S) over all S with it."""
    others = [p for i, p in enumerate(p_values) if i != place]
    return max(
        min(1.0, (len(subset) + 1) * min(p_values[place], *subset, 1.0))
        for size in range(len(others) + 1)
        for subset in itertools.combinations(others, size)
    )


@given(P_VALUES)
def test_holm_is_the_closed_bonferroni_test(p_values):
    wanted = [closure(p_values, place) for place in range(len(p_values))]
    assert evidence.holm(p_values) == pytest.approx(wanted)


@given(P_VALUES)
def test_adjusted_p_values_are_never_smaller_and_keep_the_order(p_values):
    adjusted = evidence.holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert [q for _, q in pairs] == sorted(adjusted)


def test_holm_by_hand():
    assert evidence.holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert evidence.holm([]) == ()


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value_is_refused(wrong):
    with pytest.raises(ValueError, match=r"a p-value is .*; it must lie within 0..1"):
        evidence.holm([0.5, wrong])
