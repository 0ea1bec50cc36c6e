"""What went wrong with attempts, by kind and counted: what a sick target's trouble looks like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from leakcheck.history import History
from leakcheck.records import Trouble

KINDS = 8
"""Kinds that are told apart; the rarest others are one."""
OTHERS = "other reasons"
_HEAD_CHARS, _FIRST_CHARS = 80, 160
_ANSWERED = 200


def table(history: History) -> tuple[Trouble, ...]:
    """The attempts that brought no whole answer, by kind, the most frequent first; planned aborts
    and planned refusals are none. Refusals after which the same request was sent again were waited
    out, and count apart.
    """
    seen = history.observations
    rejected = history.requests.loc[history.requests["outcome"] == "rejected", "id"]
    bad = seen[~seen["outcome"].isin(["ok", "aborted"]) & ~seen["request_id"].isin(rejected)]
    last = seen.groupby("request_id")["attempt"].max()
    found: dict[tuple[bool, str], Trouble] = {}
    for row in bad.index:
        its = history.attempt(row)
        refused = its.outcome == "failed" and its.status is not None
        waited = refused and its.attempt < int(last[its.request_id])
        kind, first = _kind(its.status, its.error or "no reason given")
        key = waited, re.sub(r"\d+", "0", kind) if its.status is None else kind
        known = found.get(key) or Trouble(
            kind=kind, attempts=0, of=len(seen), first=first, waited_out=waited
        )
        found[key] = replace(known, attempts=known.attempts + 1)
    ranked = sorted(found.values(), key=lambda each: (each.waited_out, -each.attempts))
    rest = ranked[KINDS:]
    if len(rest) < 2:  # noqa: PLR2004 - one alone keeps its name
        return tuple(ranked)
    others = [
        replace(mine[0], kind=OTHERS, attempts=sum(each.attempts for each in mine))
        for waited in (False, True)
        if (mine := [each for each in rest if each.waited_out == waited])
    ]
    return (*ranked[:KINDS], *others)


def sentence(troubles: Sequence[Trouble]) -> str:
    """`31 of 180 attempts brought no whole answer: 29 x status 500 (first: overloaded), 2 x the
    connection was cut`; empty where all was well. The words of the target in it are untrusted.
    """
    parts = []
    for waited, what in (
        (False, "brought no whole answer"),
        (True, "were refused for the moment and sent again"),
    ):
        mine = [each for each in troubles if each.waited_out == waited]
        if mine:
            number = sum(each.attempts for each in mine)
            parts.append(f"{number} of {mine[0].of} attempts {what}: {', '.join(map(_told, mine))}")
    return "; ".join(parts)


def _told(of: Trouble) -> str:
    first = f" (first: {of.first})" if of.first else ""
    return f"{of.attempts} x {of.kind}{first}"


def _kind(status: int | None, error: str) -> tuple[str, str]:
    """What kind it is, and what else was said of it."""
    line = " ".join(error.split())
    head, _, rest = line.partition(": ")
    if status is not None and status != _ANSWERED:
        return f"status {status}", _short(rest or head, _FIRST_CHARS)
    return _short(head, _HEAD_CHARS), _short(rest, _FIRST_CHARS)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
