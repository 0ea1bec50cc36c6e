"""A real server process on a tiny model, for the tests of HTTP and of the process contract."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request


def start(model, *flags, env=None):
    """The process and its READY fields."""
    command = [sys.executable, "-m", "leakcheck.engine", "--model", str(model), *flags]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    line = process.stdout.readline().decode()
    if not line.startswith("READY "):
        raise AssertionError(line + process.stderr.read().decode())
    return process, json.loads(line.removeprefix("READY "))


@contextlib.contextmanager
def serving(model, *flags, env=None):
    """READY fields of a server that ends with the block."""
    process, ready = start(model, "--exit-with-stdin", *flags, env=env)
    with process:
        try:
            yield ready
        finally:
            process.stdin.close()
            process.wait(timeout=20)


def call(url, body=None, *, headers=None, raw=None):
    """(status, text) of a GET, or of a POST when there is a body."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers or {})  # noqa: S310 # our own
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 # as above
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def events(text):
    """The JSON events of a stream; the last line must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def metrics(ready):
    """Every metric of the server by its name without the prefix."""
    _, text = call(ready["base_url"].removesuffix("/v1") + "/metrics")
    pairs = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("leakcheck_engine_"): float(value) for name, value in pairs}


def eventually(condition, *, within_s=10.0):
    """Poll until the condition holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
