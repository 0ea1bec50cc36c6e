"""Run the checks, weigh the evidence, decide the verdicts. Pure: equal histories, equal reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from leakcheck import evidence, plugin
from leakcheck.analyzer import curves, exposure, tracing
from leakcheck.analyzer.confirm import confirmations
from leakcheck.checks import foreign_passphrase, own_answer
from leakcheck.history import History
from leakcheck.passphrase import FALSE_MATCH_LIMIT, false_match_bound
from leakcheck.records import (
    EXIT_CODES,
    EXIT_INTERRUPTED,
    SCHEMA,
    CheckResult,
    Exposure,
    Finding,
    Plan,
    Rate,
    Report,
    RunEvent,
    Status,
    Verdict,
)

PRECEDENCE: tuple[Status, ...] = ("leak", "corruption", "error", "inconclusive", "clean")
NEARLY_NOTHING = 0.05
"""A target that answers less than this share of what was sent has not been tested at all."""
RARE = 0.05
"""The leak rate whose exclusion the reason for too few windows puts a price on."""
NO_BOUND = 0.9995
"""A bound of as good as 100 % excludes nothing."""
KEPT_FINDINGS = 200
VARIANTS = 1
"""Ways in which one phrase can match at one place: the matcher compares one folded stream."""
_SENTENCE_CHARS = 200
_ECHO_HINT = (
    " (longer answers, --max-tokens 48, another wording, --api completions, or words that this "
    "model repeats, leakcheck words, may raise it)"
)
_CACHE_HIT = "foreign-cache-hit"
_CORRUPTION = {
    "lost-answer": "answers lose their own ticket in company and keep it alone, confirmed by "
    "replay of {number} of them",
    "changed-answer": "the same requests keep their ticket under one condition and lose it under "
    "another, over more windows than chance allows",
    "foreign-parameters": "sampling parameters of other requests shape answers",
    "diverted-answer": "what companions say changes answers, confirmed by replay of {number} of "
    "them among the same companions and among others",
}
_FATAL = {"target-lost": "the target was lost", "harness-error": "leakcheck had to stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Everything that the verdict on one scenario rests on."""

    history: History
    findings: tuple[Finding, ...]
    exposure: tuple[Exposure, ...]
    leak_rate: Rate
    leaks_elsewhere: int
    """Windows with a leak that are no trials, replays left out."""
    sensitivity: float | None
    bound: float | None
    false_match_bound: float
    untested: tuple[str, ...]

    def having(self, severity: str) -> list[Finding]:
        """The findings of one severity."""
        return [f for f in self.findings if f.severity == severity]


def analyze(history: History) -> Report:
    """The judgement on a run. The worst verdict is that of the run; leak beats corruption beats
    error beats inconclusive beats clean. A scenario without checks (the survey) has a verdict only
    if it shows somebody else's content.
    """
    judged = [_verdict_on(history.scenario(plan.scenario.name), plan) for plan in history.plans]
    verdicts = tuple(verdict for verdict in judged if verdict is not None)
    worst: Status = "inconclusive"
    status = min((v.status for v in verdicts), key=PRECEDENCE.index, default=worst)
    interrupted = _open_end(history.events) == "interrupted"
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
    )


def _verdict_on(history: History, plan: Plan) -> Verdict | None:
    """The verdict on one scenario; None for one without checks that shows no leak."""
    if plan.scenario.checks:
        return judge(history, plan)
    mine = own_answer.check(history)
    leaks = tuple(finding for finding in mine.findings if finding.severity == "leak")
    results = (foreign_passphrase.check(history), CheckResult(check=mine.check, findings=leaks))
    verdict = _judged(history, plan, results)
    return verdict if any(f.severity == "leak" for f in verdict.findings) else None


def judge(history: History, plan: Plan) -> Verdict:
    """The verdict on one scenario; `history` has only its rows."""
    results = [
        plugin.load("checks", check.name, "check")(history, **check.options)
        for check in plan.scenario.checks
    ]
    return _judged(history, plan, results)


