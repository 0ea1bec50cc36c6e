"""The trace: one JSON line a block event of one engine, for whoever asks later who wrote a block.

Put into a built engine and server from outside, after its fault if it has one: methods are wrapped,
and without a trace none of this runs. What happens to blocks is told as the pool was left, not as
it was asked: a release that a fault swallowed shows as a reference that is still there.

Every line has `event` and `t_s` (seconds since the trace began). Block events have `request` (the
engine's id of it), `cause`, `block`, `references` after the event, `hash` (hex; None unless the
prefix cache knows the block), `step` and `mask` (shape [rows, 1, width, keys] of the attention mask
of that step; None outside a step that computed anything). They are:

    alloc     a block that was never used is taken        reuse    one that was: `was` wrote it last
    share     one more reference, see `same_prefix`       release  one less, others remain
    free      the last reference is gone                  copy     `source` was copied into `block`
    keep      the prefix cache knows the block from now   evict    given up; `forgotten` there too
    write     a request fills positions of the block      read     a request attends to the block

`write` and `read` come once for each request and use of a block, with `ordinal` (which block of its
positions); they are what the step's slots, tables and mask say. Other lines: `start` (a new engine:
every block is empty), `request` (`id`, `target_id`: what the client sees, `client_id`: its
X-Request-Id), `end` (a choice of a request has ended). `same_prefix` of a block shared by its
prefix: whether its tokens, all before them and the salt are those of the request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakcheck.engine.faults import patch
from leakcheck.engine.prefix import ROOT
from leakcheck.engine.values import EngineError

if TYPE_CHECKING:
    from leakcheck.engine.answer import Call
    from leakcheck.engine.engine import Engine
    from leakcheck.engine.prefix import Entry
    from leakcheck.engine.rows import Batch
    from leakcheck.engine.sequence import Sequence
    from leakcheck.engine.server import Api

CAUSES = {
    "reuse_prefix": "prefix",
    "extend": "room",
    "make_writable": "copy on write",
    "remember": "filled",
    "fork": "fork",
    "preempt": "preempted",
    "remove": "ended",
    "give_back": "no room",
}
"""Why a method of the scheduler touches blocks."""
INHERITED = ("ended", "no room")
"""Causes that give way to the one on whose behalf the method was called."""


def start(api: Api, path: Path, **facts: Any) -> None:
    """Trace this server's engine into a file, after what the file holds already.

    `facts` go into the `start` line. EngineError when the file cannot be written.
    """
    tracer = Tracer(api.engine, path)
    try:
        tracer.write([tracer.line("start", **facts)])
    except OSError as error:
        reason = error.strerror or error
        raise EngineError(f"the trace {str(path)!r} cannot be written: {reason}") from error
    tracer.follow_blocks()
    tracer.follow_steps()
    tracer.follow_requests(api)


class Tracer:
    """Hears of block events on the engine's thread and of requests on the server's."""

    def __init__(self, engine: Engine, path: Path) -> None:
        """Nothing is wrapped yet. The file is open only while lines are added: anything may end."""
        self.engine = engine
        self.path = path
        self.begun = time.monotonic()
        self.lock = threading.Lock()
        self.actors: list[tuple[str, str]] = []
        self.pending: list[dict[str, Any]] = []
        self.step: int | None = None
        self.mask: list[int] | None = None
        self.writers: dict[int, str] = {}
        self.uses: dict[int, int] = {}
        self.seen: dict[str, set[tuple[str, int, int]]] = {}
        self.client_id: ContextVar[str | None] = ContextVar("client_id", default=None)

    # --- lines -----------------------------------------------------------------------------------

    def line(self, event: str, **fields: Any) -> dict[str, Any]:
        """One event of this moment."""
        return {"event": event, "t_s": round(time.monotonic() - self.begun, 6), **fields}

    def write(self, lines: Iterable[dict[str, Any]]) -> None:
        """Put whole lines into the file, from any thread."""
        text = "".join(json.dumps(each) + "\n" for each in lines)
        if text:
            with self.lock, self.path.open("a", encoding="utf-8") as file:
                file.write(text)

    def block_event(self, event: str, block: int, **fields: Any) -> None:
        """Note what has just happened to a block; it is written when its step is over."""
        request, cause = self.actors[-1] if self.actors else (None, None)
        told = {
            "request": request,
            "cause": cause,
            "block": block,
            "references": self.engine.pool.references[block],
            "hash": self.hash_of(block),
            **fields,
        }
        self.pending.append(self.line(event, **told))

    def hash_of(self, block: int) -> str | None:
        """The prefix hash under which the block can be found."""
        entry = self.engine.prefix.by_block.get(block)
        return entry.digest.hex() if entry else None

    def flush(self) -> None:
        """Write what was noted, with the step it belongs to."""
        step = self.engine.steps if self.step is None else self.step
        self.write(each | {"step": step, "mask": self.mask} for each in self.pending)
        self.pending = []
        for gone in self.seen.keys() - self.engine.live.keys():
            del self.seen[gone]

    # --- blocks ----------------------------------------------------------------------------------

    def follow_blocks(self) -> None:
        """Wrap what takes, shares, copies, frees and forgets blocks, and who does it."""
        pool, scheduler = self.engine.pool, self.engine.scheduler
        for method, cause in CAUSES.items():
            patch(scheduler, method, partial(self.acting, cause=cause))
        patch(scheduler, "reuse_prefix", self.reusing)
        patch(pool, "allocate", self.allocating)
        patch(pool, "share", lambda original: self.after(original, "share"))
        patch(pool, "keep", lambda original: self.after(original, "keep"))
        patch(pool, "release", self.releasing)
        patch(pool, "evict", self.evicting)
        patch(self.engine.store, "copy", self.copying)

    def acting(self, original: Callable[..., Any], cause: str) -> Callable[..., Any]:
        """Whatever happens inside is done for the sequence that the method is called with."""

        def method(sequence: Any, *arguments: Any, **options: Any) -> Any:
            inherits = bool(self.actors) and cause in INHERITED
            why = self.actors[-1][1] if inherits else cause
            self.actors.append((sequence.request.id, why))
            try:
                return original(sequence, *arguments, **options)
            finally:
                self.actors.pop()

        return method

    def reusing(self, original: Callable[..., None]) -> Callable[..., None]:
        """Blocks shared by their prefix, told with whether they hold what was looked for."""

        def reuse_prefix(sequence: Sequence, **options: Any) -> None:
            first = len(self.pending)
            original(sequence, **options)
            shared = [told for told in self.pending[first:] if told["event"] == "share"]
            for told, right in zip(shared, self.right_hits(sequence), strict=False):
                told["same_prefix"] = right

        return reuse_prefix

    def right_hits(self, sequence: Sequence) -> Iterator[bool]:
        """Whether each full block that was found holds the sequence's tokens, under its salt.

        By what the prefix cache itself knows of the block, not by how it was found.
        """
        size, parent, right = self.engine.options.block_size, ROOT, True
        for ordinal in range(len(sequence.digests)):
            entry = self.engine.prefix.by_block.get(sequence.table[ordinal])
            part = tuple(sequence.tokens[ordinal * size : (ordinal + 1) * size])
            salt = sequence.request.salt
            right = right and entry is not None and matches(entry, parent, part, salt)
            parent = entry.digest if entry is not None else ROOT
            yield right

    def after(self, original: Callable[[int], None], event: str) -> Callable[[int], None]:
        """Tell of an event once it has happened to a block."""

        def method(block: int) -> None:
            original(block)
            self.block_event(event, block)

        return method

    def allocating(self, original: Callable[[], int | None]) -> Callable[[], int | None]:
        """A block is taken: `alloc` the first time, then `reuse`."""

        def allocate() -> int | None:
            block = original()
            if block is not None:
                self.uses[block] = self.uses.get(block, 0) + 1
                if self.uses[block] == 1:
                    self.block_event("alloc", block)
                else:
                    self.block_event("reuse", block, was=self.writers.get(block))
            return block

        return allocate

    def releasing(self, original: Callable[[int], None]) -> Callable[[int], None]:
        """A reference is given back; what the pool then says decides what it was."""

        def release(block: int) -> None:
            original(block)
            self.block_event("release" if self.engine.pool.references[block] else "free", block)

        return release

    def evicting(self, original: Callable[[], bool]) -> Callable[[], bool]:
        """The oldest cached block is given up; `forgotten`: the prefix cache has heard of it."""

        def evict() -> bool:
            oldest = self.engine.pool.cached_blocks[:1]
            hashes = [self.hash_of(block) for block in oldest]
            done = original()
            for block, hash_ in zip(oldest, hashes, strict=True) if done else ():
                forgotten = self.hash_of(block) != hash_
                self.block_event("evict", block, hash=hash_, forgotten=forgotten)
            return done

        return evict

    def copying(self, original: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """Copy on write."""

        def copy(source: int, target: int) -> None:
            original(source, target)
            self.block_event("copy", target, source=source)
            self.writers[target] = self.actors[-1][0] if self.actors else ""

        return copy

    # --- steps -----------------------------------------------------------------------------------

    def follow_steps(self) -> None:
        """Wrap what computes a step, and what ends a request between steps."""
        patch(self.engine, "step", self.stepping)
        patch(self.engine, "forward", self.forwarding)
        patch(self.engine, "abort", self.aborting)
        patch(self.engine, "ended", self.ending)

    def stepping(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Events of one step are written when it is over, even when it breaks."""

        def step() -> Any:
            self.step, self.mask = self.engine.steps + 1, None
            try:
                return original()
            finally:
                self.flush()
                self.step = self.mask = None

        return step

    def forwarding(self, original: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        """Before a batch is computed: who will write and read which block."""

        def forward(batch: Batch) -> Any:
            self.mask = list(batch.mask.shape)
            self.note_batch(batch)
            return original(batch)

        return forward

    def note_batch(self, batch: Batch) -> None:
        """Note the first write and the first read of each use of a block by each request."""
        size = self.engine.options.block_size
        rows, blocks = batch.table.shape
        written = (batch.slots.view(rows, -1) // size).cpu().numpy()
        table = batch.table.cpu().numpy()
        visible = batch.mask.view(rows, -1, blocks, size).any(dim=3).any(dim=1).cpu().numpy()
        for index, row in enumerate(batch.rows):
            first = row.start // size
            for block in dict.fromkeys(written[index, -row.count :].tolist()):
                self.note_use("write", row.sequence.request.id, block, first)
                first += 1
        for index, row in enumerate(batch.rows):
            for ordinal in visible[index].nonzero()[0].tolist():
                self.note_use("read", row.sequence.request.id, int(table[index, ordinal]), ordinal)

    def note_use(self, event: str, request: str, block: int, ordinal: int) -> None:
        """Tell of a write or read, unless it was told for this request and use of the block."""
        if block == self.engine.store.padding_block:
            return
        if event == "write":
            self.writers[block] = request
        use = (event, block, self.uses.get(block, 0))
        seen = self.seen.setdefault(request, set())
        if use not in seen:
            seen.add(use)
            self.actors.append((request, "attention"))
            self.block_event(event, block, ordinal=ordinal)
            self.actors.pop()

    def aborting(self, original: Callable[[str], Any]) -> Callable[[str], Any]:
        """A client went away, or the server stops."""

        def abort(request_id: str) -> Any:
            self.actors.append((request_id, "aborted"))
            try:
                return original(request_id)
            finally:
                self.actors.pop()
                self.flush()

        return abort

    def ending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A choice has ended."""

        def ended(sequence: Any, reason: str, *arguments: Any) -> Any:
            request = sequence.request.id
            told = {"request": request, "choice": sequence.index, "cause": reason}
            self.pending.append(self.line("end", **told))
            return original(sequence, reason, *arguments)

        return ended

    # --- requests --------------------------------------------------------------------------------

    def follow_requests(self, api: Api) -> None:
        """Wrap what turns an HTTP request into requests of the engine."""
        patch(api, "answer", self.answering)
        patch(api.answerer, "submit", self.submitting)

    def answering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Remember the client's own id for as long as its request is answered."""

        async def answer(request: Any, *arguments: Any, **options: Any) -> Any:
            self.client_id.set(request.headers.get("x-request-id"))
            return await original(request, *arguments, **options)

        return answer

    def submitting(self, original: Callable[[Call], None]) -> Callable[[Call], None]:
        """Tell which requests of the engine one HTTP request becomes."""

        def submit(call: Call) -> None:
            self.write(
                self.line(
                    "request",
                    id=request.id,
                    target_id=call.id,
                    client_id=self.client_id.get(),
                    prompt_tokens=len(request.prompt),
                    choices=request.n,
                )
                for request in call.requests
            )
            original(call)

        return submit


def matches(entry: Entry, parent: bytes, tokens: tuple[int, ...], salt: str) -> bool:
    """Whether a block holds exactly this; the prefix cache's own word may be what is broken."""
    return (entry.tokens, entry.parent, entry.salt) == (tokens, parent, salt)
