"""Echo by question and place: whether owners get their own passphrase back wherever it stands.

A leak puts somebody else's text anywhere: in front of a prompt (a prefix cache), in the middle (a
block), at its end (a batch row). A model that repeats only what it read last would show one of
these and hide the others behind an echo rate that is fine on the whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from leakcheck import evidence, wording
from leakcheck.history import History
from leakcheck.records import Rate, Request

TITLE = "Echo by question and place"
COLUMNS = ("question", "place of the passphrase", "owners asked", "echoed", "rate", "at least")
FIRST, MIDDLE, END = "beginning of the prompt", "middle of the prompt", "end of the prompt"
AFTER = "after other content"
_ASK_CHARS = 70

Row = tuple[Any, ...]


def table(history: History, min_echo: float) -> tuple[dict[str, tuple[Row, ...]], tuple[str, ...]]:
    """The table of one scenario under its title, empty where no owner asked; and a note on the
    worst cell that lost any echo, where its lower bound is below `min_echo`. Fractions 0..1.
    """
    cells = list(_cells(history))
    if not cells:
        return {}, ()
    rows = [
        (ask, where, each.trials, each.events, _down(each.value or 0.0), _down(each.lower))
        for ask, where, each in cells
    ]
    return {TITLE: (COLUMNS, *rows)}, tuple(_worst(cells, min_echo))


def owners_asked(history: History) -> pd.DataFrame:
    """Rows of `requests` of owners that asked for their passphrase and were answered, without
    replays, and whether the answer shows it: the column `echoed`.
    """
    requests = history.requests[history.requests["replays"].isna()]
    asked = (requests["ask"] == "eliciting") & requests["has_passphrase"]
    owners = requests[asked & (requests["outcome"] == "ok")]
    shown = history.shown
    own = shown[(shown["owner"] == "own") & (shown["kind"] == "passphrase")]
    return owners.assign(echoed=owners["id"].isin(own["recipient"]))


def rate(history: History) -> Rate:
    """The echo rate over all questions and places, one vote a payload: greedy twins say the same
    again, so that only the first of them that was answered counts.
    """
    owners = owners_asked(history)
    payload = owners["twin"].where(owners["twin"].notna(), owners["id"])
    votes = owners[~payload.duplicated()]
    return evidence.rate(int(votes["echoed"].sum()), len(votes))


def place(request: Request) -> str:
    """Where the passphrase of an owner first stands in the prompt.

    `beginning of the prompt`: nothing but its own sentence is in front of it. `end of the prompt`:
    nothing but the question (and, for a target that continues texts, the records) comes after it.
    What else was read before, beyond the owner's ticket, is `other content`.
    """
    before, after = _around(request)
    if not before:
        return FIRST
    where = MIDDLE if after else END
    return f"{where}, {AFTER}" if _without_ticket(request, before) else where


def question(request: Request) -> str:
    """The wording of the ask: a known one, else the last sentence of the prompt, cut."""
    text = _prompt(request)
    known = next((ask for ask in wording.ALIKE if text.endswith(ask)), None)
    if known is not None:
        return known
    last = text.rstrip(". ?!").rpartition(". ")[2]
    return last if len(last) <= _ASK_CHARS else last[: _ASK_CHARS - 1] + "…"


def _cells(history: History) -> Iterator[tuple[str, str, Rate]]:
    """Question, place and rate, in the order of their names."""
    asked: Counter[tuple[str, str]] = Counter()
    echoed: Counter[tuple[str, str]] = Counter()
    owners = owners_asked(history)
    for request_id, shows in zip(owners["id"], owners["echoed"], strict=True):
        request = history.by_id(request_id)
        cell = question(request), place(request)
        asked[cell] += 1
        echoed[cell] += bool(shows)
    for cell in sorted(asked):
        yield *cell, evidence.rate(echoed[cell], asked[cell])


def _worst(cells: list[tuple[str, str, Rate]], min_echo: float) -> Iterator[str]:
    # where all of a few owners were echoed, the bound is low for their number alone
    weak = [cell for cell in cells if cell[2].events < cell[2].trials]
    ask, where, worst = min(weak, key=lambda cell: cell[2].lower, default=cells[0])
    if not weak or worst.lower >= min_echo:
        return
    what = "would hardly show" if worst.upper < min_echo else "may not show"
    yield (
        f"echo is weakest where the passphrase stands at the {where} and the question {ask!r}: "
        f"{worst.events} of {worst.trials} owners (at least {100 * worst.lower:.1f} %, and "
        f"{100 * min_echo:g} % wanted); a leak into such a place {what}"
    )


def _down(share: float) -> float:
    """A share to four digits, not rounded up."""
    return math.floor(1e4 * share + 1e-6) / 1e4


def _prompt(request: Request) -> str:
    """What is sent, joined, without what the phrasing added at its end."""
    added: tuple[str, ...] = ()
    if request.ticket is not None:
        own = None if request.passphrase is None else request.passphrase.text
        note = None if request.note is None else request.note.text
        withheld = 0 if request.withheld is None else len(request.withheld.words)
        added = tuple(wording.endings(request.ticket.text, own, withheld, note))
    messages = request.messages
    if messages[-1].role == "assistant":  # the beginning of the answer
        messages = messages[:-1]
    elif messages[-1].content == wording.AGAIN:  # the answer was given before
        messages = messages[:-2]
    texts = (message.content for message in messages if message.role != "assistant")
    return "\n\n".join(
        text.removesuffix(next((end for end in added if text.endswith(end)), "")) for text in texts
    )


def _around(request: Request) -> tuple[str, str]:
    """What stands in front of the passphrase and behind it, its own sentence and the question left
    out; empty without a passphrase.
    """
    if request.passphrase is None:
        return "", ""
    text = _prompt(request)
    asks = [ask for ask in wording.ALIKE if text.endswith(ask)]
    text = text.removesuffix(asks[0]) if asks else text
    secret = request.passphrase.text
    sentence = wording.PASSPHRASE.format(passphrase=secret)
    before, _, after = text.partition(sentence if sentence in text else secret)
    return before.strip(), after.strip()


def _without_ticket(request: Request, text: str) -> str:
    if request.ticket is None:
        return text
    return text.replace(wording.TICKET.format(ticket=request.ticket.text), "").strip()
