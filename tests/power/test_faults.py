"""Every fault of the embedded engine is caught, and the healthy engine is not accused.

The fast form runs one seed of each; `make power` runs ten seeds a fault and twenty without one
(LEAKCHECK_FAULT_SEEDS and LEAKCHECK_HEALTHY_SEEDS). Runs here are smaller than the default one:
what is found in a few windows would be found in more, and the healthy engine gets three times as
many chances to be accused.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest

FAULTS = ("prefix-length-only", "mask-broadcast", "response-swap")
FAULT_SEEDS = int(os.environ.get("LEAKCHECK_FAULT_SEEDS", "1"))
HEALTHY_SEEDS = int(os.environ.get("LEAKCHECK_HEALTHY_SEEDS", "1"))
FAULT_WINDOWS, HEALTHY_WINDOWS = 4, 12

pytestmark = pytest.mark.power


def run(tmp_path, seed, windows, *flags):
    """Exit code and report of all four scenarios against the embedded engine."""
    command = [
        sys.executable, "-m", "leakcheck.cli", "run", "--embedded", "--windows", str(windows),
        "--set", "gate.min_windows=1", "--seed", str(seed), "--out", str(tmp_path), *flags,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads((tmp_path / "latest" / "report.json").read_text())


def letters(text):
    return "".join(c for c in text.lower() if c.isalnum())


def planned_owners(tmp_path):
    """Which requests were given which phrase, straight from the plan on disk."""
    owners = defaultdict(set)
    for line in (tmp_path / "latest" / "plan.jsonl").read_text().splitlines():
        request = json.loads(line).get("request") or {}
        for key in ("ticket", "passphrase"):
            if request.get(key):
                owners[letters("".join(request[key]["words"]))].add(request["id"])
    return owners


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", range(FAULT_SEEDS))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_with_its_source_and_recipient(tmp_path, fault, seed):
    code, report = run(tmp_path, seed, FAULT_WINDOWS, "--fault", fault)
    assert (code, report["status"]) == (1, "leak")
    leaks = [
        finding
        for verdict in report["verdicts"]
        for finding in verdict["findings"]
        if finding["severity"] == "leak"
    ]
    owners = planned_owners(tmp_path)
    assert leaks
    for finding in leaks:
        first, last = finding["mark"]
        given = owners[letters(finding["excerpt"][first:last])]
        assert finding["source"] in given
        assert finding["recipient"] not in given


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", range(HEALTHY_SEEDS))
def test_the_healthy_engine_gives_no_leak(tmp_path, seed):
    _, report = run(tmp_path, seed, HEALTHY_WINDOWS)
    assert report["status"] in ("clean", "inconclusive"), report["verdicts"]
    for verdict in report["verdicts"]:
        assert verdict["leak_rate"]["events"] == 0
