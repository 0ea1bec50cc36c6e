"""Run the checks, weigh the evidence, decide the verdicts. Pure: equal histories, equal reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leakcheck.analyzer import (
    ahead,
    boundaries,
    curves,
    echoes,
    lifetimes,
    reasons,
    settling,
    tracing,
    verdict,
)
from leakcheck.analyzer.case import Case, Weighed, case, run_e_value, weigh
from leakcheck.checks import metadata
from leakcheck.history import History, troubles
from leakcheck.records import (
    EXIT_CODES,
    EXIT_INTERRUPTED,
    SCHEMA,
    Finding,
    Plan,
    Report,
    RunEvent,
    Status,
    Verdict,
)

PRECEDENCE: tuple[Status, ...] = ("leak", "corruption", "error", "inconclusive", "clean")
KEPT_FINDINGS = 200
ENDED = ("ok", "failed", "aborted", "rejected", "unknown", "unsent")
"""How a request can end: `History.requests` says what each means."""


def analyze(history: History) -> Report:
    """The judgement on a run. The worst verdict is that of the run; leak beats corruption beats
    error beats inconclusive beats clean. A scenario without checks (the survey) has a verdict only
    if it shows somebody else's content.
    """
    weighed = [weigh(history.scenario(plan.scenario.name), plan) for plan in history.plans]
    run_e = run_e_value(weighed)
    judged = [_verdict(case(each, run_e)) for each in weighed]
    verdicts = tuple(v for each, v in zip(weighed, judged, strict=True) if _shown(each, v))
    worst: Status = "inconclusive"
    status = min((v.status for v in verdicts), key=PRECEDENCE.index, default=worst)
    interrupted = reasons.open_end(history.events) == "interrupted"
    code = EXIT_CODES[status]
    seen = history.observations
    span_ns = 0 if seen.empty else int(seen["end_ns"].max() - seen["start_ns"].min())
    return Report(
        schema=SCHEMA,
        status=status,
        exit_code=EXIT_INTERRUPTED if interrupted and code != EXIT_CODES["leak"] else code,
        interrupted=interrupted,
        duration_s=span_ns / 1e9,
        requests=_counts(history),
        verdicts=verdicts,
        provenance=history.provenance,
        events=history.events
        + tuple(RunEvent(kind="torn-line", at_ns=0, detail=line) for line in history.torn),
        leaks_by_pair=_pairs(history),
        e_value=run_e,
        troubles=troubles.table(history),
    )


def _shown(weighed: Weighed, its: Verdict) -> bool:
    """A scenario without checks has a verdict only if it shows somebody else's content."""
    return bool(weighed.plan.scenario.checks) or any(f.severity == "leak" for f in its.findings)


def judge(history: History, plan: Plan) -> Verdict:
    """The verdict on one scenario, as if it were the whole run; `history` has only its rows."""
    weighed = weigh(history, plan)
    return _verdict(case(weighed, run_e_value([weighed])))


def may_settle(history: History, plan: Plan, *, others: Sequence[float] = ()) -> bool:
    """Whether the windows of a scenario may end with those of the history, which has only its
    rows: a leak is proved, or nothing is missing of what more windows could bring. `others` are the
    e-values of the other scenarios of the run.
    """
    weighed = weigh(history, plan)
    run_e = settling.run_e_value([weighed.state.e_value, *others])
    return verdict.settles(case(weighed, run_e))


def _verdict(its: Case) -> Verdict:
    scenario = its.plan.scenario
    status, why = verdict.decide(its)
    findings, history = its.findings, its.history
    echoed, weak = echoes.table(history, scenario.gate.min_echo)
    lived, lives = lifetimes.table(history, leaking_recipients(findings))
    return Verdict(
        scenario=scenario.name,
        version=scenario.version,
        status=status,
        reasons=why,
        windows_planned=history.budget,
        leak_rate=its.leak_rate,
        bound=its.bound,
        false_match_bound=its.false_match_bound,
        exposure=(*its.exposure, *lives),
        findings=tuple(
            tracing.linked(history, tracing.named(history, f)) for f in findings[:KEPT_FINDINGS]
        ),
        findings_total=len(findings),
        notes=(*_notes(history), *weak, *(n for r in its.results for n in r.notes)),
        curves=curves.draw(
            history,
            leaking_recipients(findings),
            stopped=its.evidence.settled in reasons.AT_A_LEAK,
        ),
        tables={title: table for r in its.results for title, table in r.tables.items()}
        | boundaries.table(history, findings)
        | echoed
        | lived,
        evidence=its.evidence,
        windows_sent=ahead.windows_sent(history),
        windows_needed=ahead.windows_needed(its),
    )


def leaking_recipients(findings: Sequence[Finding]) -> frozenset[str]:
    """Requests that were answered with somebody else's content."""
    return frozenset(f.recipient for f in findings if f.severity == "leak")


# --- figures -------------------------------------------------------------------------------------


def _notes(history: History) -> list[str]:
    requests, seen = history.requests, history.observations
    notes = []
    unknown = int((requests["outcome"] == "unknown").sum())
    if unknown:
        notes.append(
            f"{unknown} of {len(requests)} requests have an unknown outcome; their passphrases "
            "may be inside the target and keep counting as planted"
        )
    unsent = int((requests["outcome"] == "unsent").sum())
    if unsent:
        notes.append(f"{unsent} of {len(requests)} requests were never sent")
    again = len(seen) - seen["request_id"].nunique()
    if again:
        notes.append(f"{again} attempts were repetitions of a refused or failed one")
    if impossible := int(seen["impossible"].sum()):
        notes.append(
            f"{impossible} of {len(seen)} attempts came with impossible usage (a count below 0, or "
            "more tokens cached than the prompt has): what it says of the cache is no evidence"
        )
    if shared := metadata.shared_ids(history):
        notes.append(shared)
    return notes


def _counts(history: History) -> dict[str, int]:
    outcomes = Counter(history.requests["outcome"])
    return {
        "planned": len(history.requests),
        **{name: outcomes[name] for name in ENDED},
        "attempts": len(history.observations),
        "replays": int(history.requests["replays"].notna().sum()),
    }


def _pairs(history: History) -> tuple[tuple[str, str, int], ...]:
    """Leaks by tenant of source and recipient; a pair of requests counts once."""
    matches = history.planted
    sent = matches["kind"].isin(["passphrase", "ticket"])
    leaks = matches[sent & (matches["owner"] == "foreign")]
    tenants = history.requests.set_index("id")["tenant"]
    pairs = leaks[["source", "recipient"]].drop_duplicates()
    counts = Counter(
        zip(pairs["source"].map(tenants), pairs["recipient"].map(tenants), strict=True)
    )
    return tuple((source, recipient, n) for (source, recipient), n in sorted(counts.items()))
