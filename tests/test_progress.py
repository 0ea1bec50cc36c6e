"""How far a run has come."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.run.progress import progress, time_left


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s"),
    [(0, 22, 60.0), (1, 22, 17.0), (99, 2000, 60.0), (11, 22, 2.9), (22, 22, 60.0)],
)
def test_nothing_is_foretold_too_early_or_too_late(done, total, elapsed_s):
    assert time_left(done, total, elapsed_s) == ""


def test_the_time_left_goes_by_the_pace_so_far():
    assert time_left(11, 22, 4.0) == "about 4 s left"
    assert time_left(100, 2000, 60.0) == "about 19 min left"


@given(st.integers(0, 5000), st.integers(1, 5000), st.floats(0, 1e5))
def test_an_estimate_needs_a_twentieth_of_the_work_and_three_seconds(done, total, elapsed_s):
    said = time_left(done, total, elapsed_s)
    assert bool(said) == (total / 20 <= done < total and done > 0 and elapsed_s >= 3)


def test_the_first_request_of_a_survey_has_no_estimate_on_its_line():
    stream = io.StringIO()
    with progress(stream) as watch:
        watch("survey", 1, 22)
        watch("survey", 22, 22)
    assert stream.getvalue() == "survey 1/22 requests\nsurvey 22/22 requests\n"
