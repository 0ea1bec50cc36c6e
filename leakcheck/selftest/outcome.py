"""What a judged run says about a fault, and whether the plan on disk agrees. Pure.

The plan is read as bare JSON and compared as bare letters here: the owners that a report names are
checked against nothing of what named them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leakcheck.records import Finding, Status, Verdict
from leakcheck.selftest.values import FaultRow

Owners = Mapping[str, frozenset[str]]
"""Letters of a passphrase or ticket -> the requests that were given it."""
_FOUND: tuple[Status, ...] = ("leak", "corruption", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """See `values.Trial`."""

    detected: bool
    status: Status
    anomaly: str | None
    anomalies: tuple[str, ...]
    sources: int
    sources_right: int
    reason: str


def outcome(verdict: Verdict, fault: FaultRow, plan: Iterable[str]) -> Outcome:
    """What the verdict says about `fault`; `plan` are the lines of plan.jsonl."""
    grave = [each for each in verdict.findings if each.severity != "note"]
    shown = [each for each in grave if each.anomaly in fault.anomalies]
    detected = bool(shown) and verdict.status in _FOUND
    known = owners(plan) if grave else {}
    checked = [right for each in grave if (right := agrees(each, known)) is not None]
    return Outcome(
        detected=detected,
        status=verdict.status,
        anomaly=shown[0].anomaly if detected else None,
        anomalies=tuple(sorted({each.anomaly for each in grave})),
        sources=len(checked),
        sources_right=sum(checked),
        reason=_reason(verdict),
    )


def _reason(verdict: Verdict) -> str:
    return verdict.reasons[0] if verdict.reasons else ""


def owners(plan: Iterable[str]) -> Owners:
    """Which requests were given which phrase."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for line in plan:
        request = json.loads(line).get("request") or {}
        for key in ("ticket", "passphrase"):
            if request.get(key):
                found[letters("".join(request[key]["words"]))].add(request["id"])
    return {phrase: frozenset(ids) for phrase, ids in found.items()}


def agrees(finding: Finding, known: Owners) -> bool | None:
    """Whether the phrase a finding quotes is its source's and not its recipient's; None for one
    that quotes no phrase of the plan.
    """
    if finding.severity != "leak" or finding.mark is None:
        return None
    first, last = finding.mark
    given = known.get(letters(finding.excerpt[first:last]))
    if given is None:
        return None
    return finding.source in given and finding.recipient not in given


def letters(text: str) -> str:
    """Letters and digits alone, in lower case."""
    return "".join(character for character in text.lower() if character.isalnum())
