"""One lane: one request in flight on a connection of its own, journalled before it is sent.

This is where identity and time are stamped, and where the one broad `except` of the harness
stands: whatever a backend raises is an observation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from leakcheck.backends import Backend, Broken, Refused
from leakcheck.records import Chunk, Observation, Outcome, Quota, Request, Target
from leakcheck.redact import one_line, redact, redact_chunks, secrets
from leakcheck.runfolder import Shard
from leakcheck.runner.governor import RETRIES, is_refusal
from leakcheck.runner.hold import Hold

WAIT_WITHOUT_HINT_S = 1.0
"""How long a 429 without Retry-After is waited out."""
KEPT_CHARACTERS = 65_536
"""So much is kept of an answer that is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, when to send it, and how patiently: `timeout_s` is for each attempt."""

    request: Request
    at_ns: int
    retries: int
    timeout_s: float


class Leave(Protocol):
    """Asked before each attempt of a run with a budget or a pace."""

    async def ask(self, request: Request, *, again: bool) -> int | None:
        """Wait until the attempt may be sent; None where it may never be."""
        ...

    def over(self, ticket: int, request: Request, seen: Observation) -> None:
        """Tell what became of it."""
        ...


@dataclass(slots=True, kw_only=True)
class _Reply:
    """What has come back so far of the attempt in flight."""

    start_ns: int
    first_chunk_ns: int | None = None
    chunks: list[Chunk] = field(default_factory=list)
    outcome: Outcome = "unknown"
    error: str | None = None
    status: int | None = None
    retry_after_s: float | None = None
    connection: int | None = None
    replica: str | None = None
    reply_id: str | None = None
    quota: Quota | None = None


class Lane:
    """Sends one request at a time and journals what happens.

    Retries are planned, counted and visible: only after 429, or 503 with Retry-After, which
    certainly generated nothing; each attempt has its own invocation and observation. Where the
    plan says so it hangs up: the backend closes the connection, and nothing is tried again.
    """

    def __init__(
        self,
        *,
        worker: int,
        lane: int,
        target: Target,
        backend: Backend,
        shard: Shard,
        leave: Leave | None = None,
        hold: Hold | None = None,
    ) -> None:
        """The backend belongs to this lane alone, the shard and the `hold` to its worker. `leave`
        is asked before each attempt, and then says how long to wait after a refusal.
        """
        self._leave = leave
        self._hold = hold or Hold()
        self._worker = worker
        self._lane = lane
        self._backend = backend
        self._shard = shard
        self._longest = target.max_reply_bytes
        self._keys = secrets(target)

    async def run(self, job: Job) -> Observation | None:
        """Send one request when its time has come; return the observation of its last attempt, or
        None where it may not be sent.

        Cancelled while a request is in flight, it journals that as `unknown` and returns it: the
        caller sees from its task's `cancelling()` that no more is to be sent.
        """
        await asyncio.sleep((job.at_ns - time.monotonic_ns()) / 1e9)
        if self._leave is not None:
            return await self._by_leave(job, self._leave)
        seen = None
        for attempt in range(1, job.retries + 2):
            if not await self._hold.passed():
                break
            seen = await self._attempt(job, attempt)
            if not is_refusal(seen.outcome, seen.status, seen.retry_after_s):
                if seen.outcome in ("ok", "aborted"):
                    self._hold.answered()
                if seen.quota is not None:
                    self._hold.told(seen.quota, seen.start_ns)
                break
            if seen.retry_after_s is not None:
                self._hold.refused(seen.start_ns, seen.retry_after_s)
            elif attempt <= job.retries:
                await asyncio.sleep(WAIT_WITHOUT_HINT_S)
        return seen

    async def _by_leave(self, job: Job, leave: Leave) -> Observation | None:
        seen = None
        retries = job.retries and max(job.retries, RETRIES)
        for attempt in range(1, retries + 2):
            ticket = await leave.ask(job.request, again=attempt > 1)
            if ticket is None:
                break
            seen = await self._attempt(job, attempt)
            leave.over(ticket, job.request, seen)
            if not is_refusal(seen.outcome, seen.status, seen.retry_after_s):
                break
        return seen

    async def close(self) -> None:
        """Close the connection."""
        await self._backend.close()

    async def _attempt(self, job: Job, attempt: int) -> Observation:
        reply = _Reply(start_ns=time.monotonic_ns())
        identity = job.request.id, attempt, self._worker, self._lane
        self._shard.invoke(*identity, reply.start_ns)
        await self._receive(job, reply)
        observation = self._observation(job.request.id, attempt, reply)
        self._shard.observe(observation)
        return observation

    async def _receive(self, job: Job, reply: _Reply) -> None:
        planned = asyncio.timeout(job.request.abort_after_s)
        try:
            async with (
                asyncio.timeout(job.timeout_s),
                planned,
                _closed(self._backend.stream(job.request)) as stream,
            ):
                reply.outcome = await self._collect(stream, reply, job.request.abort_after_chunks)
        except Refused as refused:
            reply.outcome = "failed"
            reply.status, reply.retry_after_s = refused.status, refused.retry_after_s
            reply.error = refused.message
            if refused.status is not None:
                reply.error = f"refused with status {refused.status}: {refused.message}"
        except Broken as broken:
            reply.status, reply.error = broken.status, broken.message
        except TimeoutError:
            if planned.expired():
                reply.outcome = "aborted"
                return
            reply.error = f"no whole answer within {job.timeout_s:g} s"
        except asyncio.CancelledError:
            reply.error = "the run was stopped before the answer was complete"
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            reply.error = f"the backend failed with {type(error).__name__}: {error}"

    async def _collect(
        self, stream: AsyncIterator[Chunk], reply: _Reply, abort_after_chunks: int | None
    ) -> Outcome:
        """Take in a stream; `aborted` once that many pieces of a longer answer have come."""
        characters = pieces = 0
        async for chunk in stream:
            if chunk.text and reply.first_chunk_ns is None:
                reply.first_chunk_ns = time.monotonic_ns()
            if chunk.connection is not None:  # said once, of the answer as a whole
                reply.connection, reply.replica = chunk.connection, chunk.replica
                reply.reply_id, reply.quota = chunk.reply_id, chunk.quota
                continue
            reply.chunks.append(chunk)
            characters += len(chunk.text)
            pieces += bool(chunk.text)
            if characters > self._longest:
                raise Broken(f"the answer is longer than {self._longest} characters")
            if chunk.text and chunk.finish_reason is None and pieces == abort_after_chunks:
                return "aborted"
        return "ok"

    def _observation(self, request_id: str, attempt: int, reply: _Reply) -> Observation:
        end_ns = time.monotonic_ns()
        chunks = redact_chunks(reply.chunks, self._keys)
        if reply.outcome != "ok":
            chunks = _beginning(chunks)
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        reasons = [c.finish_reason for c in chunks if c.finish_reason and "[" not in c.field]
        ids = [chunk.target_id for chunk in chunks if chunk.target_id]
        return Observation(
            request_id=request_id,
            worker=self._worker,
            lane=self._lane,
            outcome=reply.outcome,
            start_ns=reply.start_ns,
            end_ns=end_ns,
            attempt=attempt,
            first_chunk_ns=reply.first_chunk_ns,
            chunks=chunks,
            usage=usages[-1] if usages else None,
            finish_reason=reasons[-1] if reasons else None,
            target_id=ids[0] if ids else None,
            status=reply.status,
            error=None if reply.error is None else redact(one_line(reply.error), self._keys),
            retry_after_s=reply.retry_after_s,
            connection=reply.connection,
            replica=None if reply.replica is None else redact(reply.replica, self._keys),
            reply_id=None if reply.reply_id is None else redact(reply.reply_id, self._keys),
            quota=reply.quota,
        )


@asynccontextmanager
async def _closed(stream: AsyncIterator[Chunk]) -> AsyncIterator[AsyncIterator[Chunk]]:
    """Close a generator at once, in place of whenever it is collected; others need no closing."""
    try:
        yield stream
    finally:
        if (close := getattr(stream, "aclose", None)) is not None:
            await close()


def _beginning(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """The first KEPT_CHARACTERS or so of an answer that is not whole."""
    kept: list[Chunk] = []
    room = KEPT_CHARACTERS
    for chunk in chunks:
        kept.append(chunk if len(chunk.text) <= room else replace(chunk, text=chunk.text[:room]))
        room -= len(chunk.text) + 16 + 64 * len(chunk.logprobs)
        if room <= 0:
            break
    return tuple(kept)
