"""A whole self-test: what there is to play, benches side by side, the figures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import leakcheck
from leakcheck import plugin, scenario
from leakcheck.errors import HarnessError, UsageError
from leakcheck.records import SCHEMA, Scenario, SelfTest
from leakcheck.run.session import Watch
from leakcheck.selftest import aggregate
from leakcheck.selftest.bench import Bench, Common
from leakcheck.selftest.schedule import FAST, FULL, Effort, jobs
from leakcheck.selftest.values import FaultRow, Job, Power, Trial

BENCHES = 2
"""One for each of two cores: the engine computes on one thread, and so does the harness."""
_WORKERS = 2
"""Processes of a bench: fewer than scenarios ask for, with more lanes each; a start takes one CPU
second, and what they do next to nothing."""
_WORTH_A_BENCH = 5
"""Trials that take about as long as a bench takes to start."""
_OVERRIDES = {"gate.min_windows": 1, "gate.detect": 1.0, "load.phantoms": 9}
"""So few windows, and what they do not exclude, are no reason here; phantoms cost time and say
nothing of faults."""
MATRIX_SEEDS = 2
UNIT = "trials"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for. `faults` by name (none: all). Scenarios that are named are held to catch
    all of those, whatever they claim. `seeds` and `windows` in place of those of the effort, `seed`
    the first.
    `matrix`: also the cells nobody claims, as long as `budget_s` lasts.
    """

    full: bool = False
    faults: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    seeds: int | None = None
    windows: int | None = None
    seed: int = 0
    matrix: bool = False
    budget_s: float = 55 * 60
    benches: int = BENCHES


Keep = Callable[[Power], None]
"""Takes the figures of a self-test that was stopped."""


def run(options: Options, watch: Watch, keep: Keep | None = None) -> Power:
    """Play everything; return what was found. Raises UsageError for names that do not exist.

    At Ctrl-C `keep` is given the figures so far, if there are any, marked as partial.
    """
    known = faults()
    chosen = tuple(each for each in known if each.name in _chosen(options, known))
    scenarios = _held(options, shipped(), chosen)
    todo = jobs(chosen, scenarios, _effort(options), seed=options.seed)
    if options.faults:
        todo = tuple(job for job in todo if job.kind != "healthy")
    with tempfile.TemporaryDirectory(
        prefix="leakcheck-selftest-", ignore_cleanup_errors=True
    ) as root:
        common = Common(root=Path(root), scenarios={each.name: each for each in scenarios})
        queue = _Queue(todo, time.monotonic() + options.budget_s, watch)

        def found(*, partial: bool = False) -> Power:
            return _figures(options, known, scenarios, todo, queue.trials, partial=partial)

        try:
            _play(common, queue, options.benches)
        except KeyboardInterrupt:
            if keep is not None and queue.trials:
                keep(found(partial=True))
            raise
    return found()


def _figures(
    options: Options,
    known: Sequence[FaultRow],
    scenarios: Sequence[Scenario],
    todo: Sequence[Job],
    played: Sequence[Trial],
    *,
    partial: bool,
) -> Power:
    """The figures, whatever the order in which trials ended."""
    chosen = tuple(each for each in known if each.name in _chosen(options, known))
    place = {(job.fault.name, job.scenario, job.seed): n for n, job in enumerate(todo)}
    trials = sorted(played, key=lambda t: place[t.fault, t.scenario, t.seed])
    return Power(
        schema=SCHEMA,
        leakcheck=leakcheck.__version__,
        engine="witness",
        date=datetime.now(UTC).date().isoformat(),
        full=options.full,
        seed=options.seed,
        trials=len(trials),
        unplayed=len(todo) - len(trials),
        faults=chosen,
        scenarios=tuple(each.name for each in scenarios),
        cells=aggregate.cells(trials, chosen, scenarios),
        quiet=aggregate.quiet(trials, chosen, scenarios),
        failures=aggregate.failures(trials, chosen, scenarios, [each.name for each in known]),
        partial=partial,
    )


def summary(power: Power) -> SelfTest:
    """What a report says of a self-test that came before it."""
    claimed = [cell for cell in power.cells if cell.claimed]
    caught = {cell.fault for cell in claimed if cell.right.events == cell.right.trials}
    harmless = {each.fault for each in power.quiet}
    accused = {each.fault for each in power.quiet if each.accused.events}
    return SelfTest(
        date=power.date,
        passed=not power.failures,
        faults=len({cell.fault for cell in claimed}),
        caught=len(caught),
        harmless=len(harmless),
        accused=len(accused),
        failures=power.failures,
    )


