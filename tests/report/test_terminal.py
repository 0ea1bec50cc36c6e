import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from leakcheck.report import plain_run, terminal

SGR = re.compile(r"\x1b\[[0-9;]*m")
NAMES = ["clean", "leak", "corruption", "inconclusive", "interrupted", "empty", "hostile"]


@pytest.mark.parametrize("name", ["clean", "corruption", "inconclusive", "interrupted", "empty"])
def test_the_verdict_fits_on_one_screen(samples, name):
    shown = terminal.render(samples.ALL[name](), width=100, folder="reports/latest")
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [30, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(samples, name, width):
    shown = terminal.render(samples.ALL[name](), width=width, folder="reports/latest")
    assert max(cell_len(line) for line in shown.splitlines()) <= width


@pytest.mark.parametrize("name", NAMES)
def test_without_colour_nothing_but_text_is_printed(samples, name, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = terminal.render(samples.ALL[name](), colour=False)
    assert all(line.isprintable() for line in shown.split("\n"))


@pytest.mark.parametrize("name", NAMES)
def test_with_colour_the_text_is_the_same(samples, name, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = terminal.render(samples.ALL[name](), colour=True)
    assert SGR.search(coloured)
    assert SGR.sub("", coloured) == terminal.render(samples.ALL[name](), colour=False)


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(codec=None), min_size=1))
def test_nothing_a_target_says_controls_the_terminal(samples, text):
    shown = terminal.render(with_text(samples, text), colour=True)
    assert all(line.isprintable() for line in SGR.sub("", shown).split("\n"))
    assert "\x1b]" not in shown


def test_rich_markup_and_emoji_codes_of_a_target_are_shown_as_written(samples):
    shown = terminal.render(with_text(samples, "[bold red]x[/bold red] :skull: [link=http://e]y"))
    assert "[bold red]x[/bold red] :skull: [link=http://e]y" in shown


def test_a_leak_names_source_recipient_relation_and_marks_the_passphrase(samples):
    shown = terminal.render(samples.leak(), width=200)
    assert shown.startswith("leak: in 7 of 100 windows of prefix-overlap")
    assert "1. r00224 -> r00248  foreign-passphrase  prefix-overlap, window 14, concurrent" in shown
    assert f">>{samples.WORDS}<<" in shown
    assert "and 14 more in report.html and report.json" in shown


def test_one_line_a_scenario_has_verdict_counts_and_one_bound(samples):
    shown = terminal.render(samples.clean(), width=100)
    for name in samples.NAMES:
        line = next(line for line in shown.splitlines() if line.startswith(name))
        assert "clean" in line
        assert "0/100 windows, at most 3.0 %" in line
        assert line.count("%") == 1
    assert "echo 798/800, tickets 1590/1598, overlap 1600/1600, cache hits 412/420" in shown


def test_everything_that_is_not_clean_has_its_reason(samples):
    shown = terminal.render(samples.inconclusive(), width=200)
    assert "prefix-overlap: Only 41 windows are trials; a clean verdict needs 60." in shown
    assert "mixed-batch-differential: No window was answered." in shown
    assert "echo 3/400 (too little, at least 50 %)" in shown


@pytest.mark.parametrize("name", ["leak", "corruption", "clean", "inconclusive", "interrupted"])
def test_the_two_sentences_of_the_run_stand_under_the_headline(samples, name):
    report = samples.ALL[name]()
    said = plain_run.run(report)
    _, found, means, blank = terminal.render(report, width=1000).splitlines()[:4]
    assert (found, means, blank) == (said.found, said.means, "")


def test_twelve_scenarios_fit_on_one_screen(evidenced):
    shown = terminal.render(evidenced["twelve"](), width=100, folder="reports/latest")
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize(
    ("name", "scenario", "row"),
    [
        ("early-leak", "prefix-overlap", "1/3 windows, settled: leak at window 2 of 450"),
        ("fuzzy-leak", "prefix-overlap", "settled: leak by all evidence at window 9 of 450"),
        ("certified", "control-group", "0/433 windows, certified 1 % by 433 of 700 windows"),
    ],
)
def test_a_scenario_that_ended_early_says_why_in_its_row(evidenced, name, scenario, row):
    lines = terminal.render(evidenced[name](), width=100).splitlines()
    assert next(line for line in lines if line.startswith(scenario)).endswith(row)


@pytest.mark.parametrize("width", [40, 100])
def test_a_row_that_says_why_it_ended_is_no_wider_than_the_terminal(evidenced, width):
    for make in evidenced.values():
        assert max(map(cell_len, terminal.render(make(), width=width).splitlines())) <= width


def test_a_dead_target_is_named_once_and_not_once_per_scenario(evidenced):
    shown = " ".join(terminal.render(evidenced["dead-target"](), width=100).split())
    assert shown.count("connection refused") == 1
    assert "the same holds, with other numbers, for cache-pressure, concurrency-sweep," in shown


def test_reasons_of_one_scenario_that_differ_in_figures_only_are_all_said(samples):
    reasons = ["the target lost 3 of 9 answers", "the target lost 4 of 9 answers"]
    verdicts = [samples.verdict(n, "error", reasons=reasons) for n in samples.NAMES[:2]]
    shown = terminal.render(samples.report("error", verdicts), width=200)
    assert all(shown.count(reason) == 1 for reason in reasons)
    assert shown.count("the same holds for control-group") == 2


def test_a_reason_of_two_scenarios_that_is_the_same_is_not_said_to_have_other_numbers(samples):
    verdicts = [samples.verdict(n, "error", reasons=["gone"] * 4) for n in samples.NAMES[:2]]
    shown = terminal.render(samples.report("error", verdicts), width=200)
    assert "the same holds for control-group" in shown
    assert "control-group: 1 more reason in report.html" in shown


def test_an_error_claims_no_bound(samples):
    shown = terminal.render(samples.interrupted(), width=100)
    assert "0/11 windows, not judged" in shown
    assert "at most" not in shown


def test_the_next_step_names_the_page_and_the_folder(samples):
    shown = terminal.render(samples.leak(), width=200, folder="reports/x/")
    assert "open reports/x/report.html" in shown
    assert "leakcheck analyze reports/x" in shown


def test_what_befell_the_run_is_said(samples):
    shown = terminal.render(samples.interrupted(), width=200)
    assert "worker died: worker 2 was killed by signal 9" in shown
    assert "32 unknown" in shown


def with_text(samples, text):
    """A leak in whose finding the target said `text`, and an error that repeats it."""
    finding = dataclasses.replace(
        samples.leak_finding(0), excerpt=text, mark=(0, len(text) // 2), explanation=text
    )
    verdict = samples.verdict(
        "prefix-overlap", "leak", leaks=1, reasons=[text], findings=(finding,), findings_total=1
    )
    return samples.report("leak", [verdict])
