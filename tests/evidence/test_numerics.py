"""The lattice of logits, on logits rounded as the types round them; the threshold of gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck import evidence

BF16, FP16, FP32 = 7, 10, 23
GAPS = st.floats(0, 20)


def rounded(z, bits):
    step = 2.0 ** (np.floor(np.log2(np.abs(z))) - bits)
    return np.round(z / step) * step


def answers(bits, *, positions=80, top=5, decimals=None, seed=0, centre=10):
    """Log-probabilities of the top tokens, from logits with this many bits of fraction."""
    rng = np.random.default_rng(seed)
    for _ in range(positions):
        z = rounded(np.sort(rng.normal(centre, 4, 2000))[::-1], bits)
        log = z[:top] - np.log(np.exp(z).sum())
        yield np.float32(log if decimals is None else np.round(log, decimals)).tolist()


@pytest.mark.parametrize("decimals", [None, 4])
@pytest.mark.parametrize(("bits", "step"), [(BF16, 0.125), (FP16, 2**-6)])
def test_the_type_is_seen_in_log_probabilities(bits, step, decimals):
    assert evidence.quantum(list(answers(bits, decimals=decimals))) == step


def test_the_published_answer_of_a_bfloat16_server_lies_on_an_eighth():
    position = [-0.5075, -1.2575, -2.7575, -4.3825]
    assert evidence.quantum([position] * 60) == 0.125


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_float32_has_no_lattice(seed):
    assert evidence.quantum(list(answers(FP32, positions=50, top=2, seed=seed))) is None


@pytest.mark.parametrize("decimals", [2, 3])
def test_decimals_are_not_taken_for_a_lattice(decimals):
    assert evidence.quantum(list(answers(FP32, decimals=decimals))) is None


def test_a_lattice_that_decimals_have_destroyed_is_not_guessed_at():
    assert evidence.quantum(list(answers(BF16, decimals=2))) is None


def test_differences_serve_as_well_as_log_probabilities():
    gaps = [[row[0] - each for each in row] for row in answers(BF16)]
    assert evidence.quantum(gaps) == 0.125


def test_a_few_values_off_the_lattice_are_forgiven_and_many_are_not():
    on, off = list(answers(BF16, positions=200)), list(answers(FP32, positions=200))
    assert evidence.quantum(on[:198] + off[:2]) == 0.125
    assert evidence.quantum(on[:170] + off[:30]) is None


def test_fewer_than_50_positions_say_nothing():
    rows = list(answers(BF16, positions=50))
    assert evidence.quantum(rows) == 0.125
    assert evidence.quantum(rows[:49]) is None
    assert evidence.quantum([]) is None


def test_ties_fit_every_lattice_and_say_nothing():
    assert evidence.quantum([[-1.0, -1.0, -1.0]] * 100) is None


def test_tokens_that_were_ruled_out_are_left_out():
    rows = [[*row, -np.inf, -np.inf] for row in answers(BF16)]
    assert evidence.quantum(rows) == 0.125


def test_one_eighth_alone_makes_a_gap_of_1_nat_suspect():
    assert evidence.gap_threshold(0.125, 0.25) == 1.0
    assert evidence.gap_threshold(0.25, 0.25) == 2.0
    assert evidence.gap_threshold(0.125, 0.5) == 1.5


def test_a_finer_type_has_a_lower_floor():
    assert evidence.floor_of(2**-6) == evidence.FLOOR_FP16
    assert evidence.floor_of(0.125) == evidence.floor_of(None) == evidence.FLOOR_BF16
    assert evidence.gap_threshold(2**-6, 0.04, evidence.FLOOR_FP16) == 0.25
    assert evidence.gap_threshold(None, None, evidence.FLOOR_FP32) == 0.05


@given(st.one_of(st.none(), GAPS), st.one_of(st.none(), GAPS), GAPS)
def test_no_threshold_is_below_any_of_its_three_parts(step, null, floor):
    found = evidence.gap_threshold(step, null, floor)
    parts = [8 * (step or 0), 3 * (null or 0), floor]
    assert found == max(parts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((-0.1, 0, 1), "quantum is -0.1"), ((None, -1, 1), "largest_null_gap is -1")],
)
def test_a_negative_gap_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        evidence.gap_threshold(*arguments)
