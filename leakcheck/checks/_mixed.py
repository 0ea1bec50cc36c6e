"""The sends of each recipient of `traffic.mixed_batch`, compared: how a target repeats itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from leakcheck import evidence
from leakcheck.checks._trajectories import Comparison, compare, tokens
from leakcheck.history import History
from leakcheck.traffic.mixed_batch import (
    ALONE,
    ALONE_AGAIN,
    COMPANIES,
    NEUTRAL,
    OTHER_NEUTRAL,
)

ENOUGH = 100
"""Windows with a neutral comparison, and without a difference in any, for grade D0."""
LEAST_NULLS = 100
"""Comparisons without passphrases that a threshold takes; with fewer nobody is suspected."""
CEILING = 4.0
"""Nats to which differences in neutral company can raise the threshold: a fault that strikes
neutral companies too must not hide behind its own damage. One token is 55 times as likely there."""
_POSITIONS = 4000
"""So many positions are enough to see the lattice of the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One recipient of one window. `sent`: cell to the id of the request, of those answered;
    `compared`: cell to that answer against the one alone. `neutrals`: its answers in the two
    neutral companies against each other.
    """

    window: int
    free: bool
    sent: Mapping[str, str]
    compared: Mapping[str, Comparison]
    neutrals: Comparison | None

    @property
    def null(self) -> list[Comparison]:
        """What no passphrase can have changed: alone again, and in neutral company."""
        cells = (ALONE_AGAIN, NEUTRAL, OTHER_NEUTRAL)
        found = [self.compared[cell] for cell in cells if cell in self.compared]
        return found if self.neutrals is None else [*found, self.neutrals]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many of `compared` answers `diverged`."""

    diverged: int
    compared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How far the target repeats itself: D0 alone and in neutral company, D1 alone only, D2 not
    even alone. None: in company too, as far as it was tried, which is too little for D0. `windows`
    with a neutral comparison are the unit: answers of one batch are not independent.
    """

    name: str | None
    alone: Count
    neutral: Count
    windows: int

    @property
    def exact(self) -> bool:
        """Whether every difference is suspected."""
        return self.name == "D0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """What no rounding explains. `tau` in nats; `quantum` that of the target's logits, `null_gap`
    the largest gap of `Trial.null`, None where there is none, `nulls` how many were compared.
    `exact`: any difference is beyond.
    """

    tau: float
    quantum: float | None
    null_gap: float | None
    exact: bool
    nulls: int = LEAST_NULLS

    @property
    def known(self) -> bool:
        """Whether the noise was seen often enough for the threshold to mean anything."""
        return self.nulls >= LEAST_NULLS

    @property
    def quiet(self) -> bool:
        """Whether the threshold clears the noise, and was not cut at its ceiling."""
        return self.null_gap is None or self.null_gap <= CEILING / 3

    def clears(self, comparison: Comparison) -> bool:
        """Whether the gap of a difference is known and above the threshold."""
        return comparison.gap is not None and comparison.gap > self.tau

    def beyond(self, comparison: Comparison) -> bool:
        """Whether a difference is to be suspected; not where its gap is unknown, unless all are."""
        return self.exact or self.clears(comparison)


def trials(history: History) -> list[Trial]:
    """Every recipient that was answered alone and somewhere else, in the order of the plan."""
    requests = history.requests
    first = requests[
        requests["replays"].isna()
        & (requests["role"] == "recipient")
        & requests["cell"].isin((ALONE, ALONE_AGAIN, *COMPANIES))
        & (requests["outcome"] == "ok")
    ]
    sends: dict[str, dict[str, str]] = {}
    for row in first[["id", "cell", "twin"]].itertuples(index=False):
        of = row.id if row.cell == ALONE else row.twin
        sends.setdefault(str(of), {})[str(row.cell)] = str(row.id)
    found = [_trial(history, sent) for sent in sends.values() if ALONE in sent]
    return [each for each in found if each.compared]


def _trial(history: History, sent: Mapping[str, str]) -> Trial:
    answers = {cell: seen for cell, name in sent.items() if (seen := history.answer(name))}
    reference = answers[ALONE]
    request = history.by_id(sent[ALONE])
    pair = [answers[cell] for cell in (NEUTRAL, OTHER_NEUTRAL) if cell in answers]
    return Trial(
        window=request.window,
        free=request.ask == "free",
        sent=sent,
        compared={
            cell: compare(reference, seen) for cell, seen in answers.items() if cell != ALONE
        },
        neutrals=compare(*pair) if len(pair) == 2 else None,  # noqa: PLR2004 - a pair
    )


def pools(of: Iterable[Trial]) -> Iterator[tuple[str, list[Comparison]]]:
    """What is compared with what, in words, and the comparisons."""
    found = list(of)
    for cell in (ALONE_AGAIN, *COMPANIES):
        yield f"{cell} / alone", [t.compared[cell] for t in found if cell in t.compared]
    between = [t.neutrals for t in found if t.neutrals is not None]
    yield f"{OTHER_NEUTRAL} / {NEUTRAL}", between


def grade(of: Sequence[Trial]) -> Grade:
    """The grade of a target, from these trials."""
    alone = _count(each.compared.get(ALONE_AGAIN) for each in of)
    neutral = _count(each.compared.get(cell) for each in of for cell in (NEUTRAL, OTHER_NEUTRAL))
    windows = {t.window for t in of if not t.compared.keys().isdisjoint((NEUTRAL, OTHER_NEUTRAL))}
    name = None
    if alone.diverged:
        name = "D2"
    elif neutral.diverged:
        name = "D1"
    elif len(windows) >= ENOUGH:
        name = "D0"
    return Grade(name=name, alone=alone, neutral=neutral, windows=len(windows))


def _count(comparisons: Iterable[Comparison | None]) -> Count:
    found = [each for each in comparisons if each is not None]
    return Count(diverged=sum(each.at is not None for each in found), compared=len(found))


def threshold(history: History, of: Sequence[Trial]) -> Threshold:
    """The rule: tau = max(8 quanta, 3 x the largest null gap, the floor of the type), the second of
    them no higher than `CEILING`.
    """
    quantum = evidence.quantum(_lattice(history, of))
    gaps = [c.gap for each in of for c in each.null if c.at is not None and c.gap is not None]
    largest = max(gaps, default=None)
    usable = None if largest is None else min(largest, CEILING / 3)
    tau = evidence.gap_threshold(quantum, usable, evidence.floor_of(quantum))
    exact = grade(of).exact
    nulls = sum(len(each.null) for each in of)
    return Threshold(tau=tau, quantum=quantum, null_gap=largest, exact=exact, nulls=nulls)


def _lattice(history: History, of: Sequence[Trial]) -> list[list[float]]:
    positions: list[list[float]] = []
    for each in of:
        seen = history.answer(each.sent[ALONE])
        if seen is not None and len(positions) < _POSITIONS:
            positions += [[logprob for _, logprob in token.top] for token in tokens(seen)]
    return positions
