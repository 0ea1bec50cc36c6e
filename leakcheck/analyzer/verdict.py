"""From a case to a status: what was found, then what was broken, then what was not tested."""

from __future__ import annotations

from leakcheck.analyzer import reasons, settling
from leakcheck.analyzer.case import CACHE_HIT, Case
from leakcheck.records import Exposure, Finding, Rate, Status


def decide(case: Case) -> tuple[Status, tuple[str, ...]]:
    """Status and reasons: what was found, then what was broken, then what was not tested."""
    corruptions, errors = case.having("corruption"), case.having("error")
    doubts = reasons.doubts(case)
    leaks = leaks_of(case)
    if leaks or _accused(case):
        return "leak", reasons.leak(case, leaks)
    if corruptions:
        return "corruption", (*reasons.corruption(corruptions), *reasons.suspicions(case))
    broken = reasons.broken(case.history)
    if errors:
        also = () if broken is None or broken[0] != "error" else (broken[1],)
        return "error", (*(f.explanation for f in errors), *also, *reasons.suspicions(case))
    if broken is not None and broken[0] == "error":
        return "error", (broken[1], *reasons.suspicions(case))
    missing = [*doubts]
    missing += [f.explanation for f in case.findings if f.anomaly == "withheld-passphrase"][:1]
    missing += [] if broken is None else [broken[1]]
    lacks, end = lacking(case), reasons.unfinished(case.history)
    ended_first = reasons.open_end(case.history.events) in reasons.SPENT
    missing += [*end, *lacks] if ended_first else [*lacks, *end]
    if missing:
        starved = reasons.starved(case.history) if lacks else []
        return "inconclusive", (*missing[:1], *starved, *missing[1:])
    return "clean", (reasons.clean(case),)


def leaks_of(case: Case) -> list[Finding]:
    """The findings that prove a leak. What casts doubt on a foreign phrase says nothing against a
    count of cached tokens.
    """
    found = case.having("leak")
    doubts = reasons.doubts(case)
    return [f for f in found if not doubts or f.anomaly == CACHE_HIT]


def _accused(case: Case) -> bool:
    """Whether the evidence of the fuzzy tiers makes a leak, with or without a finding to show."""
    return case.accused and not reasons.doubts(case)


def lacking(case: Case) -> list[str]:
    """What was not tested, or not enough, as far as more windows could change it."""
    missing = reasons.suspicions(case)
    lacks = [each for each in case.exposure if each.enough is False]
    missing += [reasons.shortfall(each) for each in sorted(lacks, key=_may_yet_do)]
    echoed = settling.sensitivity(case.state) is not None
    if not echoed and not any(text.startswith("echo") for text in missing):
        missing.append(
            "nothing was echoed: no owner was answered with its own passphrase, so another's would "
            "hardly have shown; elicit it, or use a model that can repeat it"
        )
    if case.bound is not None and not settling.certified(case.state, case.evidence.detect):
        missing.append(reasons.not_excluded(case))
    return [*missing, *case.untested]


def _may_yet_do(each: Exposure) -> bool:
    """Whether more of the same could be enough; what could not is said first."""
    rate = each.measured
    return not isinstance(rate, Rate) or each.minimum is None or rate.upper >= each.minimum


def settles(case: Case) -> bool:
    """Whether the windows of a scenario may end here: what leaks does, and nothing is missing."""
    return (
        bool(leaks_of(case))
        or _accused(case)
        or not (lacking(case) or reasons.doubts(case) or reasons.broken(case.history))
    )
