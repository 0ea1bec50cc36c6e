"""Everybody must get the answer to their own request: it shows the ticket of that request.

Somebody else's ticket in an answer is a `foreign-answer`, a leak, whether or not the own ticket
stands beside it. Nobody's ticket is a `lost-answer`, unless the answer was cut or begins the
ticket: a near miss is a model that spells badly, not another's answer. A weak model loses whole
tickets too, so that is a note, unless replays show that the company does it: the very same request
returns its ticket alone, and loses it again when its window is replayed (`analyzer.confirmations`
sends these). That alone would accuse honest targets: where two tokens are nearly tied, the rounding
of another batch size decides, every time. So the request must keep its ticket alone at temperature
1 as well: a near-tie of a quarter of a nat loses 44 % of those, and a target that does not follow
temperature is not accused at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from leakcheck.checks import excerpt, first_of_each_pair, leak, who
from leakcheck.folding import fold
from leakcheck.history import ANSWER_FIELDS, History
from leakcheck.records import CheckResult, Finding

CHECK = "own_answer"
ALONE = "replay alone"
HOT = "replay hot"
IN_WINDOW = "replay in window"
"""Cells of the replays that confirm a suspicion."""
ALONE_REPLAYS = 3
HOT_REPLAYS = 24
WINDOW_REPLAYS = 6
"""How often a suspect is sent: alone, alone at temperature 1, and in its window."""
MOST_LOST_HOT = 1
LEAST_LOST_AGAIN = 5
"""What a confirmation takes of each, after all of those alone kept the ticket."""
WHOLE = (None, "stop", "length", "tool_calls")
"""Finish reasons of answers that the target did not break off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """How the replays of one suspect ended: those answered, and what of them counts."""

    alone: int = 0
    kept_alone: int = 0
    hot: int = 0
    lost_hot: int = 0
    again: int = 0
    lost_again: int = 0

    @property
    def steady(self) -> bool:
        """Whether the ticket was kept alone, every time."""
        return self.kept_alone == self.alone >= ALONE_REPLAYS

    def clear(self, of: int = HOT_REPLAYS) -> bool:
        """Whether no near-tie shows in the first `of` hot replays; one without answer counts as
        lost.
        """
        return self.hot - self.lost_hot >= of - MOST_LOST_HOT

    def loses(self, of: int = WINDOW_REPLAYS) -> bool:
        """Whether its window lost it nearly always, of the first `of` times."""
        return self.lost_again >= of - (WINDOW_REPLAYS - LEAST_LOST_AGAIN)

    @property
    def confirmed(self) -> bool:
        """Whether it is the company that takes the ticket."""
        return self.steady and self.clear() and self.loses()


def check(history: History) -> CheckResult:
    """Findings for foreign and for lost tickets."""
    matches = history.planted
    tickets = matches[matches["kind"] == "ticket"]
    foreign = tickets[tickets["owner"] == "foreign"]
    states = ticket_states(history)
    kept = frozenset(tickets.loc[tickets["owner"] == "own", "recipient"])
    first = states[~states["replay"]]
    replayed = replays(states)
    lost = [
        _lost(history, request_id, replayed.get(request_id))
        for request_id in first.loc[first["lost"], "id"]
    ]
    leaks = [_foreign(history, match, kept) for match in first_of_each_pair(foreign)]
    return CheckResult(check=CHECK, findings=(*leaks, *lost), notes=_notes(first))


def replays(states: pd.DataFrame) -> Mapping[str, Replays]:
    """Of each request that was sent again (the `replays` of others): how its replays ended."""
    rows: dict[str, list[Any]] = {}
    for row in states[states["replay"]].itertuples():
        rows.setdefault(str(row.replays), []).append(row)
    return {request_id: _counted(of) for request_id, of in rows.items()}


def _counted(rows: Iterable[Any]) -> Replays:
    cells: dict[str, list[Any]] = {ALONE: [], HOT: [], IN_WINDOW: []}
    for row in rows:
        cells.setdefault(row.cell, []).append(row)
    alone, hot, again = cells[ALONE], cells[HOT], cells[IN_WINDOW]
    return Replays(
        alone=len(alone),
        kept_alone=sum(row.own for row in alone),
        hot=len(hot),
        lost_hot=sum(row.lost for row in hot),
        again=len(again),
        lost_again=sum(row.lost for row in again),
    )


