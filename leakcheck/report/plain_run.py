"""Two sentences on a whole run: they add to its headline and do not repeat it. See `plain`."""

from __future__ import annotations

from leakcheck.records import Report, Status, Verdict
from leakcheck.report.counting import many, odds
from leakcheck.report.plain import CACHE_HIT, CHANCE, Plain, is_fuzzy, listed, windows_missing
from leakcheck.report.sentences import joined

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
    return Plain(
        found=f"{_census(report)}: answers change with what their neighbours send, beyond what "
        "rounding does, and nobody's content was shown.",
        means="Users get answers that depend on strangers: treat it as broken isolation, and "
        "prove the repair with the same run.",
    )


def _run_clean(report: Report) -> Plain:
    windows = many(sum(each.leak_rate.trials for each in report.verdicts), "window")
    return Plain(
        found=f"{_census(report)}: the traffic under test did occur, and in {windows} "
        "nobody was answered with another's content.",
        means="A rarer leak could not have been seen, nor one that needs other traffic than was "
        "sent.",
    )


def _run_open(report: Report) -> Plain:
    more = sum(windows_missing(each) or 0 for each in _with(report, "inconclusive"))
    needs = f"; about {many(more, 'more window')} in all are needed" if more else ""
    windows = many(sum(each.leak_rate.trials for each in report.verdicts), "window")
    return Plain(
        found=f"{_census(report)}: in {windows} no leak was proved, and that is too little "
        "to rule leaks out.",
        means=f"This is not a pass: each open scenario says what it is missing{needs}.",
    )


def _run_fails(report: Report) -> Plain:
    return Plain(
        found=f"{_census(report)}: the target or leakcheck itself broke down.",
        means="Nothing follows for or against leaks there; what was answered is kept, and "
        "leakcheck run --resume DIR goes on from it.",
    )


def _census(report: Report) -> str:
    """`1 of 12 scenarios shows a leak, 2 stay open and 9 are clean`."""
    parts: list[str] = []
    total = len(report.verdicts)
    for status, words in _CENSUS.items():
        number = len(_with(report, status))
        if number == total:
            every = {1: "The scenario", 2: "Both scenarios"}.get(total, f"All {total} scenarios")
            return f"{every} {words[total > 1]}"
        if number:
            of = "" if parts else f" of {total} scenarios"
            parts.append(f"{number}{of} {words[number > 1]}")
    return joined(parts)


def _with(report: Report, status: Status) -> list[Verdict]:
    return [each for each in report.verdicts if each.status == status]
