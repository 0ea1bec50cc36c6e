"""What a run has really used of the requests and tokens that it may use.

Requests are attempts: retries and replays count. Tokens are those that the target reports for an
answer, prompt and completion together; where it reports none, characters of both are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leakcheck import runfolder
from leakcheck.records import Observation, Request
from leakcheck.tail import Tail

CHARS_PER_TOKEN = 3
"""Taken where the target reports no usage: prose has about 4, rare words are cut up finer."""

Resource = Literal["requests", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What must not be exceeded by more than a window, replays included; None: no limit."""

    requests: int | None = None
    tokens: int | None = None


class Meter:
    """Counts what stands in a run folder, from its beginning, a resumed run too."""

    def __init__(self, folder: Path, caps: Caps) -> None:
        """Nothing is read before `read` is called."""
        self._tail = Tail(folder)
        self._caps = caps
        self._chars: dict[str, int] = {}
        self.requests = 0
        self.tokens = 0
        self.estimated = 0
        """Answers whose tokens were counted by characters."""

    def expect(self, requests: Iterable[Request]) -> None:
        """Note how long the prompts are of what is to be sent."""
        for request in requests:
            self._chars[request.id] = sum(len(each.content) for each in request.messages)

    def read(self) -> None:
        """Take in what was sent and answered since the last time."""
        new = self._tail.read()
        self.requests += len(new.invocations)
        for seen in new.observations:
            self.tokens += self._of(seen)

    def exceeded_by(self, following: int) -> Resource | None:
        """What so many more requests would exceed, at the mean tokens of a request so far."""
        caps = self._caps
        if caps.requests is not None and self.requests + following > caps.requests:
            return "requests"
        mean = self.tokens / self.requests if self.requests else 0.0
        if caps.tokens is not None and self.tokens + following * mean > caps.tokens:
            return "tokens"
        return None

    def sentence(self) -> str:
        """What was used, beside the caps."""
        requests = f"{self.requests:,} requests{_most(self._caps.requests)}"
        how = "as the target counts them" if not self.estimated else "as the target counts them, "
        if self.estimated:
            how += f"for {self.estimated:,} answers estimated from characters"
        return (
            f"{requests}, retries and replays included; {self.tokens:,} tokens"
            f"{_most(self._caps.tokens)}, {how}"
        )

    def _of(self, seen: Observation) -> int:
        usage = seen.usage
        if usage is not None and usage.prompt_tokens is not None:
            return usage.prompt_tokens + (usage.completion_tokens or 0)
        if seen.outcome == "failed":
            return 0
        self.estimated += 1
        answered = sum(len(chunk.text) for chunk in seen.chunks)
        return -(-(self._chars.get(seen.request_id, 0) + answered) // CHARS_PER_TOKEN)


def used(folder: Path, caps: Caps) -> Meter:
    """What a run that is over has used."""
    meter = Meter(folder, caps)
    for plan in runfolder.read_plans(folder):
        meter.expect(plan.requests)
    meter.read()
    return meter


def _most(cap: int | None) -> str:
    return "" if cap is None else f" of at most {cap:,}"
