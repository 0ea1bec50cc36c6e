"""`leakcheck run` against a target that is no URL: a leak is said, and honest answers are none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def run(out, *flags):
    """The report of a short run, and its exit code."""
    command = [sys.executable, "-m", "leakcheck.cli", "run", "rare-token-passphrase"]
    done = subprocess.run(
        [
            *command,
            "--windows=4",
            "--workers=2",
            "--seed=7",
            "--style=phrase",
            f"--out={out}",
            *flags,
        ],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
    )
    found = list(out.glob("*/report.json"))
    assert found, done.stderr
    return json.loads(found[0].read_text()), done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["callable", "command"])
def test_a_target_that_hands_out_what_the_one_before_said_is_called_leaking(tmp_path, backend):
    program = f"{sys.executable} -m backends.servers.plain --leaking"
    target = {"callable": "backends.servers.plain:leaking", "command": program}[backend]
    report, code = run(tmp_path, f"--backend={backend}", f"--target={target}")
    assert (report["status"], code) == ("leak", 1)


@pytest.mark.slow
def test_a_function_that_answers_each_with_its_own_is_not(tmp_path):
    target = "backends.servers.plain:answer"
    report, code = run(tmp_path, "--backend=callable", f"--target={target}")
    assert (report["status"], code) == ("inconclusive", 3)  # four windows show little


def test_a_target_that_its_backend_cannot_use_is_named_in_one_sentence(tmp_path):
    for backend, target, sentence in (
        ("callable", "json", "--target: 'json' names no function; write it as module:function"),
        ("command", "no-such-program", "--target: there is no program 'no-such-program'"),
        ("ollama", "ollama", "--target: 'ollama' is not a URL; write it as http://127.0.0.1:11434"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "leakcheck.cli", "run", f"--backend={backend}",
             f"--target={target}", "--model=m", f"--out={tmp_path}"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 2
        assert sentence in done.stderr
