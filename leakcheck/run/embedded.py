"""Start and stop the embedded target: a process of its own, spoken to over HTTP only."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from leakcheck.errors import TargetError, UsageError

START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 10.0
_LOG_TAIL_BYTES = 2000
_USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A running embedded target; `ready` is what it says of itself now (base_url, model, ...)."""

    ready: dict[str, Any]
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def restart(self, flags: Sequence[str]) -> dict[str, Any]:
        """End the present lifetime and begin another with `flags`; return the new `ready`.

        The same loaded model in a fresh engine with a new address: what was in flight is cut, what
        was cached or switched on is gone. `--model` may be left out and cannot change. Raises as
        `start`; after an error there is no engine any more.
        """
        assert self.process.stdin is not None  # noqa: S101 - it is a pipe
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):  # it has ended, and says why on its way out
            self.process.stdin.write(json.dumps(list(flags)).encode() + b"\n")
            self.process.stdin.flush()
        ready = _wait_until_ready(self.process, self.process.stdout, self.log)
        self.ready.clear()
        self.ready.update(ready)
        return self.ready

    def last_words(self) -> str:
        """The end of what the engine wrote to standard error."""
        return _tail(self.log)


@contextmanager
def start(flags: Sequence[str]) -> Iterator[Embedded]:
    """An engine that listens inside the `with` block and is gone after it.

    The engine watches its standard input and ends with it, so a killed parent leaves no server
    behind. Raises UsageError with the engine's own sentence for wrong flags, TargetError when it
    does not start.
    """
    command = [sys.executable, "-m", "leakcheck.engine", "--port", "0", "--exit-with-stdin"]
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - our own module, by our own interpreter
            [*command, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | threads,
            start_new_session=True,  # Ctrl-C is for the harness, which then stops the engine
        )
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            ready = _wait_until_ready(process, process.stdout, log)
            yield Embedded(ready=ready, process=process, log=log)
        finally:
            _stop(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], stdout: IO[bytes], log: IO[bytes]
) -> dict[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        readable, _, _ = select.select([stdout], [], [], 0.2)
        line = stdout.readline().decode("utf-8", "replace") if readable else " "
        if line.startswith("READY "):
            ready: dict[str, Any] = json.loads(line.removeprefix("READY "))
            return ready
        if not line:
            code = process.wait(timeout=_STOP_TIMEOUT_S)
            last = (_tail(log).splitlines() or ["no message"])[-1]
            if code == _USAGE:
                raise UsageError(last.removeprefix("leakcheck: "))
            raise TargetError(f"the embedded engine ended with exit code {code}: {last}")
    raise TargetError(f"the embedded engine did not start within {START_TIMEOUT_S:.0f} s")


def _tail(log: IO[bytes]) -> str:
    # read without seeking: the engine writes at this very file offset
    size = os.fstat(log.fileno()).st_size
    start = max(0, size - _LOG_TAIL_BYTES)
    return os.pread(log.fileno(), size - start, start).decode("utf-8", "replace").strip()


def _stop(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):  # of an engine that ended with an order unread
                pipe.close()
    try:
        process.wait(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
