"""The words of a report: what every renderer says in the same way.

A percentage never stands without its counts. Bounds that are claims ("at most") are rounded up,
everything else to the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from leakcheck.budget import spending
from leakcheck.records import Exposure, Finding, Rate, Report, Status, Verdict
from leakcheck.report import boundaries
from leakcheck.report.untrusted import clipped, cut

UNPLANNED = "the run was stopped before it was planned; start a new one"
"""Why a run of which there is the survey alone has no verdict, and cannot be resumed."""

_NAME = 60
_NO_BOUND = 0.9995
"""A bound of as good as 100 % excludes nothing."""
ENDED = ("ok", "failed", "aborted", "rejected", "unknown", "unsent")
"""How a request can end, in the order in which a report counts them."""
UNKNOWN = "no whole answer, though one may have been made"
SEVERITY = {"leak": 0, "corruption": 1, "error": 2, "note": 3}

MEANING: dict[Status, str] = {
    "leak": "somebody else's content stood in an answer, or could be told from it",
    "corruption": "an answer changed with its neighbours beyond the noise floor, confirmed by "
    "replay or over windows, without showing anybody's content",
    "clean": "nobody's content stood in another answer, over enough windows and with the tested "
    "condition shown to have occurred",
    "inconclusive": "too little was seen to say clean or leak",
    "error": "the target or the harness failed, so isolation was not judged",
}


def percent(value: float, rounding: Literal["nearest", "up"] = "nearest") -> str:
    """A fraction as "3.6 %": one decimal, more next to 0 and 1, never a false 0 % or 100 %. A bound
    ("up") below one percent has two.
    """
    hundred = 100 * value
    if value <= 0 or hundred >= 100:  # noqa: PLR2004 (per cent)
        return "0 %" if value <= 0 else "100 %"
    if hundred < 0.001:  # noqa: PLR2004 (more zeros than anybody counts)
        # Two digits lose less than a twentieth, so that a bound shown is never below the bound.
        return f"{hundred * (1.05 if rounding == 'up' else 1):.1e} %"
    decimals = 2 if rounding == "up" and hundred < 1 else 1
    if hundred < 0.1:  # noqa: PLR2004 (per cent)
        decimals = 1 - math.floor(math.log10(hundred))
    elif hundred > 99.9:  # noqa: PLR2004 (per cent)
        decimals = min(6, -math.floor(math.log10(100 - hundred)))
    scaled = hundred * 10**decimals
    shown = (math.ceil(scaled - 1e-9) if rounding == "up" else round(scaled)) / 10**decimals
    if shown >= 100:  # noqa: PLR2004 (per cent)
        return "100 %" if rounding == "up" else ">99.9999 %"
    return f"{shown:.{decimals}f} %"


def interval(rate: Rate, dash: str = "-") -> str:
    """The exact two-sided 95 % interval: "0-3.6 %"."""
    if not rate.trials:
        return "not measured"
    return f"{percent(rate.low).removesuffix(' %')}{dash}{percent(rate.high)}"


def setting(value: float) -> str:
    """A fraction that was chosen, not measured: "50 %"."""
    return f"{100 * value:g} %"


def counts(rate: Rate) -> str:
    """Numerator and denominator: "7/100"."""
    return f"{rate.events}/{rate.trials}"


def of_windows(verdict: Verdict) -> str:
    """The leak rate with the one bound of the verdict: "7/100 windows = 7.0 %", "0/70 windows, at
    most 6.3 %"; an error claims neither.
    """
    rate = verdict.leak_rate
    shown = f"{counts(rate)} {'window' if rate.trials == 1 else 'windows'}"
    if verdict.status == "error":
        return f"{shown}, not judged"
    if rate.value is None:
        return f"{shown}, not measured"
    if rate.events:
        return f"{shown} = {percent(rate.value)}"
    most = excluded(verdict)
    return f"{shown}, at most {most}" if most else f"{shown}, nothing excluded"


def of_what_shows(rate: Rate, dash: str = "-") -> str:
    """The raw figures, for the numbers fold alone: "0-3.6 %, at most 3.0 %". They are no bound of a
    verdict, as a leak that nobody echoes is in none of them.
    """
    if not rate.trials:
        return "not measured"
    return f"{interval(rate, dash)}, at most {percent(rate.upper, 'up')}"


def excluded(verdict: Verdict) -> str | None:
    """The leak rate above which leaks are excluded, in words: the one bound that any screen shows
    of a verdict. None where none is, and of an error.

    Where a certificate ended the windows it is the rate that was to be excluded: that claim alone
    allows for having looked after every window. Where none was to be, their number was fixed.
    """
    known = verdict.evidence
    if verdict.status == "error":
        return None
    if known is not None and known.settled == "certificate" and _claims(verdict):
        return setting(known.detect)
    if verdict.bound is None or verdict.bound >= _NO_BOUND:
        return None
    return percent(verdict.bound, "up")


def _claims(verdict: Verdict) -> bool:
    """Whether some rate of leaks was to be excluded; scenarios of few windows ask for none."""
    return verdict.evidence is None or verdict.evidence.detect < _NO_BOUND


def certified(verdict: Verdict) -> str:
    """The bound of the verdict, or that there is none."""
    return excluded(verdict) or "none"


def settled(verdict: Verdict) -> str:
    """Why the windows ended before their budget, with both numbers; empty where they did not."""
    known, budget = verdict.evidence, verdict.windows_planned
    if known is None or known.settled is None:
        return ""
    if known.settled == "certificate":
        trials = verdict.leak_rate.trials
        if not _claims(verdict):
            return f"enough after {trials} of {budget} windows"
        return f"certified {setting(known.detect)} by {trials} of {budget} windows"
    what = "leak" if known.settled == "leak" else "leak by all evidence"
    found = [finding.window for finding in verdict.findings if finding.severity == "leak"]
    planned = [window for window in found if window < budget]
    if not planned:
        return f"settled: {what}, before all {budget} windows"
    last = min(planned) if known.settled == "leak" else max(planned)
    return f"settled: {what} at window {last} of {budget}"


def exposure_in_brief(exposure: Exposure) -> str:
    """One exposure in a few words: "echo 798/800", "echo 3/400 (too little, at least 50 %)",
    "echo 4/4 (4 are too few to tell)".
    """
    name = exposure.name.replace("-", " ").replace("_", " ")
    short = f"{name} {measured(exposure)}"
    if exposure.enough is not False:
        return short
    rate = exposure.measured
    if isinstance(rate, Rate) and too_few_to_tell(exposure):
        return f"{short} ({rate.trials} {'is' if rate.trials == 1 else 'are'} too few to tell)"
    wanted = "" if exposure.minimum is None else f"at least {minimum(exposure)}"
    if rate is None or (isinstance(rate, Rate) and not rate.trials):
        return f"{short} ({wanted} wanted)" if wanted else short
    what = "too little" if isinstance(rate, Rate) else "too few"
    return f"{short} ({', '.join(filter(None, (what, wanted)))})"


def too_few_to_tell(exposure: Exposure) -> bool:
    """Whether a rate falls short by its small number alone: as measured it would be enough."""
    rate, least = exposure.measured, exposure.minimum
    if exposure.name == "answered":  # of all that were planned: no sample of anything
        return False
    return isinstance(rate, Rate) and rate.value is not None and rate.value >= (least or 0)


def exposures_in_brief(verdict: Verdict) -> list[str]:
    """All of them; windows only where too few of them leave it open, for the leak rate counts them
    already; where nothing was answered, that alone.
    """
    answered = [e for e in verdict.exposure if e.name == "answered"]
    if answered and isinstance(answered[0].measured, Rate) and not answered[0].measured.events:
        return [exposure_in_brief(answered[0])]
    open_ = verdict.status != "leak"
    shown = [e for e in verdict.exposure if e.name != "windows" or (open_ and e.enough is False)]
    return [exposure_in_brief(exposure) for exposure in shown] or ["exposure not measured"]


def measured(exposure: Exposure) -> str:
    """What was measured: counts of a rate, a number, or "not measured"."""
    if exposure.measured is None:
        return "not measured"
    if isinstance(exposure.measured, Rate):
        return counts(exposure.measured) if exposure.measured.trials else "not measured"
    return f"{exposure.measured:.10g}"


def minimum(exposure: Exposure) -> str:
    """What the scenario asks for: a percentage of a rate, a number, or "none set"."""
    if exposure.minimum is None:
        return "none set"
    if isinstance(exposure.measured, float | int) or exposure.minimum > 1:
        return f"{exposure.minimum:.10g}"
    return setting(exposure.minimum)


def direction(finding: Finding, arrow: str = "->") -> str:
    """Who reached whom: "r00248 -> r00224", or the recipient alone."""
    if finding.source is None:
        return finding.recipient
    return f"{finding.source} {arrow} {finding.recipient}"


def ranked(report: Report) -> list[Finding]:
    """Every finding of the report, leaks first, otherwise in the order of the verdicts."""
    every = [finding for verdict in report.verdicts for finding in verdict.findings]
    return sorted(every, key=lambda finding: SEVERITY[finding.severity])


def grave(report: Report) -> list[Finding]:
    """The findings that make a verdict: leaks, corruption and errors, no notes."""
    return [finding for finding in ranked(report) if finding.severity != "note"]


def findings_total(report: Report) -> int:
    """Findings of all scenarios, those that the report does not list included."""
    return sum(max(verdict.findings_total, len(verdict.findings)) for verdict in report.verdicts)


def grave_total(report: Report) -> int:
    """As `findings_total`, without notes: a verdict lists its gravest findings first."""
    total = 0
    for verdict in report.verdicts:
        listed = verdict.findings
        total += sum(finding.severity != "note" for finding in listed)
        if listed and listed[-1].severity != "note":
            total += max(0, verdict.findings_total - len(listed))
    return total


def duration(seconds: float) -> str:
    """Seconds in words: "8.4 s", "4 min 12 s"."""
    if seconds < 10:  # noqa: PLR2004 (below it a decimal matters)
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def outcomes(report: Report) -> str:
    """How the requests ended: "1600 requests: 1598 ok, 2 unknown; 3 replays"."""
    counted = dict(report.requests)
    ended = {name: counted.pop(name, 0) for name in ENDED}
    total = counted.pop("planned", sum(ended.values()))
    if counted.get("attempts") == total:
        del counted["attempts"]
    parts = _listed(ended).replace(" unknown", f" unknown ({UNKNOWN})")
    shown = f"{total} requests: {parts}" if parts else "no requests"
    return f"{shown}; {_listed(counted)}" if _listed(counted) else shown


def budget(report: Report) -> str:
    """What was used of the budget, in one line; empty where there was neither budget nor pace."""
    if report.used is None:
        return ""
    return f"used: {spending.sentence(report.provenance.caps, report.used)}"


def selftest(report: Report) -> str:
    """What leakcheck had shown of itself before the run, in one line; empty where nothing was."""
    own = report.provenance.selftest
    if own is None:
        return ""
    return (
        f"self-test of {own.date}: {'passed' if own.passed else 'FAILED'}; {own.caught} of "
        f"{own.faults} planted faults caught, {own.accused} of {own.harmless} targets without a "
        "leak accused"
    )


def headline(report: Report) -> str:
    """The answer in one sentence, without the status word in front."""
    sentence = {
        "leak": _leak,
        "corruption": _corruption,
        "clean": _clean,
        "inconclusive": _inconclusive,
        "error": _error,
    }[report.status](report)
    if report.interrupted:
        return f"{sentence.removesuffix('.')}; interrupted, so this is from what was observed"
    return sentence


def open_hits(verdicts: Iterable[Verdict]) -> list[Finding]:
    """Parts of passphrases in others' answers that no phantom shares, and that are no leak (yet):
    as long as there is one, nobody may say that nothing showed.
    """
    return [
        finding
        for verdict in verdicts
        for finding in verdict.findings
        if finding.severity == "note" and finding.evidence.get("open")
    ]


def shown_at_once(report: Report) -> tuple[list[Finding], int]:
    """The findings that nobody may have to look for, and how many there are with those that the
    report does not list: what makes a verdict, then what keeps one open.
    """
    opened = open_hits(report.verdicts)
    return [*grave(report), *opened], grave_total(report) + len(opened)


def showed_in_part(verdicts: Iterable[Verdict]) -> str:
    """`3 answers held a part of another request's passphrase`; empty where none did."""
    number = len({finding.recipient for finding in open_hits(verdicts)})
    what = "1 answer" if number == 1 else f"{number} answers"
    return f"{what} held a part of another request's passphrase" if number else ""


def asked_for(report: Report) -> tuple[Verdict, ...]:
    """The verdicts on the scenarios of the run, without those on what was sent before them (survey,
    audition), which have one only where they show a leak.
    """
    names = {each.name for each in report.provenance.scenarios}
    found = tuple(verdict for verdict in report.verdicts if verdict.scenario in names)
    return found or report.verdicts


def not_clean(report: Report) -> list[Verdict]:
    """The verdicts that need a reason in front of the reader."""
    return [verdict for verdict in report.verdicts if verdict.status != "clean"]


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)


def _of_status(report: Report, status: Status) -> list[Verdict]:
    return [verdict for verdict in report.verdicts if verdict.status == status]


def joined(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    listed = list(parts)
    if len(listed) < 3:  # noqa: PLR2004 ("a and b")
        return " and ".join(listed)
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def _leak(report: Report) -> str:
    every, asked = _of_status(report, "leak"), asked_for(report)
    shown = [verdict for verdict in every if verdict in asked] or every
    places = joined(map(_place, shown))
    named = {verdict.scenario for verdict in shown}
    leaks = [each for each in ranked(report) if each.severity == "leak"]
    leaks = [each for each in leaks if each.scenario in named] or leaks
    first = f", first {_from_to(leaks[0])}" if leaks else ""
    if leaks and (told := boundaries.crossing(leaks[0])):
        first += f": {cut(told, 2 * _NAME)}"
    what = "somebody else's content stood in an answer"
    if leaks and all(finding.anomaly == "foreign-cache-hit" for finding in leaks):
        what = "a stranger could see that somebody else had sent a text"
    return f"in {places or 'this run'} {what}{first}"


def _from_to(finding: Finding) -> str:
    if finding.source is None:
        return f"in {clipped(finding.recipient, _NAME)}"
    return f"from {clipped(finding.source, _NAME)} to {clipped(finding.recipient, _NAME)}"


def _name(verdict: Verdict) -> str:
    return clipped(verdict.scenario, _NAME)


def _place(verdict: Verdict) -> str:
    rate = verdict.leak_rate
    if not rate.events:  # the leaks are where no rate is taken
        windows = {f.window for f in verdict.findings if f.severity == "leak"}
        if not windows:
            return f"all windows of {_name(verdict)} together"
        planned = any(window < verdict.windows_planned for window in windows)
        return f"{'a window that is no trial' if planned else 'a replay'} of {_name(verdict)}"
    if rate.events == rate.trials == 1:
        return f"the only counted window of {_name(verdict)}"
    return f"{rate.events} of {rate.trials} windows of {_name(verdict)}"


def _corruption(report: Report) -> str:
    parts, kinds, shaped = [], set(), True
    for verdict in _of_status(report, "corruption"):
        found = [finding for finding in verdict.findings if finding.severity == "corruption"]
        kinds |= {finding.anomaly for finding in found}
        shaped &= "foreign-parameters" in {finding.anomaly for finding in found}
        least = "at least " if verdict.findings_total > len(verdict.findings) else ""
        if {finding.anomaly for finding in found} <= {"lost-answer"}:
            what = f"{least}{len(found)} {'answer' if len(found) == 1 else 'answers'}"
        else:
            what = "answers"
        parts.append(f"{what} of {_name(verdict)}")
    how = "changed in company, confirmed by replay"
    if kinds and shaped:  # whatever else they have changed, it is what did it
        how = "were shaped by the parameters of other requests, over windows"
    elif kinds == {"broken-connection"}:
        how = "never came, for what their connection had carried before, over windows"
    elif not kinds <= {"lost-answer"}:
        how = "changed with what was sent beside or before them, over windows"
    part = showed_in_part(report.verdicts)
    shown = f"and {part}, which proves nothing yet" if part else "with nobody's content shown"
    return f"{joined(parts) or 'answers'} {how}, {shown}"


def _clean(report: Report) -> str:
    trials = sum(verdict.leak_rate.trials for verdict in report.verdicts)
    events = sum(verdict.leak_rate.events for verdict in report.verdicts)
    bounds = [verdict for verdict in report.verdicts if verdict.bound is not None]
    what = "window" if trials == 1 else "windows"
    seen = f"{events} of {trials} {what} showed somebody else's content"
    if not bounds:
        return seen
    if not all(map(excluded, bounds)):
        return f"{seen}, too few to exclude any rate of leaks"
    claiming = [each for each in bounds if _claims(each)] or bounds
    most = excluded(max(claiming, key=_claimed))
    each = "windows" if len(report.verdicts) == 1 else "windows of any scenario"
    others = [each.scenario for each in bounds if each not in claiming]
    but = f" but {joined(others)}" if others else ""
    return f"{seen}, so at most {most} of the {each}{but} leak (95 % confidence)"


def _claimed(verdict: Verdict) -> float:
    """The rate that `excluded` says."""
    known = verdict.evidence
    if known is not None and known.settled == "certificate" and _claims(verdict):
        return known.detect
    return verdict.bound or 0.0


def _inconclusive(report: Report) -> str:
    open_ones = _of_status(report, "inconclusive")
    if not open_ones:
        return f"no scenario was judged: {UNPLANNED}"
    first = open_ones[0]
    why = f": {cut(first.reasons[0], 400)}" if first.reasons else ""
    asked = len(asked_for(report))
    if asked == 1:
        return f"{_name(first)} cannot be judged{why}"
    many = f"{len(open_ones)} of {asked} scenarios cannot be judged"
    return f"{many}, first {_name(first)}{why}"


def _error(report: Report) -> str:
    for verdict in _of_status(report, "error"):
        if verdict.reasons:
            return f"{_name(verdict)}: {cut(verdict.reasons[0], 400)}"
    for event in report.events:
        if event.kind in {"target-lost", "worker-died"}:
            return f"{event.kind.replace('-', ' ')}: {event.detail}"
    return "nothing could be judged"