def ticket_states(history: History) -> pd.DataFrame:
    """One row a request with a ticket that was answered: id window cell replays replay own foreign
    lost. `lost`: neither its own ticket nor anybody else's shows in the answer itself, which was
    not cut and does not hold the first half of the words of its own in order.
    """
    requests = history.requests
    table = requests[requests["has_ticket"] & (requests["outcome"] == "ok")]
    table = table[["id", "window", "cell", "replays"]].copy()
    matches = history.shown
    tickets = matches[matches["kind"] == "ticket"]
    for owner in ("own", "foreign"):
        table[owner] = table["id"].isin(tickets.loc[tickets["owner"] == owner, "recipient"])
    table["replay"] = table["replays"].notna()
    table["lost"] = ~table["own"] & ~table["foreign"]
    missing = table.loc[table["lost"], "id"]
    table.loc[missing.index, "lost"] = [not _in_part(history, each) for each in missing]
    return table.sort_values(["window", "id"], kind="stable")


def _in_part(history: History, request_id: str) -> bool:
    """Whether an answer without its ticket was cut by the target, or holds the first half of it.

    One that ran to the length it was allowed was not cut: garbage does that too.
    """
    answer, request = history.answer(request_id), history.by_id(request_id)
    ticket = request.ticket
    if answer is None or ticket is None or answer.finish_reason not in WHOLE:
        return True
    written = None if answer.usage is None else answer.usage.completion_tokens
    if answer.finish_reason == "length" and (written or math.inf) < request.sampling.max_tokens:
        return True
    half = [fold(word) for word in ticket.words[: math.ceil(len(ticket.words) / 2)]]
    fields = {c.field for c in answer.chunks if ANSWER_FIELDS.fullmatch(c.field)}
    return any(_in_order(half, fold(history.text(request_id, field))) for field in fields)


def _in_order(words: Sequence[str], text: str) -> bool:
    at = 0
    for word in words:
        found = text.find(word, at)
        if found < 0:
            return False
        at = found + len(word)
    return True


def _notes(first: pd.DataFrame) -> tuple[str, ...]:
    lost, answered = int(first["lost"].sum()), len(first)
    if not lost:
        return (f"no answer of {answered} lost its ticket",)
    share = lost / answered
    text = (
        f"{lost} of {answered} answers ({share:.1%}) show nobody's ticket: how often this model "
        "loses tickets is the noise floor of such findings"
    )
    return (text,)


def _foreign(history: History, match: Any, kept: frozenset[str]) -> Finding:
    beside = "beside its own" if match.recipient in kept else "in place of its own"
    what = f"the ticket of {who(history.by_id(match.source))} {beside}"
    return leak(history, match, check=CHECK, anomaly="foreign-answer", what=what)


def _lost(history: History, request_id: str, replayed: Replays | None) -> Finding:
    request, of = history.by_id(request_id), replayed or Replays()
    samples = history.provenance.facts.samples is True
    return Finding(
        check=CHECK,
        anomaly="lost-answer",
        severity="corruption" if of.confirmed and samples else "note",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        excerpt=excerpt(history.text(request.id), 0, 0)[0],
        explanation=f"{who(request, window=True)} was answered without any ticket"
        + (f"; {_told(of, samples=samples)}." if replayed else "; it was not sent again."),
        evidence={
            "kept_alone": of.kept_alone,
            "replayed_alone": of.alone,
            "lost_hot": of.lost_hot,
            "replayed_hot": of.hot,
            "lost_in_window": of.lost_again,
            "replayed_in_window": of.again,
        },
    )


def _told(of: Replays, *, samples: bool) -> str:
    """What its replays showed, step by step, as far as they went."""
    parts = [f"sent again alone it returned it {of.kept_alone} of {of.alone} times"]
    if of.hot:
        parts.append(f"at temperature 1 it lost it {of.lost_hot} of {of.hot} times")
    if of.again:
        parts.append(f"with its whole window it lost it {of.lost_again} of {of.again} times")
    told = ", and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)
    if of.steady and not samples:
        told += (
            "; as far as the survey saw, this target does not follow temperature and seed, so "
            "nothing can tell a fault from two tokens that are nearly tied"
        )
    return told
