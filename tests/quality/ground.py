"""Runs against the embedded engine, one after the other: a run in small, by the ordinary path.

One engine process and a few workers outlive the runs; each has a lifetime of the engine of its own,
a survey, windows until the scenario is settled, and the replays that are asked for.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakcheck import analyzer, history, runfolder, scenario, survey
from leakcheck.checks import _mixed
from leakcheck.records import Report, Scenario, Target, Verdict
from leakcheck.run import embedded, experiment, session
from leakcheck.run.session import Opened, Session, Setup
from leakcheck.runner import Runner
from leakcheck.survey import choosing
from leakcheck.traffic.mixed_batch import PLANTED

WORKERS, LANES = 2, 24
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of a run. `diverged` of `compared` planted answers differ from those alone."""

    report: Report
    windows: int
    diverged: int
    compared: int

    @property
    def verdict(self) -> Verdict:
        """On the only scenario."""
        return self.report.verdicts[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """An engine and workers that are there to be used."""

    root: Path
    engine: embedded.Embedded
    runner: Runner
    tokenizer: Any

    def play(
        self, of: Scenario, *, seed: int, fault: str | None = None, rate: float | None = None
    ) -> Played:
        """One run in a fresh lifetime of the engine; nothing of it stays on disk."""
        flags = [f"--seed={seed}"]
        flags += [] if fault is None else [f"--fault={fault}"]
        flags += [] if rate is None else [f"--fault-rate={rate}"]
        ready = self.engine.restart(flags)
        target = Target(base_url=ready["base_url"], model=ready["model"], timeout_s=TIMEOUT_S)
        folder = runfolder.create(self.root, of.name, seed)
        try:
            return self._played(of, seed, target, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _played(self, of: Scenario, seed: int, target: Target, folder: Path) -> Played:
        setup = Setup(seed=seed, command=("leakcheck", "run"))
        opened = Opened(target=target, engine=self.engine)
        origin = session.provenance(setup, opened, (of,))
        runfolder.write_provenance(folder, origin)
        self.runner.move(target, folder)
        live = Session(folder=folder, opened=opened, runner=self.runner, watch=_ignore)
        made = choosing.made((of,), setup, self.tokenizer)
        first = made.first
        runfolder.write_plans(folder, [first])
        live.send(survey.NAME, first.requests)
        seen = runfolder.read_shards(folder).observations
        facts = survey.facts(first, seen, tokens=survey.tokens_of(self.tokenizer))
        runfolder.write_provenance(folder, replace(origin, facts=facts))
        plans = made.plans(facts)
        runfolder.write_plans(folder, [first, *plans])
        experiment._send_all(live, (first, *plans), play_all=False)
        whole = history.read(folder)
        answered = whole.scenario(of.name).windows
        trials = _mixed.trials(whole.scenario(of.name))
        planted = [each.compared[PLANTED] for each in trials if PLANTED in each.compared]
        return Played(
            report=analyzer.analyze(whole),
            windows=int(((answered["answered"] > 0) & ~answered["replay"]).sum()),
            diverged=sum(each.at is not None for each in planted),
            compared=len(planted),
        )


@contextmanager
def ground() -> Iterator[Ground]:
    """Start an engine and workers; end them."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leakcheck-quality-")))
        idle = root / "idle"
        idle.mkdir()
        nowhere = Target(base_url="http://127.0.0.1:9/v1", model="")
        runner = stack.enter_context(Runner(nowhere, idle, WORKERS, LANES))
        engine = stack.enter_context(embedded.start([]))
        opened = Opened(target=nowhere, engine=engine)
        yield Ground(root=root, engine=engine, runner=runner, tokenizer=opened.tokenizer(None))


def read(name: str, overrides: Mapping[str, Any]) -> Scenario:
    """A shipped scenario, for these workers."""
    mine = {"load.workers": WORKERS, "load.lanes": LANES, "load.phantoms": 9}
    return scenario.read(scenario.find(name), mine | dict(overrides))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When to stop."""

    until_s: float

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """So many seconds from now."""
        return cls(until_s=time.monotonic() + seconds)

    @property
    def over(self) -> bool:
        """Whether it is time to stop."""
        return time.monotonic() > self.until_s


def _ignore(_what: str, _done: int, _total: int) -> None:
    """A run is shown as a whole."""
