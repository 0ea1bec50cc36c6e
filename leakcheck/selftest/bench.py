"""Play trials one after the other: one engine process and a few workers, which outlive them.

A trial is a run in small: a fresh lifetime of the engine, the survey, the windows that the scenario
plans for this seed, the checks, the replays. It is judged every few windows and ends with what it
looks for.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from leakcheck import analyzer, history, runfolder, scenario, survey
from leakcheck.analyzer.confirm import confirmations
from leakcheck.errors import LeakcheckError, TargetError
from leakcheck.passphrase import load_words, whole_token_words
from leakcheck.records import Plan, Scenario, Style, Target, TargetFacts
from leakcheck.run import embedded, experiment, lifetimes, session
from leakcheck.run.session import Opened, Session, Setup
from leakcheck.runner import Runner
from leakcheck.selftest.outcome import Outcome, outcome
from leakcheck.selftest.schedule import looks
from leakcheck.selftest.values import HEALTHY, Job, Trial

_PATIENCE_S = 20.0
_SHORT_PATIENCE_S = 2.0
"""Where a fault shows as requests that hang, each window of them costs this long."""
_ONLY_CAPACITY = ("lost-capacity",)
_REPLAYS = (1, 4, 16, 64)
"""Looks that send replays before the end."""
_BREAKS = (LeakcheckError, OSError, EOFError, subprocess.SubprocessError)
"""What leakcheck says of itself, a full disk, a pipe of a process that is gone, an engine that does
not end: a matter of one trial, not of the campaign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all benches share. `root` is where the run folders of trials go; once `stop` is set, the
    trials in progress end at their next window.
    """

    root: Path
    scenarios: Mapping[str, Scenario]
    stop: threading.Event = field(default_factory=threading.Event)
    loading: threading.Lock = field(default_factory=threading.Lock)
    """transformers cannot be imported by two threads at once: it fills itself when it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Language:
    """What passphrases are made of for the engine's model."""

    words: tuple[str, ...]
    style: Style
    tokens: survey.Tokens | None


class Bench:
    """A context manager; `play` is called from one thread."""

    def __init__(self, common: Common, name: str) -> None:
        """`name` keeps the run folders of several benches apart."""
        self._common = common
        self._root = common.root / name
        loads = [each.load for each in common.scenarios.values()]
        self._workers = max(load.workers for load in loads)
        self._lanes = max(load.lanes for load in loads)
        self._stack = ExitStack()
        self._engine: embedded.Embedded | None = None
        self._runner: Runner | None = None
        self._language: _Language | None = None

    def __enter__(self) -> Self:
        """Start the engine and the workers."""
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End them."""
        self._stack.close()

    def play(self, job: Job) -> Trial:
        """Play one trial. What breaks leakcheck or the engine is a matter of the trial."""
        began_s = time.monotonic()
        try:
            trial = self._play(job).run()
        except _BREAKS as error:
            with suppress(*_BREAKS):  # what broke the trial may show once more
                self._stack.close()
            self._start()
            trial = replace(_nothing(job, _said(error)), broken=True)
        return replace(trial, seconds=round(time.monotonic() - began_s, 3))

    def _start(self) -> None:
        """Start engine and workers, side by side."""
        idle = self._root / "idle"
        idle.mkdir(parents=True, exist_ok=True)
        nowhere = Target(base_url="http://127.0.0.1:9/v1", model="")
        with ExitStack() as stack:
            workers = Runner(nowhere, idle, self._workers, self._lanes)
            self._runner = stack.enter_context(workers)
            self._engine = stack.enter_context(embedded.start([]))
            with self._common.loading:
                self._language = self._language or _language(self._engine.ready["tokenizer"])
            self._stack = stack.pop_all()

    def _play(self, job: Job) -> _Play:
        assert self._language is not None  # noqa: S101 - inside the context
        return _Play(self._common, self._language, self._open(job), job)

    def _open(self, job: Job) -> Session:
        """A fresh lifetime with the job's fault, and a run folder for it."""
        assert self._engine is not None  # noqa: S101 - inside the context
        assert self._runner is not None  # noqa: S101 - inside the context
        flags = [f"--seed={job.seed}"]
        if job.fault.name != HEALTHY:
            flags.append(f"--fault={job.fault.name}")
        ready = self._engine.restart(flags)
        ready["flags"] = flags
        target = Target(
            base_url=ready["base_url"],
            model=ready["model"],
            timeout_s=_SHORT_PATIENCE_S if _hangs(job) else _PATIENCE_S,
        )
        opened = Opened(target=target, engine=self._engine)
        folder = runfolder.create(
            self._root, f"{job.fault.name or 'healthy'}-{job.scenario}", job.seed
        )
        setup = Setup(seed=job.seed, command=("leakcheck", "selftest"))
        mine = (self._common.scenarios[job.scenario],)
        runfolder.write_provenance(folder, session.provenance(setup, opened, mine))
        self._runner.move(target, folder)
        return Session(folder=folder, opened=opened, runner=self._runner, watch=_ignore)


def _language(path: str) -> _Language:
    from transformers import AutoTokenizer  # noqa: PLC0415 - a second to import

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    words = load_words()
    rare = len(whole_token_words(tokenizer, words)) == len(words)
    return _Language(
        words=tuple(words),
        style="rare-token" if rare else "phrase",
        tokens=survey.tokens_of(tokenizer),
    )


