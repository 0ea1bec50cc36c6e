"""One run from beginning to end: target, survey, plan, traffic, confirmation, judgement, report."""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import leakcheck
from leakcheck import analyzer, embedded, history, report, runfolder, scenario
from leakcheck.confirm import confirmations
from leakcheck.errors import UsageError
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
from leakcheck.survey import preflight, survey, template_tokens

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

    Raises UsageError or TargetError before any passphrase is sent; what breaks later is a matter
    of the report.
    """
    scenarios = tuple(scenario.read(path, options.overrides) for path in options.scenarios)
    _require_different_names(scenarios)
    with _opened(options.target, options.engine) as opened:
        watch("survey", 0, 1)
        models = preflight(opened.target)
        ready = None if opened.engine is None else opened.engine.ready
        tokenizer = _tokenizer(options.tokenizer or (ready or {}).get("tokenizer"))
        facts = survey(
            opened.target,
            seed=options.seed,
            models=models,
            template_tokens=None if tokenizer is None else template_tokens(tokenizer),
        )
        words, style = _words(options.words, tokenizer)
        watch("plan", 0, 1)
        plans = _plans(scenarios, options.seed, facts, words, style)
        name = scenarios[0].name if len(scenarios) == 1 else "all"
        folder = runfolder.create(options.out, name, options.seed)
        origin = _provenance(options, opened.target, facts, scenarios, ready)
        runfolder.write_provenance(folder, origin)
        runfolder.write_plans(folder, plans)
        _play(folder, opened, plans, watch)
    return judge(folder, watch), folder


def resume(folder: Path, watch: Watch) -> Report:
    """Send what a run has not sent yet, into new shards, and judge the whole.

    Raises RunFolderError for a folder that is none, TargetError when the target is gone.
    """
    _require_run_folder(folder)
    origin = runfolder.read_provenance(folder)
    plans = runfolder.read_plans(folder)
    engine = None if origin.engine is None else tuple(origin.engine["flags"])
    with _opened(origin.target, engine) as opened:
        preflight(opened.target)
        _note(folder, "resumed")
        _play(folder, opened, plans, watch)
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
    for each in scenarios:
        (plan,) = _plans((each,), 0, TargetFacts(block_tokens=16), load_words(), "phrase")
        bits = min(r.ticket.entropy_bits for r in plan.requests if r.ticket is not None)
        yield (
            f"{each.path}: valid; {each.load.windows} windows, {len(plan.requests)} requests, "
            f"passphrases of {bits:.1f} bits"
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


def _plans(
    scenarios: Sequence[Scenario],
    seed: int,
    facts: TargetFacts,
    words: tuple[str, ...],
    style: Style,
) -> tuple[Plan, ...]:
    """Plan all scenarios and prove, before anything is sent, that a match will mean a leak."""
    ids = itertools.count()
    plans = tuple(
        scenario.plan(each, seed=seed, facts=facts, words=words, style=style, ids=ids)
        for each in scenarios
    )
    require_entropy(plans)
    assert_separate(plans)
    return plans


def _play(folder: Path, opened: _Open, plans: Sequence[Plan], watch: Watch) -> None:
    """Send what has not been sent; then, if nothing broke, what confirms a suspicion."""
    loads = [plan.scenario.load for plan in plans]
    workers, lanes = max(load.workers for load in loads), max(load.lanes for load in loads)
    sent = runfolder.read_shards(folder)
    with Runner(opened.target, folder, workers, lanes) as runner:
        session = _Session(folder=folder, opened=opened, runner=runner, watch=watch)
        for plan in plans:
            if not session.send(plan.scenario.name, runfolder.remaining(plan.requests, sent)):
                return
        suspects = confirmations(history.read(folder))
        if suspects:
            runfolder.append_requests(folder, suspects)
            if not session.send("confirm", suspects):
                return
    _note(folder, "finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A run while its workers live."""

    folder: Path
    opened: _Open
    runner: Runner
    watch: Watch

    def send(self, name: str, requests: Sequence[Request]) -> bool:
        """Play requests; False when the run is over (the runner notes why in the run folder)."""
        total = len(requests)
        self.watch(name, 0, total)
        played = self.runner.play(
            requests, on_progress=lambda done: self.watch(name, done, total)
        )
        engine = self.opened.engine
        if played.target_lost and engine is not None and (last := engine.last_words()):
            _note(self.folder, "engine", last.splitlines()[-1])
        return not (played.interrupted or played.target_lost)


def _note(folder: Path, kind: str, detail: str = "") -> None:
    event = RunEvent(kind=kind, at_ns=time.monotonic_ns(), detail=detail)
    runfolder.append_event(folder, event)


def _provenance(
    options: Options,
    target: Target,
    facts: TargetFacts,
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
        facts=facts,
        scenarios=scenarios,
        engine=engine,
    )
