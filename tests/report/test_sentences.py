import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.records import EXIT_CODES, Exposure
from leakcheck.report import sentences
from leakcheck.report.steps import next_steps


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.0362, "3.6 %"),
        (0.5, "50.0 %"),
        (0.0004, "0.040 %"),
        (0.9997, "99.97 %"),
        (1 - 1e-12, ">99.9999 %"),
        (3e-13, "3.0e-11 %"),
    ],
)
def test_a_fraction_is_shown_as_a_percentage(value, shown):
    assert sentences.percent(value) == shown


@given(st.floats(0, 1, exclude_min=True))
def test_a_bound_is_never_shown_below_itself(value):
    shown = float(sentences.percent(value, "up").removesuffix(" %"))
    assert shown >= 100 * value * (1 - 1e-9)
    assert shown <= max(100 * value * 1.2, 100 * value + 0.1)


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_something_between_nothing_and_all_is_shown_as_neither(value):
    if 1e-12 < value < 1 - 1e-12:
        assert sentences.percent(value) not in {"0 %", "100 %"}


@pytest.mark.parametrize(
    ("status", "counts", "bound", "shown"),
    [
        ("clean", (0, 100), 0.0419, "0/100 windows, at most 4.2 %"),
        ("clean", (0, 1000), 0.00631, "0/1000 windows, at most 0.64 %"),
        ("inconclusive", (0, 70), 0.0625, "0/70 windows, at most 6.3 %"),
        ("inconclusive", (0, 1), 1.0, "0/1 window, nothing excluded"),
        ("inconclusive", (0, 70), None, "0/70 windows, nothing excluded"),
        ("inconclusive", (0, 0), None, "0/0 windows, not measured"),
        ("leak", (7, 100), None, "7/100 windows = 7.0 %"),
        ("error", (0, 35), 0.12, "0/35 windows, not judged"),
    ],
)
def test_a_leak_rate_is_shown_with_counts_and_the_one_bound_of_its_verdict(
    samples, status, counts, bound, shown
):
    verdict = dataclasses.replace(
        samples.verdict("prefix-overlap", status), leak_rate=samples.rate(*counts), bound=bound
    )
    assert sentences.of_windows(verdict) == shown


def test_what_a_certificate_excludes_is_the_bound_on_every_screen(evidenced):
    report = evidenced["certified"]()
    verdict = report.verdicts[0]
    assert sentences.excluded(verdict) == sentences.certified(verdict) == "1 %"
    assert "so at most 1 % of the windows of any scenario leak" in sentences.headline(report)


def test_the_only_window_is_not_counted_as_one_of_one(samples):
    verdict = samples.verdict("prefix-overlap", "leak", leaks=1, windows=1)
    line = sentences.headline(samples.report("leak", [verdict]))
    assert line.startswith("in the only counted window of prefix-overlap somebody")


def test_the_headline_of_a_leak_names_windows_source_and_recipient(samples):
    assert (
        sentences.headline(samples.leak()) == "in 7 of 100 windows of prefix-overlap somebody "
        "else's content stood in an answer, first from r00224 to r00248"
    )


def test_the_headline_of_a_clean_run_says_what_it_certifies(samples):
    worst = max(verdict.bound for verdict in samples.clean().verdicts)
    assert sentences.headline(samples.clean()) == (
        "0 of 400 windows showed somebody else's content, so at most "
        f"{sentences.percent(worst, 'up')} of the windows of any scenario leak (95 % confidence)"
    )


def test_the_headline_of_an_inconclusive_run_says_what_is_missing(samples):
    assert "2 of 4 scenarios cannot be judged" in sentences.headline(samples.inconclusive())
    assert "Only 41 windows are trials" in sentences.headline(samples.inconclusive())


def test_the_headline_of_an_interrupted_run_says_so(samples):
    assert "connection refused at 127.0.0.1:41873" in sentences.headline(samples.interrupted())
    assert "interrupted" in sentences.headline(samples.interrupted())


def test_the_headline_of_corruption_says_that_no_content_was_shown(samples):
    assert sentences.headline(samples.corruption()) == (
        "1 answer of rare-token-passphrase changed in company, confirmed by replay, "
        "with nobody's content shown"
    )


@pytest.mark.parametrize("status", sorted(EXIT_CODES))
def test_every_status_has_a_headline_even_without_a_verdict(samples, status):
    assert sentences.headline(samples.report(status, []))


