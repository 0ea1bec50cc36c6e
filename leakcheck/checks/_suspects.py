"""Differences beyond the noise, and what replays say of them.

A fault strikes neutral companies as well as planted ones. What tells it from rounding is that
answers follow *which company it is*: in the same one they part in the same way again, or show words
of these companions (whose, the order of arrival decides), and in another one they do not. Honest
rounding can do that too: two companies never have one shape to the token, and where a near-tie is
decided by their tokens, by expert capacity or by the scale of a tensor, it falls the same way each
time in one of them. So recurring is not enough. The margin of the answer has to be wide: by its
gap, above the threshold, or else at temperature 1, where the request alone must stay with its
answer. Where even gaps without passphrases are wide, only words of the companions count in planted
company. What is counted is the replayed phase: its answers share a batch and are not independent.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from leakcheck import evidence
from leakcheck.checks._mixed import Threshold, Trial
from leakcheck.checks._trajectories import Comparison, compare, content
from leakcheck.history import History
from leakcheck.traffic.mixed_batch import (
    ALONE,
    ALONE_AGAIN,
    NEUTRAL,
    OTHER_NEUTRAL,
    PLANTED,
)

SAME, OTHER, MARGIN = "replay same company", "replay other company", "replay margin"
"""Cells of the replays: of the phase in which it parted, of one with other companions, and alone at
temperature 1."""
MOST_SUSPECTS = 4
"""So many are replayed, each of another window: those in planted company and of wide gaps first."""
FIRST, ENOUGH, MOST = 4, 10, 20
"""Replays of each kind after the first, second and last step."""
MARGINS = 24
MOST_OTHERWISE = 1
"""Replays at temperature 1, and how many of them may leave the reference where the suspect did."""
ALPHA = 0.01
"""Of a run of a scenario that an honest target is accused: all suspects and both looks share it."""
_WORD = re.compile(r"[^\W\d_]{4,}")
_LOOKS = 2
_PROMISING = 3
Way = tuple[str, int, str]
_SWAPS = {PLANTED: (NEUTRAL, OTHER_NEUTRAL), NEUTRAL: (OTHER_NEUTRAL, PLANTED),
          OTHER_NEUTRAL: (NEUTRAL, PLANTED)}  # fmt: skip
"""The companies that each may be exchanged for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A request that parts from `reference`, the same alone, by more than noise explains; `swapped`
    is the same request in the company `other`, which did not make it part in this way. `clear`: its
    gap is known and above the threshold. `ways`: how it parted, and how others of its phase did
    whose gaps are clear too, by their references.
    """

    window: int
    request: str
    reference: str
    swapped: str
    company: str
    other: str
    comparison: Comparison
    clear: bool
    ways: Mapping[str, Way] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Answered replays of the phase of a suspect, and in how many of them an answer parts in its
    way again or shows words of its companions: in the same company, in the other one. And alone at
    temperature 1: those that came as far as the suspect went, and left the reference there too.
    `planned` are those of the same company, answered or not, `margins` those hot.
    """

    planned: int
    same: int
    same_again: int
    other: int
    other_again: int
    margins: int
    hot: int
    hot_otherwise: int

    @property
    def p(self) -> float:
        """Of Fisher's exact test, one-sided."""
        return evidence.fisher_one_sided(self.same_again, self.same, self.other_again, self.other)

    def recurs(self, level: float) -> bool:
        """Whether it parts in this way again in the same company, and not so in the other."""
        return min(self.same, self.other) >= ENOUGH and self.p <= level

    @property
    def wide(self) -> bool:
        """Whether no near-tie shows at temperature 1."""
        return self.hot - self.hot_otherwise >= MARGINS - MOST_OTHERWISE


def suspects(of: Iterable[Trial], rule: Threshold) -> list[Suspect]:
    """Whom replays shall confirm: at most `MOST_SUSPECTS`, one of a window. Nobody before the noise
    is known.
    """
    if not rule.known:
        return []
    found = sorted(beyond(of, rule), key=_weight)
    chosen = itertools.islice(_one_a_window(found, in_turn=not rule.quiet), MOST_SUSPECTS)
    return [replace(each, ways=_ways(each, found, rule)) for each in chosen]


def _ways(suspect: Suspect, found: Sequence[Suspect], rule: Threshold) -> dict[str, Way]:
    """Where the noise is wide, none in planted company. Of the others of a phase the clear ones:
    replays at temperature 1 show the margin of the suspect alone.
    """
    if suspect.company == PLANTED and not rule.quiet:
        return {}
    where = suspect.window, suspect.company
    return {
        each.reference: way
        for each in found
        if (each.window, each.company) == where
        and (each.clear or each.request == suspect.request)
        and (way := each.comparison.way) is not None
    }


def _one_a_window(found: Sequence[Suspect], *, in_turn: bool) -> Iterator[Suspect]:
    """The first of each window, or in turn one in planted and one in neutral company: where the
    noise is wide their signs differ.
    """
    planted = [each for each in found if each.company == PLANTED]
    others = [each for each in found if each.company != PLANTED]
    queues = [planted, others] if in_turn else [found]
    used: set[int] = set()
    for queue in itertools.cycle(queues):
        each = next((each for each in queue if each.window not in used), None)
        if each is not None:
            used.add(each.window)
            yield each
        elif all(each.window in used for each in found):
            return


def beyond(of: Iterable[Trial], rule: Threshold) -> Iterator[Suspect]:
    """Every difference in company that noise does not explain and that no other company shares."""
    for trial in of:
        for company, swaps in _SWAPS.items():
            seen = trial.compared.get(company)
            if seen is None or seen.at is None or not _telling(trial, company, rule):
                continue
            others = {cell: trial.compared[cell] for cell in swaps if cell in trial.compared}
            if not others or any(each.way == seen.way for each in others.values()):
                continue
            other = next(iter(others))
            yield Suspect(
                window=trial.window,
                request=trial.sent[company],
                reference=trial.sent[ALONE],
                swapped=trial.sent[other],
                company=company,
                other=other,
                comparison=seen,
                clear=rule.clears(seen),
            )


