"""Phantoms: exact enumeration of which candidate is planted, and short simulations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leakcheck import evidence

STAKES = np.array(evidence.PHANTOM_STAKES)
FLAGS = st.lists(st.lists(st.booleans(), min_size=2, max_size=5), min_size=1, max_size=3)
CHANCES = st.lists(st.floats(0, 1), max_size=9)


def shown(flags, planted):
    """What `phantom_bets` gets, where the candidates of each source show as in `flags`."""
    return [(f[p], sum(f), len(f)) for f, p in zip(flags, planted, strict=True) if any(f)]


@given(FLAGS)
def test_a_window_is_worth_exactly_1_on_average_over_what_may_have_been_planted(flags):
    places = list(itertools.product(*(range(len(f)) for f in flags)))
    windows = [evidence.phantom_bets(shown(flags, at), sources=len(flags)) for at in places]
    assert np.mean(windows, axis=0) == pytest.approx([1.0] * len(STAKES))


@given(FLAGS)
def test_no_stake_is_ever_lost_whole(flags):
    bets = evidence.phantom_bets(shown(flags, [0] * len(flags)), sources=len(flags))
    assert all(bet >= 1 - stake - 1e-12 for bet, stake in zip(bets, STAKES, strict=True))


def test_a_clean_window_costs_nothing():
    assert evidence.phantom_bets([], sources=8) == (1.0,) * 5
    assert evidence.phantom_bets([(False, 0, 1000)] * 8, sources=8) == (1.0,) * 5


def test_one_clean_hit_is_worth_the_number_of_candidates():
    bets = evidence.phantom_bets([(True, 1, 1000)], sources=1)
    assert bets == pytest.approx([1 + stake * 999 for stake in STAKES])


def test_a_hit_of_one_source_in_eight_is_worth_an_eighth():
    bets = evidence.phantom_bets([(True, 1, 1000)], sources=8)
    assert bets == pytest.approx([1 + stake * 999 / 8 for stake in STAKES])


@pytest.mark.parametrize("entry", [(True, 0, 9), (True, 10, 9), (False, 9, 9), (False, -1, 9)])
def test_impossible_counts_of_candidates_are_refused(entry):
    with pytest.raises(ValueError, match=f"{entry[1]} of 9 candidates show, the planted one"):
        evidence.phantom_bets([entry], sources=1)
    with pytest.raises(ValueError, match=f"{entry[1]} of 9 candidates show, the planted one"):
        evidence.phantom_p([entry])


@pytest.mark.parametrize(("entries", "sources"), [(0, 0), (3, 2)])
def test_too_few_sources_are_refused(entries, sources):
    with pytest.raises(ValueError, match=f"sources is {sources}; it must be at least 1 and count"):
        evidence.phantom_bets([(True, 1, 9)] * entries, sources=sources)


@given(CHANCES, st.integers(0, 9))
def test_the_poisson_binomial_tail_is_that_of_all_outcomes(chances, events):
    wanted = math.fsum(
        math.prod(p if hit else 1 - p for p, hit in zip(chances, outcome, strict=True))
        for outcome in itertools.product((False, True), repeat=len(chances))
        if sum(outcome) >= events
    )
    assert evidence.poisson_binomial_tail(chances, events) == pytest.approx(wanted, abs=1e-12)


@given(st.integers(1, 300), st.floats(1e-4, 0.5), st.integers(0, 20))
def test_equal_chances_are_binomial_and_tiny_tails_keep_their_digits(trials, chance, events):
    wanted = stats.binom.sf(events - 1, trials, chance)
    tail = evidence.poisson_binomial_tail([chance] * trials, events)
    assert tail == pytest.approx(wanted, rel=1e-6, abs=1e-200)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_an_impossible_chance_is_named(wrong):
    with pytest.raises(ValueError, match=f"a probability is {wrong}; it must lie within 0..1"):
        evidence.poisson_binomial_tail([0.5, wrong], 1)


def test_a_negative_number_of_events_is_refused():
    with pytest.raises(ValueError, match="events is -1; counts are not negative"):
        evidence.poisson_binomial_tail([0.5], -1)


def test_one_clean_hit_has_the_p_of_its_rank():
    assert evidence.phantom_p([(True, 1, 1000)]) == pytest.approx(0.001)
    assert evidence.phantom_p([(True, 1, 10), (False, 5, 10)]) == pytest.approx(1 - 0.9 * 0.5)
    assert evidence.phantom_p([]) == 1.0


def test_biased_answers_are_called_leaks_in_at_most_5_percent():
    """1500 honest runs of 40 windows, candidates that show with unlike chances (Zipf) in answers
    that share their bias; the standard error at 5 % is 0.6 %."""
    rng = np.random.default_rng(12)
    alarms = []
    for _ in range(1500):
        chance = np.minimum(0.5, 0.6 / np.arange(1, 200)) * rng.exponential()
        flags = rng.random((40, 199)) < np.minimum(chance, 1)
        own = flags[np.arange(40), rng.integers(199, size=40)]
        rows = zip(own.tolist(), flags.sum(axis=1).tolist(), strict=True)
        alarms.append(evidence.phantom_p([(hit, count, 199) for hit, count in rows]) <= 0.05)
    assert np.mean(alarms) <= 0.05


def running_e(rng, runs, windows, *, leak, base, phantoms):
    """The merged e-value after each window of each run, by the gain `phantom_bets` multiplies."""
    others = rng.binomial(phantoms, base, (runs, windows))
    own = (rng.random((runs, windows)) < leak) | (rng.random((runs, windows)) < base)
    worth = np.where(own, (phantoms + 1) / (others + own).clip(1) - 1, -1.0 * (others > 0))
    logs = np.log1p(STAKES[:, None, None] * worth).cumsum(axis=2)
    return np.exp(logs.clip(max=600)).mean(axis=0)


def test_the_simulated_process_is_the_one_that_is_merged():
    path = running_e(np.random.default_rng(14), 1, 30, leak=0.2, base=0.02, phantoms=19)[0]
    rng = np.random.default_rng(14)
    others = rng.binomial(19, 0.02, (1, 30))[0]
    own = (rng.random((1, 30)) < 0.2) | (rng.random((1, 30)) < 0.02)
    rows = [
        evidence.phantom_bets([(hit, count + hit, 20)], sources=1)
        for hit, count in zip(own[0].tolist(), others.tolist(), strict=True)
    ]
    assert evidence.merge(rows) == pytest.approx(path[-1])


@pytest.mark.parametrize("base", [1e-4, 1e-3, 1e-2])
def test_looking_after_every_window_keeps_alpha(base):
    """1000 honest runs of 800 windows; the standard error at 1 % is 0.3 %."""
    path = running_e(np.random.default_rng(15), 1000, 800, leak=0, base=base, phantoms=199)
    assert (path.max(axis=1) >= 100).mean() <= 0.01


@pytest.mark.parametrize(("base", "median"), [(0, 69), (1e-4, 165), (1e-3, 375)])
def test_a_leak_of_1_percent_is_seen_after_the_published_number_of_windows(base, median):
    """300 runs; the standard error of the median is about 7 % of it, of its reference as much."""
    found = running_e(np.random.default_rng(16), 300, 1500, leak=0.01, base=base, phantoms=999)
    found = found >= 100
    first = np.where(found.any(axis=1), found.argmax(axis=1) + 1, 10**6)
    assert np.median(first) == pytest.approx(median, rel=0.25)
