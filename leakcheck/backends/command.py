"""A program of yours as a target: `--target 'python my_target.py'`, one process a lane, no shell.

It gets one JSON object a line on standard input for each request, and answers with lines of JSON on
standard output before it reads the next; `_plain` says what they hold. A request that is given up
(a planned abort, a time-out) ends the process and all it has started; the next one starts another.
Standard error is kept for the sentence that says why it died.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

import orjson

from leakcheck.backends import Address, Broken, Refused, Turns
from leakcheck.backends import _probe as probing
from leakcheck.backends._http import NOT_UTF8, is_utf8
from leakcheck.backends._plain import FIELDS, Answer, document
from leakcheck.backends._probe import Dialect
from leakcheck.backends._sse import Lines
from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Request, Target
from leakcheck.redact import one_line, redact, secrets

_PIECE = 65_536
_KEPT_OF_STDERR = 4_096
_PATIENCE_S = 1.0
"""For standard error after standard output has ended, and for a process that was asked to go."""


def arguments(text: str) -> tuple[str, ...]:
    """The program and its arguments, split as a shell would, without being one.

    Raises UsageError, one sentence, for what is no command or no program.
    """
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"the command {text!r} cannot be split: {error}") from None
    if not found:
        raise UsageError("the command is empty; write it as 'python my_target.py'")
    if shutil.which(found[0]) is None:
        raise UsageError(f"there is no program {found[0]!r}; write it as 'python my_target.py'")
    return found


def _check(text: str) -> None:
    arguments(text)


ADDRESS = Address(right="'python my_target.py'", check=_check, key_env=None, model="command")


def connect(target: Target) -> Command:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as
    `arguments`.
    """
    return Command(target)


DIALECT = Dialect(
    protocol="program",
    key_env="OPENAI_API_KEY",
    always=("temperature",),
    some=FIELDS,
    also=frozenset({"tools"}),
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and no models.

    Raises TargetError or UsageError, one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect)


class Command:
    """One lane's process."""

    def __init__(self, target: Target) -> None:
        """As `connect`. The process starts with the first request."""
        self._target = target
        self._arguments = arguments(target.base_url)
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: asyncio.Task[bytes] | None = None
        self._starts = 0
        self._lines = Lines()
        self._ready: deque[bytes] = deque()
        self._size = 0

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        process = await self._running()
        whole = False
        try:
            yield Chunk(connection=self._starts)
            await self._send(process, orjson.dumps(document(self._target, request)) + b"\n")
            answer, altered, self._size = Answer(), False, 0
            while not answer.done:
                if (line := await self._line(process)) is None:
                    raise Broken(await self._epitaph(process))
                altered = altered or not is_utf8(line)
                for chunk in answer.read(line):
                    yield chunk
            whole = True
            if altered:
                raise Broken(NOT_UTF8)
        except Refused:
            whole = True  # it said no, in so many words, and is ready for the next request
            raise
        finally:
            if not whole:
                await self._kill()

    async def close(self) -> None:
        """End the process: standard input is closed, and it is killed if it stays."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _PATIENCE_S)
        await self._kill()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._kill()
        self._lines, self._ready = Lines(), deque()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # killed with all that it started; Ctrl-C is for us
            )
        except OSError as error:
            name = self._arguments[0]
            raise Refused(f"{name} cannot be started: {error.strerror}") from None
        self._starts += 1
        if self._process.stderr is not None:
            self._stderr = asyncio.create_task(_tail(self._process.stderr))
        return self._process

    async def _send(self, process: asyncio.subprocess.Process, line: bytes) -> None:
        if process.stdin is None:
            return
        with suppress(ConnectionError):  # it is gone: the end of its output says so
            process.stdin.write(line)
            await process.stdin.drain()

    async def _line(self, process: asyncio.subprocess.Process) -> bytes | None:
        """The next line of standard output, None at its end. One that nobody asked for is read with
        the next request: so would any other client take it.
        """
        while not self._ready:
            piece = b"" if process.stdout is None else await process.stdout.read(_PIECE)
            self._size += len(piece)
            if self._size > self._target.max_reply_bytes:
                raise Broken(
                    f"the reply is longer than {self._target.max_reply_bytes} bytes: "
                    "reading was stopped"
                )
            self._ready.extend(self._lines.feed(piece) if piece else self._lines.finish())
            if not piece and not self._ready:
                return None
        return self._ready.popleft()

    async def _epitaph(self, process: asyncio.subprocess.Process) -> str:
        """Why there is no whole answer, with the last of what it said on standard error."""
        said = ""
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PATIENCE_S)
            if self._stderr is not None:
                tail = await asyncio.wait_for(asyncio.shield(self._stderr), _PATIENCE_S)
                said = tail.decode("utf-8", "replace").strip()
        last = one_line(redact(said.splitlines()[-1] if said else "", secrets(self._target)))
        code = process.returncode
        how = "closed its output" if code is None else f"ended with code {code}"
        return f"the command {how} before its answer was complete" + (last and f": {last}")

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._stderr is not None:
            self._stderr.cancel()
            self._stderr = None


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """The end of a stream, read all the time: a full pipe would stop the process."""
    kept = b""
    while piece := await stream.read(_PIECE):
        kept = (kept + piece)[-_KEPT_OF_STDERR:]
    return kept
