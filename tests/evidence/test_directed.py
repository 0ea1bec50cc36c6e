"""Directed bets: exactly fair whatever the scores, by enumeration; drawn to what was planted."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck import evidence

BETS = len(evidence.SOFT_BETS) + len(evidence.STAND_OUT_BETS)
SCORES = st.lists(
    st.one_of(st.floats(-50, 50), st.integers(-3, 3).map(float)), min_size=2, max_size=12
)
FLOORS = st.sampled_from([0.0, 0.0625, 1.0])


@given(SCORES, FLOORS)
def test_a_window_is_worth_exactly_1_on_average_over_what_may_have_been_planted(scores, floor):
    """But stand-out bets where two share the best place: nothing is bet there."""
    windows = [evidence.directed_bets(scores, at, floor=floor) for at in range(len(scores))]
    assert np.mean(windows, axis=0) == pytest.approx([1.0] * BETS)


@given(SCORES, FLOORS, st.floats(-100, 100))
def test_a_constant_added_to_all_scores_changes_nothing(scores, floor, shift):
    rounded = [round(score, 3) for score in scores]
    moved = [score + round(shift, 3) for score in rounded]
    if len(set(rounded)) < 3 or np.median(np.abs(rounded - np.median(rounded))) < 0.01:
        return  # scaled by rounding errors
    one, other = (evidence.directed_bets(each, 0, floor=floor) for each in (rounded, moved))
    soft = len(evidence.SOFT_BETS)
    assert one[:soft] == pytest.approx(other[:soft], rel=1e-6)


def test_a_spread_that_is_rounding_only_is_divided_by_without_overflow():
    """As a run of random tests found: a MAD of 5e-324 beside a deviation of 50."""
    scores = [0.0, 0.0, 5e-324, 5e-324, 50.0, -50.0]
    windows = [evidence.directed_bets(scores, at) for at in range(len(scores))]
    assert np.mean(windows, axis=0) == pytest.approx([1.0] * BETS)


def test_scores_that_are_all_equal_say_nothing():
    assert evidence.directed_bets([3.0] * 64, 5) == pytest.approx((1.0,) * BETS)


def test_a_planted_candidate_that_stands_out_is_worth_nearly_all_of_them():
    scores = [*np.linspace(-1, 1, 63), 20.0]
    assert max(evidence.directed_bets(scores, 63)) == pytest.approx(0.1 + 0.9 * 64, rel=0.01)
    assert max(evidence.directed_bets(scores, 0)) <= 1.0


def test_the_stand_out_bets_wait_for_their_lead():
    z = [*np.linspace(-2, 2, 63), 7.0]  # MAD 1, the second at 2
    bets = evidence.directed_bets(z, 63)[len(evidence.SOFT_BETS) :]
    leads = [lead for _, lead in evidence.STAND_OUT_BETS]
    assert [bet > 1 for bet in bets] == [lead < 5 for lead in leads]


def test_a_lattice_that_most_scores_share_is_no_reason_to_bet_high():
    scores = [0.0] * 60 + [0.125] * 4
    at_2 = 0.5 + 0.5 * 64 * math.exp(2) / (60 + 4 * math.exp(2))  # stake 0.5, kappa 1
    bets = evidence.directed_bets(scores, 63, floor=0.0625)
    assert bets[evidence.SOFT_BETS.index((0.5, 1.0))] == pytest.approx(at_2)
    unscaled = evidence.directed_bets(scores, 63)
    assert all(math.isfinite(bet) for bet in unscaled)


def test_no_score_counts_for_more_than_eight_deviations():
    scores = [*np.linspace(-2, 2, 62), 9.0, 100.0]
    soft = slice(len(evidence.SOFT_BETS))
    one, other = (evidence.directed_bets(scores, at)[soft] for at in (62, 63))
    assert one == pytest.approx(other)


@pytest.mark.parametrize(
    ("scores", "planted", "floor", "words"),
    [
        ([1.0], 0, 0.0, "1 scores; at least two candidates"),
        ([1.0, 2.0], 2, 0.0, "planted is 2; it must be an index of 2 scores"),
        ([1.0, 2.0], -1, 0.0, "planted is -1"),
        ([1.0, -math.inf], 0, 0.0, "all must be finite"),
        ([1.0, 2.0], 0, -1.0, "floor is -1.0; it must not be negative"),
    ],
)
def test_what_cannot_be_scored_is_refused(scores, planted, floor, words):
    with pytest.raises(ValueError, match=words):
        evidence.directed_bets(scores, planted, floor=floor)


def windows(rng, number, boost, share):
    """Log-probabilities of 64 candidates with heavy-tailed noise on a lattice of 1/32 nat."""
    for _ in range(number):
        noise = rng.standard_t(4, 64) * 0.05 * rng.lognormal(sigma=0.5)
        planted = int(rng.integers(64))
        noise[planted] += boost * (rng.random() < share)
        yield evidence.directed_bets(np.round(noise * 32) / 32, planted, floor=1 / 64)


def ever(rows, limit):
    return max(evidence.merge(rows[:n]) for n in range(1, len(rows) + 1)) >= limit


def test_an_honest_noisy_target_is_accused_in_at_most_1_percent_with_all_looks():
    """500 runs of 15 windows; the standard error at 1 % is 0.4 %."""
    rng = np.random.default_rng(23)
    assert np.mean([ever(list(windows(rng, 15, 0, 0)), 100) for _ in range(500)]) <= 0.01


def test_a_faint_pull_in_every_window_is_seen_within_40():
    """20 runs of a pull of 0.15 nat, three times the noise."""
    rng = np.random.default_rng(24)
    assert all(evidence.merge(list(windows(rng, 40, 0.15, 1))) >= 100 for _ in range(20))


def test_a_strong_pull_in_a_tenth_of_the_windows_is_seen_within_40_mostly():
    """60 runs of 2 nat: 88 % were seen in a longer simulation, the standard error is 4 %."""
    rng = np.random.default_rng(25)
    seen = [evidence.merge(list(windows(rng, 40, 2, 0.1))) >= 100 for _ in range(60)]
    assert np.mean(seen) > 0.75
