"""A run while its target and workers live: what every command that sends traffic shares."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import leakcheck
from leakcheck import runfolder, survey
from leakcheck.backends import Turns
from leakcheck.budget import spending
from leakcheck.budget.spending import Caps
from leakcheck.errors import UsageError
from leakcheck.records import (
    SCHEMA,
    Api,
    Load,
    Pace,
    Provenance,
    Request,
    RunEvent,
    Scenario,
    SelfTest,
    Style,
    Target,
    TargetFacts,
)
from leakcheck.run import embedded, gauges, lost, waiting
from leakcheck.runner import Governor, Played, Runner

_PACKAGES = ("aiohttp", "multiprocess", "numpy", "pandas", "scipy", "torch", "transformers")

Watch = Callable[[str, int, int], None]
"""Told what is being done (a scenario's name, `survey`, ...), how far, and out of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a user asked for around a run. Either `target` or `engine` is set: flags of the embedded
    one, which is then spoken to by `api` and `timeout_s`. `out` is where run folders go. `metrics`
    is where the target's own are read (see `gauges.source`). `caps` are never exceeded, `pace`
    limits how hard the run presses. A target that is still starting is waited for, `wait_ready_s`
    seconds at most. `style` is that of passphrases, `auto` the one that the target echoes best: it
    is measured, unless that was done less than a day ago and nothing `fresh` is wanted. With None
    nothing is measured.
    """

    target: Target | None = None
    engine: tuple[str, ...] | None = None
    api: Api = "chat"
    timeout_s: float = 60.0
    seed: int = 0
    out: Path = Path("reports")
    tokenizer: str | None = None
    words: Path | None = None
    command: tuple[str, ...] = ()
    selftest: SelfTest | None = None
    metrics: str = gauges.OFF
    play_all: bool = False
    lifetimes: int = 1
    restart: str | None = None
    caps: Caps = field(default_factory=Caps)
    pace: Pace | None = None
    wait_ready_s: float | None = None
    style: Style | Literal["auto"] | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A target that is there to be spoken to; `engine` is the process of an embedded one, and
    `page` its page of metrics, if that is to be read. `turns` are the requests to it so far that
    are in no plan, `models` what it offers, once it was `met`.
    """

    target: Target
    engine: embedded.Embedded | None
    page: gauges.Source | None = None
    turns: Turns = field(default_factory=Turns)
    models: tuple[str, ...] = ()

    @property
    def ready(self) -> dict[str, Any] | None:
        """What an embedded engine says of itself; None for any other target."""
        return None if self.engine is None else self.engine.ready

    def tokenizer(self, path: str | None) -> Any:
        """The tokenizer at `path`, or else that of the embedded engine; None where none is known.

        Raises UsageError for a path without one.
        """
        path = path or (self.ready or {}).get("tokenizer")
        if path is None:
            return None
        if not Path(path).exists() and path.count("/") != 1:
            raise UsageError(f"--tokenizer: there is no folder {path!r}, and it is no hub id a/b")
        from transformers import AutoTokenizer  # noqa: PLC0415 - a second to import

        try:
            return AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(f"--tokenizer {path}: no tokenizer can be loaded: {reason}") from error


@contextmanager
def opened(setup: Setup) -> Iterator[Opened]:
    """The target, or the embedded engine, which lives as long as the `with` block."""
    if setup.engine is None:
        if setup.target is None:
            raise UsageError("no target: give --target URL --model M, or --embedded")
        if setup.wait_ready_s is not None:
            apart_s = distance_s(setup.pace)
            waiting.until_ready(setup.target, setup.wait_ready_s, _tell, apart_s=apart_s)
        page = gauges.found(setup.target, setup.metrics)
        turns = Turns(
            setup.caps.requests,
            pause_s=distance_s(setup.pace),
            max_wait_s=(setup.pace or Pace()).max_wait_s,
        )
        yield Opened(target=setup.target, engine=None, page=page, turns=turns)
        return
    with embedded.start(setup.engine) as started:
        started.ready["flags"] = list(setup.engine)
        local = Target(
            base_url=started.ready["base_url"],
            model=started.ready["model"],
            api=setup.api,
            timeout_s=setup.timeout_s,
        )
        yield Opened(target=local, engine=started, page=gauges.found(local, setup.metrics))


def met(opened: Opened) -> Opened:
    """The target as it is to be spoken to, and its models, as `survey.meet` finds them."""
    target, models = survey.meet(opened.target, opened.turns)
    return replace(opened, target=target, models=models)


def distance_s(pace: Pace | None) -> float:
    """Between two requests that are sent one by one, at this pace."""
    if pace is None or pace.requests is None:
        return 0.0
    return pace.per_s / pace.requests


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The workers of a run, ready to send what its folder has a plan for."""

    folder: Path
    opened: Opened
    runner: Runner
    watch: Watch
    sampler: gauges.Sampler | None = None
    governor: Governor | None = None

    def send(
        self,
        name: str,
        requests: Sequence[Request],
        on_window: Callable[[int], bool] | None = None,
        *,
        until_dead: bool = False,
    ) -> RunEvent | None:
        """Play requests, or fewer where `on_window` says so (see `Runner.play`). What ends the run,
        `interrupted`, `target-lost`, `spent`, `breaker` or `told-to-wait`, is noted in its folder
        and returned; None when it may go on. With `until_dead` a target that shows no sign of life
        for long is asked once more, after a pause, and is only lost if it shows none then.
        """
        total = len(requests)
        self.watch(name, 0, total)
        purse = (
            None if self.governor is None else _Windows(self.governor, name, requests, on_window)
        )
        if purse is not None and purse.short():
            return note(self.folder, "spent", purse.detail)
        todo = tuple(requests)
        while todo:
            before = total - len(todo)
            played = self.runner.play(
                todo,
                on_progress=partial(self._watched, name, before, total),
                on_window=on_window if purse is None else purse.over,
                until_silent=until_dead,
            )
            silent = played.silent or (until_dead and played.target_lost is not None)
            if played.interrupted or played.ended is not None or not silent:
                return self._ended(name, played, before, total) or self._spent(purse)
            if (ended := self._gone()) is not None:
                return ended
            left = runfolder.remaining(todo, runfolder.read_shards(self.folder))
            todo = tuple(each for each in left if each.worker not in played.workers_died)
        return self._spent(purse)

    def _watched(self, name: str, before: int, total: int, done: int) -> None:
        self.watch(name, before + done, total)

    def _ended(self, name: str, played: Played, before: int, total: int) -> RunEvent | None:
        """What ended the run, noted."""
        if played.interrupted:
            detail = f"during {name}, after {before + played.requests_done} of {total} requests"
            return note(self.folder, "interrupted", detail)
        if played.target_lost:
            return self._lost(played.target_lost)
        return None if played.ended is None else note(self.folder, *played.ended)

    def _spent(self, purse: _Windows | None) -> RunEvent | None:
        return note(self.folder, "spent", purse.detail) if purse and purse.detail else None

    def _gone(self) -> RunEvent | None:
        """What ends the run where the target, asked once more, shows no sign of life; None where it
        does.
        """
        time.sleep(lost.PAUSE_S)
        died = self.runner.workers_died
        living = next(each for each in range(len(self.runner.pids)) if each not in died)
        knock = replace(lost.knock(self.folder), worker=living)
        runfolder.append_requests(self.folder, [knock])
        ended = self.send("probe", [knock])
        detail = lost.epitaph(self.folder, knock)
        return ended if ended is not None or detail is None else self._lost(detail)

    def _lost(self, why: str) -> RunEvent:
        engine = self.opened.engine
        last = "" if engine is None else engine.last_words().rpartition("\n")[2]
        return note(self.folder, "target-lost", "; ".join(text for text in (why, last) if text))


class _Windows:
    """Looks, after every window, whether the caps leave room for the next one."""

    def __init__(
        self,
        governor: Governor,
        name: str,
        requests: Sequence[Request],
        on_window: Callable[[int], bool] | None,
    ) -> None:
        self._purse, self._name, self._on_window = governor.purse, name, on_window
        self._sizes = list(Counter((r.scenario, r.window) for r in requests).values())
        self._done = 0
        self.detail = ""
        """What was used up, and after how many windows; empty while there is room."""

    def over(self, window: int) -> bool:
        self._done += 1
        enough = self._on_window is not None and self._on_window(window)
        return enough or self.short()

    def short(self) -> bool:
        """Whether the next window would exceed a cap; never after the last one."""
        if self._done == len(self._sizes):
            return False
        what = self._purse.exceeded_by(self._sizes[self._done])
        if what is not None:
            of = f"{self._done} of {len(self._sizes)} windows"
            where = {"confirm": " of replays", "survey": " of the survey"}.get(self._name, "")
            self.detail = f"the budget of {what} was used up after {of}{where}"
        return what is not None


@contextmanager
def started(
    folder: Path,
    opened: Opened,
    loads: Sequence[Load],
    watch: Watch,
    *,
    caps: Caps | None = None,
    pace: Pace | None = None,
) -> Iterator[Session]:
    """As many workers and lanes as the largest of `loads` needs. What the folder's attempts so far
    have used counts, and what met the target. Raises HarnessError.
    """
    workers, lanes = max(load.workers for load in loads), max(load.lanes for load in loads)
    time.sleep(opened.turns.left_s)
    governor = None
    if pace is not None or caps not in (None, Caps()):
        sent_s = opened.turns.sent_s
        if sent_s:
            asked = spending.unplanned(spending.met(len(sent_s)), "to find out what it takes")
            note(folder, spending.MET, asked)
        governor = Governor(caps or Caps(), pace, spending.used(folder), sent_s)
    with (
        runfolder.locked(folder),
        Runner(opened.target, folder, workers, lanes, governor) as runner,
        gauges.sampled(folder, opened.page) as sampler,
    ):
        yield Session(
            folder=folder,
            opened=opened,
            runner=runner,
            watch=watch,
            sampler=sampler,
            governor=governor,
        )


def note(folder: Path, kind: str, detail: str = "") -> RunEvent:
    """Write down in the run folder what befell the run; return it."""
    event = RunEvent(kind=kind, at_ns=time.monotonic_ns(), detail=detail)
    runfolder.append_event(folder, event)
    return event


def provenance(setup: Setup, opened: Opened, scenarios: tuple[Scenario, ...]) -> Provenance:
    """Who runs what, now, against what; the facts about the target are still to come."""
    return Provenance(
        schema=SCHEMA,
        leakcheck=leakcheck.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: importlib.metadata.version(name) for name in _PACKAGES},
        command=setup.command,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=setup.seed,
        target=opened.target,
        facts=TargetFacts(),
        scenarios=scenarios,
        engine=opened.ready,
        selftest=setup.selftest,
        play_all=setup.play_all,
        lifetimes=setup.lifetimes,
        restart=setup.restart,
        caps=setup.caps,
        pace=setup.pace,
    )