def _telling(trial: Trial, company: str, rule: Threshold) -> bool:
    """Whether a difference is beyond the noise; where its gap is unknown, whether the recipient is
    of those with wide margins and was answered as alone everywhere else.
    """
    seen = trial.compared[company]
    if rule.beyond(seen) or seen.gap is not None:
        return rule.beyond(seen)
    rest = [each for cell, each in trial.compared.items() if cell != company]
    return not trial.free and ALONE_AGAIN in trial.compared and all(e.at is None for e in rest)


def _weight(suspect: Suspect) -> tuple[bool, bool, float, int]:
    gap = suspect.comparison.gap
    return suspect.company != PLANTED, gap is None, -(gap or 0.0), suspect.window


def level(accused: Sequence[Suspect]) -> float:
    """The p-value that confirms one of them."""
    return ALPHA / (_LOOKS * max(1, len(accused)))


def confirmed(suspect: Suspect, of: Replays, at: float) -> bool:
    """Whether a suspect is confirmed at this level: by its company, and by a gap that is above the
    threshold or that the replays at temperature 1 show to be wide.
    """
    return of.recurs(at) and (suspect.clear or of.wide)


def more(suspect: Suspect, of: Replays, at: float) -> tuple[range, range]:
    """Numbers of the next replays in company (of each kind), and of those at temperature 1.

    Few first; more only where the suspicion gets stronger, which cannot make it look stronger.
    """
    none = range(0)
    ahead = of.same_again - of.other_again
    if of.planned == 0:
        return range(1, FIRST + 1), none
    if of.planned < ENOUGH:
        return (range(of.planned + 1, ENOUGH + 1), none) if ahead > 0 else (none, none)
    if of.recurs(at):
        wanted = not suspect.clear and not of.margins
        return none, range(1, MARGINS + 1) if wanted else none
    if of.planned < MOST and ahead >= _PROMISING:
        return range(of.planned + 1, MOST + 1), none
    return none, none


def replays(history: History, suspect: Suspect) -> Replays:
    """How the replays of a suspect ended so far."""
    requests = history.requests
    sent = requests[requests["cell"].isin((SAME, OTHER)) & (requests["role"] == "recipient")]
    mine = [history.by_id(str(each)).window == suspect.window for each in sent["replays"]]
    phases = sent[np.array(mine, bool)].groupby(["cell", "window"])
    words = _words_of(history, suspect)
    seen: dict[str, list[bool | None]] = {SAME: [], OTHER: []}
    for (cell, _), rows in phases:
        seen[str(cell)].append(_again(history, suspect, words, [str(each) for each in rows["id"]]))
    margins = requests[(requests["replays"] == suspect.request) & (requests["cell"] == MARGIN)]
    hot = _hot(history, suspect, [str(name) for name in margins["id"]])
    same, other = ([each for each in seen[cell] if each is not None] for cell in (SAME, OTHER))
    return Replays(
        planned=len(seen[SAME]),
        same=len(same),
        same_again=sum(same),
        other=len(other),
        other_again=sum(other),
        margins=len(margins),
        hot=len(hot),
        hot_otherwise=sum(hot),
    )


def _again(
    history: History, suspect: Suspect, words: frozenset[str], names: Sequence[str]
) -> bool | None:
    """Whether an answer of a replayed phase parts from the same alone as it did before, or shows
    words of the suspect's companions; None where nobody was answered.
    """
    found = []
    for name in names:
        request, seen = history.by_id(name), history.answer(name)
        reference = history.by_id(request.replays or "").twin or ""
        alone = history.answer(reference)
        if seen is None or alone is None or seen.outcome != "ok" or alone.outcome != "ok":
            continue
        way = compare(alone, seen).way
        shown = _words(content(seen)) - _words(content(alone))
        found.append(way is not None and (way == suspect.ways.get(reference) or shown & words))
    return any(found) if found else None


def _words_of(history: History, suspect: Suspect) -> frozenset[str]:
    """Words that only the companions of the suspect were sent: neither those of the other company,
    nor anybody who is compared.
    """
    first, swapped = history.by_id(suspect.request), history.by_id(suspect.swapped)
    requests = history.requests
    window = requests[requests["window"] == suspect.window]
    mine, others = set[str](), set[str]()
    for row in window[["id", "role", "phase"]].itertuples(index=False):
        said = _words(" ".join(m.content for m in history.by_id(str(row.id)).messages))
        if row.role == "recipient" or row.phase == swapped.phase:
            others |= said
        elif row.phase == first.phase:
            mine |= said
    return frozenset(mine - others)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _hot(history: History, suspect: Suspect, names: Sequence[str]) -> list[bool]:
    """Of the answers at temperature 1 that are the reference up to where the suspect left it:
    whether each leaves it there too. One that ends there, where the reference goes on, does. By
    characters: two tokens may begin alike. None where the two answers are one text.
    """
    reference, parted = history.answer(suspect.reference), history.answer(suspect.request)
    answers = [a for name in names if (a := history.answer(name)) is not None]
    if reference is None or parted is None or content(reference) == content(parted):
        return []
    text, other = content(reference), content(parted)
    pairs = enumerate(zip(text, other, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(text), len(other)))
    texts = [content(answer) for answer in answers if answer.outcome == "ok"]
    return [said[at : at + 1] != text[at : at + 1] for said in texts if said[:at] == text[:at]]
