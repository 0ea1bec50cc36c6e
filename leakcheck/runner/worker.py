"""What runs inside one spawned worker process: a few lanes, stepped by the parent over a pipe.

Messages are tiny JSON; records never travel. A step names places in plan.jsonl, observations go to
the worker's own shard, counts come back::

    to a worker     {"do": "step", "step": n, "at_ns": t,
                     "jobs": [[offset, length, retries, timeout_s], ...]}
                    {"do": "move", "folder": "...", "target": {...}}    another run
                    {"do": "leave", "ticket": n, "may": true}    the answer to `ask`
                    {"do": "hold", "at_ns": t}    send nothing before; with null nothing at all
                    {"do": "stop"}    give up what is in flight
                    {"do": "close"}   as does the end of the pipe: the parent is gone
    from a worker   {"tell": "ready"}
                    {"tell": "progress" | "done" | "stopped", "step": n, ...Counts}
                    {"tell": "ask", "ticket": n, "again": false, "most": {...Use}}
                    {"tell": "over", "ticket": n, "end": {...Over}}    of what was asked for
                    {"tell": "refused", "sent_ns": t, "wait_s": s, "answered": false}
                    {"tell": "emptied", "wait_s": s}    its quota, as an answer says
                    {"tell": "failed", "why": "one sentence"}, and it ends
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import orjson

from leakcheck import backends, runfolder
from leakcheck.budget import spending
from leakcheck.errors import LeakcheckError
from leakcheck.records import Observation, Request, Target
from leakcheck.redact import redact, secrets
from leakcheck.runner import pulse
from leakcheck.runner.governor import Over
from leakcheck.runner.hold import Hold
from leakcheck.runner.lane import Job, Lane, Leave

HEARTBEAT_S = 0.5
"""How often a worker tells how far it is: the parent takes a long silence for a hung worker."""
_SYNC_S = 1.0
_TOO_MANY = 429


class Pipe(Protocol):
    """The part of `multiprocess.connection.Connection` that is used."""

    def fileno(self) -> int:
        """The descriptor to wait on."""
        ...

    def recv_bytes(self) -> bytes:
        """The next message; EOFError or OSError where the other side is gone."""
        ...

    def send_bytes(self, buf: bytes) -> None:
        """Send one message; OSError where the other side is gone."""
        ...

    def close(self) -> None:
        """Close this end."""
        ...


@dataclass(slots=True, kw_only=True)
class Counts:
    """Final outcomes of one step's requests so far.

    `unreached` of the failed ones found nobody to connect to; `last_error` is that of the latest
    one that had one: neither a whole answer nor a planned abort has. `living` showed that somebody
    serves there, and since the last of those `dead` showed that nobody does (see `pulse`).
    """

    ok: int = 0
    failed: int = 0
    unknown: int = 0
    aborted: int = 0
    unreached: int = 0
    living: int = 0
    dead: int = 0
    last_error: str = ""

    @property
    def over(self) -> int:
        """Requests with a final observation."""
        return self.ok + self.failed + self.unknown + self.aborted

    def add(self, observation: Observation) -> None:
        """Count the last observation of one request."""
        if observation.outcome == "ok":
            self.ok += 1
        elif observation.outcome == "failed":
            self.failed += 1
            self.unreached += observation.status is None
        elif observation.outcome == "aborted":
            self.aborted += 1
        else:
            self.unknown += 1
        self.last_error = observation.error or self.last_error
        match pulse.alive(observation):
            case True:
                self.living, self.dead = self.living + 1, 0
            case False:
                self.dead += 1


def main(
    pipe: Pipe, number: int, lanes: int, folder: str, target: bytes, *, governed: bool = False
) -> None:
    """Serve the parent until it says `close` or is gone. `target` is a Target as JSON. Where it is
    `governed`, the parent is asked before each attempt.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which says `stop`
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(pipe, number, lanes, Path(folder), target, governed=governed))
    except LeakcheckError as error:
        with suppress(OSError):
            pipe.send_bytes(orjson.dumps({"tell": "failed", "why": str(error)}))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(
    pipe: Pipe, number: int, count: int, folder: Path, target: bytes, *, governed: bool
) -> None:
    facts = msgspec.json.decode(target, type=Target)
    worker = _Worker(pipe, number, count, folder, facts, governed=governed)
    try:
        await worker.serve()
    finally:
        await worker.place.close()


class _Place:
    """Where a worker's requests come from, go to and are written down; one of them at a time."""

    def __init__(
        self,
        number: int,
        count: int,
        folder: Path,
        target: Target,
        *,
        leave: Leave | None,
        hold: Hold,
    ) -> None:
        self.number = number
        self.folder = folder
        connect = backends.load(target.backend)
        self.shard = runfolder.Shard(folder, number)
        self.lanes = [
            Lane(
                worker=number,
                lane=lane,
                target=target,
                backend=connect(target),
                shard=self.shard,
                leave=leave,
                hold=hold,
            )
            for lane in range(count)
        ]

    async def close(self) -> None:
        # together: one that takes its time to close must not use up that of the others
        await asyncio.gather(*(lane.close() for lane in self.lanes))
        self.shard.close()


