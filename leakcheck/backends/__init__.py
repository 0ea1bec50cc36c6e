"""What a backend is, and how one is found by name.

A backend is one file with a function `connect(target: Target) -> Backend`. A bare name is a module
of this folder, a dotted name any importable module (see `plugin`). Each lane has a backend
of its own, with one connection of its own: a backend never retries, caches or pools.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from leakcheck import plugin
from leakcheck.records import Chunk, Request, Target


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


def load(name: str) -> Callable[[Target], Backend]:
    """The `connect` of the backend called `name`. Raises UsageError where there is none."""
    connect: Callable[[Target], Backend] = plugin.load("backends", name, "connect")
    return connect


def address(name: str) -> Address:
    """What the backend called `name` wants as its target. Raises UsageError where there is none."""
    load(name)
    found = plugin.find("backends", name, "ADDRESS")
    return found if isinstance(found, Address) else Address()