class _Play:
    """One trial in progress."""

    def __init__(self, common: Common, language: _Language, live: Session, job: Job) -> None:
        self._scenario = common.scenarios[job.scenario]
        self._stop = common.stop
        self._language = language
        self._live = live
        self._job = job
        self._ids = itertools.count()
        self._side = live.folder.with_name(f"{live.folder.name}.confirm")
        self._facts = TargetFacts()
        self._requests = 0
        self._anew: bool | None = None

    def run(self) -> Trial:
        """The trial; its run folder is gone afterwards."""
        job = self._job
        try:
            self._facts = self._survey()
        except TargetError as error:
            return _nothing(job, str(error))
        played, ended, found = 0, False, None
        for look in _looks(job):
            while played < look and not ended:
                ended = not self._window(played) or self._stop.is_set()
                played += 1
            final = ended or look == job.windows
            confirm = not ended and self._worth_replays(look, final=final)
            found = self._judge(final=final, confirm=confirm)
            if found.detected or final:
                break
        assert found is not None  # noqa: S101 - there is a look at the end
        for used in (self._live.folder, self._side):
            shutil.rmtree(used, ignore_errors=True)
        return Trial(
            kind=job.kind,
            fault=job.fault.name,
            scenario=job.scenario,
            seed=job.seed,
            windows=played,
            budget=job.windows,
            detected=found.detected,
            status=found.status,
            anomaly=found.anomaly,
            anomalies=found.anomalies,
            sources=found.sources,
            sources_right=found.sources_right,
            requests=self._requests,
            reason=found.reason,
        )

    def _survey(self) -> TargetFacts:
        """The first traffic of a run, and what it finds out. Raises TargetError."""
        language, job, load = self._language, self._job, self._scenario.load
        first = survey.plan(
            seed=job.seed,
            words=language.words,
            style=language.style,
            ids=self._ids,
            length=load.passphrase_words,
        )
        runfolder.write_plans(self._live.folder, [first, self._plan()])
        ended = self._live.send(survey.NAME, first.requests)
        if ended is not None:
            raise TargetError(ended.detail)
        seen = runfolder.read_shards(self._live.folder).observations
        return survey.facts(first, seen, tokens=language.tokens)

    def _plan(self) -> Plan:
        language = self._language
        return Plan(
            scenario=self._scenario,
            seed=self._job.seed,
            words=language.words,
            style=language.style,
            requests=(),
        )

    def _window(self, index: int) -> bool:
        """Plan and play one window, as the scenario would; False when nothing more can be."""
        language = self._language
        requests = scenario.plan_window(
            self._scenario,
            index,
            seed=self._job.seed,
            facts=self._facts,
            words=language.words,
            style=language.style,
            ids=self._ids,
        )
        runfolder.append_requests(self._live.folder, requests)
        self._requests += len(requests)
        if self._anew is None and index >= lifetimes.AS_IT_IS:
            self._anew = lifetimes.wanted(self._live.folder, self._scenario)
        if self._anew:
            origin = runfolder.read_provenance(self._live.folder)
            detail = f"{self._scenario.name}: window {index + 1}"
            lifetimes.restart(self._live, origin, detail, untouched=True)
        return self._live.send(self._scenario.name, requests) is None

    def _worth_replays(self, look: int, *, final: bool) -> bool:
        """Replays cost as much as several windows: before the end, and where nobody claims that the
        fault is caught, they are sent for what only they confirm, and now and then.
        """
        if final and self._job.kind != "matrix":
            return True
        return "lost-answer" in self._job.fault.anomalies and (final or look in _REPLAYS)

    def _judge(self, *, final: bool, confirm: bool) -> Outcome:
        """What a run that ended here would say; its replays are sent into a copy of its folder, and
        the trial goes on without them.
        """
        live = self._live
        found = self._outcome(live.folder)
        if found.detected or not confirm:
            return found
        if final:
            experiment.confirm(live)
            return self._outcome(live.folder)
        if not confirmations(history.read(live.folder)):
            return found
        shutil.rmtree(self._side, ignore_errors=True)
        shutil.copytree(live.folder, self._side)
        live.runner.move(live.opened.target, self._side)
        experiment.confirm(replace(live, folder=self._side))
        found = self._outcome(self._side)
        if not found.detected:
            live.runner.move(live.opened.target, live.folder)
        return found

    def _outcome(self, folder: Path) -> Outcome:
        seen = history.read(folder)
        plan = next(each for each in seen.plans if each.scenario.name == self._scenario.name)
        verdict = analyzer.judge(seen.scenario(plan.scenario.name), plan)
        with runfolder.plan_path(folder).open() as lines:
            return outcome(verdict, self._job.fault, lines)


def _looks(job: Job) -> Iterable[int]:
    """After how many windows a trial is judged: what must not be accused at its end alone, and
    after every window where those to come cost more than a look.
    """
    if not job.fault.anomalies:
        return (job.windows,)
    return range(1, job.windows + 1) if _hangs(job) else looks(job.windows)


def _hangs(job: Job) -> bool:
    return job.fault.anomalies == _ONLY_CAPACITY


def _nothing(job: Job, reason: str) -> Trial:
    """A trial that could not be played."""
    return Trial(
        kind=job.kind,
        fault=job.fault.name,
        scenario=job.scenario,
        seed=job.seed,
        windows=0,
        budget=job.windows,
        detected=False,
        status="error",
        reason=reason,
    )


def _said(error: BaseException) -> str:
    """An error in one line; some say nothing but what they are."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _ignore(_what: str, _done: int, _total: int) -> None:
    """A trial is shown as a whole."""