def require_passed(result: SelfTest) -> None:
    """Raise HarnessError, which names the first failure, for a self-test that failed."""
    if not result.passed:
        others = len(result.failures) - 1
        more = f" (and {others} more; `leakcheck selftest` lists them)" if others else ""
        raise HarnessError(
            f"the self-test failed, so nothing was sent to the target: {result.failures[0]}{more}"
        )


def faults() -> tuple[FaultRow, ...]:
    """The faults of the embedded engine, as it lists them."""
    command = [sys.executable, "-m", "leakcheck.engine", "--list-faults"]
    done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - our own module
    return tuple(msgspec.convert(json.loads(done.stdout), list[FaultRow]))


def shipped() -> tuple[Scenario, ...]:
    """The shipped scenarios, for the workers of a bench."""
    found = []
    for path in scenario.shipped_files():
        load = scenario.read(path).load
        lanes = math.ceil(load.workers * load.lanes / _WORKERS)
        mine = _OVERRIDES | {"load.workers": _WORKERS, "load.lanes": lanes}
        found.append(scenario.read(path, mine))
    return tuple(found)


def _chosen(options: Options, known: Sequence[FaultRow]) -> frozenset[str]:
    names = {fault.name for fault in known}
    for name in options.faults:
        if name not in names:
            near = plugin.nearest(name, sorted(names))
            raise UsageError(f"--fault: the embedded engine has no fault {name!r}{near}")
    return frozenset(options.faults or names)


def _held(
    options: Options, scenarios: Sequence[Scenario], chosen: Sequence[FaultRow]
) -> tuple[Scenario, ...]:
    """The scenarios that are played, and what they are held to."""
    if not options.scenarios:
        return tuple(scenarios)
    by_name = {each.name: each for each in scenarios}
    for name in options.scenarios:
        if name not in by_name:
            near = plugin.nearest(name, sorted(by_name))
            raise UsageError(f"--scenario: no scenario {name!r} is shipped{near}")
    leaking = tuple(fault.name for fault in chosen if not fault.benign)
    names = dict.fromkeys(options.scenarios)  # each once, in the order given
    return tuple(replace(by_name[name], catches=leaking) for name in names)


def _effort(options: Options) -> Effort:
    effort = FULL if options.full else FAST
    if options.seeds is not None:
        effort = replace(effort, seeds=options.seeds, benign_seeds=options.seeds)
    if options.windows is not None:
        effort = replace(effort, windows=options.windows, quiet_windows=options.windows)
    return replace(effort, matrix_seeds=MATRIX_SEEDS) if options.matrix else effort


class _Queue:
    """The jobs that wait, for several threads; at most once what may be left out is out of time."""

    def __init__(self, todo: Sequence[Job], deadline_s: float, watch: Watch) -> None:
        self._todo = deque(todo)
        self.total = len(todo)
        self._deadline_s = deadline_s
        self._watch = watch
        self._lock = threading.Lock()
        self.trials: list[Trial] = []
        watch("selftest", 0, self.total)

    def next(self) -> Job | None:
        with self._lock:
            late = time.monotonic() > self._deadline_s
            while self._todo:
                job = self._todo.popleft()
                if not (late and job.kind == "matrix"):
                    return job
                self.total -= 1
            return None

    def put(self, trial: Trial) -> None:
        with self._lock:
            self.trials.append(trial)
            self._watch("selftest", len(self.trials), self.total)

    def drop(self) -> None:
        with self._lock:
            self._todo.clear()


def _play(common: Common, queue: _Queue, benches: int) -> None:
    """Every job of the queue, by several benches."""

    def work(name: str) -> None:
        with Bench(common, name) as bench:
            while (job := queue.next()) is not None:
                trial = bench.play(job)
                if not common.stop.is_set():  # else it was cut short, and shows nothing
                    queue.put(trial)

    count = min(benches, math.ceil(queue.total / _WORTH_A_BENCH)) or 1
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(work, f"bench-{number}") for number in range(count)]
        try:
            for each in running:
                each.result()
        finally:  # at Ctrl-C nobody waits for what is in progress
            queue.drop()
            common.stop.set()
