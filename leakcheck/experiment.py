"""One run from beginning to end: target, survey, plan, traffic, confirmation, judgement, report."""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import leakcheck
from leakcheck import analyzer, embedded, history, report, runfolder, scenario, survey
from leakcheck.analyzer.confirm import confirmations
from leakcheck.errors import HarnessError, UsageError
from leakcheck.passphrase import assert_separate, load_words, rare_token_words, require_entropy
from leakcheck.records import (
    SCHEMA,
    Plan,
    Provenance,
    Report,
    Request,
    RunEvent,
    Scenario,
    Style,
    Target,
    TargetFacts,
)
from leakcheck.runner import Runner

_PACKAGES = ("aiohttp", "multiprocess", "numpy", "pandas", "scipy", "torch", "transformers")

Watch = Callable[[str, int, int], None]
"""Told what is being done (a scenario's name, `survey`, ...), how far, and out of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user asked for. Either `target` or `engine` (flags of the embedded one) is set."""

    scenarios: tuple[Path, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    target: Target | None = None
    engine: tuple[str, ...] | None = None
    seed: int = 0
    out: Path = Path("reports")
    tokenizer: str | None = None
    words: Path | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A target that is there to be spoken to; `engine` is what an embedded one says of itself."""

    target: Target
    engine: embedded.Embedded | None


def run(options: Options, watch: Watch) -> tuple[Report, Path]:
    """Run the experiment; return the report and the folder it was written to.

    Raises UsageError or TargetError when the target or what was asked for cannot be used; what
    breaks after the survey is a matter of the report.
    """
    scenarios = tuple(scenario.read(path, options.overrides) for path in options.scenarios)
    _require_different_names(scenarios)
    with _opened(options.target, options.engine) as opened:
        watch(survey.NAME, 0, 1)
        models = survey.preflight(opened.target)
        ready = None if opened.engine is None else opened.engine.ready
        tokenizer = _tokenizer(options.tokenizer or (ready or {}).get("tokenizer"))
        tokens = None if tokenizer is None else survey.tokens_of(tokenizer)
        words, style = _words(options.words, tokenizer)
        first = survey.plan(seed=options.seed, words=words, style=style, ids=itertools.count())
        _plans(scenarios, first, TargetFacts())  # what cannot be is refused before anything is sent
        name = scenarios[0].name if len(scenarios) == 1 else "all"
        folder = runfolder.create(options.out, name, options.seed)
        origin = _provenance(options, opened.target, scenarios, ready)
        runfolder.write_provenance(folder, origin)
        runfolder.write_plans(folder, [first])
        with _session(folder, opened, scenarios, watch) as session:
            if session.send(survey.NAME, first.requests):
                seen = runfolder.read_shards(folder).observations
                found = survey.facts(first, seen, models=models, tokens=tokens)
                runfolder.write_provenance(folder, replace(origin, facts=found))
                watch("plan", 0, 1)
                plans = _plans(scenarios, first, found)
                runfolder.write_plans(folder, [first, *plans])
                session.send_all(plans)
    return judge(folder, watch), folder


def resume(folder: Path, watch: Watch) -> Report:
    """Send what a run has not sent yet, into new shards, and judge the whole.

    Raises UsageError for a folder that is none or a run that stopped before it was planned,
    TargetError when the target is gone.
    """
    _require_run_folder(folder)
    origin = runfolder.read_provenance(folder)
    plans = runfolder.read_plans(folder)
    if len(plans) == 1:
        raise UsageError(f"{folder}: the run was stopped before it was planned; start a new one")
    engine = None if origin.engine is None else tuple(origin.engine["flags"])
    with _opened(origin.target, engine) as opened:
        survey.preflight(opened.target)
        _note(folder, "resumed")
        with _session(folder, opened, origin.scenarios, watch) as session:
            session.send_all(plans)
    return judge(folder, watch)


def judge(folder: Path, watch: Watch) -> Report:
    """Analyze a run folder and write its report files; needs no target.

    Raises RunFolderError, naming file and line, for a damaged folder.
    """
    _require_run_folder(folder)
    watch("analyze", 0, 1)
    result = analyzer.analyze(history.read(folder))
    report.write(result, folder)
    runfolder.link_latest(folder)
    watch("analyze", 1, 1)
    return result


def _require_run_folder(folder: Path) -> None:
    if not (folder / "run.json").is_file():
        raise UsageError(f"{folder} is no run folder: there is no run.json in it")


def rehearse(paths: Sequence[Path], overrides: Mapping[str, Any]) -> Iterator[str]:
    """Read and plan scenarios as a run would, without a target; a line for each that is valid.

    Raises ScenarioError or UsageError as `run` would.
    """
    scenarios = tuple(scenario.read(path, overrides) for path in paths)
    _require_different_names(scenarios)
    first = survey.plan(seed=0, words=load_words(), style="phrase", ids=itertools.count())
    for plan in _plans(scenarios, first, TargetFacts(block_tokens=16)):
        bits = min(r.ticket.entropy_bits for r in plan.requests if r.ticket is not None)
        yield (
            f"{plan.scenario.path}: valid; {plan.scenario.load.windows} windows, "
            f"{len(plan.requests)} requests, passphrases of {bits:.1f} bits"
        )


def _require_different_names(scenarios: Sequence[Scenario]) -> None:
    seen: dict[str, str] = {}
    for each in scenarios:
        if each.name in seen:
            raise UsageError(
                f"{each.path} and {seen[each.name]} are both named {each.name!r}; "
                "scenarios of one run need different names"
            )
        seen[each.name] = each.path


@contextmanager
def _opened(target: Target | None, engine: Sequence[str] | None) -> Iterator[_Open]:
    if engine is None:
        if target is None:
            raise UsageError("no target: give --target URL --model M, or --embedded")
        yield _Open(target=target, engine=None)
        return
    with embedded.start(engine) as started:
        started.ready["flags"] = list(engine)
        local = Target(base_url=started.ready["base_url"], model=started.ready["model"])
        yield _Open(target=local, engine=started)


def _tokenizer(path: str | None) -> Any:
    if path is None:
        return None
    from transformers import AutoTokenizer  # noqa: PLC0415 - a second to import: only when needed

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--tokenizer {path}: no tokenizer can be loaded: {reason}") from error


def _words(path: Path | None, tokenizer: Any) -> tuple[tuple[str, ...], Style]:
    """The words of passphrases: certified by hand, whole rare tokens, or the shipped list."""
    words = load_words() if path is None else load_words(path)
    if tokenizer is None:
        return words, "phrase"
    return rare_token_words(tokenizer, words), "rare-token"


def _plans(scenarios: Sequence[Scenario], first: Plan, facts: TargetFacts) -> tuple[Plan, ...]:
    """Plan all scenarios after the survey `first`, with its seed and words.

    Proves, before anything of them is sent, that a match will mean a leak.
    """
    ids = itertools.count(len(first.requests))
    plans = tuple(
        scenario.plan(
            each, seed=first.seed, facts=facts, words=first.words, style=first.style, ids=ids
        )
        for each in scenarios
    )
    require_entropy((first, *plans))
    assert_separate((first, *plans))
    return plans


@contextmanager
def _session(
    folder: Path, opened: _Open, scenarios: Sequence[Scenario], watch: Watch
) -> Iterator[_Session]:
    """The workers of a run; what ends them for good is noted in the run folder, not raised."""
    loads = [each.load for each in scenarios]
    workers, lanes = max(load.workers for load in loads), max(load.lanes for load in loads)
    try:
        with Runner(opened.target, folder, workers, lanes) as runner:
            yield _Session(folder=folder, opened=opened, runner=runner, watch=watch)
    except HarnessError as error:
        _note(folder, "harness-error", str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A run while its workers live."""

    folder: Path
    opened: _Open
    runner: Runner
    watch: Watch

    def send(self, name: str, requests: Sequence[Request]) -> bool:
        """Play requests; False, with the reason noted in the run folder, when the run is over."""
        total = len(requests)
        self.watch(name, 0, total)
        played = self.runner.play(requests, on_progress=lambda done: self.watch(name, done, total))
        if played.interrupted:
            detail = f"during {name}, after {played.requests_done} of {total} requests"
            _note(self.folder, "interrupted", detail)
        elif played.target_lost:
            engine = self.opened.engine
            last = "" if engine is None else engine.last_words().rpartition("\n")[2]
            detail = "; ".join(text for text in (played.target_lost, last) if text)
            _note(self.folder, "target-lost", detail)
        return not (played.interrupted or played.target_lost)

    def send_all(self, plans: Sequence[Plan]) -> None:
        """Send what has not been sent; then, if nothing broke, what confirms a suspicion."""
        sent = runfolder.read_shards(self.folder)
        for plan in plans:
            todo = runfolder.remaining(plan.requests, sent)
            if todo and not self.send(plan.scenario.name, todo):
                return
        while suspects := confirmations(history.read(self.folder)):
            runfolder.append_requests(self.folder, suspects)
            if not self.send("confirm", suspects):
                return
        _note(self.folder, "finished")


def _note(folder: Path, kind: str, detail: str = "") -> None:
    event = RunEvent(kind=kind, at_ns=time.monotonic_ns(), detail=detail)
    runfolder.append_event(folder, event)


def _provenance(
    options: Options,
    target: Target,
    scenarios: tuple[Scenario, ...],
    engine: dict[str, Any] | None,
) -> Provenance:
    return Provenance(
        schema=SCHEMA,
        leakcheck=leakcheck.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: importlib.metadata.version(name) for name in _PACKAGES},
        command=options.command,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=options.seed,
        target=target,
        facts=TargetFacts(),
        scenarios=scenarios,
        engine=engine,
    )
