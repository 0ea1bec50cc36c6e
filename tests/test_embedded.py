"""The embedded target as a process: it comes up, it goes away, and it can be killed."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from playing import alive, eventually

from leakcheck import embedded
from leakcheck.errors import UsageError


def test_it_listens_inside_the_block_and_is_gone_after_it():
    with embedded.start(["--model=witness"]) as engine:
        url = engine.ready["base_url"] + "/models"
        with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 - our own server
            assert json.load(reply)["data"][0]["id"] == "witness"
        pid = engine.process.pid
    assert not alive(pid)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--fault=no-such", "prefix-length-only"),
        ("--blocks=0", "--blocks must be at least 1"),
        ("--model=./nowhere", "nowhere"),
    ],
)
def test_a_wrong_flag_is_refused_with_the_engines_own_words(flag, said):
    with pytest.raises(UsageError, match=said), embedded.start([flag]):
        pass


def run_embedded(tmp_path, *flags):
    command = [
        sys.executable, "-m", "leakcheck.cli", "run", "rare-token-passphrase", "--embedded",
        "--windows", "200", "--phantoms", "9", "--out", str(tmp_path), *flags,
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def engine_pid(tmp_path):
    (origin,) = tmp_path.glob("2*/run.json")
    return json.loads(origin.read_text())["engine"]["pid"]


def windows_are_running(tmp_path):
    return sum(p.stat().st_size for p in tmp_path.glob("2*/observations-w03.jsonl")) > 20_000


def test_an_engine_killed_in_mid_run_ends_the_run_with_a_report(tmp_path):
    process = run_embedded(tmp_path)
    eventually(lambda: windows_are_running(tmp_path), within_s=120)
    os.kill(engine_pid(tmp_path), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 4, (out, err)
    assert "the target was lost after" in out


def test_a_killed_parent_leaves_no_engine(tmp_path):
    process = run_embedded(tmp_path)
    eventually(lambda: windows_are_running(tmp_path), within_s=120)
    pid = engine_pid(tmp_path)
    process.kill()
    process.communicate()
    eventually(lambda: not alive(pid), within_s=30)
