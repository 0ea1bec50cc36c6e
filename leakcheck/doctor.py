"""Examine a target before testing it: what it can do, how noisy it is, what echoes, and what that
means for each scenario.

Everything is asked once and briefly. The traffic that has owners (the survey, a few windows of the
differential) is planned, journalled and sent like that of a run, under the same caps and pace, in a
folder that is thrown away.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from leakcheck import (
    audition,
    evidence,
    gauges,
    history,
    manners,
    planning,
    runfolder,
    scenario,
    session,
    styles,
    survey,
)
from leakcheck.analyzer import exposure
from leakcheck.checks import _mixed
from leakcheck.checks._trajectories import Comparison
from leakcheck.errors import TargetError
from leakcheck.history import History
from leakcheck.outlook import Known, outlooks
from leakcheck.passphrase import assert_separate, load_words
from leakcheck.records import (
    Abilities,
    Caps,
    Diagnosis,
    Noise,
    Plan,
    Scenario,
    Target,
    TargetFacts,
)
from leakcheck.session import Opened, Session, Setup, Watch
from leakcheck.survey import abilities, address
from leakcheck.traffic.mixed_batch import ALONE_AGAIN, NEUTRAL, OTHER_NEUTRAL

_NOISE = "mixed-batch-differential"
_FEW = {
    "load.windows": 4,
    "load.requests": 8,
    "load.workers": 2,
    "load.lanes": 4,
    "traffic.recipients": 3,
}
"""Thirty requests a window, at most eight of them at one time."""
_SLOW_S = 1.0
_SLOW_WINDOWS = 2
"""Of a target that takes longer for a request so far, so many windows are enough."""
_SHORT = frozenset({"interrupted", "spent", "breaker", "told-to-wait", "target-lost"})
"""What ends a measurement before its time; what was measured by then is told all the same."""
_GUEST_PAUSE_S = 1.0
"""Between two questions to somebody else's machine."""


def examine(setup: Setup, watch: Watch, *, any_api: bool = False) -> Diagnosis:
    """Everything about the target of `setup`. With `any_api` the first API that answers is used.

    Raises TargetError for a target that is dead, broken or no API at all, UsageError for a wrong
    key or model, and where there are several models and none was named.
    """
    began_s = time.monotonic()
    with session.opened(replace(setup, metrics=gauges.AUTO)) as opened:
        watch("reach", 0, 1)
        opened, listed, asked = _reached(opened, any_api=any_api)  # noqa: PLW2901 - as it is to be spoken to
        with tempfile.TemporaryDirectory(prefix="leakcheck-doctor-") as root:
            visit = _visit(setup, opened, listed, asked, Path(root))
            return _examined(visit, began_s, watch)


def _reached(opened: Opened, *, any_api: bool) -> tuple[Opened, Any, int]:
    """The target as it is to be spoken to, its list of models, and the requests so far."""
    target, listed, asked = opened.target, None, 0
    if target.backend == "openai":
        target, listed, asked = address.reach(target)
    if any_api:
        target, _ = address.answering(target)
    else:
        target, _ = survey.meet(target)
    asked += 3 + len(target.refuses)  # the models, one tiny request, and one with everything
    return replace(opened, target=target), listed, asked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visit:
    """A target that was reached, and where what it says is kept meanwhile."""

    setup: Setup
    opened: Opened
    listed: Any
    asked: int
    folder: Path
    first: Plan
    its: Scenario
    ids: Iterator[int]

    @property
    def caps(self) -> Caps:
        """What is left of those asked for when the questions are taken off."""
        caps = self.setup.caps
        if caps.requests is None:
            return caps
        return replace(caps, requests=max(1, caps.requests - abilities.MOST))