def test_every_percentage_of_a_headline_stands_beside_its_counts(samples):
    for make in samples.ALL.values():
        line = sentences.headline(make())
        claimed = re.findall(r"[\d.]+ %", line.replace("(95 % confidence)", ""))
        assert not claimed or re.search(r"\d+ of \d+ windows|\d+/\d+", line), line


def test_an_exposure_below_its_minimum_says_so_in_brief():
    exposure = Exposure(name="cache-hits", measured=None, minimum=0.5, enough=False, text="")
    shown = sentences.exposure_in_brief(exposure)
    assert shown == "cache hits not measured (at least 50 % wanted)"


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((4, 4), "echo 4/4 (4 are too few to tell)"),
        ((1, 1), "echo 1/1 (1 is too few to tell)"),
        ((3, 400), "echo 3/400 (too little, at least 50 %)"),
        ((0, 0), "echo not measured (at least 50 % wanted)"),
    ],
)
def test_few_of_a_kind_are_called_few_and_not_little(samples, counts, shown):
    exposure = samples.exposure("echo", *counts, 0.5, "owners")
    exposure = dataclasses.replace(exposure, enough=False)
    assert sentences.exposure_in_brief(exposure) == shown


def test_findings_stand_with_leaks_first(samples):
    report = samples.leak()
    severities = [finding.severity for finding in sentences.ranked(report)]
    assert severities == sorted(severities, key=["leak", "corruption", "note"].index)
    assert sentences.findings_total(report) == 19


def test_replays_and_retries_are_not_counted_as_requests(samples):
    assert sentences.outcomes(samples.leak()) == (
        "6400 requests: 6398 ok, 2 unknown (no whole answer, though one may have been made); "
        "6403 attempts"
    )
    assert sentences.outcomes(samples.empty()) == "no requests"


def test_notes_do_not_count_among_the_findings_that_make_a_verdict(samples):
    report = samples.clean()
    assert sentences.findings_total(report) == 3
    assert sentences.grave_total(report) == 0
    assert sentences.grave(report) == []


def test_a_bound_of_everything_is_said_to_exclude_nothing(samples):
    verdict = dataclasses.replace(samples.verdict("prefix-overlap"), bound=1.0)
    line = sentences.headline(samples.report("clean", [verdict]))
    assert line.endswith("too few to exclude any rate of leaks")


def test_a_leak_in_no_trial_is_not_told_as_none_of_the_windows(samples):
    finding = samples.leak_finding(0)
    verdict = samples.verdict("control-group", "leak", findings=(finding,))
    line = sentences.headline(samples.report("leak", [verdict]))
    assert line.startswith("in a window that is no trial of control-group somebody else's content")


def test_a_leak_that_only_a_replay_showed_is_not_told_as_a_window(samples):
    finding = dataclasses.replace(samples.leak_finding(0), window=1_000_000)
    verdict = samples.verdict("prefix-overlap", "leak", findings=(finding,))
    line = sentences.headline(samples.report("leak", [verdict]))
    assert line.startswith("in a replay of prefix-overlap somebody else's content")


@pytest.mark.parametrize("seed", [[], ["--seed", "9"]])
def test_a_leak_says_how_the_same_traffic_is_sent_again(samples, seed):
    report = samples.leak()
    command = ("leakcheck", "run", "two words.toml", *seed)
    made = dataclasses.replace(report.provenance, command=command, seed=9)
    steps = next_steps(dataclasses.replace(report, provenance=made))
    again = "the same traffic again: leakcheck run 'two words.toml' --seed 9"
    assert again in steps


def test_a_scenario_that_excludes_no_rate_takes_nothing_from_the_claim_of_the_others(evidenced):
    report = evidenced["certified"]()
    first = report.verdicts[0]
    few = dataclasses.replace(
        first,
        scenario="first-request",
        bound=0.33,
        windows_planned=14,
        leak_rate=dataclasses.replace(first.leak_rate, trials=14),
        evidence=dataclasses.replace(first.evidence, detect=1.0, settled="certificate"),
    )
    both = dataclasses.replace(report, verdicts=(*report.verdicts, few))
    said = sentences.headline(both)
    assert "at most 1 % of the windows of any scenario but first-request leak" in said
    assert sentences.settled(few) == "enough after 14 of 14 windows"
    assert sentences.certified(few) == "33.0 %"
