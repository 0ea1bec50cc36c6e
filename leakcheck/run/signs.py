"""What shows that a target restarted: nobody listened for a moment, or its counters began anew.

A command that returns 0 proves nothing. While it runs, and until the target answers again, new
connections are tried all the time, and afterwards the target's page of metrics is compared with
that of before.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from leakcheck.records import Target
from leakcheck.run import gauges
from leakcheck.run.gauges import Source

_EVERY_S = 0.05
_PATIENCE_S = 2.0
_BORN = "process_start_time_seconds"


class Signs:
    """Looks on while a target restarts."""

    def __init__(self, target: Target, page: Source | None) -> None:
        """Looks at the target as it is before."""
        parts = urlsplit(target.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._address = parts.hostname or "", port
        self._page = page
        # one page of several processes shows another of them each time: it can tell nothing then
        pages = [] if page is None else [gauges.counters(page), gauges.counters(page)]
        steady = len(pages) == 2 and not newer(*pages)  # noqa: PLR2004 - the two of them
        self._before = pages[-1] if steady else None
        self._cut: str | None = None
        self._down = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._knock, name="leakcheck-signs", daemon=True)
        self._reached = _refusal(self._address) is None  # behind a proxy nobody may be reached

    def wait(self, patience_s: float) -> None:
        """Until a connection is refused, or so long."""
        if self._reached:
            self._down.wait(patience_s)

    def seen(self) -> str | None:
        """What shows that the target restarted, in a few words; None where nothing does."""
        if self._cut is not None or self._before is None or self._page is None:
            return self._cut
        return newer(self._before, gauges.counters(self._page))

    def start(self) -> None:
        """Begin to try connections."""
        if self._reached:
            self._thread.start()

    def stop(self) -> None:
        """Try no more."""
        self._over.set()
        if self._reached:
            self._thread.join()

    def _knock(self) -> None:
        while not self._over.wait(_EVERY_S):
            if (how := _refusal(self._address)) is not None:
                self._cut = f"a connection was {how} in between"
                self._down.set()
                return


@contextmanager
def watched(target: Target, page: Source | None) -> Iterator[Signs]:
    """Look on while the block lasts."""
    signs = Signs(target, page)
    signs.start()
    try:
        yield signs
    finally:
        signs.stop()


def newer(before: dict[str, float] | None, after: dict[str, float] | None) -> str | None:
    """What shows that the counters `after` are those of a later process; None where nothing does.

    Either may be None: a page that could not be read.
    """
    if before is None or after is None:
        return None
    if _BORN in before and after.get(_BORN, before[_BORN]) != before[_BORN]:
        return f"its {_BORN} changed"
    fell = sorted(name for name in before.keys() & after.keys() if after[name] < before[name])
    return f"its counter {fell[0]} fell" if fell else None


def _refusal(address: tuple[str, int]) -> str | None:
    """How a new connection was turned away; None where it was not, or nothing can be told."""
    try:
        with socket.create_connection(address, _PATIENCE_S):
            return None
    except ConnectionRefusedError:
        return "refused"
    except ConnectionResetError:
        return "reset"
    except OSError:
        return None
