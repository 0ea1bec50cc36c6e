"""How fast a run may go: a sliding window, a number in flight, and slower after refusals.

The limit of the user holds over any span of time, so that requests may go together and then wait:
that they overlap is what most scenarios are about. A target that refuses (429, or 503 with
Retry-After) is left alone for as long as it asks, by everybody; then requests go one by one, at a
distance that doubles with each refusal and shrinks again, a bit with each answer (AIMD: Chiu and
Jain, 1989). One that says what it still takes is not sent more than that: see `allowance`. No clock
is read here.
"""

from __future__ import annotations

from collections import deque

from leakcheck.records import Pace
from leakcheck.runner.allowance import Allowance

_MARGIN, _MARGIN_S = 1.02, 0.05
"""What the window is longer by: packets are not all equally long on their way."""
_FASTER = 0.05
"""Of the rate of the user that an answer adds."""
_TOGETHER = 4
"""Requests go together again when their distance is less than that part of the user's."""
_DISTANCE_S = 0.1
"""The first distance, where the user gave no rate."""


class Throttle:
    """The state of a pace. Times are seconds of one monotonic clock."""

    def __init__(self, pace: Pace) -> None:
        """Nothing sent so far."""
        self._pace = pace
        self._sent: deque[float] = deque()
        self._span_s = pace.per_s * _MARGIN + _MARGIN_S
        self._base_s = _DISTANCE_S if pace.requests is None else pace.per_s / pace.requests
        self._free_s = 0.0
        self._slowed_s = float("-inf")
        self.distance_s = 0.0
        """Between two requests; 0: they may go together."""
        self.in_flight = 0
        self.allowance = Allowance(pace.max_wait_s)
        """What the target says that it still takes."""
        self.refusals = 0
        """Rounds of them in a row: those in flight together are one."""

    def wait_s(self, now_s: float) -> float | None:
        """How long until the next request may go: 0 for now, None for when another is over."""
        pace = self._pace
        if pace.in_flight is not None and self.in_flight >= pace.in_flight:
            return None
        allowed_s = self.allowance.wait_s(now_s, self.in_flight)
        if allowed_s is None:
            return None
        free_s = max(self._free_s, now_s + allowed_s)
        if self._sent and self.distance_s:
            free_s = max(free_s, self._sent[-1] + self.distance_s)
        if pace.requests is not None and len(self._sent) >= pace.requests:
            free_s = max(free_s, self._sent[-pace.requests] + self._span_s)
        return max(0.0, free_s - now_s)

    def sent(self, now_s: float) -> None:
        """A request goes."""
        self.in_flight += 1
        self._sent.append(now_s)
        if len(self._sent) > (self._pace.requests or 1):
            self._sent.popleft()

    def over(self) -> None:
        """A request is over, whatever came of it."""
        self.in_flight -= 1

    def answered(self) -> None:
        """The target took a request."""
        self.refusals = 0
        if self.distance_s:
            self.distance_s = 1 / (1 / self.distance_s + _FASTER / self._base_s)
            if self.distance_s * _TOGETHER < self._base_s:
                self.distance_s = 0.0

    def refused(self, sent_s: float, now_s: float, retry_after_s: float | None) -> None:
        """The target refused a request that was sent at `sent_s`: slow down, once for all that were
        in flight together, and leave it alone for as long as it says.
        """
        if sent_s >= self._slowed_s:
            self.refusals += 1
            self._slowed_s = now_s
            self.distance_s = min(max(2 * self.distance_s, self._base_s), self._pace.max_wait_s)
        pause_s = self.distance_s if retry_after_s is None else retry_after_s
        self._free_s = max(self._free_s, now_s + pause_s)
