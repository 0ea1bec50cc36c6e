"""What a backend is, and how one is found by name.

A backend is one file with a function `connect(target: Target) -> Backend`, and mostly one `meet`
(see `survey.meet`). A bare name is a module
of this folder, a dotted name any importable module (see `plugin`). Each lane has a backend
of its own, with one connection of its own: a backend never retries, caches or pools.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from leakcheck import plugin
from leakcheck.records import Chunk, Pace, Request, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a backend wants as `--target`: the constant ADDRESS of its module. Without one it is a
    URL, and the key is OpenAI's.

    `right` is how to write it. `check` raises UsageError for what is no address of its kind; None:
    a URL is wanted. `key_env` is the variable that its API keys are usually in, None for a backend
    that takes none. `model` stands for `--model` where that says nothing.
    """

    right: str = "http://host:port/v1"
    check: Callable[[str], None] | None = None
    key_env: str | None = "OPENAI_API_KEY"
    model: str | None = None


class Refused(Exception):  # noqa: N818 - a refusal is what it is called, and no error of ours
    """The target certainly did not generate anything: outcome `failed`.

    `status` is the HTTP status, None where not even a connection was made. `message` is one line:
    the target's own words where it has any. `retry_after_s` is how long it asks us to wait.
    `lasting`: no waiting will mend it (a certificate that is not trusted).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        lasting: bool = False,
    ) -> None:
        """Everything is kept as an attribute."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.lasting = lasting


CUT = "the connection was cut before the answer was complete"
"""What a Broken says of a connection that ended too early."""


class Broken(Exception):  # noqa: N818 - as Refused
    """The answer came back in pieces, damaged or not at all: outcome `unknown`.

    A stream may raise anything; this one carries a sentence for the user and the HTTP status.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        """Everything is kept as an attribute."""
        super().__init__(message)
        self.message = message
        self.status = status


class Backend(Protocol):
    """One lane's connection to the target."""

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """Send one request and yield its answer as it arrives, unaltered (an async generator).

        Ends normally only after a whole answer. Raises Refused where certainly nothing was
        generated; anything else that is raised makes the outcome `unknown`. Cancelling it, or
        closing the generator, gives up the request and its connection.
        """
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Turns:
    """The requests to a target that belong to no plan: one at a time, `pause_s` apart, each counted
    before it is sent, and no more than `most`. None is sent while the target asks to be left alone.
    """

    def __init__(
        self, most: int | None = None, *, pause_s: float = 0.0, max_wait_s: float | None = None
    ) -> None:
        """None: no limit but that of `grant`. A longer pause than `max_wait_s` (None: that of a
        usual pace) is not waited for.
        """
        self._most, self._limit, self._pause_s = most, most, pause_s
        self._max_wait_s = Pace().max_wait_s if max_wait_s is None else max_wait_s
        self._free_s = 0.0
        self.too_long_s: float | None = None
        """The pause, in seconds, that the target asked for and that nobody waits for."""
        self.sent_s: list[float] = []
        """When they were sent, in seconds of the monotonic clock."""

    def grant(self, requests: int) -> None:
        """Allow so many from here on, as far as there is room for them."""
        limit = len(self.sent_s) + requests
        self._limit = limit if self._most is None else min(limit, self._most)

    async def take(self) -> bool:
        """Wait until the next request may be sent, and count it; False where none may be."""
        spent = self._limit is not None and len(self.sent_s) >= self._limit
        if spent or self.too_long_s is not None:
            return False
        free_s = self._free_s
        if self.sent_s:
            free_s = max(free_s, self.sent_s[-1] + self._pause_s)
        await asyncio.sleep(free_s - time.monotonic())
        self.sent_s.append(time.monotonic())
        return True

    def refused(self, retry_after_s: float) -> None:
        """The target asks to be left alone so long."""
        self._free_s = max(self._free_s, time.monotonic() + retry_after_s)
        if retry_after_s > self._max_wait_s:
            self.too_long_s = retry_after_s

    @property
    def left_s(self) -> float:
        """How long the target is still to be left alone."""
        return max(0.0, self._free_s - time.monotonic())


def load(name: str) -> Callable[[Target], Backend]:
    """The `connect` of the backend called `name`. Raises UsageError where there is none."""
    connect: Callable[[Target], Backend] = plugin.load("backends", name, "connect")
    return connect


def address(name: str) -> Address:
    """What the backend called `name` wants as its target. Raises UsageError where there is none."""
    load(name)
    found = plugin.find("backends", name, "ADDRESS")
    return found if isinstance(found, Address) else Address()
