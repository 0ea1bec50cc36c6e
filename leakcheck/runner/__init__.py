"""Step the workers through windows and phases, notice what befalls them, and never hang.

Workers are spawned processes that share nothing. The parent sends each of them its part of a phase
over a pipe and waits on all pipes: the pipe of a dead worker ends at once. (A Barrier would hang
for ever: its survivors wait for the dead one.) A phase starts when every request of the one before
is over. Of a worker that died, requests in flight stay `unknown` and later ones unsent: the rest
of the run keeps the lanes the plan gave it, and the analyzer sees what was not sent.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import multiprocess
import multiprocess.connection
import multiprocess.resource_tracker
import orjson

from leakcheck import runfolder
from leakcheck.budget.spending import Use
from leakcheck.errors import HarnessError
from leakcheck.records import Pace, Quota, Request, RunEvent, Target
from leakcheck.runner import worker
from leakcheck.runner.governor import Governor, Over
from leakcheck.runner.hold import Patience
from leakcheck.runner.pulse import Streak
from leakcheck.runner.score import Game, Played
from leakcheck.runner.worker import Counts

__all__ = ["Governor", "Played", "Runner"]

_TICK_S = 0.1
"""How soon `should_stop` is noticed."""
_START_S = 120.0
_SILENT_S = 30.0
_STOP_S = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """The parent's view of one worker process."""

    number: int
    process: Any
    pipe: Any
    alive: bool = True
    ready: bool = False
    busy: bool = False
    silent_s: float = 0.0
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """The requests of a window that may overlap, and how many of it there are from here on."""

    window: int
    requests: tuple[Request, ...]
    left: int

    @property
    def ends_window(self) -> bool:
        """Whether they are the last ones of it."""
        return self.left == len(self.requests)


