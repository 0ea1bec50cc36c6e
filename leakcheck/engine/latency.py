"""How long steps and requests took, of late. Belongs to the engine's thread, as the engine does."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from leakcheck.engine.values import Update

KEPT = 20_000
"""Durations of each kind that are remembered: enough for a 99.9th percentile with 20 above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of `count` durations the median, p99, p99.9 and the largest; None where there were none."""

    count: int
    p50_s: float | None
    p99_s: float | None
    p999_s: float | None
    max_s: float | None


class Latencies:
    """Seconds of the last steps, and of the last requests: to their first token, to their end."""

    def __init__(self) -> None:
        """Nothing was measured yet."""
        self.steps: deque[float] = deque(maxlen=KEPT)
        self.first_tokens: deque[float] = deque(maxlen=KEPT)
        self.requests: deque[float] = deque(maxlen=KEPT)
        self._arrived: dict[str, float] = {}
        self._begun: set[str] = set()

    def arrived(self, request_id: str, at: float) -> None:
        """A request was accepted at `at`, by `time.perf_counter`."""
        self._arrived[request_id] = at

    def stepped(self, begun: float, updates: Iterable[Update], live: Container[str]) -> None:
        """A step that began at `begun` is over; what it added, and the requests still in work."""
        now = time.perf_counter()
        self.steps.append(now - begun)
        for update in updates:
            arrived = self._arrived.get(update.id)
            if arrived is None:
                continue
            if update.id not in self._begun:
                self._begun.add(update.id)
                self.first_tokens.append(now - arrived)
            if update.finish_reason is not None and update.id not in live:
                self.requests.append(now - arrived)
                self.forget(update.id)

    def forget(self, request_id: str) -> None:
        """The request is over; an aborted one counts nowhere."""
        self._arrived.pop(request_id, None)
        self._begun.discard(request_id)

    def summary(self) -> dict[str, Percentiles]:
        """Percentiles of each kind: `step`, `first_token`, `request`."""
        kinds = {
            "step": self.steps,
            "first_token": self.first_tokens,
            "request": self.requests,
        }
        return {name: percentiles(sorted(its)) for name, its in kinds.items()}


def percentiles(ordered: Sequence[float]) -> Percentiles:
    """By nearest rank: the smallest duration that this share of all does not exceed."""

    def rank(share: float) -> float | None:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None

    return Percentiles(
        count=len(ordered),
        p50_s=rank(0.5),
        p99_s=rank(0.99),
        p999_s=rank(0.999),
        max_s=rank(1.0),
    )
