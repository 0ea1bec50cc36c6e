"""Two sentences on a whole run: they add to its headline and do not repeat it. See `plain`."""

from __future__ import annotations

from leakcheck.records import Report, Status, Verdict
from leakcheck.report.counting import many, odds
from leakcheck.report.picking import listed
from leakcheck.report.plain import (
    CACHE_HIT,
    CHANCE,
    Plain,
    is_fuzzy,
    least_missing,
    least_windows,
    windows_missing,
)
from leakcheck.report.sentences import asked_for, joined, showed_in_part

_CENSUS: dict[Status, tuple[str, str]] = {
    "leak": ("shows a leak", "show a leak"),
    "corruption": ("shows corrupted answers", "show corrupted answers"),
    "error": ("failed", "failed"),
    "inconclusive": ("stays open", "stay open"),
    "clean": ("is clean", "are clean"),
}


def run(report: Report) -> Plain:
    """The two sentences on a whole run."""
    if not report.verdicts:
        return Plain(
            found="No scenario was judged.",
            means="Nothing follows for or against leaks: see what befell the run, and run again.",
        )
    return {
        "leak": _run_leaks,
        "corruption": _run_corrupts,
        "clean": _run_clean,
        "inconclusive": _run_open,
        "error": _run_fails,
    }[report.status](report)


def _run_leaks(report: Report) -> Plain:
    leaks = _with(report, "leak")
    whole = [each for each in leaks if not is_fuzzy(each)]
    if whole:
        chance = sum(each.false_match_bound for each in report.verdicts)
        held = "answers held whole secrets of other requests"
        if _one_answer(whole):
            held = "an answer held a whole secret of another request"
        if {f.anomaly for each in whole for f in listed(each, "leak")} == CACHE_HIT:
            held = "strangers can tell what others sent"
        elif 0 <= chance <= CHANCE:
            held += (
                f", which chance alone does in at most 1 of {odds(1 / max(chance, 1e-300))} runs"
            )
    else:
        held = "answers held others' content in altered form, which a healthy target would show in "
        held += f"at most 1 run in {odds(max(1.0, report.e_value))}"
    return Plain(
        found=f"{_census(report)}: {held}.",
        means="Let no two users share this target until that is mended, and prove the repair with "
        "the same run.",
    )


def _run_corrupts(report: Report) -> Plain:
    part = showed_in_part(report.verdicts)
    shown = f"{part}, which may be chance" if part else "nobody's content was shown"
    return Plain(
        found=f"{_census(report)}: answers change with what their neighbours send, beyond what "
        f"rounding does, and {shown}.",
        means="Users get answers that depend on strangers: treat it as broken isolation, and "
        "prove the repair with the same run.",
    )


def _run_clean(report: Report) -> Plain:
    windows = many(sum(each.leak_rate.trials for each in report.verdicts), "window")
    occurred = "the traffic under test did occur"
    if _unknown_together(report):
        occurred = (
            "the traffic under test was sent, though whether the target ran requests together is "
            "not known"
        )
    return Plain(
        found=f"{_census(report)}: {occurred}, and in {windows} "
        "nobody was answered with another's content.",
        means="A rarer leak could not have been seen, nor one that needs other traffic than was "
        "sent.",
    )


def _unknown_together(report: Report) -> bool:
    """Whether only the client knows that requests were in flight together, in some scenario."""
    seen = [each for verdict in report.verdicts for each in verdict.exposure]
    return any(each.name == "generating" and each.enough is None for each in seen)


def _run_open(report: Report) -> Plain:
    part = showed_in_part(report.verdicts)
    if part:
        return Plain(
            found=f"{_census(report)}: {part}, which chance does in about 1 of 100 scenarios.",
            means="This is neither a pass nor a proof of a leak: read that finding, and run again "
            "with another seed; if it comes back it is a leak.",
        )
    needs = _needs(report)
    windows = many(sum(each.leak_rate.trials for each in report.verdicts), "window")
    return Plain(
        found=f"{_census(report)}: in {windows} no leak was proved, and that is too little "
        "to rule leaks out.",
        means=f"This is not a pass: each open scenario says what it is missing{needs}.",
    )


def _needs(report: Report) -> str:
    """How many windows are still to be sent: `; about 449 more windows in all are needed`. A
    scenario of which too little was seen to know counts with the least that its claim takes on any
    target, and then it is `at least`.
    """
    named = {each.name: each for each in report.provenance.scenarios}
    open_, more, known = _with(report, "inconclusive"), 0, True
    for verdict in open_:
        missing, scenario = windows_missing(verdict), named.get(verdict.scenario)
        if missing is None:
            known = False
            missing = 0 if scenario is None else least_missing(verdict, scenario)
        more += missing
    judged = {verdict.scenario for verdict in report.verdicts}
    for name in named.keys() - judged if report.interrupted or not _ended(report) else ():
        if named[name].checks:
            known, more = False, more + least_windows(named[name])
    if not more:
        return ""
    are = "is" if more == 1 else "are"
    if known:
        return f"; about {many(more, 'more window')} in all {are} needed"
    return f"; at least {many(more, 'more window')} {are} needed"


def _ended(report: Report) -> bool:
    return any(event.kind == "finished" for event in report.events)


def _run_fails(report: Report) -> Plain:
    return Plain(
        found=f"{_census(report)}: the target or leakcheck itself broke down.",
        means="Nothing follows for or against leaks there; what was answered is kept, and "
        "leakcheck run --resume DIR goes on from it.",
    )


def _census(report: Report) -> str:
    """`1 of 12 scenarios shows a leak, 2 stay open and 9 are clean`."""
    parts: list[str] = []
    asked = asked_for(report)
    total = len(asked)
    before = ", and requests sent before the scenarios show a leak" * (total < len(report.verdicts))
    for status, words in _CENSUS.items():
        number = sum(each.status == status for each in asked)
        if number == total:
            every = {1: "The scenario", 2: "Both scenarios"}.get(total, f"All {total} scenarios")
            return f"{every} {words[total > 1]}{before}"
        if number:
            of = "" if parts else f" of {total} scenarios"
            parts.append(f"{number}{of} {words[number > 1]}")
    return joined(parts) + before


def _one_answer(verdicts: list[Verdict]) -> bool:
    leaks = [(v.scenario, f.recipient) for v in verdicts for f in listed(v, "leak")]
    listed_all = all(v.findings_total <= len(v.findings) for v in verdicts)
    return len(set(leaks)) == 1 and listed_all


def _with(report: Report, status: Status) -> list[Verdict]:
    return [each for each in report.verdicts if each.status == status]
