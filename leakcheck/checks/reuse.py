"""What a connection carried before must not decide whether the next request on it is served.

A request that follows a refused one, or one with `Expect`, over the same connection is as good as
any other. Where such requests are refused, answered with what is no HTTP, or left without a reply,
in more windows than plain ones over connections used as often, the target took what was left of
the one for the beginning of the other: `broken-connection`. The test is an exact sign test with the
window as the unit, at `alpha` shared by the conditions.

A connection that was cut before anything of a reply came says nothing: a server may close one at
any time. Nor do 401, 403, 408, 429 and 503 with a time to come back, which a target may say to
whoever sent a wrong address before. Cut ones are counted, and no more than that. Whose reply it is
that came is for the other checks to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakcheck import evidence
from leakcheck.backends import CUT
from leakcheck.checks import excerpt, who
from leakcheck.history import History, boundaries
from leakcheck.records import CheckResult, Finding, Observation
from leakcheck.traffic.connections import (
    AFTER_EXPECT,
    AFTER_MISDIRECTED,
    EXPECT,
    MISDIRECTED,
    REUSED,
)

CHECK = "reuse"
TITLE = "Requests over a used connection"
COLUMNS = ("cell", "same connection", "answered", "refused or hung", "cut", "windows up", "p")
ALPHA = 0.001
CONDITIONS = {AFTER_MISDIRECTED: MISDIRECTED, AFTER_EXPECT: EXPECT}
_NEUTRAL = frozenset({401, 403, 408, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """One request over a connection that others had used: how it ended, and the id of the one
    before it.
    """

    id: str
    window: int
    cell: str
    end: str
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signs:
    ups: int
    downs: int
    windows: int
    first: Followed | None

    @property
    def p(self) -> float:
        """Of the exact one-sided sign test."""
        return evidence.sign_one_sided(self.ups, self.downs)


def check(history: History, *, alpha: float = ALPHA) -> CheckResult:
    """Compare those that follow something with those that follow plain requests."""
    found = followers(history)
    by_cell = {
        cell: [each for each in found if each.cell == cell] for cell in (REUSED, *CONDITIONS)
    }
    signs = {cell: _signs(by_cell[REUSED], by_cell[cell]) for cell in CONDITIONS}
    level = alpha / len(CONDITIONS)
    findings = [
        _finding(history, cell, its, level) for cell, its in signs.items() if its.first is not None
    ]
    untested = () if any(by_cell[cell] for cell in CONDITIONS) else (_untested(history),)
    return CheckResult(
        check=CHECK,
        findings=tuple(findings),
        notes=tuple(_closed(cell) for cell in CONDITIONS if not by_cell[cell]),
        untested=untested,
        tables={TITLE: (COLUMNS, *(_row(cell, by_cell[cell], signs) for cell in by_cell))},
    )


def followers(history: History) -> list[Followed]:
    """Requests of the three cells that came over the connection of the request before them on their
    lane; those whose reply did not begin came over it as far as the lane knew.
    """
    requests, attempts = history.requests, history.observations
    over = attempts.loc[attempts["observed"], "request_id"]  # of others nobody knows how they ended
    mine = requests[requests["replays"].isna() & requests["id"].isin(over)]
    chains: dict[tuple[int, int], list[tuple[Observation, Any]]] = {}
    rows: list[Any] = list(mine.itertuples())
    for row in rows:
        seen = history.answer(row.id)
        if seen is not None:
            chains.setdefault((seen.worker, seen.lane), []).append((seen, row))
    found = []
    for chain in chains.values():
        chain.sort(key=lambda pair: pair[0].start_ns)
        for (before, first), (seen, row) in itertools.pairwise(chain):
            known = boundaries.connection(before)
            reused = known is not None and boundaries.connection(seen) in {None, known}
            follows = row.cell == REUSED or CONDITIONS.get(row.cell) == first.cell
            if follows and reused and first.window == row.window:
                found.append(
                    Followed(
                        id=str(row.id),
                        window=int(row.window),
                        cell=str(row.cell),
                        end=_end(seen),
                        before=str(first.id),
                    )
                )
    return found


def _end(seen: Observation) -> str:
    """`answered`, `broken` (refused, garbled or hung), `cut`, or `neutral`."""
    if seen.outcome == "ok":
        return "answered"
    if seen.outcome == "aborted" or seen.retry_after_s is not None or seen.status in _NEUTRAL:
        return "neutral"
    if seen.connection is None and seen.error == CUT:
        return "cut"
    if seen.outcome == "failed" and seen.status is None:
        return "neutral"  # nobody was reached
    return "broken"


def _signs(reference: Sequence[Followed], treated: Sequence[Followed]) -> _Signs:
    """Windows in which those that follow something are broken more often than plain ones, and less
    often.
    """
    usual, shares = _shares(reference), _shares(treated)
    both = usual.keys() & shares.keys()
    return _Signs(
        ups=sum(shares[window] > usual[window] for window in both),
        downs=sum(shares[window] < usual[window] for window in both),
        windows=len(both),
        first=next((each for each in treated if each.end == "broken"), None),
    )


def _shares(requests: Sequence[Followed]) -> dict[int, float]:
    ends: dict[int, list[bool]] = {}
    for each in requests:
        if each.end in {"answered", "broken"}:
            ends.setdefault(each.window, []).append(each.end == "broken")
    return {window: sum(broken) / len(broken) for window, broken in ends.items()}


def _row(cell: str, requests: Sequence[Followed], signs: dict[str, _Signs]) -> tuple[Any, ...]:
    ends = [each.end for each in requests]
    counts = (len(ends), ends.count("answered"), ends.count("broken"), ends.count("cut"))
    its = signs.get(cell)
    if its is None:
        return (cell, *counts, None, None)
    return (cell, *counts, its.ups, float(f"{its.p:.3g}"))


def _closed(cell: str) -> str:
    return f"nothing came {cell!r} over the same connection: the target closed it each time"


def _untested(history: History) -> str:
    used = [history.answer(name) for name in history.requests["id"]]
    if not any(seen is not None and seen.connection is not None for seen in used):
        return "the backend does not say over which connection answers come"
    return (
        "the target closed every connection after a refused request and after one with Expect, or "
        "keep-alive is off: nothing followed them"
    )


def _finding(history: History, cell: str, signs: _Signs, alpha: float) -> Finding:
    assert signs.first is not None  # noqa: S101 - the caller looks
    first = signs.first
    request, seen = history.by_id(first.id), history.answer(first.id)
    error = "" if seen is None else seen.error or ""
    confirmed = signs.p <= alpha
    what = {
        AFTER_MISDIRECTED: "one that was refused with its body unread",
        AFTER_EXPECT: "one with Expect: 100-continue",
    }[cell]
    verdict = "" if confirmed else "; too few to tell it from other failures"
    return Finding(
        check=CHECK,
        anomaly="broken-connection",
        severity="corruption" if confirmed else "note",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        source=first.before,
        relation=history.relation(first.before, request.id),
        excerpt=excerpt(error, 0, 0)[0],
        explanation=(
            f"{who(request, window=True)} was not served over the connection that had carried "
            f"{what} ({first.before}): {error or 'no reason given'}; so in {signs.ups} of "
            f"{signs.windows} windows more often than requests after plain ones, and less often "
            f"in {signs.downs} (exact sign test, one-sided: p = {signs.p:.2g}){verdict}."
        ),
        evidence={
            "cell": cell,
            "windows_up": signs.ups,
            "windows_down": signs.downs,
            "windows": signs.windows,
            "p": signs.p,
            "alpha": alpha,
        },
    )
