"""Two sentences on each verdict, for a reader who has ten seconds.

The first says what was found and how sure that is, the second what it means and what to do next.
They are made of counts and of our own words: no name, reason or excerpt of a target stands in them.
A percentage never stands without its counts, and no word needs a book on statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from leakcheck.evidence import EXCLUSION_CONFIDENCE, windows_needed
from leakcheck.records import (
    Evidence,
    Exposure,
    Finding,
    Rate,
    Scenario,
    TierEvidence,
    Verdict,
)
from leakcheck.report import boundaries
from leakcheck.report.counting import many, none_of, odds, times
from leakcheck.report.picking import exposed, listed
from leakcheck.report.sentences import excluded, setting, showed_in_part, too_few_to_tell

FUZZY = frozenset({"altered-passphrase", "foreign-topic"})
"""Anomalies that only all together, never one by one, make a leak."""

CACHE_HIT = frozenset({"foreign-cache-hit"})
"""Shows that somebody sent a text, and no text."""
CHANCE = 0.01
"""A false match of a higher probability is no proof, and is not boasted of."""
_TRACES = {
    "encoded": "other requests' passphrases, spelled or encoded,",
    "fragment": "pieces of other requests' passphrases",
    "alternatives": "other requests' passphrases, nearly chosen by the model,",
    "topic": "words from the topics of other requests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """`found`: what was found and how sure; `means`: what to make of it. One sentence each."""

    found: str
    means: str

    @property
    def text(self) -> str:
        """Both sentences, one after the other."""
        return f"{self.found} {self.means}"


def verdict(judged: Verdict, run_e_value: float | None = None) -> Plain:
    """The two sentences on one scenario of a run whose e-value is `run_e_value`: how rare fuzzy
    evidence is on a healthy target is told of the run, as this scenario was not chosen beforehand.
    """
    if judged.status == "leak":
        return _leak(judged, run_e_value)
    if judged.status == "clean":
        return _clean(judged, run_e_value)
    return {"corruption": _corruption, "inconclusive": _inconclusive, "error": _error}[
        judged.status
    ](judged)


def windows_missing(judged: Verdict) -> int | None:
    """Windows without a leak that are still needed to exclude `detect`; None where not known.

    As the reason says it; in a report of an older version from 0.04 = (1 - detect x sensitivity) **
    windows, as for `Evidence.certificate`.
    """
    known, rate = judged.evidence, judged.leak_rate
    if judged.windows_sent is not None:
        needed = judged.windows_needed
        return None if needed is None else max(0, needed - judged.windows_sent)
    if known is None or rate.events or not known.sensitivity or not 0 < known.detect < 1:
        return None
    shown = min(known.detect * known.sensitivity, 1 - 1e-12)
    return max(0, windows_needed(shown, EXCLUSION_CONFIDENCE) - rate.trials)


def least_windows(scenario: Scenario) -> int:
    """Windows, control windows included, that the claim of a scenario takes on a target that echoes
    everything: fewer suffice on none.
    """
    gate, planted = scenario.gate, 1 - scenario.load.control
    trials = max(
        gate.min_windows, windows_needed(min(gate.detect, 1 - 1e-12), EXCLUSION_CONFIDENCE)
    )
    return math.ceil(trials / planted) if planted > 0 else trials


def least_missing(judged: Verdict, scenario: Scenario) -> int:
    """What of `least_windows` was not sent yet."""
    sent = judged.leak_rate.trials if judged.windows_sent is None else judged.windows_sent
    return max(0, least_windows(scenario) - sent)


def is_fuzzy(judged: Verdict) -> bool:
    """Whether a leak rests on evidence that only counts together."""
    leaks = listed(judged, "leak")
    alone = any(f.anomaly not in FUZZY or f.evidence.get("whole") for f in leaks)
    return not alone and (bool(leaks) or judged.status == "leak")


# --- leaks ---------------------------------------------------------------------------------------


def _leak(judged: Verdict, run_e_value: float | None) -> Plain:
    kinds = {finding.anomaly for finding in listed(judged, "leak")}
    if is_fuzzy(judged):
        return _fuzzy_leak(judged, run_e_value)
    if kinds == CACHE_HIT:
        return Plain(
            found=f"{_places(judged)} the target's own count of cached tokens told one user that "
            "another had sent the same text.",
            means="No text was shown, but strangers can find out what others send: keep the caches "
            "of different users apart.",
        )
    what = _secret(kinds)
    return Plain(
        found=f"{_places(judged)} an answer held {what} of another request"
        f"{boundaries.clause(judged)}{_by_chance(judged)}.",
        means="The target hands the content of one request to another: let no two users share it "
        "until that is mended, and start with the findings, which name source and recipient.",
    )


def _secret(kinds: Iterable[str]) -> str:
    if set(kinds) == {"foreign-answer"}:
        return "the whole ticket (the words it had to return)"
    return "the whole passphrase" if "foreign-answer" not in kinds else "the whole secret"


def _by_chance(judged: Verdict) -> str:
    chance = judged.false_match_bound
    if not 0 <= chance <= CHANCE:
        return ""
    return f", which chance alone does in at most 1 of {odds(1 / max(chance, 1e-300))} runs"


def _places(judged: Verdict) -> str:
    rate = judged.leak_rate
    if rate.events:
        known = judged.evidence
        there = ", where the scenario ended," if known and known.settled == "leak" else ""
        if rate.events == rate.trials == 1:
            return f"In the one window that counted{there or ','}"
        return f"In {rate.events} of {many(rate.trials, 'window')}{there}"
    return f"Outside the {many(rate.trials, 'window')} that count (in a replay or a control)"


def _fuzzy_leak(judged: Verdict, run_e_value: float | None) -> Plain:
    known = judged.evidence
    tier = _strongest(known)
    if tier is None or known is None:
        found = f"{_places(judged)} answers held traces of other requests' content."
    else:
        found = (
            f"{_trace(tier).capitalize()} came up in answers: {tier.planted_hits} of "
            f"{tier.sources} that were sent, against {tier.phantom_hits} of {tier.phantoms} alike "
            f"that never were{_by_run(run_e_value)}."
        )
    return Plain(
        found=found,
        means="Treat it as a leak in altered form: no single answer proves it, all of them "
        + (
            "together do; read the findings to see what gets through."
            if listed(judged, "leak")
            else "together do, and whose content it was in any of them cannot be told."
        ),
    )


def _by_run(run_e_value: float | None) -> str:
    if run_e_value is None:
        return ""
    return (
        f"; a healthy target would show so much in at most 1 run in {odds(max(1.0, run_e_value))}"
    )


def _strongest(known: Evidence | None) -> TierEvidence | None:
    tiers = known.tiers if known is not None else ()
    return max(tiers, key=lambda tier: tier.weight * tier.e_value, default=None)


def _trace(tier: TierEvidence) -> str:
    return _TRACES.get(tier.name, "traces of other requests' content")


# --- corruption ----------------------------------------------------------------------------------


def _corruption(judged: Verdict) -> Plain:
    found = listed(judged, "corruption")
    kind = found[0].anomaly if found else ""
    same = [finding for finding in found if finding.anomaly == kind]
    sentences = {
        "lost-answer": _lost_answer,
        "changed-answer": _changed_answer,
        "foreign-parameters": _foreign_parameters,
        "diverted-answer": _diverted_answer,
        "broken-connection": _broken_connection,
    }.get(kind)
    if sentences is None:
        return Plain(
            found=f"Answers changed with their neighbours in some of "
            f"{many(judged.leak_rate.trials, 'window')}, and {_shown(judged)}.",
            means="Users get answers that depend on strangers: treat it as a broken isolation.",
        )
    return sentences(judged, same)


def _lost_answer(judged: Verdict, found: list[Finding]) -> Plain:
    seen = found[0].evidence
    again = times(seen, "lost_in_window", "replayed_in_window")
    alone = times(seen, "kept_alone", "replayed_alone")
    proof = f"; sent again, one kept it {alone} times alone" if alone else ""
    proof += f" and lost it {again} times in the same company" if alone and again else ""
    own = "its own ticket" if len(found) == 1 else "their own tickets"
    return Plain(
        found=f"{_answers(judged, found)} lost {own} in company{proof}.",
        means=f"{_so_far(judged)}, yet whose neighbour a user is decides the answer: look "
        "for requests that are mixed up in a batch or in the cache.",
    )


def _changed_answer(judged: Verdict, found: list[Finding]) -> Plain:
    return Plain(
        found="The same requests lost their own ticket in one company and kept it in another"
        f"{_so_often(found[0])}.",
        means=f"{_so_far(judged)}, yet what strangers send changes answers: compare the "
        "two conditions that the finding names, starting with the cache and the batch.",
    )


def _foreign_parameters(judged: Verdict, found: list[Finding]) -> Plain:
    mechanism = found[0].evidence.get("mechanism")
    if isinstance(mechanism, str):
        return Plain(
            found=f"{mechanism[:1].upper()}{mechanism[1:]}.",
            means=f"{_so_far(judged)}, yet how random a user's answers are is decided by a "
            "stranger who came before: look at where the target keeps its sampling settings.",
        )
    return Plain(
        found=f"Sampling parameters of one request (a limit, a stop string, a bias, a temperature) "
        f"shaped the answer to another{_so_often(found[0])}.",
        means=f"{_so_far(judged)}, yet users get answers cut or bent by strangers: look at "
        "where the target keeps the sampling settings of a batch, and at what the key of a cache "
        "of answers leaves out.",
    )


def _diverted_answer(judged: Verdict, found: list[Finding]) -> Plain:
    seen = found[0].evidence
    same = times(seen, "parted_again", "replayed")
    other = times(seen, "parted_in_other_company", "replayed_in_other_company")
    proof = f"; sent again, one changed so {same} times in that company" if same else ""
    proof += f" and {other} times in another" if same and other else ""
    return Plain(
        found=f"{_answers(judged, found)} changed with what was sent beside "
        f"{'it' if len(found) == 1 else 'them'}{proof}.",
        means=f"{_so_far(judged)} and rounding does not explain it: something of the "
        "neighbours reaches these answers, so look for rows or cache blocks that are mixed up.",
    )


def _broken_connection(judged: Verdict, found: list[Finding]) -> Plain:
    return Plain(
        found="Good requests were not served over connections that had carried a refused request "
        f"or one that waited to send its body{_so_often(found[0])}.",
        means=f"{_so_far(judged)}, yet the target loses track of where one request ends and the "
        "next begins, which is how replies reach strangers: have it read or drop what it refuses.",
    )


def _shown(judged: Verdict) -> str:
    """What is known of content in a verdict that is no leak."""
    part = showed_in_part([judged])
    return f"{part}, which may be chance" if part else "nobody's content was shown"


def _so_far(judged: Verdict) -> str:
    said = _shown(judged)
    return said[0].upper() + said[1:]


def _so_often(finding: Finding) -> str:
    """`, in 18 of 24 windows, which chance alone does in at most 1 of 5,000 tests`."""
    often = times(finding.evidence, "windows_up", "windows")
    if not often:
        return ""
    chance = finding.evidence.get("p")
    shown = f", in {often} windows"
    if isinstance(chance, float | int) and 0 <= chance <= CHANCE:
        shown += f", which chance alone does in at most 1 of {odds(1 / max(chance, 1e-300))} tests"
    return shown


def _answers(judged: Verdict, found: list[Finding]) -> str:
    """`3 of 1598 answers`, "at least" where the report lists only some."""
    more = judged.findings_total > len(judged.findings) and found[-1] is judged.findings[-1]
    number = f"{'At least ' if more else ''}{len(found)}"
    answered = exposed(judged, "answered")
    if (
        answered is None
        or not isinstance(answered.measured, Rate)
        or answered.measured.events < len(found)
    ):
        return f"{number} {'answer' if len(found) == 1 else 'answers'}"
    return f"{number} of {many(answered.measured.events, 'answer')}"


# --- clean, inconclusive, error ------------------------------------------------------------------


def _clean(judged: Verdict, run_e_value: float | None) -> Plain:
    seen = f"{none_of(judged.leak_rate.trials)} showed anybody else's content"
    rate = excluded(judged)
    if judged.bound is None:
        found = f"{seen}, and no owner was seen to repeat its own."
    elif rate is None:
        found = f"{seen}, too few to exclude leaks of any rate."
    else:
        found = (
            f"{seen}, so leaks in more than {rate} of windows are excluded with 95 % confidence."
        )
    return Plain(
        found=found,
        means=_suspicion(judged, run_e_value)
        or "A rarer leak could not have been seen, nor one that needs other traffic than this "
        "scenario sends.",
    )


def _suspicion(judged: Verdict, run_e_value: float | None) -> str | None:
    """Traces that would be evidence in this scenario alone, and are not over the whole run."""
    known = judged.evidence
    if known is None or known.e_value * known.alpha < 1:
        return None
    rare = (
        ""
        if run_e_value is None
        else f", as in 1 healthy run in {odds(max(1.0, run_e_value))} at most"
    )
    return (
        "Yet more traces of others' content came up than is usual, though over the whole run that "
        f"is no proof{rare}: play this scenario alone, with more windows, to settle it."
    )


def _inconclusive(judged: Verdict) -> Plain:
    unsent = sum(finding.anomaly == "withheld-passphrase" for finding in judged.findings)
    if unsent:
        return Plain(
            found=f"{many(unsent, 'answer')} showed passphrases that were never sent, so what "
            "this scenario found proves nothing.",
            means="This is not a pass: run again with a new seed, and if it comes back, look for "
            "what else talks to the target.",
        )
    if listed(judged, "leak"):
        return Plain(
            found=f"{_places(judged)} an answer held a phrase of another request, but phrases are "
            "too short to rule chance out.",
            means="This is neither a pass nor a proof: use longer passphrases and run again.",
        )
    if part := showed_in_part([judged]):
        return Plain(
            found=f"{part}, while none of the many alike that were never sent showed; chance does "
            "so in about 1 of 100 scenarios.",
            means="This is not a pass, and no proof of a leak: read what it was, and play this "
            "scenario again with another seed; if it comes back it is a leak.",
        )
    return Plain(found=_seen_so_far(judged), means=f"This is not a pass: {_missing(judged)}.")


def _seen_so_far(judged: Verdict) -> str:
    rate = judged.leak_rate
    if not rate.trials:
        return f"None of the {many(judged.windows_planned, 'planned window')} could be counted."
    seen = f"{none_of(rate.trials)} showed anybody else's content"
    if judged.bound is None:
        return f"{seen}, but a leak would hardly have shown."
    most = excluded(judged)
    if most is None:
        return f"{seen}, too few to exclude leaks of any rate."
    return f"{seen}, which excludes leaks in more than {most} of windows with 95 % confidence."


def _missing(judged: Verdict) -> str:
    """What it takes, in plain words: the first condition that fell short, then the windows."""
    short = [each for each in judged.exposure if each.enough is False and each.name != "windows"]
    parts = [_shortfall(short[0])] if short else []
    if len(short) > 1:
        parts[0] += f" ({len(short) - 1} more fell short)"
    more, known = windows_missing(judged), judged.evidence
    least = exposed(judged, "windows")
    if more and known is not None:
        parts.append(
            f"about {many(more, 'more window')} without a leak would exclude leaks in more than "
            f"{setting(known.detect)} of them"
        )
    elif least is not None and least.enough is False and isinstance(least.measured, float | int):
        needed = many(int(least.minimum or 0), "window")
        parts.append(f"only {least.measured:g} of the {needed} it needs count")
    return ", and ".join(parts) or "the reasons say what was not tested"


def _shortfall(short: Exposure) -> str:
    rate = short.measured
    if short.name == "generating":
        return "the target seems to serve one request at a time, by when its answers came"
    if isinstance(rate, Rate) and too_few_to_tell(short):
        return _few(short.name, rate)
    if not isinstance(rate, Rate):
        return {
            "cache hits": "the target does not say what it had cached",
            "running": "by its own count the target ran one request at a time, whatever was sent "
            "at once",
        }.get(short.name, "a condition that was to be tested did not occur")
    if not rate.trials:
        return "no request of the kind that it tests was answered"
    answers, requests = (
        f"{rate.events} of {many(rate.trials, what)}" for what in ("answer", "request")
    )
    words = {
        "answered": f"only {requests} were answered",
        "echo": f"only {answers} repeated their own passphrase, so another's might not show",
        "tickets": f"only {answers} kept their own ticket, so a lost one says little",
        "overlap": f"only {answers} were made while another request ran",
        "cache hits": f"only {requests} that should have met a warm cache did",
    }
    return words.get(
        short.name,
        f"a condition that was to be tested occurred {rate.events} of {rate.trials} times",
    )


def _few(name: str, rate: Rate) -> str:
    """Of a rate that would be enough if it were known better."""
    few = f"{many(rate.trials, 'case')} {'is' if rate.trials == 1 else 'are'} too few to tell"
    what = {
        "echo": "how many answers repeat their own passphrase",
        "tickets": "how many answers keep their own ticket",
    }
    return f"{few} {what.get(name, 'how often what was to be tested occurs')}"


def _error(judged: Verdict) -> Plain:
    lost = next((f for f in listed(judged, "error") if f.anomaly == "lost-capacity"), None)
    empty = times(lost.evidence, "empty_at_end", "end") if lost else ""
    if lost:
        often = f": of the last windows {empty} had no answer at all" if empty else ""
        return Plain(
            found=f"The target lost the capacity to serve{often}.",
            means="Isolation was not judged: find what it runs out of (slots, cache blocks, "
            "memory), because ended requests must give back what they held.",
        )
    answered = exposed(judged, "answered")
    found = "The target or leakcheck failed, so isolation was not judged."
    if answered is not None and isinstance(answered.measured, Rate) and answered.measured.trials:
        rate = answered.measured
        found = (
            f"None of {many(rate.trials, 'request')} was answered, so isolation was not judged."
            if not rate.events
            else f"Something failed after {rate.events} of {many(rate.trials, 'request')} were "
            "answered, so isolation was not judged."
        )
    return Plain(
        found=found,
        means="Nothing follows for or against leaks: mend what the reason names, then go on with "
        "leakcheck run --resume DIR.",
    )
