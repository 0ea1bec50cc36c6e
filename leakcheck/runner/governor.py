"""Budget, pace and breaker of a run: every attempt of every worker asks here before it is sent.

The parent of the workers holds the one governor there is, so that what it allows is never exceeded,
by however many processes, retries or replays. No clock is read here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakcheck.budget.spending import Key, Purse, Use
from leakcheck.records import Caps, Outcome, Pace, Quota
from leakcheck.runner.breaker import REFUSALS, Breaker
from leakcheck.runner.hold import in_vain, too_long
from leakcheck.runner.pace import Throttle

RETRIES = 4
"""How often a refused request is tried again at least, where its scenario has retries at all."""
_TOO_MANY_REQUESTS, _UNAVAILABLE = 429, 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """What the parent must know of an attempt that is over. `use` is None where nobody knows."""

    outcome: Outcome
    use: Use | None
    status: int | None = None
    retry_after_s: float | None = None
    error: str = ""
    quota: Quota | None = None


def is_refusal(outcome: Outcome, status: int | None, retry_after_s: float | None) -> bool:
    """Whether the target asks to be left alone: 429, or 503 that says for how long."""
    if outcome != "failed":
        return False
    return status == _TOO_MANY_REQUESTS or (status == _UNAVAILABLE and retry_after_s is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    key: Key
    most: Use
    again: bool


class Governor:
    """Says for each attempt whether it may be sent, and when."""

    def __init__(
        self,
        caps: Caps,
        pace: Pace | None,
        used: Use | None = None,
        sent_s: Sequence[float] = (),
    ) -> None:
        """`used`: what was used before, and `sent_s` when its latest requests were sent."""
        self.pace = pace
        self._pace = pace or Pace()
        self.purse = Purse(caps, used or Use())
        self._throttle = Throttle(self._pace)
        self.remember(sent_s)
        self._breaker = Breaker(self._pace.max_errors)
        self._asked: deque[_Asked] = deque()
        self._sent_s: dict[Key, float] = {}
        self._most: dict[Key, Use] = {}
        self._held = False
        self.firsts = 0
        """Requests of the window that is played which have not been sent once: no retry may take
        what they need."""
        self.ended: tuple[str, str] | None = None
        """Kind and detail of the event that ends the run."""

    def remember(self, sent_s: Sequence[float], use: Use | None = None) -> None:
        """Requests that belong to no plan were sent at these times, and used so much."""
        self.purse.used += use or Use()
        for each in sent_s:
            self._throttle.sent(each)
            self._throttle.over()

    def ask(self, key: Key, most: Use, *, again: bool) -> None:
        """An attempt waits to be sent; `again` says that it is a retry."""
        self._asked.append(_Asked(key=key, most=most, again=again))

    def decide(self, now_s: float) -> Iterator[tuple[Key, bool]]:
        """Which of those that wait are to go now, and which never."""
        self._held = False
        while self._asked:
            first = self._asked[0]
            may = False if self.ended else self._may(first)
            self._held = may is None
            if may is None or (may and self._throttle.wait_s(now_s) != 0):
                return
            self._asked.popleft()
            if may:
                self._send(first, now_s)
            yield first.key, may

    def wait_s(self, now_s: float, most_s: float) -> float:
        """How long nothing can change by itself, at most `most_s`."""
        waits = bool(self._asked) and not self._held
        wait_s = self._throttle.wait_s(now_s) if waits else None
        return most_s if wait_s is None else min(most_s, max(wait_s, 0.001))

    def over(self, key: Key, end: Over, now_s: float) -> None:
        """An attempt is over."""
        sent_s, most = self._sent_s.pop(key), self._most.pop(key)
        self._throttle.over()
        self.purse.settle(key, most if end.use is None else end.use)
        if not is_refusal(end.outcome, end.status, end.retry_after_s):
            answered = end.outcome in ("ok", "aborted")
            if answered:
                self._throttle.answered()
            if end.quota is not None:
                self._throttle.allowance.told(end.quota, sent_s=sent_s, now_s=now_s)
            why = self._breaker.count("" if answered else end.error or "no reason given")
            if why is not None:
                self._end("breaker", why)
            return
        self._throttle.refused(sent_s, now_s, end.retry_after_s)
        if end.retry_after_s is not None and end.retry_after_s > self._pace.max_wait_s:
            self._end(*too_long(end.retry_after_s, self._pace.max_wait_s))
        elif self._throttle.refusals >= REFUSALS:
            self._end(*in_vain(end.status))

    def bury(self, worker: int, now_s: float) -> None:
        """A worker died: what it had in flight may have used all that it could."""
        self._asked = deque(each for each in self._asked if each.key[0] != worker)
        for key in [key for key in self._sent_s if key[0] == worker]:
            self.over(key, Over(outcome="unknown", use=None, error="the worker died"), now_s)

    def _may(self, asked: _Asked) -> bool | None:
        """Whether it fits; None where that is known only when others are over."""
        what = self.purse.lacks(asked.most, besides=self.firsts if asked.again else 0)
        if what is None:
            return True
        if what != "requests" and self.purse.waits:
            return None
        if not asked.again:
            self._end("spent", f"the budget of {what} was used up before the end of a window")
        return False

    def _send(self, asked: _Asked, now_s: float) -> None:
        self._throttle.sent(now_s)
        self.purse.reserve(asked.key, asked.most)
        self._sent_s[asked.key], self._most[asked.key] = now_s, asked.most
        if not asked.again:
            self.firsts -= 1

    def _end(self, kind: str, detail: str) -> None:
        self.ended = self.ended or (kind, detail)
