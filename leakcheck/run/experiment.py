"""One run from beginning to end: target, survey, plan, traffic, confirmation, judgement, report."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakcheck import analyzer, history, report, runfolder, scenario, survey
from leakcheck.analyzer import reasons
from leakcheck.analyzer.confirm import confirmations
from leakcheck.budget import spending
from leakcheck.checks import liveness
from leakcheck.errors import HarnessError, TargetError, UsageError
from leakcheck.history import settled
from leakcheck.passphrase import load_words
from leakcheck.records import Caps, Plan, Provenance, Report, Scenario, TargetFacts
from leakcheck.report import sentences
from leakcheck.run import gauges, lifetimes, session
from leakcheck.run.session import Opened, Session, Setup, Watch
from leakcheck.run.watching import Watcher
from leakcheck.survey import choosing

_PROBE_PAUSE_S = 5.0
"""Before each request that asks a target which seems dead whether it came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user asked for: which scenarios, with which values overridden (`own`: those of one
    path alone), and around them.
    """

    scenarios: tuple[Path, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)
    setup: Setup = field(default_factory=Setup)


def run(options: Options, watch: Watch) -> tuple[Report, Path]:
    """Run the experiment; return the report and the folder it was written to.

    Raises UsageError or TargetError when the target or what was asked for cannot be used; what
    breaks after the survey is a matter of the report.
    """
    scenarios = tuple(
        scenario.read(path, {**options.overrides, **options.own.get(path, {})})
        for path in options.scenarios
    )
    _require_different_names(scenarios)
    setup = options.setup
    lifetimes.require_windows(scenarios, setup.lifetimes)
    with session.opened(setup) as opened:
        watch(survey.NAME, 0, 1)
        opened = session.met(opened)  # noqa: PLW2901 - what every lane is to know
        if setup.target is not None:
            setup = replace(setup, target=opened.target)
        tokenizer = opened.tokenizer(setup.tokenizer)
        # what cannot be is refused before anything is sent
        usual = choosing.made(scenarios, setup, tokenizer)
        name = scenarios[0].name if len(scenarios) == 1 else "all"
        folder = runfolder.create(setup.out, name, setup.seed)
        origin = session.provenance(setup, opened, scenarios)
        runfolder.write_provenance(folder, origin)
        runfolder.link_latest(folder)  # a killed run is the one that `latest` resumes
        runfolder.write_plans(folder, [usual.first])
        try:
            with _started(folder, opened, origin, watch) as live:
                made = choosing.auditioned(live, usual, setup, tokenizer, options.overrides)
                found = None
                if made is not None:
                    origin = replace(origin, scenarios=made.scenarios)
                    runfolder.write_plans(folder, [*made.heard_in, made.first])
                    found = _facts(live, made, tokenizer)
                if made is not None and found is not None:
                    runfolder.write_provenance(folder, replace(origin, facts=found))
                    watch("plan", 0, 1)
                    sent = (*made.heard_in, made.first)
                    plans = (*sent, *made.plans(found))
                    runfolder.write_plans(folder, plans)
                    _send_all(live, plans, play_all=setup.play_all)
        except KeyboardInterrupt:
            session.note(folder, "interrupted", "between two steps")
    return judge(folder, watch), folder


def _facts(live: Session, made: choosing.Made, tokenizer: Any) -> TargetFacts | None:
    """Send the survey; what it found, or None where the run ended meanwhile."""
    first, target = made.first, live.opened.target
    ended = live.send(survey.NAME, first.requests)
    if ended is not None and ended.kind == "target-lost":
        raise TargetError(ended.detail)
    if ended is not None:
        return None
    chat = target.api != "completions"
    tokens = None
    if tokenizer is not None:
        tokens = survey.tokens_of(tokenizer, chat=chat, words=first.words)
    seen = runfolder.read_shards(live.folder).observations
    models = live.opened.models
    found = survey.facts(first, seen, models=models, tokens=tokens, target=target)
    found = replace(found, continues=not chat, tenants=tuple(each.name for each in target.tenants))
    return made.facts(found)


def resume(folder: Path, watch: Watch) -> Report:
    """Send what a run has not sent yet, into new shards, and judge the whole. Of a finished run
    that is nothing: its target is not needed.

    Raises UsageError for a folder that is none or a run that stopped before it was planned,
    TargetError when the target is gone.
    """
    _require_run_folder(folder)
    origin = runfolder.read_provenance(folder)
    plans = runfolder.read_plans(folder)
    if not any(plan.scenario.checks for plan in plans):
        raise UsageError(f"{folder}: {sentences.UNPLANNED}")
    if _is_finished(folder, plans):
        return judge(folder, watch)
    engine = None if origin.engine is None else tuple(origin.engine["flags"])
    target = origin.target
    setup = Setup(
        target=target,
        engine=engine,
        caps=_left(folder, origin),
        pace=origin.pace,
        api=target.api,
        timeout_s=target.timeout_s,
        metrics=gauges.AUTO if runfolder.read_gauges(folder) else gauges.OFF,
    )
    with session.opened(setup) as opened:
        session.met(opened)
        session.note(folder, "resumed")
        try:
            with _started(folder, opened, origin, watch) as live:
                _send_all(live, plans, play_all=origin.play_all)
        except KeyboardInterrupt:
            session.note(folder, "interrupted", "between two steps")
    return judge(folder, watch)


def _left(folder: Path, origin: Provenance) -> Caps:
    """The caps of a run that is resumed, with the requests that are left of them."""
    caps = origin.caps
    if caps.requests is None:
        return caps
    return replace(caps, requests=max(0, caps.requests - spending.used(folder).requests))


def _is_finished(folder: Path, plans: Sequence[Plan]) -> bool:
    """Whether a run came to its end with nothing left to send."""
    events = runfolder.read_events(folder)
    ends = [each.kind for each in events if each.kind in ("finished", "resumed")]
    if ends[-1:] != ["finished"] or reasons.open_end(events) is not None:
        return False
    sent, over = runfolder.read_shards(folder), settled.names(events)
    return all(
        plan.scenario.name in over or not runfolder.remaining(plan.requests, sent) for plan in plans
    )


def judge(folder: Path, watch: Watch) -> Report:
    """Analyze a run folder and write its report files; needs no target.

    Raises RunFolderError, naming file and line, for a damaged folder.
    """
    _require_run_folder(folder)
    watch("analyze", 0, 1)
    result = analyzer.analyze(history.read(folder))
    origin = result.provenance
    if origin.pace is not None or origin.caps != Caps():
        result = replace(result, used=spending.used(folder))
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
    made = choosing.Made(first=first, scenarios=scenarios)
    for plan in made.plans(TargetFacts(block_tokens=16)):
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
def _started(folder: Path, opened: Opened, origin: Provenance, watch: Watch) -> Iterator[Session]:
    """The workers of a run; what ends them for good is noted in the run folder, not raised."""
    try:
        loads = [each.load for each in origin.scenarios]
        with session.started(
            folder, opened, loads, watch, caps=origin.caps, pace=origin.pace
        ) as live:
            yield live
    except HarnessError as error:
        session.note(folder, "harness-error", str(error))


def _send_all(live: Session, plans: Sequence[Plan], *, play_all: bool) -> None:
    """Send what has not been sent, of each scenario until it is settled; then, if nothing broke,
    `confirm`. With `play_all` nothing ends early.
    """
    sent = runfolder.read_shards(live.folder)
    over = settled.names(runfolder.read_events(live.folder))
    origin = runfolder.read_provenance(live.folder)
    watcher = Watcher(live.folder, origin, plans, play_all=play_all)
    for plan in plans:
        name, todo = plan.scenario.name, runfolder.remaining(plan.requests, sent)
        watcher.begin(plan, todo)
        if name in over or not todo:
            continue
        ended = None
        if not watcher.enough():
            ended = lifetimes.send(live, origin, plan, todo, watcher.over)
        watcher.write()
        if ended is not None:
            return
        if watcher.settled:
            session.note(live.folder, "settled", name)
            played = sum(request.window in watcher.windows for request in todo)
            live.watch(name, played, played)
    confirm(live, mute=watcher.mute)


def confirm(live: Session, *, mute: bool = False) -> None:
    """Send what confirms a suspicion; with that, a run is finished. A `mute` target is only asked
    whether it came back: each replay would wait for an answer in vain.
    """
    while not mute and (suspects := confirmations(history.read(live.folder))):
        runfolder.append_requests(live.folder, suspects)
        if live.send("confirm", suspects) is not None:
            return
    while (probe := liveness.probe(history.read(live.folder))) is not None:
        time.sleep(_PROBE_PAUSE_S)
        runfolder.append_requests(live.folder, [probe])
        if live.send("probe", [probe]) is not None:
            return
    session.note(live.folder, "finished")