class Runner:
    """Worker processes for one run; a context manager. Workers start at `with`, and once.

    `play` may be called several times; in between, `move` begins another run.
    """

    def __init__(
        self,
        target: Target,
        folder: Path,
        workers: int,
        lanes: int,
        governor: Governor | None = None,
    ) -> None:
        """`folder` is the run folder; its plan.jsonl must hold a request before that is played. The
        `governor`, if there is one, is asked before each attempt; without one a pause that the
        target asks for is kept all the same, up to that of a usual pace.
        """
        self._governor = governor
        self._patience = Patience(Pace().max_wait_s)
        self._target = target
        self._folder = folder
        self._lanes = lanes
        self._count = workers
        self._workers: list[_Worker] = []
        self._step = -1
        self._streak = Streak()

    def __enter__(self) -> Self:
        """Spawn the workers; they get ready while the caller goes on."""
        context = multiprocess.get_context("spawn")
        multiprocess.resource_tracker.ensure_running()  # started later, it would unblock SIGINT
        target = orjson.dumps(self._target)
        try:
            for number in range(self._count):
                ours, theirs = context.Pipe()
                arguments = (theirs, number, self._lanes, str(self._folder.resolve()), target)
                process = context.Process(
                    target=worker.main,
                    args=arguments,
                    kwargs={"governed": self._governor is not None},
                    name=f"leakcheck-w{number}",
                    daemon=True,
                )
                with _sigint_blocked():  # inherited: Ctrl-C must not break a worker's start either
                    process.start()
                theirs.close()  # else the end of the pipe would never come
                self._workers.append(_Worker(number=number, process=process, pipe=ours))
        except OSError as error:
            self._close()
            raise HarnessError(f"no worker process can be started: {error.strerror}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have the workers close everything; kill those that do not within a few seconds."""
        self._close()

    @property
    def workers_died(self) -> tuple[int, ...]:
        """The numbers of the workers that have died."""
        return tuple(each.number for each in self._workers if not each.alive)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers, by number."""
        return tuple(each.process.pid for each in self._workers)

    def move(self, target: Target, folder: Path) -> None:
        """Go on with another target and another run folder: what `play` is given next goes there.

        The workers drop their connections and open new journals; starting them again would take
        each a second. Raises HarnessError where one has died.
        """
        if self.workers_died:
            raise HarnessError(f"worker {self.workers_died[0]} has died; start new workers")
        self._target, self._folder = target, folder
        self._streak.forget()
        message = {"do": "move", "folder": str(folder.resolve()), "target": target}
        for each in self._workers:
            each.ready = False
            _send(each, message)

    def play(
        self,
        requests: Sequence[Request],
        *,
        on_progress: Callable[[int], None] | None = None,
        on_window: Callable[[int], bool] | None = None,
        should_stop: Callable[[], bool] | None = None,
        until_silent: bool = False,
    ) -> Played:
        """Send requests, window after window in the order given, phase after phase.

        `on_progress` is told, every now and then, how many of them are over. `on_window` is told
        the number of a window when the last of its requests is over and in the run folder; True
        ends the play there, with nothing in flight and nothing amiss.

        Ends early, with everything observed in the run folder, when `should_stop` says so or at
        Ctrl-C (`interrupted`; a second Ctrl-C kills the workers), when nothing could be connected
        to in two windows in a row (`target_lost`), and when the governor or a target that refuses
        everything ends it; `until_silent`, also when so many requests in a row, of this call and
        those before it, showed no sign of life that the target may be dead (`silent`). Raises
        HarnessError where leakcheck itself cannot go on: all workers died, a disk is full, a
        request is not in the plan.
        """
        game = Game(on_progress or _ignore, should_stop or _never)
        over = on_window or _go_on
        jobs = self._jobs(requests)
        try:
            with _ctrl_c(game):
                self._await_ready(game)
                for phase in _phases(requests):
                    if not game.over:
                        self._play_phase(phase, jobs, game)
                        if phase.ends_window and not game.over:
                            game.enough = over(phase.window)
                            game.silent = until_silent and self._streak.long
        except KeyboardInterrupt:  # it may have cut a message in two: the pipes are of no use now
            game.interrupted = True
            self._kill()
        finally:
            self._stop()
        game.settle(self._workers)
        return game.played(self.workers_died)

    def _jobs(self, requests: Iterable[Request]) -> dict[str, tuple[int, int, int, float]]:
        index = runfolder.index_plans(self._folder)
        jobs: dict[str, tuple[int, int, int, float]] = {}
        for request in requests:
            place, load = index.lines.get(request.id), index.loads.get(request.scenario)
            if place is None or load is None:
                raise HarnessError(f"request {request.id} is not in the plan on disk")
            if not (0 <= request.worker < self._count and 0 <= request.lane < self._lanes):
                raise HarnessError(
                    f"request {request.id} wants worker {request.worker}, lane {request.lane}, but "
                    f"there are {self._count} workers with {self._lanes} lanes"
                )
            timeout_s = min(load.timeout_s, self._target.timeout_s)
            jobs[request.id] = (*place, load.retries, timeout_s)
        return jobs

    # --- one phase ---

    def _await_ready(self, game: Game) -> None:
        """Wait until every worker is ready. Raises HarnessError where one cannot start."""
        deadline = time.monotonic() + _START_S
        while waiting := [each for each in self._workers if each.alive and not each.ready]:
            self._hear(waiting)
            if game.must_stop():
                return
            if dead := [each for each in self._workers if not each.alive and not each.ready]:
                raise HarnessError(f"worker {dead[0].number} ended before it was ready")
            if time.monotonic() > deadline:
                raise HarnessError(f"worker {waiting[0].number} was not ready in {_START_S:g} s")

    def _play_phase(
        self, phase: _Phase, jobs: dict[str, tuple[int, int, int, float]], game: Game
    ) -> None:
        self._step += 1
        at_ns = time.monotonic_ns()
        if self._governor is not None:
            self._governor.firsts = phase.left
        for each in self._workers:
            each.counts, each.silent_s = Counts(), 0.0
            mine = [jobs[request.id] for request in phase.requests if request.worker == each.number]
            each.busy = each.alive and bool(mine)
            if each.busy:
                _send(each, {"do": "step", "step": self._step, "at_ns": at_ns, "jobs": mine})
        while busy := [each for each in self._workers if each.busy]:
            self._hear(busy)
            game.show(self._workers)
            if game.must_stop():
                return
        if not any(each.alive for each in self._workers):
            raise HarnessError("every worker process has died")
        counts = game.end_phase(self._workers, ends_window=phase.ends_window)
        self._streak.add(
            living=counts.living,
            dead=counts.dead,
            window=phase.window,
            lanes={(request.worker, request.lane) for request in phase.requests},
        )
        game.ended = (self._governor or self._patience).ended

    def _hear(self, workers: Sequence[_Worker]) -> None:
        """Take in what these workers say within a tick; those gone or silent too long are dead."""
        start_s = time.monotonic()
        by_pipe = {each.pipe: each for each in workers}
        self._let_go()
        tick_s = _TICK_S
        if self._governor is not None:
            tick_s = self._governor.wait_s(start_s, _TICK_S)
        heard = multiprocess.connection.wait(list(by_pipe), timeout=tick_s)
        # Time in which this process was itself stopped (Ctrl-Z) is no silence of the workers.
        waited_s = min(time.monotonic() - start_s, 2 * _TICK_S)
        for each in workers:
            if each.pipe in heard:
                each.silent_s = 0.0
                self._take(each)
            else:
                each.silent_s += waited_s
                if each.ready and each.silent_s > _SILENT_S:
                    each.process.kill()
        self._let_go()

    def _let_go(self) -> None:
        """Answer those that asked for leave and whose time has come."""
        if self._governor is None:
            return
        for (number, ticket), may in self._governor.decide(time.monotonic()):
            _send(self._workers[number], {"do": "leave", "ticket": ticket, "may": may})

    def _asked(self, each: _Worker, message: dict[str, Any]) -> None:
        """Of a budget or a pace: an attempt that waits, or one that is over."""
        key, governor = (each.number, message["ticket"]), self._governor
        if governor is not None and "most" in message:
            governor.ask(key, Use(**message["most"]), again=message["again"])
        elif governor is not None:
            end = message["end"] | {"use": Use(**message["end"]["use"])}
            end["quota"] = end["quota"] and Quota(**end["quota"])
            governor.over(key, Over(**end), time.monotonic())

    def _take(self, each: _Worker) -> None:
        try:
            message = orjson.loads(each.pipe.recv_bytes())
        except (EOFError, OSError):
            self._bury(each)
            return
        match message.pop("tell"):
            case "ready":
                each.ready = True
            case "failed":
                each.alive = each.busy = False
                raise HarnessError(f"worker {each.number} cannot go on: {message['why']}")
            case "ask" | "over":
                self._asked(each, message)
            case "refused":
                message.pop("step")
                self._hold(self._patience.refused(time.monotonic_ns(), **message))
            case "emptied":
                self._hold(time.monotonic_ns() + round(message["wait_s"] * 1e9))
            case what if message.pop("step") == self._step:
                each.counts = Counts(**message)
                each.busy = each.busy and what == "progress"

    def _hold(self, at_ns: int | None) -> None:
        """Nothing more is to be sent before that time; with None nothing at all."""
        for each in self._workers:
            _send(each, {"do": "hold", "at_ns": at_ns})

    def _bury(self, each: _Worker) -> None:
        each.alive = each.busy = False
        each.pipe.close()
        each.process.join(_STOP_S)
        if self._governor is not None:
            self._governor.bury(each.number, time.monotonic())
        detail = f"worker {each.number} {_cause(each.process.exitcode)}"
        event = RunEvent(kind="worker-died", at_ns=time.monotonic_ns(), detail=detail)
        runfolder.append_event(self._folder, event)

    # --- the end ---

    def _stop(self) -> None:
        """Have the busy workers give up what is in flight; kill those that do not."""
        busy = [each for each in self._workers if each.busy]
        for each in busy:
            _send(each, {"do": "stop"})
        deadline = time.monotonic() + _STOP_S
        while busy := [each for each in busy if each.busy]:
            if time.monotonic() > deadline:
                for each in busy:
                    each.process.kill()
            with suppress(HarnessError):  # one that fails now has ended, too
                self._hear(busy)

    def _kill(self) -> None:
        for each in self._workers:
            each.process.kill()
            each.alive = each.busy = False

    def _close(self) -> None:
        for each in self._workers:
            if each.alive:
                _send(each, {"do": "close"})
        deadline = time.monotonic() + _STOP_S
        for each in self._workers:
            each.process.join(max(deadline - time.monotonic(), 0.0))
            if each.process.exitcode is None:
                each.process.kill()
                each.process.join()
            each.process.close()
            each.pipe.close()
        self._workers.clear()


def _phases(requests: Sequence[Request]) -> Iterator[_Phase]:
    """Windows in the order given, of each its phases in the order of their numbers."""
    windows: dict[tuple[str, int], dict[int, list[Request]]] = {}
    for request in requests:
        phases = windows.setdefault((request.scenario, request.window), {})
        phases.setdefault(request.phase, []).append(request)
    for (_, window), phases in windows.items():
        left = sum(map(len, phases.values()))
        for number in sorted(phases):
            yield _Phase(window=window, requests=tuple(phases[number]), left=left)
            left -= len(phases[number])


def _send(each: _Worker, message: dict[str, Any]) -> None:
    with suppress(OSError):  # a dead worker shows as the end of its pipe
        each.pipe.send_bytes(orjson.dumps(message))


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    if os.name == "nt":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _ctrl_c(game: Game) -> Iterator[None]:
    """Have the first Ctrl-C only noted: an exception could cut a message of a pipe in two."""
    before = signal.getsignal(signal.SIGINT)
    if (
        before is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield  # somebody else has decided what Ctrl-C does
        return

    def note(_signal: int, _frame: object) -> None:
        game.interrupted = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ignore(_done: int) -> None:
    """The caller does not want to know."""


def _go_on(_window: int) -> bool:
    return False


def _never() -> bool:
    return False
