"""Everybody must get the answer to their own request: it shows the ticket of that request.

Somebody else's ticket in an answer is a `foreign-answer`, a leak, whether or not the own ticket
stands beside it. Nobody's ticket is a `lost-answer`, unless the answer was cut or begins the
ticket: a near miss is a model that spells badly, not another's answer. A weak model loses whole
tickets too, so that is a note, unless replays show that the company does it: the very same request
returns its ticket alone, and loses it again when its window is replayed (`analyzer.confirmations`
sends these).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from leakcheck.checks import excerpt, first_of_each_pair, leak, who
from leakcheck.folding import fold
from leakcheck.history import ANSWER_FIELDS, History
from leakcheck.records import CheckResult, Finding

CHECK = "own_answer"
ALONE = "replay alone"
IN_WINDOW = "replay in window"
"""Cells of the replays that confirm a suspicion."""
REPEATS = 3
"""How often a suspect is sent alone, and in its window, and what a confirmation takes of each."""
CUT = "content_filter"
"""The finish reason of an answer that the target broke off."""

Replays = Sequence[Any]
"""Rows of `ticket_states`."""


def check(history: History, *, kept_alone: int = REPEATS, lost_again: int = REPEATS) -> CheckResult:
    """Findings for foreign and for lost tickets.

    A lost answer is corruption when at least `kept_alone` replays alone were answered and all of
    them with the ticket, and at least `lost_again` replays in the window were answered without it.
    """
    matches = history.planted
    tickets = matches[matches["kind"] == "ticket"]
    foreign = tickets[tickets["owner"] == "foreign"]
    states = ticket_states(history)
    kept = frozenset(tickets.loc[tickets["owner"] == "own", "recipient"])
    first = states[~states["replay"]]
    replays: dict[str, list[Any]] = {}
    for replay in states[states["replay"]].itertuples():
        replays.setdefault(str(replay.replays), []).append(replay)
    lost = [
        _lost(history, request_id, replays.get(request_id, ()), kept_alone, lost_again)
        for request_id in first.loc[first["lost"], "id"]
    ]
    leaks = [_foreign(history, match, kept) for match in first_of_each_pair(foreign)]
    return CheckResult(check=CHECK, findings=(*leaks, *lost), notes=_notes(first))


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
    if answer is None or ticket is None or answer.finish_reason == CUT:
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


def _lost(
    history: History, request_id: str, replays: Replays, kept_alone: int, lost_again: int
) -> Finding:
    request = history.by_id(request_id)
    alone = [replay.own for replay in replays if replay.cell == ALONE]
    again = [replay.lost for replay in replays if replay.cell == IN_WINDOW]
    confirmed = all(alone) and sum(alone) >= kept_alone and sum(again) >= lost_again
    replayed = (
        f"; sent again alone it returned it {sum(alone)} of {len(alone)} times, and with its whole "
        f"window it lost it {sum(again)} of {len(again)} times"
        if replays
        else "; it was not sent again"
    )
    return Finding(
        check=CHECK,
        anomaly="lost-answer",
        severity="corruption" if confirmed else "note",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        excerpt=excerpt(history.text(request.id), 0, 0)[0],
        explanation=f"{who(request, window=True)} was answered without any ticket{replayed}.",
        evidence={
            "kept_alone": sum(alone),
            "replayed_alone": len(alone),
            "lost_in_window": sum(again),
            "replayed_in_window": len(again),
        },
    )
