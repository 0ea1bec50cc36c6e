"""What a backend is, and how one is found by name.

A backend is one file with a function `connect(target: Target) -> Backend`. A bare name is a module
of this folder, a dotted name any importable module; there is no registry. Each lane has a backend
of its own, with one connection of its own: a backend never retries, caches or pools.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Request, Target


class Refused(Exception):  # noqa: N818 - a refusal is what it is called, and no error of ours
    """The target certainly did not generate anything: outcome `failed`.

    `status` is the HTTP status, None where not even a connection was made. `message` is one line:
    the target's own words where it has any. `retry_after_s` is how long it asks us to wait.
    """

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        """Everything is kept as an attribute."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


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
    path = name if "." in name else f"{__name__}.{name}"
    offered = sorted(
        item.name for item in pkgutil.iter_modules(__path__) if not item.name.startswith("_")
    )
    if "." not in name and name not in offered:
        near = difflib.get_close_matches(name, offered, n=1, cutoff=0.0)
        raise UsageError(
            f"there is no backend {name!r}; did you mean {near[0]!r}? Offered: "
            f"{', '.join(offered)}, or any importable module by its dotted name"
        )
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise UsageError(f"the backend {name!r} cannot be imported: {error}") from None
    connect: Callable[[Target], Backend] | None = getattr(module, "connect", None)
    if connect is None:
        raise UsageError(f"the backend {name!r} has no function connect(target)")
    return connect
