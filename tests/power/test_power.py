"""A few faults are caught, harmless ones are not accused, and the same seed says the same again.

This is the fast form, for CI; `make power` plays everything and judges it by the same rules.
"""

import subprocess
import sys

import pytest

from leakcheck.selftest import campaign, document
from leakcheck.selftest.bench import Bench, Common
from leakcheck.selftest.values import Job

FEW = ("prefix-length-only", "mask-broadcast", "response-swap")
"""One of a cache, one of attention, one of the way out."""
HARMLESS = ("slow", "mute")

pytestmark = pytest.mark.timeout(600)


def selftest(*flags):
    command = [sys.executable, "-m", "leakcheck.cli", "selftest", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_few_faults_are_caught_and_harmless_ones_are_not_accused(tmp_path):
    out = tmp_path / "power.json"
    done = selftest(
        *(f"--fault={name}" for name in (*FEW, *HARMLESS)),
        "--scenario=rare-token-passphrase",
        f"--out={out}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-test passed" in done.stdout
    power = document.load(out.read_bytes())
    assert [cell.fault for cell in power.cells] == sorted(FEW, key=list(names(power)).index)
    assert all(cell.right.events == cell.right.trials == 1 for cell in power.cells)
    assert {each.fault for each in power.quiet} == set(HARMLESS)
    assert all(each.accused.events == 0 for each in power.quiet)


def names(power):
    return (fault.name for fault in power.faults)


def test_what_does_not_behave_is_named_and_exits_with_four():
    done = selftest("--fault=seed-shared", "--scenario=sequential-carry-over", "--windows=2")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "did not behave: seed-shared: caught" in done.stdout
    assert "in 0 of 1 seeds by sequential-carry-over" in done.stdout


def test_ten_times_the_same_seed_gives_the_same_verdict(tmp_path):
    (fault,) = [each for each in campaign.faults() if each.name == "prefix-length-only"]
    scenarios = {each.name: each for each in campaign.shipped()}
    job = Job(kind="caught", fault=fault, scenario="rare-token-passphrase", seed=3, windows=4)
    with Bench(Common(root=tmp_path, scenarios=scenarios), "bench") as bench:
        trials = [bench.play(job) for _ in range(10)]
    assert {(each.detected, each.status, each.windows) for each in trials} == {(True, "leak", 1)}
    assert all(each.right and each.sources for each in trials)
    assert list(tmp_path.rglob("plan.jsonl")) == []
