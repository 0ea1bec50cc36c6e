"""The differential: the same greedy request alone, in neutral and in planted company.

A difference is not a leak. Kernels round differently in batches of another size, and where two
tokens are nearly as likely, that decides. So the target is graded first by what no passphrase can
have changed: does it repeat itself alone, and in neutral company? Then each first difference is
weighed by its reference gap. What is beyond

    tau = max(8 quanta of the logits, 3 x the largest gap without passphrases (at most 4), floor)

nats is a suspicion; of a target that never differed in 100 windows with neutral company any
difference is. Replays decide (`_suspects`): a `diverted-answer`, corruption, parts in the same way
again in the same company and not in another one (Fisher's exact test, 0.01 over all suspects of the
scenario), and by a wide margin: its gap is above tau, or the request stays with its answer at
temperature 1. Everything else is noise, with its distribution. Where answers differ more in
planted company than chance allows and nothing is confirmed, that is an `influence`, a note: expert
capacity and scales taken over a batch let neighbours matter in honest targets.

The largest gap without passphrases counts up to a ceiling: a fault strikes neutral companies too,
and its own damage there (gaps of 8 to 15 nats were measured) would hide it altogether.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from leakcheck import evidence
from leakcheck.checks import excerpt, who
from leakcheck.checks._influence import ALPHA, Influence, influence
from leakcheck.checks._mixed import (
    ENOUGH,
    Count,
    Grade,
    Threshold,
    Trial,
    grade,
    pools,
    threshold,
    trials,
)
from leakcheck.checks._suspects import (
    Replays,
    Suspect,
    beyond,
    confirmed,
    level,
    replays,
    suspects,
)
from leakcheck.checks._trajectories import Comparison
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding
from leakcheck.traffic.mixed_batch import COMPANIES, PLANTED

CHECK = "divergence"
TITLE = "Where the same request parts from itself"
COLUMNS = (
    "compared",
    "answers",
    "differ",
    "median gap (nats)",
    "90 % (nats)",
    "largest (nats)",
    "largest logprob difference before (nats)",
)
SHOWN = 20
"""Differences within the noise that are listed; the table counts all."""
_GRADES = {
    "D0": "alone and in neutral company it repeats itself to the token, so that any difference "
    "is suspected",
    "D1": "alone it repeats itself, in neutral company it does not, as rounding by batch does, and "
    "faults do",
    "D2": "it does not even repeat itself alone, as behind a load balancer, or where a cached "
    "prefix changes the shape of what is left to compute",
}
_CAUSES = (
    "expert capacity in a mixture of experts, scales taken over a whole batch, or passphrases that "
    "are more tokens than the words in their place explain this without any leak"
)


def check(history: History) -> CheckResult:
    """Corruption where replays confirm it, notes and a table of everything else."""
    of = trials(history)
    if not of:
        note = "no recipient was answered both alone and in company: nothing was compared"
        return CheckResult(check=CHECK, notes=(note,))
    graded, rule = grade(of), threshold(history, of)
    accused = suspects(of, rule)
    at = level(accused)
    tried = [(each, replays(history, each)) for each in accused]
    found = [_suspicion(history, each, told, rule, at) for each, told in tried]
    if not any(f.severity == "corruption" for f in found):
        found += _influence(history, of, influence(of))
    listed = {each.request for each in accused}
    rest = [each for each in beyond(of, rule) if each.request not in listed]
    noise = list(_noise(history, of, listed, rule))
    return CheckResult(
        check=CHECK,
        findings=(*found, *noise),
        notes=(
            _graded(graded),
            _ruled(rule, of),
            _judged(of, len(accused) + len(rest), tried, at),
        ),
        tables={TITLE: (COLUMNS, *(_row(what, each) for what, each in pools(of)))},
    )


# --- findings ------------------------------------------------------------------------------------


def _suspicion(
    history: History, suspect: Suspect, of: Replays, rule: Threshold, at: float
) -> Finding:
    accused = confirmed(suspect, of, at)
    parted = _parted(
        history, suspect.request, suspect.company, suspect.reference, suspect.comparison
    )
    return _finding(
        history,
        suspect.request,
        suspect.comparison,
        anomaly="diverted-answer" if accused else "divergence",
        severity="corruption" if accused else "note",
        explanation=f"{parted}{_told(suspect, of)}.",
        evidence={
            "twin": suspect.reference,
            "cell": suspect.company,
            "tau_nats": rule.tau,
            "other_company": suspect.other,
            "replayed": of.same,
            "parted_again": of.same_again,
            "replayed_in_other_company": of.other,
            "parted_in_other_company": of.other_again,
            "p": of.p,
            "level": at,
            "replayed_hot": of.hot,
            "parted_hot": of.hot_otherwise,
        },
    )


def _told(suspect: Suspect, of: Replays) -> str:
    """What its replays showed, as the end of a sentence."""
    if not of.planned:
        return "; it was not sent again"
    text = (
        "; sent again in the same company, answers parted in this way or showed words of these "
        f"companions {of.same_again} of {of.same} times, in {suspect.other} company "
        f"{of.other_again} of {of.other} times"
        f" (Fisher's exact test, one-sided: p = {of.p:.2g})"
    )
    if of.margins:
        text += f", and alone at temperature 1 {of.hot_otherwise} of {of.hot} times"
    return text


def _noise(
    history: History, of: Sequence[Trial], listed: set[str], rule: Threshold
) -> Iterator[Finding]:
    """The widest differences in company that are no suspects."""
    found = [
        (each.compared[cell], cell, each)
        for each in of
        for cell in COMPANIES
        if cell in each.compared
        and each.compared[cell].at is not None
        and each.sent[cell] not in listed
    ]
    found.sort(key=lambda each: (each[1] != PLANTED, -(each[0].gap or 0.0)))
    for comparison, cell, each in found[:SHOWN]:
        parted = _parted(history, each.sent[cell], cell, each.sent["alone"], comparison)
        yield _finding(
            history,
            each.sent[cell],
            comparison,
            anomaly="divergence",
            severity="note",
            explanation=f"{parted}.",
            evidence={"twin": each.sent["alone"], "cell": cell, "tau_nats": rule.tau},
        )


def _influence(history: History, of: Sequence[Trial], seen: Influence) -> Iterator[Finding]:
    if seen.p > ALPHA:
        return
    most = max(
        (each for each in of if PLANTED in each.compared),
        key=lambda each: (each.compared[PLANTED].at is not None, each.compared[PLANTED].drift or 0),
    )
    what = [
        text
        for p, text in (
            (seen.diverged, f"more answers differ (p = {seen.diverged:.2g})"),
            (seen.drift, f"log-probabilities differ more (p = {seen.drift:.2g})"),
        )
        if p <= ALPHA
    ]
    yield _finding(
        history,
        most.sent[PLANTED],
        most.compared[PLANTED],
        anomaly="influence",
        severity="note",
        explanation=(
            f"in company with passphrases {' and '.join(what)} from the same alone than in neutral "
            f"company, over {seen.windows} windows: so companions do influence answers, and no "
            f"content of theirs shows; {_CAUSES}"
        ),
        evidence={"p_diverged": seen.diverged, "p_drift": seen.drift, "windows": seen.windows},
    )


def _parted(history: History, name: str, cell: str, reference: str, seen: Comparison) -> str:
    least = "at least " if seen.censored else ""
    gap = (
        "how narrow that was is not known"
        if seen.gap is None
        else f"alone it preferred its own token by {least}{seen.gap:.3g} nats"
    )
    return (
        f"{who(history.by_id(name), window=True)} in {cell} company is answered otherwise than "
        f"{reference} alone, from {seen.unit} {seen.at} on; {gap}"
    )


def _finding(
    history: History,
    name: str,
    seen: Comparison,
    *,
    anomaly: str,
    severity: Any,
    explanation: str,
    evidence: dict[str, Any],
) -> Finding:
    request = history.by_id(name)
    text, mark = excerpt(history.text(name), seen.char, seen.char)
    return Finding(
        check=CHECK,
        anomaly=anomaly,
        severity=severity,
        scenario=request.scenario,
        window=request.window,
        recipient=name,
        excerpt=text,
        mark=mark,
        explanation=explanation,
        evidence={
            "at": seen.at,
            "gap_nats": seen.gap,
            "censored": seen.censored,
            "largest_logprob_difference_nats": seen.drift,
            **evidence,
        },
    )


# --- figures -------------------------------------------------------------------------------------


def _row(what: str, comparisons: Sequence[Comparison]) -> tuple[Any, ...]:
    gaps = [c.gap for c in comparisons if c.at is not None and c.gap is not None]
    drifts = [c.drift for c in comparisons if c.drift is not None]
    quantiles = [round(float(q), 4) for q in np.quantile(gaps, (0.5, 0.9, 1))] if gaps else []
    return (
        what,
        len(comparisons),
        sum(c.at is not None for c in comparisons),
        *(quantiles or (None, None, None)),
        round(max(drifts), 6) if drifts else None,
    )


def _graded(of: Grade) -> str:
    counts = (
        f"{_of(of.neutral)} in neutral company and {_of(of.alone)} sent alone again differ from "
        "the same alone"
    )
    if of.name is not None:
        return f"grade {of.name}: {_GRADES[of.name]} ({counts})"
    most = evidence.upper_bound(0, max(1, of.windows))
    windows = "1 window" if of.windows == 1 else f"{of.windows} windows"
    return (
        f"no grade: no difference in {windows} with neutral company, so at most {100 * most:.2g} % "
        f"of windows have one (95 % confidence); D0 takes {ENOUGH} windows ({counts})"
    )


def _of(count: Count) -> str:
    return f"{count.diverged} of {count.compared} answers"


def _ruled(rule: Threshold, of: Sequence[Trial]) -> str:
    if all(c.unit == "character" for each in of for c in each.compared.values()):
        return (
            "the target gives no log-probabilities, so texts were compared: differences count "
            "where a request with a wide margin differs in one company only, and replays at "
            "temperature 1 have to show that no near-tie stands behind it"
        )
    lattice = (
        "no lattice of logits is visible (float32, or altered on the way)"
        if rule.quantum is None
        else f"its logits lie on a lattice of {rule.quantum:g} nats"
    )
    null = (
        "nothing differed without passphrases"
        if rule.null_gap is None
        else f"the largest gap without passphrases is {rule.null_gap:.3g} nats"
    )
    also = (
        "; as it is graded D0, any difference is suspected, and one within tau has to prove wide "
        "at temperature 1"
        if rule.exact
        else ""
    )
    return f"log-probabilities were weighed: {lattice}, {null}: tau = {rule.tau:.3g} nats{also}"


def _judged(
    of: Sequence[Trial],
    many: int,
    tried: Sequence[tuple[Suspect, Replays]],
    at: float,
) -> str:
    """How many differences there were, how many are beyond the noise, what replays said."""
    seen = [each.compared[cell] for each in of for cell in COMPANIES if cell in each.compared]
    differ = sum(each.at is not None for each in seen)
    text = f"{differ} of {len(seen)} answers in company differ from the same alone"
    if not many:
        return (
            f"{text}; nothing of that is beyond the noise in one company only" if differ else text
        )
    again = sum(confirmed(each, told, at) for each, told in tried)
    sent = sum(told.planned > 0 for _, told in tried)
    return (
        f"{text}; {many} are beyond the noise and of one company only, {sent} of them were sent "
        f"again, and {again} confirmed (p <= {at:.2g} each); the others are noise"
    )
