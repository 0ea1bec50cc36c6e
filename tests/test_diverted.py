"""The differential alone, end to end: a fault that changes answers and shows nobody's content."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from leakcheck import cli, scenario

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ONLY = ("divergence", "foreign_passphrase")
"""No other check may notice."""


@contextmanager
def engine():
    """The base URL and model of the embedded engine with the fault of `disturbed.py`."""
    script = Path(__file__).with_name("disturbed.py")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(script.parents[1])},
        text=True,
    )
    try:
        ready = json.loads(process.stdout.readline().removeprefix("READY "))
        yield ready["base_url"], ready["model"]
    finally:
        process.communicate("", timeout=60)


def differential(folder):
    """The shipped scenario with these checks alone."""
    shipped = Path(scenario.find("mixed-batch-differential")).read_text(encoding="utf-8")
    tables = shipped.split("\n[")
    kept = [t for t in tables if not t.startswith("checks.") or t.split("]")[0][7:] in ONLY]
    path = folder / "differential.toml"
    path.write_text("\n[".join(kept).replace("mixed-batch-differential", "differential"))
    return path


def test_answers_that_follow_their_company_and_show_nothing_are_corruption(tmp_path):
    small = ["--windows=13", "--requests=4", "--set=traffic.recipients=2", "--set=gate.detect=0.99"]
    with engine() as (url, model):
        target = [f"--target={url}", f"--model={model}", f"--out={tmp_path}", "--style=phrase"]
        code = cli.main(
            ["run", str(differential(tmp_path)), *target, *small, "--play-all", "--seed=1"]
        )
    (verdict,) = json.loads((tmp_path / "latest/report.json").read_text())["verdicts"]
    assert (code, verdict["status"]) == (1, "corruption")
    found = [f for f in verdict["findings"] if f["severity"] == "corruption"]
    assert {f["anomaly"] for f in found} == {"diverted-answer"}
    for each in found:
        seen = each["evidence"]
        assert seen["gap_nats"] > seen["tau_nats"]
        assert seen["parted_again"] > seen["parted_in_other_company"]