def _judged(history: History, plan: Plan, results: Sequence[CheckResult]) -> Verdict:
    scenario = plan.scenario
    case = _case(history, plan, results)
    status, reasons = _decide(case)
    return Verdict(
        scenario=scenario.name,
        version=scenario.version,
        status=status,
        reasons=reasons,
        windows_planned=int((~history.windows["replay"]).sum()),
        leak_rate=case.leak_rate,
        bound=case.bound,
        false_match_bound=case.false_match_bound,
        exposure=case.exposure,
        findings=tuple(tracing.linked(history, f) for f in case.findings[:KEPT_FINDINGS]),
        findings_total=len(case.findings),
        notes=(*_notes(history), *(n for r in results for n in r.notes)),
        curves=curves.draw(history, leaking_recipients(case.findings)),
        tables={title: table for r in results for title, table in r.tables.items()},
    )


def leaking_recipients(findings: Sequence[Finding]) -> frozenset[str]:
    """Requests that were answered with somebody else's content."""
    return frozenset(f.recipient for f in findings if f.severity == "leak")


def _case(history: History, plan: Plan, results: Sequence[CheckResult]) -> _Case:
    findings = tuple(sorted((f for r in results for f in r.findings), key=_weight))
    measures = exposure.measure(history, plan.scenario.gate)
    windows = history.windows[~history.windows["replay"]]
    leaking = windows["window"].isin({f.window for f in findings if f.severity == "leak"})
    leak_rate = evidence.rate(int((leaking & windows["trial"]).sum()), int(windows["trial"].sum()))
    sensitivity = _sensitivity(history, measures)
    scanned = history.scanned
    return _Case(
        history=history,
        findings=findings,
        exposure=measures,
        leak_rate=leak_rate,
        leaks_elsewhere=int((leaking & ~windows["trial"]).sum()),
        sensitivity=sensitivity,
        bound=_bound(leak_rate, sensitivity),
        false_match_bound=false_match_bound(
            outputs=scanned.texts,
            phrases=scanned.phrases,
            output_chars=math.ceil(scanned.chars / max(1, scanned.texts)),
            variants=VARIANTS,
            entropy_bits=scanned.entropy_bits,
        ),
        untested=tuple(reason for each in results for reason in each.untested),
    )


def _sensitivity(history: History, measures: tuple[Exposure, ...]) -> float | None:
    """What part of the windows with a leak shows one at least, by echo and by asking; None where
    nothing was echoed.
    """
    echo = exposure.find(measures, "echo")
    echoed = echo.measured.lower if echo and isinstance(echo.measured, Rate) else 0.0
    return echoed * exposure.asked_share(history) if echoed else None


def _bound(leak_rate: Rate, sensitivity: float | None) -> float | None:
    """See records.Verdict.bound."""
    if not sensitivity:
        return None if sensitivity is None else 1.0
    return min(1.0, leak_rate.upper / sensitivity)


def _weight(finding: Finding) -> tuple[int, int, str]:
    """Order of findings: the gravest first; notes stay in the order of their check."""
    if finding.anomaly == "withheld-passphrase":
        return 2, finding.window, finding.recipient
    rank = {"leak": 0, "corruption": 1, "error": 2, "note": 3}[finding.severity]
    return (rank, finding.window, finding.recipient) if rank < 3 else (rank, 0, "")  # noqa: PLR2004 - the last rank


# --- the decision --------------------------------------------------------------------------------


def _decide(case: _Case) -> tuple[Status, tuple[str, ...]]:
    """Status and reasons: what was found, then what was broken, then what was not tested."""
    corruptions, errors = case.having("corruption"), case.having("error")
    doubts = _doubts(case)
    leaks = [f for f in case.having("leak") if not doubts or f.anomaly == _CACHE_HIT]
    if leaks:
        return "leak", _leak_reasons(case, leaks)
    if corruptions:
        return "corruption", _corruption_reasons(corruptions)
    broken = _broken(case.history)
    if errors:
        also = () if broken is None or broken[0] != "error" else (broken[1],)
        return "error", (*(f.explanation for f in errors), *also)
    if broken is not None and broken[0] == "error":
        return "error", (broken[1],)
    missing = [*doubts]
    missing += [f.explanation for f in case.findings if f.anomaly == "withheld-passphrase"][:1]
    missing += [] if broken is None else [broken[1]]
    missing += [_shortfall(each, case) for each in case.exposure if each.enough is False]
    if case.bound is None and not any(text.startswith("echo") for text in missing):
        missing.append(
            "nothing was echoed: no owner was answered with its own passphrase, so another's would "
            "hardly have shown; elicit it, or use a model that can repeat it"
        )
    missing += case.untested
    missing += _unfinished(case.history)
    if missing:
        return "inconclusive", tuple(missing)
    return "clean", (_clean_reason(case),)


