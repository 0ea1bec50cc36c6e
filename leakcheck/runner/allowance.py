"""What a target says it still takes, kept before it has to refuse. No clock is read here.

The lowest figure since the last reset counts, and what is in flight may not be in it yet: at most
so many as are left are in flight, and with none left nothing goes until the reset. A target whose
every reply says that nothing is left, also to what is sent after the reset it named, does not mean
it: after a few such pauses that is not kept any more, until it says something else.
"""

from __future__ import annotations

from leakcheck.records import Quota

_IN_VAIN = 3
"""So many pauses in a row after which still nothing is left: the figure says nothing."""


class Allowance:
    """The state of it. Times are seconds of one monotonic clock."""

    def __init__(self, max_wait_s: float) -> None:
        """Nothing was said so far. No pause is longer than `max_wait_s`."""
        self._max_wait_s = max_wait_s
        self._left: int | None = None
        self._until_s = float("-inf")
        self._rested_s = float("-inf")
        self._round_s = float("-inf")
        self._in_vain = 0

    def told(self, quota: Quota, *, sent_s: float, now_s: float) -> None:
        """A reply to what was sent at `sent_s` says this."""
        anew = sent_s >= self._rested_s  # after the last pause: what it says is not that old one
        if quota.requests > 0 and sent_s >= self._round_s:  # also where it comes after the last one
            self._in_vain = 0
        if self._in_vain >= _IN_VAIN:
            return
        if now_s >= self._until_s:
            self._left = None
        if self._left is not None and quota.requests > self._left:
            return
        self._left = quota.requests
        self._until_s = now_s + min(quota.reset_s, self._max_wait_s)
        if quota.requests == 0 and self._until_s > now_s:
            if anew:
                self._in_vain, self._round_s = self._in_vain + 1, self._rested_s
            self._rested_s = self._until_s
            if self._in_vain >= _IN_VAIN:
                self._left, self._rested_s = None, now_s

    def wait_s(self, now_s: float, in_flight: int = 0) -> float | None:
        """How long until another request may go: 0 for now, None for when another is over."""
        if self._left is None or now_s >= self._until_s or self._left > in_flight:
            return 0.0
        return None if in_flight else self._until_s - now_s
