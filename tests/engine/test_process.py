"""`python -m leakcheck.engine`: one READY line, one sentence of error, a quick clean end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from served import call, eventually, metrics, start

from leakcheck.engine.__main__ import main, parsed, parser

LONG = {"model": "tiny", "prompt": "go", "max_tokens": 200, "n": 20, "ignore_eos": True}


def run(*flags):
    command = [sys.executable, "-m", "leakcheck.engine", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quickly_and_cleanly_with_requests_in_flight(model_folder, number):
    process, ready = start(model_folder)
    answers = []
    with process:
        client = threading.Thread(
            target=lambda: answers.append(call(ready["base_url"] + "/completions", LONG))
        )
        client.start()
        eventually(lambda: metrics(ready)["running"] == 20)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - began < 3
        client.join(timeout=5)
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
    status, text = answers[0]
    assert status == 503
    assert "stopped before the answer was complete" in json.loads(text)["error"]["message"]


def test_ready_says_what_was_started_and_the_end_of_stdin_ends_it(model_folder):
    flags = ("--fault", "response-swap", "--fault-rate", "0.5", "--seed", "3", "--blocks", "64")
    process, ready = start(model_folder, "--exit-with-stdin", *flags)
    with process:
        process.stdin.close()
        assert process.wait(timeout=10) == 0
        assert ready["base_url"].startswith("http://127.0.0.1:")
        assert ready["model"] == "tiny"
        assert (ready["fault"], ready["seed"]) == ("response-swap", 3)
        assert (ready["blocks"], ready["block_size"], ready["context_tokens"]) == (64, 16, 256)
        # 3 layers, keys and values, 2 heads of 8 floats; one padding block
        assert ready["kv_bytes"] == 65 * 16 * 3 * 2 * 2 * 8 * 4


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--blocks", "0"), "--blocks must be at least 1, not 0"),
        (("--fault-rate", "2"), "--fault-rate is a share from 0 to 1, not 2.0"),
        (("--api-key-env", "NOT_SET_AT_ALL"), "the environment variable NOT_SET_AT_ALL"),
        (("--port", "70000"), "--port is a number from 0 to 65535, not 70000"),
        (("--model", "witnes"), "a model is witness, smollm2-135m, a folder or a hub id"),
        (("--model", "/no/such/folder"), "there is no model folder '/no/such/folder'"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_exit_2(capsys, flags, sentence):
    assert main(list(flags)) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_taken_port_is_one_sentence(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--port", port]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--host", "::"), ("--fault", "none")])
def test_other_hosts_and_unknown_faults_are_refused(flags):
    done = run(*flags)
    assert done.returncode == 2
    assert "there is no " in done.stderr
    assert done.stderr.startswith("leakcheck: --")
    assert "(known: " in done.stderr


def test_a_fault_brings_the_flags_it_needs_and_flags_of_ones_own_win():
    assert parsed(parser(), ["--fault=cow-missing"]).share_partial
    assert not parsed(parser(), []).share_partial
    needed = parsed(parser(), ["--fault=stale-index"]).blocks
    assert needed < parsed(parser(), []).blocks
    assert parsed(parser(), ["--fault=stale-index", "--blocks=99"]).blocks == 99
