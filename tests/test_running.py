"""Whether requests ran together in the target, end to end: by its own metrics."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from leakcheck import cli, runfolder
from leakcheck.run import embedded

pytestmark = pytest.mark.slow
WINDOWS = 12


@pytest.fixture(scope="module")
def engine():
    with embedded.start(["--model=witness"]) as started:
        yield urlsplit(started.ready["base_url"]).port


@contextmanager
def gateway(port):
    """The port of a gateway that lets in one request at a time."""
    script = Path(__file__).with_name("gateway.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def verdict(tmp_path, port):
    """The verdict of a short run, and its run folder."""
    target = ["--target", f"http://127.0.0.1:{port}/v1", "--model", "witness"]
    target += ["--style", "phrase", "--play-all"]
    gate = ["--windows", str(WINDOWS), "--detect", "40%", "--set", "gate.min_windows=5"]
    out = ["--out", str(tmp_path), "--seed", "3"]
    cli.main(["run", "rare-token-passphrase", *target, *gate, *out])
    folder = tmp_path / "latest"
    (found,) = json.loads((folder / "report.json").read_text())["verdicts"]
    return found, folder


def running(found):
    return next((each for each in found["exposure"] if each["name"] == "running"), None)


def test_a_target_that_runs_requests_together_says_so(engine, tmp_path):
    found, folder = verdict(tmp_path, engine)
    assert running(found)["measured"] >= 2
    assert found["status"] == "clean"
    assert {each.name for each in runfolder.read_gauges(folder)} == {"leakcheck_engine_running"}


def test_behind_a_gateway_that_lets_in_one_at_a_time_nothing_is_clean(engine, tmp_path):
    with gateway(engine) as port:
        found, _ = verdict(tmp_path, port)
    overlap = next(each for each in found["exposure"] if each["name"] == "overlap")
    assert overlap["enough"]  # at the client they did overlap
    assert running(found)["measured"] == 1
    assert found["status"] == "inconclusive"
    assert any("lets in one request at a time" in reason for reason in found["reasons"])