def _visit(setup: Setup, opened: Opened, listed: Any, asked: int, root: Path) -> _Visit:
    its = scenario.read(scenario.find(_NOISE), _FEW)
    ids = itertools.count()
    first = survey.plan(
        seed=setup.seed,
        words=load_words(setup.words),
        style="phrase",
        ids=ids,
        length=its.load.passphrase_words,
    )
    folder = runfolder.create(root, "doctor", setup.seed)
    runfolder.write_provenance(folder, session.provenance(setup, opened, (its,)))
    runfolder.write_plans(folder, [first])
    return _Visit(
        setup=setup,
        opened=opened,
        listed=listed,
        asked=asked,
        folder=folder,
        first=first,
        its=its,
        ids=ids,
    )


def _examined(visit: _Visit, began_s: float, watch: Watch) -> Diagnosis:
    folder, setup = visit.folder, visit.setup
    with session.started(
        folder, visit.opened, [visit.its.load], watch, caps=visit.caps, pace=setup.pace
    ) as live:
        facts = _surveyed(live, visit.first, address.names(visit.listed))
        watch("abilities", 0, 1)
        able = _able(setup, visit.opened.target, facts, visit.listed)
        facts = _auditioned(live, visit, facts)
        origin = runfolder.read_provenance(folder)
        runfolder.write_provenance(folder, replace(origin, facts=facts))
        _send_few(live, visit, facts)
    watch("outlook", 0, 1)
    short = tuple(each.detail for each in runfolder.read_events(folder) if each.kind in _SHORT)
    able = replace(able, notes=(*able.notes, *(f"not all was measured: {each}" for each in short)))
    known = _known(history.read(folder), able, facts)
    return Diagnosis(
        abilities=able,
        facts=facts,
        noise=known.noise,
        echo=known.echo,
        outlooks=outlooks([scenario.read(path, {}) for path in scenario.shipped_files()], known),
        requests=visit.asked + able.requests + len(runfolder.read_shards(folder).invocations),
        duration_s=time.monotonic() - began_s,
        requests_per_s=None if known.seen is None else known.seen.requests_per_s,
    )


def _surveyed(live: Session, first: Plan, models: Sequence[str]) -> TargetFacts:
    ended = live.send(survey.NAME, first.requests)
    if ended is not None and ended.kind == "target-lost":
        raise TargetError(ended.detail)
    target = live.opened.target
    seen = runfolder.read_shards(live.folder).observations
    found = survey.facts(first, seen, models=models, refuses=target.refuses)
    names = tuple(each.name for each in target.tenants)
    return replace(found, continues=target.api == "completions", tenants=names)


def _able(setup: Setup, target: Target, facts: TargetFacts, listed: Any) -> Abilities:
    pause_s = _GUEST_PAUSE_S if manners.is_guest(target) else 0.0
    if setup.pace is not None and setup.pace.requests is not None:
        pause_s = setup.pace.per_s / setup.pace.requests
    return abilities.ask(
        target,
        facts.models,
        listed,
        reports_cached_tokens=facts.reports_cached_tokens,
        pause_s=pause_s,
    )


def _auditioned(live: Session, visit: _Visit, facts: TargetFacts) -> TargetFacts:
    """The facts with what styles and phrasings echo, and the best of them."""
    words = styles.lists(visit.opened.tokenizer(visit.setup.tokenizer), visit.setup.words)
    usual = visit.its.load.passphrase_words
    stage = audition.Stage(
        words=words,
        lengths=audition.lengths(words, usual, fixed=False),
        seed=visit.setup.seed,
        continues=facts.continues,
        most=audition.most(visit.setup.caps.requests),
        tenants=facts.tenants,
    )
    if not stage.cells:
        return facts

    def keep(plans: Sequence[Plan]) -> None:
        runfolder.write_plans(live.folder, [visit.first, *plans])

    heard, ended = audition.hold(live, stage, visit.ids, keep)
    if ended is None:
        audition.keep(visit.opened.target, stage, heard)  # a run that follows need not ask again
    best = audition.best(heard)
    tokens = max(facts.tokens_per_phrase_word, styles.TOKENS_A_WORD[best.style])
    if best.style == "phrase":
        tokens = facts.tokens_per_phrase_word
    return replace(
        facts,
        style=best.style,
        phrasing=best.phrasing,
        echoes=heard,
        tokens_per_phrase_word=tokens,
    )


