"""Evidence over time: exact means by enumeration, and short simulations with a fixed seed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from leakcheck import evidence

SHARES = st.floats(1e-3, 0.5)
COUNTS = st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def expected(e_value, trials, true):
    """The mean of e_value(events, trials) over all outcomes at this rate."""
    chances = stats.binom.pmf(range(trials + 1), trials, true)
    return sum(p * e_value(k, trials) for k, p in enumerate(chances))


def test_the_certificate_of_1_percent_reaches_20_after_exactly_299_windows():
    assert evidence.certificate(298, 0, 0.01) < 20 <= evidence.certificate(299, 0, 0.01)
    assert evidence.windows_to_certify(0.01) == 299
    assert evidence.windows_to_certify(0.05) == 59


@given(SHARES, SHARES)
def test_windows_to_certify_suffice_and_one_fewer_does_not(detect, alpha):
    windows = evidence.windows_to_certify(detect, alpha=alpha)
    assert evidence.certificate(windows, 0, detect) >= (1 - 1e-6) / alpha
    assert windows == 1 or evidence.certificate(windows - 1, 0, detect) < (1 + 1e-6) / alpha


@given(st.integers(0, 3000), SHARES)
def test_the_certificate_is_the_upper_bound_of_no_event(trials, detect):
    reached = evidence.certificate(trials, 0, detect)
    if not trials or abs(reached - 20) < 1e-6:
        return
    assert (reached >= 20) == (evidence.upper_bound(0, trials) <= detect)


def test_a_leak_ends_the_certificate():
    assert evidence.certificate(10**6, 1, 0.01) == 0.0
    assert evidence.certificate(10**6, 0, 0.01) == evidence.LARGEST


CERTIFICATES = pytest.mark.parametrize(
    "process", [evidence.certificate, evidence.certificate_mixture]
)


@CERTIFICATES
@settings(max_examples=40)
@given(detect=SHARES, trials=st.integers(1, 60), above=st.floats(0, 1))
def test_no_rate_from_detect_on_is_certified_on_average(process, detect, trials, above):
    true = detect + (0.999 - detect) * above
    assert expected(lambda k, n: process(n, k, detect), trials, true) <= 1 + 1e-9
    assert expected(lambda k, n: process(n, k, detect), trials, detect) == pytest.approx(1)


@settings(max_examples=30)
@given(COUNTS, st.floats(0.02, 0.5))
def test_the_mixture_is_the_integral_it_says(counts, detect):
    events, trials = counts
    prior = stats.beta(0.5, 0.5 / detect)
    ratio = lambda q: (q / detect) ** events * ((1 - q) / (1 - detect)) ** (trials - events)  # noqa: E731 - a formula
    # by u = q ** 0.5, which takes the pole of the prior at 0 away
    drawn = integrate.quad(lambda u: 2 * u * prior.pdf(u * u) * ratio(u * u), 0, math.sqrt(detect))[
        0
    ]
    wanted = drawn / prior.cdf(detect) / 2 + evidence.certificate(trials, events, detect) / 2
    found = evidence.certificate_mixture(trials, events, detect)
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-9)


def test_the_mixture_needs_a_few_windows_more_and_survives_a_leak():
    mixture = evidence.certificate_mixture
    assert mixture(324, 0, 0.01) < 20 <= mixture(325, 0, 0.01)
    assert mixture(742, 1, 0.01) < 20 <= mixture(743, 1, 0.01)


@CERTIFICATES
@pytest.mark.parametrize("true", [0.01, 0.03])
def test_a_leaking_target_is_certified_in_at_most_5_percent_with_looks_all_along(process, true):
    """800 runs of 1500 windows, looked at 150 times; the standard error at 5 % is 0.8 %."""
    leaks = (np.random.default_rng(17).random((800, 1500)) < true).cumsum(axis=1)
    certified = np.zeros(800, dtype=bool)
    for n in range(10, 1501, 10):
        worth = {k: process(n, k, 0.01) for k in np.unique(leaks[:, n - 1]).tolist()}
        certified |= np.array([worth[k] >= 20 for k in leaks[:, n - 1].tolist()])
    assert certified.mean() <= 0.05


@given(COUNTS, SHARES)
def test_rare_events_are_no_evidence_on_average(counts, p0):
    _, trials = counts
    assert expected(lambda k, n: evidence.sprt_mixture(k, n, p0), trials, p0) == pytest.approx(1)
    assert expected(lambda k, n: evidence.sprt_mixture(k, n, p0), trials, p0 / 2) <= 1 + 1e-9


@given(COUNTS, SHARES)
def test_more_events_are_more_evidence(counts, p0):
    events, trials = counts
    more = evidence.sprt_mixture(min(trials, events + 1), trials, p0)
    assert more >= evidence.sprt_mixture(events, trials, p0) * (1 - 1e-12)


def test_the_first_match_of_a_passphrase_decides():
    assert evidence.sprt_mixture(1, 299, 1e-9) > 1e5
    assert evidence.sprt_mixture(10**6, 10**6, 1e-9) == evidence.LARGEST


def first_crossing(rows, limit):
    """The step of each row at which it first reaches the limit, or a million."""
    found = np.asarray(rows) >= limit
    return np.where(found.any(axis=1), found.argmax(axis=1) + 1, 10**6)


def test_events_ten_times_as_frequent_are_seen_after_the_published_number_of_windows():
    """200 runs; p0 = 1e-3, leak 1 %: about 400 windows, the standard error of a median is 25."""
    hits = (np.random.default_rng(18).random((200, 2000)) < 0.01).cumsum(axis=1)
    looks = range(10, 2001, 10)
    worth = [
        [evidence.sprt_mixture(k, n, 1e-3) for k, n in zip(row[9::10].tolist(), looks, strict=True)]
        for row in hits
    ]
    assert 300 < 10 * np.median(first_crossing(worth, 100)) < 500


@given(st.integers(1, 40))
def test_signs_of_a_fair_coin_are_no_evidence_on_average(signs):
    mean = expected(lambda ups, n: evidence.sign_e_value(ups, n - ups), signs, 0.5)
    assert mean == pytest.approx(1)
    assert expected(lambda ups, n: evidence.sign_e_value(ups, n - ups), signs, 0.4) <= 1 + 1e-9


def test_signs_one_way_are_evidence():
    assert evidence.sign_e_value(9, 0) > 100 > evidence.sign_e_value(8, 0)
    assert evidence.sign_e_value(5000, 0) == evidence.LARGEST
    assert evidence.sign_e_value(0, 0) == pytest.approx(1)


def test_negative_signs_are_refused():
    with pytest.raises(ValueError, match="-1 ups and 3 downs"):
        evidence.sign_e_value(-1, 3)


@given(SHARES, st.floats(0.51, 0.99))
def test_a_step_of_the_detectors_has_the_mean_1(p0, p1):
    yes, no = (evidence.likelihood_ratio(x, p0, p1) for x in (True, False))
    assert p0 * yes + (1 - p0) * no == pytest.approx(1)
    assert yes > 1 > no


def test_rates_the_wrong_way_round_are_refused():
    with pytest.raises(ValueError, match=r"p1 is 0\.01; it must be above p0, which is 0\.02"):
        evidence.likelihood_ratio(True, 0.02, 0.01)


VALUES = st.lists(st.floats(0, 5), max_size=30)


@given(VALUES)
def test_shiryaev_roberts_sums_the_products_since_every_step(values):
    path = evidence.shiryaev_roberts(values)
    assert len(path) == len(values)
    for n, at in enumerate(path, 1):
        assert at == pytest.approx(math.fsum(math.prod(values[k:n]) for k in range(n)), rel=1e-9)


@given(VALUES)
def test_cusum_is_the_largest_product_since_some_step_and_below_shiryaev_roberts(values):
    path, sums = evidence.cusum(values), evidence.shiryaev_roberts(values)
    for n, at in enumerate(path, 1):
        largest = max(1.0, *(math.prod(values[k:n]) for k in range(n)))
        assert math.exp(at) == pytest.approx(largest, rel=1e-9)
        assert math.exp(at) <= max(1.0, sums[n - 1]) * (1 + 1e-9)


@given(VALUES, VALUES)
def test_a_detector_goes_on_from_its_last_state(before, after):
    for detector in (evidence.shiryaev_roberts, evidence.cusum):
        first = detector(before)
        rest = detector(after, start=first[-1] if first else 0.0)
        assert first + rest == detector([*before, *after])


def test_detectors_do_not_overflow():
    assert evidence.shiryaev_roberts([1e10] * 100)[-1] == evidence.LARGEST
    assert evidence.cusum([1e10] * 100)[-1] == pytest.approx(100 * math.log(1e10))


@pytest.mark.parametrize("detector", [evidence.shiryaev_roberts, evidence.cusum])
def test_what_is_no_e_value_is_refused_by_a_detector(detector):
    with pytest.raises(ValueError, match="an e-value is -1; it must be a number of at least 0"):
        detector([1.0, -1])


def steps(rng, runs, windows, true, p0):
    yes, no = (evidence.likelihood_ratio(x, p0, 0.01) for x in (True, False))
    return np.where(rng.random((runs, windows)) < true, yes, no)


def test_a_false_alarm_within_m_steps_has_at_most_the_chance_m_over_a():
    """1000 honest streams of 400 steps at A = 4000; the standard error at 10 % is 0.9 %."""
    values = steps(np.random.default_rng(19), 1000, 400, 1e-3, 1e-3)
    peaks = [max(evidence.shiryaev_roberts(row)) for row in values.tolist()]
    assert np.mean(np.array(peaks) >= 4000) <= 0.1


def test_the_mean_run_to_a_false_alarm_is_at_least_a():
    """300 honest streams at A = 100; the standard error of the mean is about 6 % of it."""
    values = steps(np.random.default_rng(21), 300, 5000, 0.002, 0.002)
    runs = first_crossing([evidence.shiryaev_roberts(row) for row in values.tolist()], 100)
    assert np.minimum(runs, 5000).mean() >= 100


def test_a_leak_of_1_percent_alarms_after_the_published_number_of_probes():
    """300 streams, A = 1e6, p0 = 1e-4: median about 260, its standard error 12."""
    values = steps(np.random.default_rng(22), 300, 1500, 0.01, 1e-4)
    first = first_crossing([evidence.shiryaev_roberts(row) for row in values.tolist()], 1e6)
    assert np.median(first) == pytest.approx(260, rel=0.15)