class _Leave:
    """Asks the parent before each attempt."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[bool]] = {}

    async def ask(self, request: Request, *, again: bool) -> int | None:
        ticket = next(self._tickets)
        self._waiting[ticket] = asyncio.get_running_loop().create_future()
        most = asdict(spending.worst(request))
        self._tell("ask", ticket=ticket, again=again, most=most)
        return ticket if await self._waiting[ticket] else None

    def over(self, ticket: int, request: Request, seen: Observation) -> None:
        refused = seen.outcome == "failed" and seen.status is not None
        planned = request.sent == "misdirected" and refused and seen.retry_after_s is None
        end = Over(
            outcome="aborted" if planned and seen.status != _TOO_MANY else seen.outcome,
            use=spending.use(request, seen),
            status=seen.status,
            retry_after_s=seen.retry_after_s,
            error=seen.error or "",
            quota=seen.quota,
        )
        self._tell("over", ticket=ticket, end=asdict(end))

    def answer(self, ticket: int, *, may: bool) -> None:
        """What the parent says; whoever asked may have been cancelled since."""
        waiting = self._waiting.pop(ticket)
        if not waiting.done():
            waiting.set_result(may)


class _Worker:
    """The state of one worker: its place, and the step it is in."""

    def __init__(
        self, pipe: Pipe, number: int, count: int, folder: Path, target: Target, *, governed: bool
    ) -> None:
        self._pipe = pipe
        self._keys = secrets(target)
        self._leave = _Leave(self._tell) if governed else None
        self._hold = Hold(self._tell)
        self.place = _Place(number, count, folder, target, leave=self._leave, hold=self._hold)
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._queues: list[asyncio.Task[None]] = []
        self._step: asyncio.Task[None] | None = None
        self._number = -1
        self._counts = Counts()
        self._syncing = asyncio.Lock()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._receive)
        syncing = self._watched(self._sync_every_second())
        self._tell("ready")
        try:
            await self._obey()
        finally:
            loop.remove_reader(self._pipe.fileno())
            syncing.cancel()
            await self._stop()

    async def _obey(self) -> None:
        while True:
            message = await self._inbox.get()
            match message["do"]:
                case "step":
                    self._number, self._counts = message["step"], Counts()
                    self._step = self._watched(self._play(self._jobs(message)))
                case "leave" if self._leave is not None:
                    self._leave.answer(message["ticket"], may=message["may"])
                case "hold":
                    self._hold.until(message["at_ns"])
                case "move":
                    await self._move(Path(message["folder"]), message["target"])
                    self._tell("ready")
                case "stop":
                    await self._stop()
                    self._tell("stopped", **asdict(self._counts))
                case "fail":
                    self._tell("failed", why=message["why"])
                    return
                case _:
                    return

    async def _move(self, folder: Path, target: dict[str, Any]) -> None:
        await self._stop()
        async with self._syncing:  # a journal must not be closed while a thread syncs it
            await self.place.close()
        lanes = len(self.place.lanes)
        facts = msgspec.convert(target, type=Target)
        number = self.place.number
        self.place = _Place(number, lanes, folder, facts, leave=self._leave, hold=self._hold)

    def _receive(self) -> None:
        try:
            self._inbox.put_nowait(orjson.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._inbox.put_nowait({"do": "close"})

    def _tell(self, what: str, **facts: Any) -> None:
        message = {"tell": what, "step": self._number, **facts}
        with suppress(OSError):  # a parent that is gone shows as the end of the pipe
            self._pipe.send_bytes(orjson.dumps(message))

    def _watched(self, work: Any) -> asyncio.Task[None]:
        """A task whose error reaches the inbox: nothing may end in silence."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._report)
        return task

    def _report(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            name = "" if isinstance(error, LeakcheckError) else f"{type(error).__name__}: "
            why = redact(f"{name}{error}", self._keys)
            self._inbox.put_nowait({"do": "fail", "why": why})

    def _jobs(self, message: dict[str, Any]) -> list[Job]:
        plan = os.open(runfolder.plan_path(self.place.folder), os.O_RDONLY | os.O_CLOEXEC)
        try:
            requests = [
                (runfolder.request_at(plan, offset, length), retries, timeout_s)
                for offset, length, retries, timeout_s in message["jobs"]
            ]
        finally:
            os.close(plan)
        return [
            Job(
                request=request,
                at_ns=message["at_ns"] + round(request.start_offset_s * 1e9),
                retries=retries,
                timeout_s=timeout_s,
            )
            for request, retries, timeout_s in requests
        ]

    async def _play(self, jobs: list[Job]) -> None:
        """All jobs of one step; those of one lane one after the other."""
        queues: defaultdict[int, list[Job]] = defaultdict(list)
        for job in sorted(jobs, key=lambda job: job.at_ns):
            queues[job.request.lane].append(job)
        self._queues = [
            asyncio.create_task(self._run(self.place.lanes[lane], queue))
            for lane, queue in queues.items()
        ]
        pending: set[asyncio.Task[None]] = set(self._queues)
        while pending:
            done, pending = await asyncio.wait(pending, timeout=HEARTBEAT_S)
            for task in done:
                if not task.cancelled():
                    task.result()
            if pending:
                self._tell("progress", **asdict(self._counts))
        self._tell("done", **asdict(self._counts))

    async def _run(self, lane: Lane, queue: list[Job]) -> None:
        task = asyncio.current_task()
        for job in queue:
            if (seen := await lane.run(job)) is not None:
                self._counts.add(seen)
            if task is not None and task.cancelling():
                return  # the lane journalled what was in flight; nothing more is to be sent

    async def _stop(self) -> None:
        for queue in self._queues:
            queue.cancel()
        if self._step is not None:
            await asyncio.wait([self._step])
            self._step = None

    async def _sync_every_second(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_S)
            async with self._syncing:
                await asyncio.to_thread(self.place.shard.sync)
