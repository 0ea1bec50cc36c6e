"""`leakcheck diff`: what it may cost is known before, and kept; what it found is said in words."""

import subprocess
import sys

import pytest

from leakcheck import differential, runfolder, scenario
from leakcheck.analyzer import confirm
from leakcheck.differential import Caps, budget
from leakcheck.errors import UsageError


def test_without_caps_all_windows_are_planned():
    of = budget({}, Caps())
    assert (of.windows, of.per_phase) == (differential.WINDOWS, differential.COMPANY_SIZES[0])
    assert f"at most {of.most} requests and {of.tokens} tokens" in of.sentence()


@pytest.mark.parametrize("cap", [2600, 3000, 5000, 6000])
def test_a_cap_of_requests_holds_in_the_worst_case(cap):
    of = budget({}, Caps(requests=cap))
    assert of.most <= cap
    assert of.windows >= differential.LEAST_WINDOWS


def test_a_cap_of_tokens_holds_in_the_worst_case():
    of = budget({}, Caps(tokens=700_000))
    assert of.tokens <= 700_000
    assert of.windows >= differential.LEAST_WINDOWS


def test_fewer_windows_come_before_smaller_companies():
    full = budget({}, Caps())
    of = budget({}, Caps(requests=full.most - 60))
    assert (of.per_phase, of.windows) == (full.per_phase, full.windows - 2)


def test_a_cap_that_allows_too_little_is_one_sentence_with_the_least_that_would_do():
    with pytest.raises(UsageError, match="13 windows with 6 requests at one time take up to"):
        budget({}, Caps(requests=500))
    with pytest.raises(UsageError, match="2 windows with 8 requests"):
        budget({"load.windows": 2, "load.requests": 8}, Caps(requests=500))


def test_what_is_asked_for_is_kept():
    of = budget({"load.windows": 5, "load.requests": 8, "gate.detect": 0.2}, Caps())
    assert (of.windows, of.per_phase, of.detect) == (5, 8, 0.2)


def test_the_budget_is_what_is_planned():
    of = budget({"load.windows": 3, "load.requests": 8}, Caps())
    read = scenario.read(scenario.find(differential.NAME), of.overrides())
    per_window = 4 * 2 + 3 * 8
    assert (read.load.windows, read.load.requests) == (3, 8)
    assert of.planned == 22 + 3 * per_window
    assert of.replays >= confirm.most(per_phase=8, per_window=per_window)


@pytest.mark.timeout(300)
def test_the_differential_of_the_embedded_engine_answers_in_words(tmp_path):
    command = [sys.executable, "-m", "leakcheck.cli", "diff", "--windows=1", "--requests=6"]
    done = subprocess.run(
        [*command, "--seed=3", f"--out={tmp_path}"], capture_output=True, text=True, check=False
    )
    said = " ".join(done.stdout.split())
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert said.startswith("budget: 1 windows with up to 6 requests at one time")
    assert "In 1 windows the same requests were sent alone" in said
    assert "No grade: no difference in 1 window with neutral company, so at most 95 %" in said
    assert "It could not have seen" in said
    sent = runfolder.read_shards(tmp_path / "latest").invocations
    assert len(sent) <= 22 + 26 + budget({"load.windows": 1, "load.requests": 6}, Caps()).replays