def _doubts(case: _Case) -> list[str]:
    """Why the foreign phrases of this run, or their absence, would prove nothing."""
    doubts = []
    unsent = sum(f.anomaly == "withheld-passphrase" for f in case.findings)
    leaks = sum(f.anomaly != _CACHE_HIT for f in case.having("leak"))
    so = f"; so the {leaks} foreign phrases found prove nothing" if leaks else ""
    if unsent:
        doubts.append(
            f"THE EXPERIMENT IS BROKEN: {unsent} answers show passphrases that were never sent{so}"
        )
    if leaks and case.false_match_bound > FALSE_MATCH_LIMIT:
        doubts.append(
            "by chance alone a foreign phrase would show with a probability of up to "
            f"{case.false_match_bound:.1g} (more than {FALSE_MATCH_LIMIT:g}){so}; "
            "use longer passphrases"
        )
    return doubts


def _leak_reasons(case: _Case, leaks: Sequence[Finding]) -> tuple[str, ...]:
    shown = leaking_recipients(leaks)
    replayed = sum(case.history.by_id(each).replays is not None for each in shown)
    rate, elsewhere, places = case.leak_rate, case.leaks_elsewhere, []
    if rate.events:
        places.append(f"in {rate.events} of {rate.trials} windows")
    if elsewhere:
        what = "window that is no trial" if elsewhere == 1 else "windows that are no trials"
        places.append(f"in {elsewhere} {what}")
    if replayed:
        what = "a replay that was" if replayed == 1 else f"{replayed} replays that were"
        places.append(f"in {what} sent to confirm a suspicion")
    answers = f"{len(shown)} {'answer shows' if len(shown) == 1 else 'answers show'}"
    what = "passphrase or ticket"
    if all(finding.anomaly == _CACHE_HIT for finding in leaks):
        what = "text in the cache, by the count of cached tokens"
    return (
        f"{answers} somebody else's {what}, {' and '.join(places)}",
        leaks[0].explanation,
    )


def _corruption_reasons(corruptions: Sequence[Finding]) -> tuple[str, ...]:
    """A sentence for each kind, and the first finding of it."""
    kinds: dict[str, list[Finding]] = {}
    for finding in corruptions:
        kinds.setdefault(finding.anomaly, []).append(finding)
    reasons = []
    for anomaly, findings in kinds.items():
        reasons += [_CORRUPTION[anomaly].format(number=len(findings)), findings[0].explanation]
    return tuple(reasons)


def _broken(history: History) -> tuple[Status, str] | None:
    """What kept the scenario from being tested, and whether the target is to blame."""
    requests = history.requests[history.requests["replays"].isna()]
    sent = requests[requests["outcome"] != "unsent"]
    answered, planned = int((sent["outcome"] == "ok").sum()), len(requests)
    end = _open_end(history.events)
    if end in _FATAL and len(sent) < planned:
        detail = next(e.detail for e in reversed(history.events) if e.kind == end)
        text = f"{_FATAL[end]} after {answered} of {planned} requests were answered"
        return "error", f"{text}: {_short(detail)}" if detail else text
    if not len(sent):
        why = ": the run was interrupted before" if end == "interrupted" else ""
        return "inconclusive", f"none of {planned} requests was sent{why}"
    wanted = int((sent["outcome"] != "aborted").sum())
    if answered >= NEARLY_NOTHING * wanted:
        return None
    seen = history.observations
    other = seen[~seen["outcome"].isin(["ok", "aborted"])]
    refused = (other["outcome"] == "failed") & other["status"].notna()
    error, times = Counter(other["error"].fillna("no reason given")).most_common(1)[0]
    status: Status = "inconclusive" if 2 * refused.sum() > len(other) else "error"
    verb = "refused nearly everything" if status == "inconclusive" else "answered nearly nothing"
    return status, (
        f"the target {verb}: {answered} of {wanted} requests were answered; "
        f"most often ({times} times): {_short(str(error))}"
    )


