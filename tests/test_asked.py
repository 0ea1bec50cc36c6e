"""What people write on the command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.cli import asked
from leakcheck.errors import UsageError


@pytest.mark.parametrize(
    ("text", "share"),
    [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), (".05", 0.05), (" 99.5% ", 0.995), ("1.%", 0.01)],
)
def test_a_share_is_a_percentage_or_a_fraction(text, share):
    assert asked.percent("--detect", text) == pytest.approx(share)


@pytest.mark.parametrize(
    "text",
    ["5", "0", "0%", "100%", "1", "1.5", "-5%", "", "%", "five", "nan", "1e-2", "5%%", "\u0665%"],
)
def test_anything_else_is_no_share(text):
    with pytest.raises(UsageError, match=r"--detect: .* is no share between 0 % and 100 %"):
        asked.percent("--detect", text)


@given(st.integers(1, 9999))
def test_a_percentage_and_its_fraction_are_the_same_share(parts):
    assert asked.percent("x", f"{parts / 100:.2f}%") == pytest.approx(
        asked.percent("x", f"{parts / 10000:.4f}")
    )
