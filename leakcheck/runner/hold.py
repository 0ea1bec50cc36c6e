"""Leave a target alone for as long as it asks, where no budget and no pace limits a run.

Nothing is asked of the parent before an attempt. A worker that is refused with a Retry-After, or
told that no request is left until a reset, holds its lanes back at once and tells the parent, which
has all others wait too. No clock is read in `Patience`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from leakcheck.records import Pace, Quota
from leakcheck.runner.allowance import Allowance
from leakcheck.runner.breaker import REFUSALS

_LOOK_S = 0.2
"""How soon a lane that waits notices that it waits in vain."""


class Hold:
    """When the lanes of one worker may send."""

    def __init__(self, tell: Callable[..., Any] | None = None) -> None:
        """`tell` is called with `refused` and `sent_ns`, `wait_s` and `answered` for each refusal
        that says how long to wait: when that attempt was sent, and whether any was answered since
        the last one; with `emptied` and `wait_s` where an answer says that no request is left.
        """
        self._tell = tell
        self._allowance = Allowance(Pace().max_wait_s)
        self._until_ns = 0
        self._for_good = False
        self._answered = False

    def answered(self) -> None:
        """The target took a request."""
        self._answered = True

    def refused(self, sent_ns: int, wait_s: float) -> None:
        """The target refused a request that was sent then, and asks to be left alone so long."""
        waited_s = min(wait_s, Pace().max_wait_s)  # a longer one ends the run: see `Patience`
        self.until(time.monotonic_ns() + round(waited_s * 1e9))
        if self._tell is not None:
            self._tell("refused", sent_ns=sent_ns, wait_s=wait_s, answered=self._answered)
        self._answered = False

    def told(self, quota: Quota, sent_ns: int) -> None:
        """The answer to what was sent then says what the target still takes."""
        now_s = time.monotonic()
        self._allowance.told(quota, sent_s=sent_ns / 1e9, now_s=now_s)
        wait_s = self._allowance.wait_s(now_s)
        if not wait_s or quota.requests:
            return
        self.until(round((now_s + wait_s) * 1e9))
        if self._tell is not None:
            self._tell("emptied", wait_s=wait_s)

    def until(self, at_ns: int | None) -> None:
        """Hold back what is to be sent before that time; with None all of it, for good."""
        self._for_good = self._for_good or at_ns is None
        self._until_ns = max(self._until_ns, at_ns or 0)

    async def passed(self) -> bool:
        """Wait until a request may be sent; False where none may be any more."""
        while not self._for_good and (left_ns := self._until_ns - time.monotonic_ns()) > 0:  # noqa: ASYNC110 - a time
            await asyncio.sleep(min(left_ns / 1e9, _LOOK_S))
        return not self._for_good


class Patience:
    """How long a run lets a target that refuses keep it waiting; the parent's one."""

    def __init__(self, max_wait_s: float) -> None:
        """`max_wait_s` is for one pause."""
        self._max_wait_s = max_wait_s
        self._held_ns = -1
        self._rounds = 0
        self.ended: tuple[str, str] | None = None
        """Kind and detail of the event that ends the run."""

    def refused(self, now_ns: int, *, sent_ns: int, wait_s: float, answered: bool) -> int | None:
        """Until when all lanes are to wait; None where the run is over."""
        if answered:
            self._rounds = 0
        if sent_ns >= self._held_ns:  # those in flight together are one round
            self._rounds += 1
            self._held_ns = now_ns
        if wait_s > self._max_wait_s:
            self.ended = too_long(wait_s, self._max_wait_s)
        elif self._rounds >= REFUSALS:
            self.ended = in_vain()
        return None if self.ended else now_ns + round(wait_s * 1e9)


def too_long(wait_s: float, max_wait_s: float) -> tuple[str, str]:
    """The end of a run whose target asks for a longer pause than anybody wants to wait."""
    detail = (
        f"the target asks to be left alone for {wait_s:g} s, and the run waits at most "
        f"{max_wait_s:g} s (--max-wait-s)"
    )
    return "told-to-wait", detail


def in_vain(status: int | None = None) -> tuple[str, str]:
    """The end of a run whose target takes nothing, however long it is left alone."""
    which = "" if status is None else f" (status {status})"
    detail = (
        f"the target refused all that was sent {REFUSALS} times in a row{which}, however long was "
        "waited in between: no quota may be left"
    )
    return "told-to-wait", detail
