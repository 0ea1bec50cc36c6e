"""Why a verdict is what it is: one plain sentence each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from leakcheck import evidence
from leakcheck.analyzer import ahead, exposure
from leakcheck.analyzer.case import CACHE_HIT, UNNAMED, Case, is_open, is_proof, strong_tiers
from leakcheck.analyzer.confirm import confirmations
from leakcheck.history import History, troubles
from leakcheck.passphrase import FALSE_MATCH_LIMIT
from leakcheck.records import Exposure, Finding, Rate, RunEvent, Status

AT_A_LEAK = ("leak", "evidence")
"""What ended the windows of a scenario, where that was its leak."""
NEARLY_NOTHING = 0.05
"""A target that answers less than this share of what was sent has not been tested at all."""
STARVED = 0.1
"""The share of requests without an answer that explains why a scenario stays open."""
NO_BOUND = 0.9995
"""A bound of as good as 100 % excludes nothing."""
OPEN_BY_CHANCE = "1 %"
"""Scenarios in which an honest target leaves a suspicion open, measured: see docs/checks.md."""
_SENTENCE_CHARS = 200
_EVENT_CHARS = 400
"""Of what befell the run, which is our own sentence but for an error at its end."""
_ECHO_HINT = (
    " (longer answers, --max-tokens 48, another wording, --api completions, or words that this "
    "model repeats, leakcheck words, may raise it)"
)
_CORRUPTION = {
    "lost-answer": "answers lose their own ticket in company and keep it alone, confirmed by "
    "replay of {number} of them",
    "changed-answer": "the same requests keep their ticket under one condition and lose it under "
    "another, over more windows than chance allows",
    "broken-connection": "requests are not served for what their connection carried before them",
    "foreign-parameters": "sampling parameters of other requests shape answers",
    "diverted-answer": "what companions say changes answers, confirmed by replay of {number} of "
    "them among the same companions and among others",
}
_TRACES = (
    "answers show traces of other requests' content, over all windows together, and no single one "
    "of them is certain"
)
_FATAL = {
    "target-lost": "the target was lost",
    "harness-error": "leakcheck had to stop",
    "breaker": "the breaker ended the run",
}
SPENT = ("spent", "told-to-wait")
"""Ends for which nobody is to blame: all else that is missing follows from them."""


def doubts(case: Case) -> list[str]:
    """Why the foreign phrases of this run, or their absence, would prove nothing."""
    said = []
    unsent = sum(f.anomaly == "withheld-passphrase" for f in case.findings)
    leaks = sum(f.anomaly != CACHE_HIT and is_proof(f) for f in case.having("leak"))
    found = (
        "1 foreign phrase found proves" if leaks == 1 else f"{leaks} foreign phrases found prove"
    )
    show = "answer shows" if unsent == 1 else "answers show"
    so = f"; so the {found} nothing" if leaks else ""
    if unsent:
        said.append(
            f"THE EXPERIMENT IS BROKEN: {unsent} {show} passphrases that were never sent{so}"
        )
    if leaks and case.false_match_bound > FALSE_MATCH_LIMIT:
        said.append(
            "by chance alone a foreign phrase would show with a probability of up to "
            f"{case.false_match_bound:.1g} (more than {FALSE_MATCH_LIMIT:g}){so}; "
            "use longer passphrases"
        )
    return said


def leak(case: Case, leaks: Sequence[Finding]) -> tuple[str, ...]:
    """What shows whose content, where, and the first finding; what the rate is worth. Without a
    finding that stands for a leak: what the evidence rests on.
    """
    if not leaks:
        return (
            _TRACES,
            *_by_evidence(case, leaks),
            *_no_estimate(case),
        )
    shown = {finding.recipient for finding in leaks}
    replayed = sum(case.history.by_id(each).replays is not None for each in shown)
    rate, elsewhere, places = case.leak_rate, case.leaks_elsewhere, []
    if rate.events:
        one = rate.events == rate.trials == 1
        counted = (
            "the one window that counted" if one else f"{rate.events} of {rate.trials} windows"
        )
        places.append(f"in {counted}")
    if elsewhere:
        what = "window that is no trial" if elsewhere == 1 else "windows that are no trials"
        places.append(f"in {elsewhere} {what}")
    if replayed:
        what = "a replay that was" if replayed == 1 else f"{replayed} replays that were"
        places.append(f"in {what} sent to confirm a suspicion")
    answers = f"{len(shown)} {'answer shows' if len(shown) == 1 else 'answers show'}"
    return (
        f"{answers} somebody else's {_what_shows(leaks)}, {' and '.join(places)}",
        leaks[0].explanation,
        *_by_evidence(case, leaks),
        *_no_estimate(case),
    )


def _what_shows(leaks: Sequence[Finding]) -> str:
    kinds = {finding.anomaly for finding in leaks}
    if kinds == {CACHE_HIT}:
        return "text in the cache, by the count of cached tokens"
    if not any(map(is_proof, leaks)):
        return "passphrase in part or altered, or somebody else's topic"
    return "passphrase or ticket"


def _by_evidence(case: Case, leaks: Sequence[Finding]) -> list[str]:
    """Where no whole passphrase shows: the e-value, the tiers that made it, the first source."""
    if any(map(is_proof, leaks)):
        return []
    its = case.evidence
    tiers = [tier for tier in its.tiers if tier.name in strong_tiers(its)]
    counts = " and ".join(
        f"the tier {tier.name}: {tier.planted_hits} of {tier.sources} that were sent show"
        f"{_share(tier.planted_hits, tier.sources)}, {tier.phantom_hits} of {tier.phantoms} that "
        f"were not{_share(tier.phantom_hits, tier.phantoms)}"
        for tier in tiers
    )
    first = f"; the first source is {leaks[0].source}" if leaks else ""
    if not leaks or any(tier.name in UNNAMED for tier in tiers):
        first += "; which of the alternatives came from a leak cannot be told"
    said = (
        f"the e-value is {its.e_value:.3g}, {case.run_e_value:.3g} over the whole run, of at least "
        f"{1 / its.alpha:g} needed ({counts}){first}"
    )
    return [said]


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.2g} %)" if whole else ""


def _no_estimate(case: Case) -> list[str]:
    if case.evidence.settled not in AT_A_LEAK:
        return []
    said = (
        "windows were sent until the first leak showed, so the share of windows with one is no "
        "estimate of how often it happens (--play-all measures that)"
    )
    return [said]


def corruption(corruptions: Sequence[Finding]) -> tuple[str, ...]:
    """A sentence for each kind, and the first finding of it."""
    kinds: dict[str, list[Finding]] = {}
    for finding in corruptions:
        kinds.setdefault(finding.anomaly, []).append(finding)
    reasons = []
    for anomaly, findings in kinds.items():
        reasons += [_CORRUPTION[anomaly].format(number=len(findings)), findings[0].explanation]
    return tuple(reasons)


def broken(history: History) -> tuple[Status, str] | None:
    """What kept the scenario from being tested, and whether the target is to blame."""
    requests = history.requests[history.requests["replays"].isna()]
    sent = requests[requests["outcome"] != "unsent"]
    answered, planned = int((sent["outcome"] == "ok").sum()), len(requests)
    end = open_end(history.events)
    if end in _FATAL and (len(sent) < planned or _died_here(history, end)):
        detail = next(e.detail for e in reversed(history.events) if e.kind == end)
        text = f"{_FATAL[end]} after {answered} of {planned} requests were answered"
        return "error", f"{text}: {_short(detail, _EVENT_CHARS)}" if detail else text
    if not len(sent):
        why = ": the run was interrupted before" if end == "interrupted" else ""
        return "inconclusive", f"none of {planned} requests was sent{why}"
    planned_so = sent["outcome"].isin(["aborted", "rejected"])
    seen = history.observations
    # what was in flight when leakcheck itself was killed says nothing of the target
    back = sent["id"].isin(seen.loc[seen["observed"], "request_id"])
    wanted = int((back & ~planned_so).sum())
    if answered >= NEARLY_NOTHING * wanted or 2 * back.sum() < len(sent):
        return None
    seen = seen[seen["observed"]]
    rejected = sent.loc[sent["outcome"] == "rejected", "id"]
    other = seen[~seen["outcome"].isin(["ok", "aborted"]) & ~seen["request_id"].isin(rejected)]
    refused = (other["outcome"] == "failed") & other["status"].notna()
    error, times = Counter(other["error"].fillna("no reason given")).most_common(1)[0]
    status: Status = "inconclusive" if 2 * refused.sum() > len(other) else "error"
    verb = "refused nearly everything" if status == "inconclusive" else "answered nearly nothing"
    return status, (
        f"the target {verb}: {answered} of {wanted} requests were answered; "
        f"most often ({times} times): {_short(str(error))}"
    )


def _died_here(history: History, end: str) -> bool:
    """Whether the target was lost at the end of this scenario, all of which was sent."""
    requests, seen = history.requests, history.observations
    first = requests.loc[requests["replays"].isna(), "id"]
    mine = seen[seen["request_id"].isin(first)].sort_values("start_ns", kind="stable")
    return end == "target-lost" and len(mine) > 0 and mine["outcome"].iloc[-1] != "ok"


def starved(history: History) -> list[str]:
    """What went wrong with attempts, where that left a good part of what was sent unanswered."""
    requests = history.requests[history.requests["replays"].isna()]
    sent = requests[~requests["outcome"].isin(["unsent", "aborted", "rejected"])]
    if not len(sent) or (sent["outcome"] != "ok").mean() < STARVED:
        return []
    return [troubles.sentence(troubles.table(history))]


def unfinished(history: History) -> list[str]:
    """That the run did not come to its end, in one sentence with the reason; empty if it did."""
    end = open_end(history.events)
    waiting = len(confirmations(history))
    if end in SPENT:
        said = next(e.detail for e in reversed(history.events) if e.kind == end)
        unsent = "; replays that confirm a suspicion were not sent" if waiting else ""
        return [f"{said}{unsent}"]
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
        what = "1 replay" if waiting == 1 else f"{waiting} replays"
        why += (
            f"; {what} that would confirm lost answers {'was' if waiting == 1 else 'were'} not sent"
        )
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


def open_end(events: Sequence[RunEvent]) -> str | None:
    """The kind of event that ended the run too early, resumptions considered; None otherwise."""
    end = None
    for event in events:
        if event.kind in ("interrupted", *SPENT) or event.kind in _FATAL:
            end = event.kind
        elif event.kind in ("resumed", "finished"):
            end = None
    return end


def shortfall(measure: Exposure) -> str:
    """What is missing, in plain words."""
    if measure.measured is None:
        return f"{measure.name} not measured: {measure.text}"
    if measure.name == "generating":
        return f"nothing was tested in company: {measure.text}"
    if isinstance(measure.measured, Rate):
        rate = measure.measured
        few = rate.value is not None and rate.value >= (measure.minimum or 0)
        few = few and measure.name != "answered"  # of all that were planned: no sample of anything
        hint = _ECHO_HINT if measure.name == "echo" and not few else ""
        held = 100 * evidence.running_lower_bound(rate.events, rate.trials)
        return (
            f"{measure.name} {'hardly measured' if few else 'too low'}: {measure.text}; "
            f"at least {100 * (measure.minimum or 0):g} % needed, by the lower bound that holds "
            f"after every window ({held:.1f} %){hint}"
        )
    return f"too few {measure.name}: {measure.text}; {measure.minimum:g} needed"


def suspicions(case: Case) -> list[str]:
    """That a part of a passphrase showed which no phantom shares; empty where none did. It may be
    chance, and as long as it may be a leak nothing is clean.
    """
    found = [finding for finding in case.findings if is_open(finding)]
    if not found:
        return []
    more = f"; {len(found) - 1} more like it" if len(found) > 1 else ""
    said = (
        f"an open suspicion: {found[0].explanation.removesuffix('.')}{more}; chance alone leaves "
        f"one in about {OPEN_BY_CHANCE} of scenarios, so that this is neither a proof nor clean: "
        "run it again with another seed, and if it comes back it is a leak"
    )
    return [said]


def not_excluded(case: Case) -> str:
    """That the windows exclude less than the gate wants, and how many more would do."""
    rate, detect = case.leak_rate, case.evidence.detect
    verb = "excludes" if rate.trials == 1 else "exclude"
    if case.bound is None or case.bound >= NO_BOUND:
        what = f"{_windows(rate.trials)} without a leak {verb} no rate of leaks"
    else:
        what = (
            f"{_windows(rate.trials)} without a leak {verb} leaks in more than "
            f"{_percent_up(case.bound)} of windows"
        )
    text = f"the bound is too high: {what}; {100 * detect:g} % is to be excluded"
    sent, needed = ahead.windows_sent(case.history), ahead.windows_needed(case)
    if needed is None or needed <= sent:
        return text
    return (
        f"{text}: with echoes as in this run that takes about {needed} windows"
        f"{_of_them_control(case, needed)}, {needed - sent} more than were sent "
        "(--windows sends more, --detect asks for less)"
    )


def _of_them_control(case: Case, windows: int) -> str:
    """`, about 112 of them control windows (25 %)`; nothing where there are none by plan."""
    share = case.plan.scenario.load.control
    if not share:
        return ""
    return f", about {share * windows:.0f} of them control windows ({100 * share:g} %)"


def clean(case: Case) -> str:
    """That nothing showed, and what that excludes."""
    rate = case.leak_rate
    text = f"nobody was answered with somebody else's content in {_windows(rate.trials)}"
    if case.bound is None:
        return text
    state = case.state
    share = 100 * exposure.asked_share(case.history)
    how = (
        "the bound for what shows, divided by the lower bound of the echo rate and by the "
        f"{share:.3g} % of answered recipients ({state.asked} of {state.recipients}; of those in "
        "company, where there is any) that were asked for what they saw"
    )
    if case.bound >= NO_BOUND:
        return f"{text}; that excludes no rate of leaks ({how}): send more windows"
    return (
        f"{text}; leaks in more than {_percent_up(case.bound)} of windows are excluded with 95 % "
        f"confidence ({how})"
    )


def _percent_up(rate: float) -> str:
    """A bound as the report shows it: rounded up to a tenth of a percent, a hundredth below one."""
    digits = 1 if rate >= 0.01 else 2  # noqa: PLR2004 - one percent
    return f"{math.ceil(rate * 10 ** (2 + digits) - 1e-9) / 10**digits:.{digits}f} %"


def _windows(number: int) -> str:
    return f"{number} window" if number == 1 else f"{number} windows"


def _short(text: str, most: int = _SENTENCE_CHARS) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
