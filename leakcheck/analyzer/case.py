"""Everything that the verdict on one scenario rests on, weighed before anything is decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakcheck import evidence, plugin
from leakcheck.analyzer import boundaries, exposure, settling
from leakcheck.analyzer.settling import State
from leakcheck.checks import foreign_passphrase, own_answer
from leakcheck.checks._weighing import ALTERNATIVES
from leakcheck.history import History
from leakcheck.history.boundaries import ANOTHER_KEY
from leakcheck.passphrase import false_match_bound, in_other_forms
from leakcheck.records import CheckResult, Evidence, Exposure, Finding, Plan, Rate

CACHE_HIT = "foreign-cache-hit"
FUZZY = ("altered-passphrase", "foreign-topic")
"""Anomalies of the fuzzy tiers: notes, which their e-values together make leaks."""
UNNAMED = (ALTERNATIVES,)
"""Tiers whose evidence accuses and whose findings never do: of a hundred passphrases that no answer
knows, one is among the top hundredth of its phantoms, and is none that leaked.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """One scenario with what its checks say and what its windows amount to."""

    history: History
    plan: Plan
    results: tuple[CheckResult, ...]
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that the verdict on one scenario rests on."""

    history: History
    plan: Plan
    state: State
    results: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    exposure: tuple[Exposure, ...]
    leak_rate: Rate
    leaks_elsewhere: int
    """Windows with a leak that are no trials, replays left out."""
    bound: float | None
    false_match_bound: float
    untested: tuple[str, ...]
    evidence: Evidence
    run_e_value: float
    accused: bool
    """Whether the fuzzy evidence suffices, be it that no finding of it is a witness."""

    def having(self, severity: str) -> list[Finding]:
        """The findings of one severity."""
        return [f for f in self.findings if f.severity == severity]


def weigh(history: History, plan: Plan) -> Weighed:
    """Run the checks of a scenario; `history` has only its rows. One without checks (the survey) is
    searched for somebody else's content all the same.
    """
    scenario = plan.scenario
    if scenario.checks:
        results = tuple(
            plugin.load("checks", check.name, "check")(history, **check.options)
            for check in scenario.checks
        )
    else:
        mine = own_answer.check(history)
        leaks = tuple(finding for finding in mine.findings if finding.severity == "leak")
        results = (foreign_passphrase.check(history), CheckResult(check=mine.check, findings=leaks))
    looks = [look for result in results for look in result.looks]
    state = settling.after(State(), history, scenario.gate, looks=looks)
    return Weighed(history=history, plan=plan, results=results, state=state)


def run_e_value(weighed: Sequence[Weighed]) -> float:
    """The largest mean over the scenarios of the run that there was when one of them ended, those
    still to come counting as 1.

    A mean of e-values that are 1 on average whatever came before ever reaches 1 / alpha with a
    chance of at most alpha, so that what reached it once has: the scenarios after it take nothing
    back.
    """
    values = [each.state.e_value for each in weighed if each.plan.scenario.checks]
    means = [
        settling.run_e_value([*values[:count], *[1.0] * (len(values) - count)])
        for count in range(1, len(values) + 1)
    ]
    return max(means, default=1.0)


def case(weighed: Weighed, run_e: float) -> Case:
    """The case of one scenario in a run whose e-value is `run_e`."""
    history, plan, state = weighed.history, weighed.plan, weighed.state
    gate = plan.scenario.gate
    settled = _settled(weighed, run_e)
    its_evidence = settling.evidence_of(state, gate, settled)
    found = (f for result in weighed.results for f in result.findings)
    fuzzy = min(run_e, state.e_value) >= 1 / gate.alpha
    accusing = strong_tiers(its_evidence) if fuzzy else ()
    accused = (_accused(f, accusing) for f in found)
    findings = tuple(sorted((boundaries.marked(history, f) for f in accused), key=_weight))
    shows = fuzzy or any(finding.severity == "leak" for finding in findings)
    if shows:  # of whatever kind and wherever: there is nothing to certify
        its_evidence = replace(its_evidence, certificate=0.0)
    windows = history.windows[~history.windows["replay"]]
    leaking = windows["window"].isin({f.window for f in findings if f.severity == "leak"})
    scanned = history.scanned
    return Case(
        history=history,
        plan=plan,
        state=state,
        results=weighed.results,
        findings=findings,
        exposure=exposure.measure(history, gate),
        leak_rate=evidence.rate(
            int((leaking & windows["trial"]).sum()), int(windows["trial"].sum())
        ),
        leaks_elsewhere=int((leaking & ~windows["trial"]).sum()),
        bound=None if shows else settling.bound(state),
        false_match_bound=false_match_bound(
            outputs=scanned.texts,
            phrases=scanned.phrases + in_other_forms(plan),
            output_chars=math.ceil(scanned.chars / max(1, scanned.texts)),
            variants=1,
            entropy_bits=scanned.entropy_bits,
        ),
        untested=tuple(reason for each in weighed.results for reason in each.untested),
        evidence=its_evidence,
        run_e_value=run_e,
        accused=fuzzy,
    )


def strong_tiers(its: Evidence) -> tuple[str, ...]:
    """The tiers whose own e-value suffices, or else the strongest: whose findings are leaks where
    all tiers together accuse, those of `UNNAMED` apart.
    """
    strong = tuple(tier.name for tier in its.tiers if tier.e_value >= 1 / its.alpha)
    first = sorted(its.tiers, key=lambda tier: -tier.weight * tier.e_value)[:1]
    return strong or tuple(tier.name for tier in first)


def _accused(finding: Finding, tiers: Sequence[str]) -> Finding:
    """A finding of a fuzzy tier that accuses is a leak."""
    tier = finding.evidence.get("tier")
    if finding.anomaly in FUZZY and tier in tiers and tier not in UNNAMED:
        return replace(finding, severity="leak")
    return finding


def is_proof(finding: Finding) -> bool:
    """Whether a leak stands alone: by a whole phrase or a rule, not by the weight of many."""
    return finding.anomaly not in FUZZY or bool(finding.evidence.get("whole"))


def is_open(finding: Finding) -> bool:
    """Whether it is a part of a passphrase that none of its phantoms shares, and no leak (yet)."""
    return finding.severity == "note" and bool(finding.evidence.get("open"))


def _settled(weighed: Weighed, run_e: float) -> str | None:
    """What ended the windows before their budget; None where nothing of that kind did."""
    name, gate = weighed.plan.scenario.name, weighed.plan.scenario.gate
    if not any(e.kind == "settled" and e.detail == name for e in weighed.history.events):
        return None
    if weighed.state.leaks or weighed.state.leaks_elsewhere:
        return "leak"
    fuzzy = min(run_e, weighed.state.e_value) >= 1 / gate.alpha
    if fuzzy:
        return "evidence"
    return "certificate" if settling.certified(weighed.state, gate.detect) else None  # or mute


def _weight(finding: Finding) -> tuple[int, int, str]:
    """Order of findings: the gravest first, of leaks those into another key, of corruption what
    names its mechanism; notes stay in the order of their check.
    """
    if finding.severity == "leak" and finding.evidence.get("boundary") == ANOTHER_KEY:
        return -1, finding.window, finding.recipient
    if (finding.severity, finding.anomaly) == ("corruption", "foreign-parameters"):
        return 1, -1, ""
    if finding.anomaly == "withheld-passphrase":
        return 2, finding.window, finding.recipient
    if is_open(finding):  # listed before all other notes, however many are left out
        return 3, -1, ""
    rank = {"leak": 0, "corruption": 1, "error": 2, "note": 3}[finding.severity]
    return (rank, finding.window, finding.recipient) if rank < 3 else (rank, 0, "")  # noqa: PLR2004 - the last rank
