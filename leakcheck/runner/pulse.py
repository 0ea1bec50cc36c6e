"""Whether a target that answers nothing may be dead: what its last replies say."""

from __future__ import annotations

from collections.abc import Iterable

from leakcheck.backends import CUT
from leakcheck.records import Observation

LEAST = 40
"""So many requests in a row without a sign of life, as many as the breaker looks at: more than a
window of most scenarios, so that one that broke its own connections is not yet a death."""
_SERVER_ERRORS = 500


def alive(seen: Observation) -> bool | None:
    """Whether a reply shows that somebody serves there (a refusal shows it too), or that nobody
    does: no connection, a cut one, or a 5xx. None where it says neither, as a time-out does.
    """
    if seen.outcome == "ok" or (seen.outcome == "aborted" and seen.first_chunk_ns is not None):
        return True
    if seen.status is not None:
        return seen.status < _SERVER_ERRORS or seen.retry_after_s is not None
    if seen.outcome == "failed" or seen.error == CUT:
        return False
    return None


class Streak:
    """The requests since the last sign of life, over all that a runner plays."""

    def __init__(self) -> None:
        """None so far."""
        self.forget()

    def forget(self) -> None:
        """There was a sign of life, or it is another target now."""
        self._dead = 0
        self._windows: set[int] = set()
        self._lanes: set[tuple[int, int]] = set()

    def add(self, *, living: int, dead: int, window: int, lanes: Iterable[tuple[int, int]]) -> None:
        """A phase is over: how many signs of life there were, and how many dead requests since the
        last of them.
        """
        if living:
            self.forget()
        if dead:
            self._dead += dead
            self._windows.add(window)
            self._lanes.update(lanes)

    @property
    def long(self) -> bool:
        """Whether it is so long that the target may be dead."""
        several = len(self._windows) > 1 or len(self._lanes) > 1
        return self._dead >= LEAST and several
