"""What headers say is left of a limit, in every form that is known, and garbage that is none."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.backends._quota import quota
from leakcheck.records import Quota

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
WEEK_S = 7 * 86_400
OPENAI = ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
ANTHROPIC = ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset")
PLAIN = ("ratelimit-remaining", "ratelimit-reset")


def read(names, left, reset):
    return quota(dict(zip(names, (left, reset), strict=True)), NOW.timestamp())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("120ms", 0.12),
        ("1h2m3.5s", 3723.5),
        ("1d", 86_400),
        ("0s", 0),
        ("59", 59),
        ("850µs", 0.00085),
    ],
)
def test_a_duration_as_openai_says_it(text, seconds):
    found = read(OPENAI, "7", text)
    assert found.requests == 7
    assert math.isclose(found.reset_s, seconds, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-30T12:00:30Z", 30),
        ("2026-11-30T13:01:00+01:00", 60),
        ("2026-11-30T12:00:00.250Z", 0.25),
        ("2026-11-30T11:59:00Z", 0),
    ],
)
def test_a_moment_as_anthropic_says_it(text, seconds):
    assert read(ANTHROPIC, "0", text) == Quota(requests=0, reset_s=seconds)


def test_seconds_as_others_say_them():
    assert read(PLAIN, "0", "30") == Quota(requests=0, reset_s=30.0)


@given(st.integers(0, 10**6), st.floats(0, 1000), st.sampled_from([OPENAI, PLAIN]))
def test_any_number_of_seconds_is_read_back(left, seconds, names):
    text = f"{seconds:.6f}{'s' * (names == OPENAI)}"
    assert read(names, str(left), text) == Quota(requests=left, reset_s=float(f"{seconds:.6f}"))


@given(st.integers(0, 6 * 86_400))
def test_any_moment_of_the_coming_days_is_read_back(seconds):
    moment = NOW + timedelta(seconds=seconds)
    assert read(ANTHROPIC, "1", moment.isoformat()).reset_s == seconds


HOSTILE = ["", "-1", "-1s", "nan", "inf", "1e3", "1e999s", "9" * 12, "9" * 40 + "s", "s", "1 s",
           "1s;", "٣", "0x10", "tomorrow", "2026-11-30", "2026-11-30T12:00:30",
           "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "1s\x00", "1.s", "..5"]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("names", [OPENAI, ANTHROPIC, PLAIN])
def test_hostile_times_say_nothing(names, text):
    found = read(names, "0", text)
    assert found is None or (text.startswith("0001") and found.reset_s == 0)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "149,984", "nan", "٣", "9" * 13, "none", "1 2"])
def test_hostile_counts_say_nothing(text):
    assert read(OPENAI, text, "1s") is None


@given(
    st.text(max_size=40) | st.from_regex(r"[-0-9dhmsn.TZ:+ ]{0,30}", fullmatch=True),
    st.text(max_size=20) | st.integers().map(str),
    st.sampled_from([OPENAI, ANTHROPIC, PLAIN]),
)
def test_whatever_is_said_comes_out_bounded_or_not_at_all(reset, left, names):
    found = read(names, left, reset)
    assert found is None or (found.requests >= 0 and 0 <= found.reset_s <= WEEK_S)


def test_a_pair_with_a_part_missing_gives_way_to_another():
    headers = {OPENAI[0]: "0", PLAIN[0]: "3", PLAIN[1]: "9"}
    assert quota(headers, 0.0) == Quota(requests=3, reset_s=9.0)
    assert quota({OPENAI[0]: "0"}, 0.0) is None
    assert quota({}, 0.0) is None
