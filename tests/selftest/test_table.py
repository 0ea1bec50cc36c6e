"""The figures as text and as JSON."""

from dataclasses import replace

import pytest
from selftest.made import FAULTS, SCENARIOS, trial

from leakcheck.errors import HarnessError, RunFolderError, UsageError
from leakcheck.selftest import aggregate, document, table
from leakcheck.selftest.campaign import require_passed, summary
from leakcheck.selftest.values import HEALTHY, Power

NAMES = [fault.name for fault in FAULTS]


def power(*trials, **fields):
    given = {
        "schema": 1,
        "leakcheck": "0.1.0",
        "engine": "witness",
        "date": "2026-07-03",
        "full": True,
        "seed": 0,
        "trials": len(trials),
        "unplayed": 0,
        "faults": FAULTS,
        "scenarios": tuple(each.name for each in SCENARIOS),
        "cells": aggregate.cells(trials, FAULTS, SCENARIOS),
        "quiet": aggregate.quiet(trials, FAULTS, SCENARIOS),
        "failures": aggregate.failures(trials, FAULTS, SCENARIOS, NAMES),
    }
    return Power(**(given | fields))


GOOD = power(
    *[
        trial("swap", "broad", seed, detected=True, windows=2, sources=3, sources_right=3)
        for seed in range(20)
    ],
    *[trial("shift", "narrow", seed, detected=True, anomaly="lost-answer") for seed in range(20)],
    *[trial(HEALTHY, each.name, seed) for each in SCENARIOS for seed in range(30)],
)
BAD = power(
    *[trial("swap", "broad", seed, detected=seed < 2) for seed in range(4)],
    *[trial("swap", "idle", seed, budget=6) for seed in range(2)],
    trial("slow", "idle", 0, status="leak", anomalies=("foreign-answer",)),
)


def test_the_terminal_table_has_a_row_a_fault_with_numerators_and_denominators():
    (row,) = [line for line in table.terminal(GOOD).splitlines() if line.startswith("swap")]
    assert row.split() == [
        "swap",
        "output",
        "broad",
        "20/20",
        "86.1",
        "%",
        "2",
        "foreign-answer",
        "60/60",
    ]


def test_the_terminal_ends_with_the_verdict():
    assert table.terminal(GOOD).splitlines()[-1].startswith("self-test passed: everything behaved")
    *_, first, second, last = table.terminal(BAD).splitlines()
    assert last.startswith("self-test failed: 2 did not behave")
    assert first.startswith("did not behave: swap: caught")
    assert second.startswith("did not behave: slow in idle, seed 0: called leak")


def test_the_bound_of_the_healthy_engine_is_shown():
    (row,) = [line for line in table.terminal(GOOD).splitlines() if line.startswith("healthy")]
    assert "0/30" in row
    assert "9.5 %" in row


def test_the_page_says_what_is_not_caught_and_why():
    page = table.markdown(BAD)
    part = page.partition("## Not caught, or not often enough")[2].partition("##")[0]
    assert "- `swap`: at best 2/4 seeds, by `broad`. It needs two answers at once." in part
    assert "In the others: nothing was seen." in part
    assert "is caught in at least 95 % of seeds" in table.markdown(GOOD)


def test_the_page_shows_what_so_many_seeds_prove():
    assert "| 20/20 | 86.1 % | 2 |" in table.markdown(GOOD)
    assert GOOD.cells[0].detected.lower == pytest.approx(0.8609, abs=1e-4)
    assert "for this one engine\nand this one model" in table.markdown(GOOD)


def test_short_rows_say_what_they_cannot_show_and_long_ones_stand_apart():
    long = [trial(HEALTHY, "idle", seed, kind="long", windows=40) for seed in (30, 31)]
    short = [trial(HEALTHY, "idle", seed, budget=3) for seed in range(3)]
    for text in (table.terminal, table.markdown):
        said = text(power(*short, *long))
        assert "Rows play at most 3 windows a trial, but for those at full length." in said
        assert "(paired, contract, liveness) cannot accuse in so few" in said
        assert "healthy engine, at full length" in said
        assert "cannot accuse" not in text(power(*long))
    assert verdict_counts(power(*short, *long)) == "1 targets without a leak"


def verdict_counts(figures):
    return table.verdict(figures).rpartition(", ")[2].removesuffix(")")


def test_figures_of_a_campaign_that_was_stopped_are_marked():
    assert "these figures are partial" in table.markdown(replace(GOOD, partial=True))
    assert document.load(document.render(replace(GOOD, partial=True))).partial


def test_the_page_shows_the_matrix_with_claims_in_bold():
    (row,) = [line for line in table.markdown(BAD).splitlines() if line.startswith("| `swap` ")]
    assert row == "| `swap` | **2/4, 3** |  | 0/2 |"


@pytest.mark.parametrize("each", [GOOD, BAD])
def test_every_table_of_the_page_is_rectangular(each):
    blocks = table.markdown(each).split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]
    assert tables
    for lines in tables:
        assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("each", [GOOD, BAD])
def test_json_is_read_back_equal_and_written_equal(each):
    text = document.render(each)
    assert document.load(text) == each
    assert document.render(document.load(text)) == text


def test_other_json_is_refused_by_name():
    with pytest.raises(RunFolderError, match="trials"):
        document.load(document.render(GOOD).replace('"trials": 130', '"trials": "many"'))
    with pytest.raises(RunFolderError, match="schema 99"):
        document.load(document.render(replace(GOOD, schema=99)))


def test_figures_and_page_are_written_where_asked(tmp_path):
    out, docs = tmp_path / "a" / "power.json", tmp_path / "b" / "power.md"
    document.write(GOOD, out=out, docs=docs)
    assert document.load(out.read_bytes()) == GOOD
    assert docs.read_text() == table.markdown(GOOD)
    document.write(GOOD, out=None, docs=None)


def test_a_place_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/power\.json cannot be written"):
        document.require_place(tmp_path / "file" / "power.json")


def test_the_summary_counts_faults_and_harmless_targets():
    good, bad = summary(GOOD), summary(BAD)
    assert (good.passed, good.caught, good.faults, good.accused, good.harmless) == (
        True, 2, 2, 0, 1,
    )  # fmt: skip
    assert (bad.passed, bad.caught, bad.faults, bad.accused, bad.harmless) == (
        False, 0, 1, 1, 1,
    )  # fmt: skip
    assert bad.failures == BAD.failures


def test_a_run_does_not_begin_after_a_selftest_that_failed():
    require_passed(summary(GOOD))
    with pytest.raises(HarnessError, match="nothing was sent to the target: swap: caught") as told:
        require_passed(summary(BAD))
    assert told.value.exit_code == 4
    assert str(told.value).endswith("(and 1 more; `leakcheck selftest` lists them)")
