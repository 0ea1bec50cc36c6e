"""`leakcheck diff`: what it may cost is known before, and kept; what it found is said in words."""

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck import cli, differential, planning, runfolder, scenario
from leakcheck.budget import spending
from leakcheck.differential import Caps, budget
from leakcheck.errors import UsageError

TINY = {"load.windows": 3, "load.requests": 6}


def test_without_caps_the_windows_exclude_ten_percent():
    of = budget({}, Caps())
    assert (of.windows, of.per_phase, of.detect) == (85, 10, 0.1)
    assert of.planned <= 3500
    assert f"{of.planned:,} requests in all" in of.sentence()
    assert "enough to exclude leaks in 10 % of windows" in of.sentence()


@pytest.mark.parametrize(("size", "windows"), differential.WINDOWS.items())
def test_the_windows_of_each_company_are_those_that_planning_counts(size, windows):
    values = {"load.requests": size, "gate.detect": differential.DETECT}
    read = scenario.read(scenario.find(differential.NAME), values)
    assert planning.bill(read, planning.Terms()).needs[-1].windows == windows


def test_the_threshold_does_not_follow_from_the_windows():
    assert budget(TINY, Caps()).overrides()["gate.detect"] == differential.DETECT


def test_another_threshold_takes_other_windows():
    of = budget({"gate.detect": 0.2, "load.requests": 6}, Caps())
    assert of.windows == of.needed == 51


def test_fewer_windows_than_it_takes_are_said_to_leave_it_open():
    said = budget(TINY, Caps()).sentence()
    assert said.startswith("budget: 3 windows with up to 6 requests at one time")
    assert "to exclude leaks in 10 % of windows takes about 93 windows" in said


@pytest.mark.parametrize("cap", [132, 1000, 2600, 3000, 5000])
def test_a_cap_of_requests_holds_for_all_that_is_planned(cap):
    of = budget({}, Caps(requests=cap))
    assert of.planned <= of.most <= cap


def test_smaller_companies_come_before_fewer_windows():
    of = budget({}, Caps(requests=2900))
    assert (of.per_phase, of.windows) == (8, differential.WINDOWS[8])
    of = budget({}, Caps(requests=1000))
    assert (of.per_phase, of.windows) == (6, 34)


def test_a_cap_of_tokens_below_the_estimate_is_said_to_end_it_early():
    of = budget({}, Caps(tokens=100_000))
    assert of.windows == differential.WINDOWS[6]
    assert "the cap of 100,000 tokens may end it before" in of.sentence()


@pytest.mark.parametrize("chosen", [{}, {"load.windows": 20}])
def test_a_cap_too_small_for_one_window_names_the_cap_and_what_would_do(chosen):
    with pytest.raises(UsageError, match="--max-requests: 5 is too small") as caught:
        budget(chosen, Caps(requests=5))
    assert "72 requests" in str(caught.value)
    assert "--windows" not in str(caught.value)
    with pytest.raises(UsageError, match="--max-tokens-total: 100 is too small"):
        budget(chosen, Caps(tokens=100))


@given(st.integers(1, 60), st.integers(100, 9_000))
@settings(max_examples=15, deadline=None)
def test_what_is_said_to_be_enough_is_enough(requests, tokens):
    with pytest.raises(UsageError) as caught:
        budget({}, Caps(requests=requests, tokens=tokens))
    named = {flag: int(n) for flag, n in re.findall(r"(--[a-z-]+) (\d+)", str(caught.value))}
    budget({}, Caps(requests=named["--max-requests"], tokens=named["--max-tokens-total"]))


def test_too_few_requests_at_one_time_are_spoken_of_as_the_flag():
    with pytest.raises(UsageError, match="--requests: 4 is too small") as caught:
        budget({"load.requests": 4}, Caps())
    assert "mixed_batch" not in str(caught.value)


@pytest.mark.parametrize("flags", [["x"], ["--max-requests", "0"], ["--requests", "4"]])
def test_a_mistake_is_one_sentence_without_the_usage(flags, capsys):
    assert cli.main(["diff", *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith("leakcheck: ")
    assert said.count("\n") == 1


def test_the_help_states_the_threshold_and_what_the_caps_guarantee(capsys):
    with pytest.raises(SystemExit):
        cli.main(["diff", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "default 10% here" in said
    assert "never send more, survey, retries and replays included" in said
    assert "never take more tokens" in said


def diff(tmp_path, *flags):
    command = [sys.executable, "-m", "leakcheck.cli", "diff", *flags, f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, " ".join(done.stdout.split())


@pytest.mark.timeout(300)
def test_too_few_windows_are_inconclusive_with_the_bound_and_the_windows_it_takes(tmp_path):
    done, said = diff(tmp_path, "--windows=3", "--requests=6", "--seed=3")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "inconclusive: nothing leaked in 3 windows, which exclude" in said
    assert "10 % is to be excluded, which takes about" in said
    assert "in 3 windows the same requests were sent alone" in said.lower()
    assert "none was sent again" in said
    assert "leaks in less than" not in said
    sent = runfolder.read_shards(tmp_path / "latest").invocations
    assert f"used: {len(sent):,} requests, retries and replays included" in said


@pytest.mark.timeout(300)
def test_a_leak_is_said_first_and_shown_with_its_words(tmp_path):
    done, said = diff(tmp_path, "--windows=3", "--seed=3", "--fault=row-off-by-one")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.split("\n\n")
    assert lines[1].startswith("leak: ")
    assert lines[2].startswith("1. r")
    assert ">>" in lines[2]
    assert "leaks in less than" not in said


@pytest.mark.timeout(300)
def test_a_cap_of_tokens_is_not_exceeded(tmp_path):
    done, said = diff(
        tmp_path, "--windows=8", "--requests=6", "--seed=3", "--max-tokens-total=24000"
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the budget of tokens was used up after" in said
    used = spending.used(tmp_path / "latest")
    assert 12000 < used.tokens <= 24000
    assert f"{used.tokens:,} tokens of at most 24,000" in said
