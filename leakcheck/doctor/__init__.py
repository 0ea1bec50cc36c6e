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

from leakcheck import evidence, history, planning, runfolder, scenario, survey
from leakcheck.analyzer import exposure
from leakcheck.budget import spending
from leakcheck.checks import _mixed
from leakcheck.checks._trajectories import Comparison
from leakcheck.doctor.outlook import Known, outlooks
from leakcheck.errors import TargetError
from leakcheck.history import History
from leakcheck.passphrase import assert_separate, load_words, styles
from leakcheck.records import (
    Abilities,
    Diagnosis,
    Gate,
    Noise,
    Part,
    Plan,
    Rate,
    RunEvent,
    Scenario,
    TargetFacts,
    Use,
)
from leakcheck.run import gauges, session
from leakcheck.run.session import Opened, Session, Setup, Watch
from leakcheck.survey import abilities, address, audition
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
_ANSWERED = 0.5
"""The share of the last requests that a target must have answered not to be called lost."""


def examine(setup: Setup, watch: Watch, *, any_api: bool = False) -> Diagnosis:
    """Everything about the target of `setup`. With `any_api` the first API that answers is used.

    Raises TargetError for a target that is dead, broken or no API at all, UsageError for a wrong
    key or model, and where there are several models and none was named.
    """
    began_s = time.monotonic()
    with session.opened(replace(setup, metrics=gauges.AUTO)) as opened:
        watch("reach", 0, 1)
        opened, listed = _reached(opened, any_api=any_api)  # noqa: PLW2901 - as it is to be spoken to
        with tempfile.TemporaryDirectory(prefix="leakcheck-doctor-") as root:
            visit = _visit(setup, opened, listed, Path(root))
            return _examined(visit, began_s, watch)


def _reached(opened: Opened, *, any_api: bool) -> tuple[Opened, Any]:
    """The target as it is to be spoken to, and its list of models as it came."""
    target, listed = opened.target, None
    if target.backend == "openai":
        target, listed = address.reach(target, opened.turns)
    if any_api:
        target, models = address.answering(target, opened.turns)
        return replace(opened, target=target, models=models), listed
    return session.met(replace(opened, target=target)), listed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visit:
    """A target that was reached, and where what it says is kept meanwhile."""

    setup: Setup
    opened: Opened
    listed: Any
    folder: Path
    first: Plan
    its: Scenario
    ids: Iterator[int]


def _visit(setup: Setup, opened: Opened, listed: Any, root: Path) -> _Visit:
    its = scenario.read(scenario.find(_NOISE), _FEW)
    ids = itertools.count()
    first = survey.plan(
        seed=setup.seed,
        words=load_words(setup.words),
        style="phrase",
        ids=ids,
        length=its.load.passphrase_words,
        hottest=opened.target.hottest,
    )
    folder = runfolder.create(root, "doctor", setup.seed)
    runfolder.write_provenance(folder, session.provenance(setup, opened, (its,)))
    runfolder.write_plans(folder, [first])
    return _Visit(
        setup=setup,
        opened=opened,
        listed=listed,
        folder=folder,
        first=first,
        its=its,
        ids=ids,
    )


