"""What a run may use of requests, tokens and money, what it has used, and what still fits.

Requests are attempts: retries and replays count. Tokens are those that the target reports for an
answer; where it reports none they are counted from characters, and what nobody has seen the end of
counts as an answer of full length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from leakcheck import runfolder
from leakcheck.records import Caps, Observation, Request, Usage, Use

__all__ = [
    "MEETING",
    "MET",
    "Caps",
    "Purse",
    "Resource",
    "Use",
    "cost_usd",
    "meeting",
    "met",
    "sentence",
    "total",
    "unplanned",
    "use",
    "used",
    "worst",
]

CHARS_PER_TOKEN = 3
"""Taken where the target reports no usage: prose has about 4, rare words are cut up finer."""
MEETING = 24
"""Of the requests that find out what a target takes, before a run has a folder, at most so many are
sent with each key."""
MET = "met"
"""The event of requests that are in no plan; its detail is `unplanned`."""
_UNPLANNED = re.compile(r"(\d+) requests(?:, (\d+) tokens at most)?")
LEAST_ANSWER = 16
"""Tokens of an answer, whatever was asked for: less is not taken by the responses of OpenAI."""
_MEETING_TOKENS = 64
_TEMPLATE_TOKENS = 32
_MESSAGE_TOKENS = 8
_MILLION = 1e6

Key = tuple[int, int]
"""An attempt in flight: its worker, and what that calls it."""
Resource = Literal["requests", "tokens", "cost"]


def worst(request: Request) -> Use:
    """The most that one attempt can use: a token a byte of the prompt, which no tokenizer exceeds,
    a usual template, and answers of full length. Only a hidden prompt of the target adds to it.
    """
    text = sum(len(each.content.encode()) + _MESSAGE_TOKENS for each in request.messages)
    return Use(requests=1, prompt_tokens=text + _TEMPLATE_TOKENS, answer_tokens=_longest(request))


def use(request: Request, seen: Observation) -> Use:
    """What one attempt has used."""
    told = seen.usage or Usage()
    asked, answered = told.prompt_tokens, told.completion_tokens
    if asked is None and seen.outcome == "failed":  # certainly not generated
        return Use(requests=1)
    estimated = int(asked is None or answered is None)
    if asked is None:
        asked = -(-sum(len(each.content) for each in request.messages) // CHARS_PER_TOKEN)
    if answered is None:
        answered = -(-sum(len(chunk.text) for chunk in seen.chunks) // CHARS_PER_TOKEN)
        if seen.outcome != "ok":
            answered = max(answered, _longest(request))
    return Use(requests=1, prompt_tokens=asked, answer_tokens=answered, estimated=estimated)


def cost_usd(caps: Caps, of: Use) -> float:
    """What it costs at the prices of the caps; 0 without prices."""
    charged = of.prompt_tokens * (caps.prompt_usd or 0.0)
    charged += of.answer_tokens * (caps.answer_usd or 0.0)
    return charged / _MILLION


def meeting(identities: int) -> Use:
    """The most that finding out what a target takes can use, with so many keys."""
    return met(MEETING * identities)


def met(requests: int) -> Use:
    """The most that so many tiny requests use that are in no plan."""
    return Use(
        requests=requests,
        prompt_tokens=_MEETING_TOKENS * requests,
        answer_tokens=LEAST_ANSWER * requests,
    )


def unplanned(of: Use, why: str) -> str:
    """What requests that are in no plan have used, for the run folder; `why` they were sent."""
    return f"{of.requests} requests, {of.tokens} tokens at most, {why}"


def _read(detail: str) -> Use:
    told = _UNPLANNED.match(detail)
    requests, tokens = told.groups() if told else ("0", None)
    if tokens is None:
        return met(int(requests))
    return Use(requests=int(requests), prompt_tokens=int(tokens))


class Purse:
    """What was used, what attempts in flight may still use, and so what fits."""

    def __init__(self, caps: Caps, used: Use) -> None:
        """`used` before."""
        self.caps = caps
        self.used = used
        self._reserved: dict[Key, Use] = {}
        self._hidden = 0

    def lacks(self, most: Use, *, besides: int = 0) -> Resource | None:
        """What an attempt that uses so much at most would exceed, now and with `besides` more
        requests; None where it fits.
        """
        total = self.used + most
        for reserved in self._reserved.values():
            total += reserved
        total += Use(prompt_tokens=self._hidden * (len(self._reserved) + 1))
        return _exceeded(self.caps, total + Use(requests=besides))

    @property
    def room(self) -> int | None:
        """Requests that are left while none is in flight; None: any number."""
        most = self.caps.requests
        return None if most is None else max(0, most - self.used.requests)

    @property
    def tokens_left(self) -> int | None:
        """Tokens that are left while none is in flight; None: any number."""
        most = self.caps.tokens
        return None if most is None else max(0, most - self.used.tokens)

    @property
    def waits(self) -> bool:
        """Whether attempts are in flight that may turn out to use less."""
        return bool(self._reserved)

    def reserve(self, key: Key, most: Use) -> None:
        """Set aside what an attempt may use; `settle` takes what it did."""
        self._reserved[key] = most

    def settle(self, key: Key, used: Use) -> None:
        """An attempt is over. A prompt that the target counts longer than it can be has a hidden
        part, which is added to those to come.
        """
        most = self._reserved.pop(key)
        self._hidden = max(self._hidden, used.prompt_tokens - most.prompt_tokens)
        self.used += used

    def exceeded_by(self, following: int) -> Resource | None:
        """What so many more requests would exceed, at the mean tokens of a request so far."""
        each = following / max(1, self.used.requests)
        ahead = Use(
            requests=following,
            prompt_tokens=round(self.used.prompt_tokens * each),
            answer_tokens=round(self.used.answer_tokens * each),
        )
        return _exceeded(self.caps, self.used + ahead)


def _exceeded(caps: Caps, total: Use) -> Resource | None:
    if caps.requests is not None and total.requests > caps.requests:
        return "requests"
    if caps.tokens is not None and total.tokens > caps.tokens:
        return "tokens"
    if caps.cost_usd is not None and cost_usd(caps, total) > caps.cost_usd:
        return "cost"
    return None


def used(folder: Path) -> Use:
    """What stands in a run folder. An attempt without an end (its worker was killed) counts with
    the most that it can have used.
    """
    events = runfolder.read_events(folder)
    before = sum((_read(each.detail) for each in events if each.kind == MET), Use())
    shards = runfolder.read_shards(folder)
    if not shards.invocations:
        return before
    requests = {each.id: each for plan in runfolder.read_plans(folder) for each in plan.requests}
    ends = {(seen.request_id, seen.attempt): seen for seen in shards.observations}
    return before + total(
        (requests[sent.request_id], ends.get((sent.request_id, sent.attempt)))
        for sent in shards.invocations
    )


def total(attempts: Iterable[tuple[Request, Observation | None]]) -> Use:
    """What attempts have used, those without an end at the most."""
    found = Use()
    for request, seen in attempts:
        found += worst(request) if seen is None else use(request, seen)
    return found


def sentence(caps: Caps, of: Use) -> str:
    """What was used, beside the caps."""
    how = "as the target counts them"
    if of.estimated >= of.requests:
        how = "counted from characters"
    elif of.estimated:
        how += f", for {of.estimated:,} answers counted from characters"
    parts = [
        f"{of.requests:,} requests{_most(caps.requests)}, retries and replays included",
        f"{of.tokens:,} tokens{_most(caps.tokens)}, {how}",
    ]
    if caps.prompt_usd is not None:
        most = "" if caps.cost_usd is None else f" of at most ${caps.cost_usd:,.2f}"
        parts.append(f"${cost_usd(caps, of):,.2f}{most}")
    return "; ".join(parts)


def _most(cap: int | None) -> str:
    return "" if cap is None else f" of at most {cap:,}"


def _longest(request: Request) -> int:
    return max(LEAST_ANSWER, request.sampling.max_tokens) * (request.sampling.n or 1)