def _send_few(live: Session, visit: _Visit, facts: TargetFacts) -> None:
    """A few windows of the differential, with the passphrases that the target echoes best."""
    before = runfolder.read_plans(live.folder)
    seen = runfolder.read_shards(live.folder).observations
    its, words, style = visit.its, visit.first.words, visit.first.style
    if facts.echoes:
        best = audition.best(facts.echoes)
        listed = styles.lists(visit.opened.tokenizer(visit.setup.tokenizer), visit.setup.words)
        words, style = tuple(listed[best.style]), best.style
        its = replace(its, load=replace(its.load, passphrase_words=best.words))
    if fmean((each.end_ns - each.start_ns) / 1e9 for each in seen) > _SLOW_S:
        its = replace(its, load=replace(its.load, windows=_SLOW_WINDOWS))
    plan = scenario.plan(
        its, seed=visit.setup.seed, facts=facts, words=words, style=style, ids=visit.ids
    )
    assert_separate((*before, plan))
    runfolder.write_plans(live.folder, [*before, plan])
    live.send(plan.scenario.name, plan.requests)


# --- what came of it -----------------------------------------------------------------------------


def _known(run: History, able: Abilities, facts: TargetFacts) -> Known:
    part = run.scenario(_NOISE)
    its = part.plans[0].scenario
    measured = planning.measured(run)
    seen = measured.get(_NOISE)
    echo = None if seen is None else seen.echo
    if facts.echoes and (echo is None or not echo.trials):
        best = audition.best(facts.echoes)
        echo = evidence.rate(best.echoed, best.asked)
    others = planning.elsewhere(measured)
    if others is not None:
        others = replace(others, requests_per_s=_together_per_s(part))
    again = run.scenario(survey.NAME).observations["cached_tokens"]
    return Known(
        abilities=able,
        facts=facts,
        noise=noise(_mixed.trials(part)),
        echo=echo,
        cache_hits=bool((again.fillna(0) > 0).any()),
        exposures=exposure.measure(part, its.gate),
        seen=others,
    )


def _together_per_s(part: History) -> float | None:
    """Requests a second where several were sent at one time: what is sent alone is slower."""
    sent = part.requests[["id", "window", "phase"]]
    seen = part.observations[part.observations["outcome"] == "ok"]
    both = seen.merge(sent, left_on="request_id", right_on="id")
    requests, span_s = 0, 0.0
    for _, group in both.groupby(["window", "phase"]):
        if len(group) > 1:
            requests += len(group)
            span_s += float(group["end_ns"].max() - group["start_ns"].min()) / 1e9
    return requests / span_s if span_s else None


def noise(of: Sequence[_mixed.Trial]) -> Noise | None:
    """How far the target repeats itself; None where nothing was compared.

    The grade is that of `checks.divergence` where tokens differ. Where none does, which takes a
    hundred windows to call D0, log-probabilities tell: none that differs is D0 so far, any is D1.
    """
    if not of:
        return None
    graded = _mixed.grade(of)
    alone = [each.compared[ALONE_AGAIN] for each in of if ALONE_AGAIN in each.compared]
    company = [
        each.compared[cell]
        for each in of
        for cell in (NEUTRAL, OTHER_NEUTRAL)
        if cell in each.compared
    ]
    drifts = _drift(alone), _drift(company)
    grade: Any = graded.name
    if grade is None and drifts[1] is not None:
        grade = "D1" if max(drifts[0] or 0.0, drifts[1]) > 0 else "D0"
    return Noise(
        grade=grade,
        windows=graded.windows,
        alone_differ=graded.alone.diverged,
        alone_compared=graded.alone.compared,
        company_differ=graded.neutral.diverged,
        company_compared=graded.neutral.compared,
        alone_drift_nats=drifts[0],
        company_drift_nats=drifts[1],
    )


def _drift(of: Sequence[Comparison]) -> float | None:
    return max((each.drift for each in of if each.drift is not None), default=None)
