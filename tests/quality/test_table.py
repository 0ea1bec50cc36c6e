"""docs/quality.md is what `make quality` writes, and has all twelve claims."""

import re
from pathlib import Path

import pytest

from quality import claims, table
from quality.values import Result, share

PAGE = Path(__file__).parents[2] / "docs" / "quality.md"
ROW = re.compile(
    r"^\| (?P<number>\d+)[a-z] \|(?: [^|]+ \|){4} [\d,-]+ \| (?:yes|\*\*no\*\*|not built) \|$"
)


def row(number="1a", **more):
    return share(number, "a claim", 3, 100, at_most=0.05, **more)


def test_the_committed_page_lists_all_twelve_claims():
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert rows
    found = [ROW.match(line) for line in rows]
    assert all(found), [line for line, match in zip(rows, found, strict=True) if not match]
    assert {int(match["number"]) for match in found} == set(range(1, 13))
    for number, title in table.TITLES.items():
        assert f"## {number}. {title}" in text


def test_the_committed_page_has_a_row_for_every_function():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if ROW.match(line)]
    assert len(rows) >= len(claims.SIMULATED)


def test_a_page_that_was_stopped_says_so_and_names_what_was_not_played():
    page = table.render([row()], seed=1, done=False)
    assert "Stopped before its end" in page
    assert page.count("Not played.") == len(table.TITLES) - 1


def test_what_does_not_hold_is_said_first():
    page = table.render([row(), share("2a", "another", 30, 100, at_most=0.01)], seed=1)
    assert "1 of 2 figures hold; not: 2a." in page


@pytest.mark.parametrize(
    ("events", "holds"), [(0, True), (5, True), (11, True), (12, False), (100, False)]
)
def test_a_limit_is_missed_by_more_than_three_standard_errors(events, holds):
    # at 5 % of 100 a standard error is 2.2
    assert share("1a", "", events, 100, at_most=0.05).holds is holds


def test_without_allowance_a_limit_is_a_limit():
    assert share("1a", "", 10, 1000, at_most=0.01, errors=0).holds
    assert not share("1a", "", 11, 1000, at_most=0.01, errors=0).holds


def test_a_figure_that_was_not_measured_is_a_dash():
    nothing = Result(
        number="9a",
        claim="to come",
        expected="something",
        measured=None,
        standard_error=None,
        trials=0,
        holds=None,
    )
    assert "| 9a | to come | something | - | - | - | not built |" in table.render([nothing], seed=1)