def _examined(visit: _Visit, began_s: float, watch: Watch) -> Diagnosis:
    folder, setup = visit.folder, visit.setup
    with session.started(
        folder, visit.opened, [visit.its.load], watch, caps=setup.caps, pace=setup.pace
    ) as live:
        found = _survey(live, visit)
        for part in (_ask, _auditioned, _noised):
            if found.ended is None:
                found = part(live, visit, found)
    watch("outlook", 0, 1)
    run = history.read(folder)
    company = run.scenario(_NOISE) if _NOISE in run.scenarios() else None
    known = _known(run, company, found)
    return Diagnosis(
        abilities=found.able,
        facts=found.facts,
        noise=known.noise,
        echo=None if company is None else _echo(company),
        outlooks=outlooks([scenario.read(path, {}) for path in scenario.shipped_files()], known),
        requests=len(visit.opened.turns.sent_s) + len(runfolder.read_shards(folder).invocations),
        duration_s=time.monotonic() - began_s,
        requests_per_s=None if known.seen is None else known.seen.requests_per_s,
        unmeasured=known.unmeasured,
        ended=found.ended,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is known so far, by the parts that came to their end, and what ended it, if anything."""

    facts: TargetFacts
    able: Abilities
    measured: frozenset[Part] = frozenset()
    ended: tuple[str, str] | None = None

    def after(self, part: Part, ended: RunEvent | None) -> _Found:
        """With this part measured, unless something ended it."""
        if ended is not None:
            return replace(self, ended=(ended.kind, ended.detail))
        return replace(self, measured=self.measured | {part})


def _survey(live: Session, visit: _Visit) -> _Found:
    target = live.opened.target
    ended = live.send(survey.NAME, visit.first.requests)
    if ended is not None and ended.kind == "target-lost":
        raise TargetError(ended.detail)
    seen = runfolder.read_shards(live.folder).observations
    models = live.opened.models or address.names(visit.listed)
    facts = survey.facts(visit.first, seen, models=models, target=target)
    names = tuple(each.name for each in target.tenants)
    facts = replace(facts, continues=target.api == "completions", tenants=names)
    able = Abilities(
        base_url=target.base_url,
        backend=target.backend,
        api=target.api,
        model=target.model,
        models=facts.models,
        refuses=target.refuses,
    )
    return _Found(facts=facts, able=able).after("survey", ended)


def _ask(live: Session, visit: _Visit, found: _Found) -> _Found:
    live.watch("abilities", 0, 1)
    opened, facts = visit.opened, found.facts
    before, cap = len(opened.turns.sent_s), visit.setup.caps.requests
    purse = None if live.governor is None else live.governor.purse
    spent = 0 if purse is None else purse.used.requests
    able = abilities.ask(
        opened.target,
        facts.models,
        visit.listed,
        turns=opened.turns,
        most=abilities.MOST if cap is None else max(0, min(abilities.MOST, cap - spent)),
        tokens=None if purse is None else purse.tokens_left,
        reports_cached_tokens=facts.reports_cached_tokens,
    )
    sent_s = opened.turns.sent_s[before:]
    if live.governor is not None and sent_s:
        used = Use(requests=able.requests, prompt_tokens=able.tokens)
        live.governor.remember(sent_s, used)
        session.note(live.folder, spending.MET, spending.unplanned(used, "to ask what it can"))
    ended, too_long_s = None, opened.turns.too_long_s
    if too_long_s is not None:
        detail = f"the target asks to be left alone for {too_long_s:g} s, which nobody waits for"
        ended = session.note(live.folder, "told-to-wait", detail)
    elif able.lost:
        ended = session.note(
            live.folder, "target-lost", "it answered nothing any more when it was asked what it can"
        )
    return replace(found, able=able).after("abilities", ended)


def _auditioned(live: Session, visit: _Visit, found: _Found) -> _Found:
    """With what styles and phrasings echo, and the best of them."""
    facts = found.facts
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
    if not stage.cells:  # so small a budget is spent on what follows
        return found

    def keep(plans: Sequence[Plan]) -> None:
        runfolder.write_plans(live.folder, [visit.first, *plans])

    heard, ended = audition.hold(live, stage, visit.ids, keep)
    if ended is None:
        ended = _hardly_answered(live.folder, runfolder.read_plans(live.folder)[1:])
    if ended is None:
        audition.keep(visit.opened.target, stage, heard)  # a run that follows need not ask again
    best = audition.best(heard)
    tokens = max(facts.tokens_per_phrase_word, styles.TOKENS_A_WORD[best.style])
    if best.style == "phrase":
        tokens = facts.tokens_per_phrase_word
    facts = replace(
        facts,
        style=best.style,
        phrasing=best.phrasing,
        echoes=heard,
        tokens_per_phrase_word=tokens,
    )
    return replace(found, facts=facts).after("audition", ended)


def _noised(live: Session, visit: _Visit, found: _Found) -> _Found:
    """A few windows of the differential, with the passphrases that the target echoes best."""
    facts = found.facts
    origin = runfolder.read_provenance(live.folder)
    runfolder.write_provenance(live.folder, replace(origin, facts=facts))
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
    ended = live.send(plan.scenario.name, plan.requests)
    if ended is None:
        ended = _hardly_answered(live.folder, [plan])
    return found.after("noise", ended)


def _hardly_answered(folder: Path, plans: Sequence[Plan]) -> RunEvent | None:
    """The end of a target that answers, if at all, with errors, which no runner takes for lost."""
    names = {each.id for plan in plans for each in plan.requests}
    seen = [o for o in runfolder.read_shards(folder).observations if o.request_id in names]
    answered = {each.request_id for each in seen if each.outcome == "ok"}
    if len(answered) > _ANSWERED * len(names):
        return None
    why = next((each.error for each in reversed(seen) if each.error), "no reason given")
    detail = f"it answered {len(answered)} of the last {len(names)} requests: {why}"
    return session.note(folder, "target-lost", detail)


# --- what came of it -----------------------------------------------------------------------------


def _known(run: History, company: History | None, found: _Found) -> Known:
    """`company` are the few windows of the differential, if it came to them."""
    parts: tuple[Part, ...] = ("survey", "abilities", "audition", "noise")
    others = None if company is None else planning.elsewhere(planning.measured(run))
    echo = None if company is None else _echo(company)
    if echo is None and any(each.asked for each in found.facts.echoes):
        best = audition.best(found.facts.echoes)
        echo = evidence.rate(best.echoed, best.asked)
    if others is not None and company is not None:
        rate = others.echo if echo is None else echo
        others = replace(others, echo=rate, requests_per_s=_together_per_s(company))
    return Known(
        abilities=found.able,
        facts=found.facts,
        noise=None if company is None else noise(_mixed.trials(company)),
        echo=echo,
        cache_hits=_cache_hits(run.scenario(survey.NAME)),
        exposures=() if company is None else exposure.measure(company, _gate(company)),
        seen=others,
        unmeasured=tuple(each for each in parts if each not in found.measured),
    )


def _cache_hits(surveyed: History) -> bool | None:
    """Whether a prompt that was sent again was reported as cached; None where none was answered."""
    sent, seen = surveyed.requests, surveyed.observations
    again = seen["request_id"].isin(sent.loc[sent["twin"].notna(), "id"])
    cached = seen.loc[again & (seen["outcome"] == "ok"), "cached_tokens"]
    return bool((cached.fillna(0) > 0).any()) if len(cached) else None


def _gate(part: History) -> Gate:
    return part.plans[0].scenario.gate


def _echo(company: History) -> Rate | None:
    rate = planning.measured(company)[_NOISE].echo
    return rate if rate.trials else None


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
