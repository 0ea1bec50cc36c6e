"""The same request must not lose its ticket under one of two conditions only.

Twins carry the very same payload in two cells of the traffic: in neutral company and among planted
requests, cold and warm, before and after. A window goes *up* when some twin keeps its ticket under
the reference and loses it under the treated condition, *down* the other way round, and cancels when
both happen. If the condition does not matter, up is as likely as down, however weak the model: a
noisy target loses tickets under both. More ups than an exact sign test lets pass, with the window
as the unit, is a `changed-answer`.

A treated condition may be noisier by its nature. Three things stand against taking that for a
fault. A lost ticket is none of whose first half is there, which rounding hardly does to a model
that copies. Up must be likelier than down by more than `least_difference` of the answers. That
margin is tested with the downs as they were seen, so its size is not exact: at its very edge a run
is accused in up to 3.5 of 1000 at the nominal 1. And a comparison of requests sent alone with
requests in company is never more than a note: it compares sizes of batch, and replicas that only
serve the overflow, as much as what is in the company. The plan says which comparisons those are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
LEAST_DIFFERENCE = 0.025
"""Of the answers. Two pairs a window make it 4.9 % of the windows, six make it 14 %."""


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
    """Windows by direction, and the `pairs` in them. `first` is the first pair that went up."""

    windows: int
    pairs: int
    ups: int
    downs: int
    first: Pair | None

    @property
    def p(self) -> float:
        """Of the exact one-sided sign test."""
        return evidence.sign_one_sided(self.ups, self.downs)

    def margin(self, least_difference: float) -> float:
        """The share of windows that go up where every pair goes up in `least_difference`."""
        stays: float = (1 - least_difference) ** (self.pairs / max(1, self.windows))
        return 1 - stays

    def confirmed(self, alpha: float, least_difference: float) -> bool:
        """Whether there are more ups than chance makes where either way is as likely, and also more
        than it makes where ups are more likely by the margin, and downs as often as seen.
        """
        if self.p > alpha:
            return False
        usual = (self.downs + 1) / (self.windows + 1)  # a window more than seen: never quite zero
        usual += self.margin(least_difference)
        return evidence.at_least(self.ups, self.windows, usual) <= alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Twins of two cells. `content`: by plan the twins of both are alone, or both in company."""

    reference: str
    treated: str
    signs: Signs
    content: bool


def check(
    history: History,
    *,
    reference: str | list[str] = "neutral",
    treated: str | list[str] = "planted",
    alpha: float = ALPHA,
    least_difference: float = LEAST_DIFFERENCE,
) -> CheckResult:
    """Compare twins in the cell `reference` with those in the cell `treated`; lists of equal length
    make several comparisons, and those that may accuse share `alpha`. `least_difference` is a share
    of answers. Raises UsageError for lists that do not match.
    """
    states = own_answer.ticket_states(history)
    company = _company(history)
    compared = [
        _compared(names, pairs(history, states, *names), company)
        for names in _conditions(reference, treated)
    ]
    level = alpha / max(1, sum(each.content for each in compared))
    found = [_finding(history, each, level, least_difference) for each in compared]
    rows = [
        (
            each.reference,
            each.treated,
            each.signs.windows,
            each.signs.ups,
            each.signs.downs,
            float(f"{each.signs.p:.3g}"),
        )
        for each in compared
    ]
    return CheckResult(
        check=CHECK,
        findings=tuple(finding for finding in found if finding is not None),
        notes=tuple(
            _note(each.reference, each.treated) for each in compared if not each.signs.windows
        ),
        tables={TITLE: (COLUMNS, *rows)},
    )


def _company(history: History) -> dict[str, bool]:
    """Whether a request shares its phase with others, by plan."""
    requests = history.requests[history.requests["replays"].isna()]
    size = requests.groupby(["scenario", "window", "phase"])["id"].transform("size")
    return dict(zip(requests["id"], size > 1, strict=True))


def _compared(
    names: tuple[str, str], found: Sequence[Pair], company: Mapping[str, bool]
) -> _Comparison:
    return _Comparison(
        reference=names[0],
        treated=names[1],
        signs=count(found),
        content=all(company[pair.reference] == company[pair.treated] for pair in found),
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


def count(compared: Sequence[Pair]) -> Signs:
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
    return Signs(windows=len(directions), pairs=len(compared), ups=ups, downs=downs, first=first)


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
    history: History, compared: _Comparison, alpha: float, least_difference: float
) -> Finding | None:
    """The finding of one comparison, a note until it is confirmed; None where nothing went up."""
    signs = compared.signs
    if signs.first is None:
        return None
    confirmed = compared.content and signs.confirmed(alpha, least_difference)
    request = history.by_id(signs.first.treated)
    verdict = "" if confirmed else "; too little to tell it from noise"
    if not compared.content:
        verdict = "; answers lose tickets in company, which may be numerics or unlike replicas"
    return Finding(
        check=CHECK,
        anomaly="changed-answer",
        severity="corruption" if confirmed else "note",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        excerpt=excerpt(history.text(request.id), 0, 0)[0],
        explanation=(
            f"{who(request, window=True)} lost its ticket {compared.treated!r}, and the same "
            f"request {signs.first.reference} kept it {compared.reference!r}: so in {signs.ups} of "
            f"{signs.windows} windows, and the other way round in {signs.downs} (exact sign test, "
            f"one-sided: p = {signs.p:.2g}){verdict}."
        ),
        evidence={
            "reference": signs.first.reference,
            "reference_cell": compared.reference,
            "treated_cell": compared.treated,
            "equal_company": compared.content,
            "windows_up": signs.ups,
            "windows_down": signs.downs,
            "windows": signs.windows,
            "pairs": signs.pairs,
            "p": signs.p,
            "alpha": alpha,
            "least_difference": least_difference,
        },
    )