def _unfinished(history: History) -> list[str]:
    """That the run did not come to its end, in one sentence with the reason; empty if it did."""
    end = _open_end(history.events)
    waiting = len(confirmations(history))
    if end is not None:
        detail = next(e.detail for e in reversed(history.events) if e.kind == end)
        why = _FATAL.get(end, "it was interrupted") + (f": {_short(detail)}" if detail else "")
    elif not _finished(history.events):
        why = "nothing says that it came to its end, so it was killed or is still running"
    elif waiting:
        why = "it ended before it was done"
    else:
        return _lost_records(history)
    if waiting:
        why += f"; {waiting} replays that would confirm lost answers were not sent"
    return [f"the run did not finish: {why}"]


def _lost_records(history: History) -> list[str]:
    """That a finished run has no record of requests although no worker died; empty if it has."""
    unsent = int((history.requests["outcome"] == "unsent").sum())
    if not unsent or any(event.kind == "worker-died" for event in history.events):
        return []
    planned = len(history.requests)
    what = f"no record of {unsent} of {planned} requests of a finished run: a shard is missing"
    return [f"the run folder has {what}"]


def _finished(events: Sequence[RunEvent]) -> bool:
    """Whether the run came to its end, after it was resumed for the last time."""
    kinds = [e.kind for e in events if e.kind in ("finished", "resumed")]
    return kinds[-1:] == ["finished"]


def _open_end(events: Sequence[RunEvent]) -> str | None:
    """The kind of event that ended the run too early, resumptions considered; None otherwise."""
    end = None
    for event in events:
        if event.kind == "interrupted" or event.kind in _FATAL:
            end = event.kind
        elif event.kind in ("resumed", "finished"):
            end = None
    return end


def _shortfall(measure: Exposure, case: _Case) -> str:
    """What is missing, in plain words."""
    if measure.measured is None:
        return f"{measure.name} not measured: {measure.text}"
    if isinstance(measure.measured, Rate):
        hint = _ECHO_HINT if measure.name == "echo" else ""
        return (
            f"{measure.name} too low: {measure.text}; "
            f"at least {100 * (measure.minimum or 0):g} % needed, by the lower bound{hint}"
        )
    text = f"too few {measure.name}: {measure.text}; {measure.minimum:g} needed"
    if measure.name == "windows" and case.sensitivity:
        enough = evidence.windows_needed(RARE * case.sensitivity)
        text += (
            f"; with echoes as in this run, {enough} windows without a leak would exclude leaks in "
            f"more than {100 * RARE:g} % of windows with 95 % confidence"
        )
    return text


def _clean_reason(case: _Case) -> str:
    rate = case.leak_rate
    text = f"nobody was answered with somebody else's content in {rate.trials} windows"
    if case.bound is None:
        return text
    share = 100 * exposure.asked_share(case.history)
    how = (
        "the bound for what shows, divided by the lower bound of the echo rate and by the "
        f"{share:.3g} % of answered recipients that were asked for what they saw"
    )
    if case.bound >= NO_BOUND:
        return f"{text}; that excludes no rate of leaks ({how}): send more windows"
    least = math.ceil(1000 * case.bound) / 10
    return (
        f"{text}; leaks in more than {least:g} % of windows are excluded with 95 % confidence "
        f"({how})"
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SENTENCE_CHARS else line[: _SENTENCE_CHARS - 1] + "…"


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
    return notes


def _counts(history: History) -> dict[str, int]:
    outcomes = Counter(history.requests["outcome"])
    return {
        "planned": len(history.requests),
        **{name: outcomes[name] for name in ("ok", "failed", "aborted", "unknown", "unsent")},
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
