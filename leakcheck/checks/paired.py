"""The same request must not lose its ticket under one of two conditions only.

Twins carry the very same payload in two cells of the traffic: alone and in company, cold and warm,
before and after. A window goes *up* when some twin keeps its ticket under the reference and loses
it under the treated condition, *down* the other way round, and cancels when both happen. If the
condition does not matter, up is as likely as down, however weak the model: a noisy target loses
tickets under both. More ups than an exact sign test lets pass, with the window as the unit, is a
`changed-answer`.

What the test cannot tell from a fault is a treated condition that is noisier by its nature: a
batch of another size rounds differently, and near-ties flip. Three things stand against that. A
lost ticket is none of whose first half is there, which rounding hardly does to a model that copies.
Up must be likelier than down by more than `least_difference` (of the windows), at the same level.
And the reference should be the nearest honest one: neutral company to see what the content of
company does, alone only to see what any company does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from leakcheck import evidence
from leakcheck.checks import excerpt, own_answer, who
from leakcheck.errors import UsageError
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding

CHECK = "paired"
TITLE = "The same request under two conditions"
COLUMNS = ("reference", "treated", "windows", "only treated lost", "only reference lost", "p")
ALPHA = 0.001
LEAST_DIFFERENCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One payload under both conditions, both answered: ids, and whether each was kept."""

    window: int
    reference: str
    treated: str
    reference_kept: bool
    treated_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Windows by direction. `first` is the first pair that went up."""

    windows: int
    ups: int
    downs: int
    first: Pair | None

    @property
    def p(self) -> float:
        """Of the exact one-sided sign test."""
        return evidence.sign_one_sided(self.ups, self.downs)

    def confirmed(self, alpha: float, least_difference: float) -> bool:
        """Whether there are more ups than chance makes where either way is as likely, and also more
        than it makes where ups are more likely by `least_difference`, downs as often as seen.
        """
        if self.p > alpha:
            return False
        usual = (self.downs + 1) / (self.windows + 1)  # a window more than seen: never quite zero
        return evidence.at_least(self.ups, self.windows, usual + least_difference) <= alpha


def check(
    history: History,
    *,
    reference: str | list[str] = "alone",
    treated: str | list[str] = "planted",
    alpha: float = ALPHA,
    least_difference: float = LEAST_DIFFERENCE,
) -> CheckResult:
    """Compare twins in the cell `reference` with those in the cell `treated`; lists of equal length
    make several comparisons, which share `alpha`. Raises UsageError for lists that do not match.
    """
    names = _conditions(reference, treated)
    states = own_answer.ticket_states(history)
    signs = [count(pairs(history, states, *each)) for each in names]
    found = [
        _finding(history, each, its, alpha / len(names), least_difference)
        for each, its in zip(names, signs, strict=True)
    ]
    rows = [
        (*each, its.windows, its.ups, its.downs, float(f"{its.p:.3g}"))
        for each, its in zip(names, signs, strict=True)
    ]
    return CheckResult(
        check=CHECK,
        findings=tuple(finding for finding in found if finding is not None),
        notes=tuple(
            _note(*each) for each, its in zip(names, signs, strict=True) if not its.windows
        ),
        tables={TITLE: (COLUMNS, *rows)},
    )


def pairs(history: History, states: pd.DataFrame, reference: str, treated: str) -> list[Pair]:
    """Twins of one window that were both answered and whose ticket was kept or lost.

    `states` are `own_answer.ticket_states`. Where a ticket came in part, or another's came, nothing
    is compared: the one is the model's slip, the other a leak that is reported as such.
    """
    first = states[~states["replay"] & (states["own"] | states["lost"])]
    kept: dict[str, dict[tuple[int, str], list[tuple[str, bool]]]] = {reference: {}, treated: {}}
    rows: list[Any] = list(first[first["cell"].isin(kept)].itertuples())
    for row in rows:
        key = int(row.window), history.by_id(row.id).twin or str(row.id)
        kept[row.cell].setdefault(key, []).append((str(row.id), bool(row.own)))
    return [
        Pair(
            window=key[0],
            reference=reference_id,
            treated=treated_id,
            reference_kept=reference_kept,
            treated_kept=treated_kept,
        )
        for key, treated_ones in kept[treated].items()
        for treated_id, treated_kept in treated_ones
        for reference_id, reference_kept in kept[reference].get(key, ())
    ]


def count(compared: Iterable[Pair]) -> Signs:
    """The windows of these pairs by direction."""
    directions: dict[int, set[int]] = {}
    first: Pair | None = None
    for pair in compared:
        direction = pair.reference_kept - pair.treated_kept
        directions.setdefault(pair.window, set()).add(direction)
        if first is None and direction == 1:
            first = pair
    ups = sum(1 in seen and -1 not in seen for seen in directions.values())
    downs = sum(-1 in seen and 1 not in seen for seen in directions.values())
    return Signs(windows=len(directions), ups=ups, downs=downs, first=first)


def _conditions(reference: str | list[str], treated: str | list[str]) -> list[tuple[str, str]]:
    left: Sequence[str] = [reference] if isinstance(reference, str) else reference
    right: Sequence[str] = [treated] if isinstance(treated, str) else treated
    if len(left) != len(right) or not left:
        raise UsageError(
            f"checks.{CHECK}: reference has {len(left)} names and treated {len(right)}; "
            "each reference needs the condition it is compared with"
        )
    return list(zip(left, right, strict=True))


def _note(reference: str, treated: str) -> str:
    return f"no request was answered both {reference!r} and {treated!r}: nothing was compared"


def _finding(
    history: History,
    names: tuple[str, str],
    signs: Signs,
    alpha: float,
    least_difference: float,
) -> Finding | None:
    """The finding of one comparison, a note until it is confirmed; None where nothing went up."""
    if signs.first is None:
        return None
    confirmed = signs.confirmed(alpha, least_difference)
    reference, treated = names
    request = history.by_id(signs.first.treated)
    verdict = "" if confirmed else "; too little to tell it from noise"
    return Finding(
        check=CHECK,
        anomaly="changed-answer",
        severity="corruption" if confirmed else "note",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        excerpt=excerpt(history.text(request.id), 0, 0)[0],
        explanation=(
            f"{who(request, window=True)} lost its ticket {treated!r}, and the same request "
            f"{signs.first.reference} kept it {reference!r}: so in {signs.ups} of {signs.windows} "
            f"windows, and the other way round in {signs.downs} (exact sign test, one-sided: "
            f"p = {signs.p:.2g}){verdict}."
        ),
        evidence={
            "reference": signs.first.reference,
            "reference_cell": reference,
            "treated_cell": treated,
            "windows_up": signs.ups,
            "windows_down": signs.downs,
            "windows": signs.windows,
            "p": signs.p,
            "alpha": alpha,
            "least_difference": least_difference,
        },
    )
