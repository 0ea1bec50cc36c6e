"""What a target says about its answers must fit who sent what: ids, and tokens found in a cache.

A `cache_salt` is a promise that a cached prefix serves only those who know the salt. Where `usage`
counts more cached tokens than the template and what anybody with the same salt had sent before, and
only requests with another salt began with that text, a stranger can see, from usage or from the
time to the first token, that somebody else sent this very text: `foreign-cache-hit`. The plan says
who sent what, so one such answer is proof. It is a leak where the target promises to keep salts
apart; many servers have no such parameter, and share prefixes by design.

Two answers with one id (`duplicate-id`) are a note: whoever keeps answers by their ids mixes them.
So are two replies with one id in their headers, unless that is the id which the requests were sent
with. `shared_ids` counts the ids of answers for any scenario.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from leakcheck.checks import excerpt, who
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding, Request
from leakcheck.redact import one_line

CHECK = "metadata"
TITLE = "Cached tokens of requests with a salt"
COLUMNS = ("cell", "answers", "with cached tokens", "with tokens of another salt alone")
USUAL_BLOCK = 16
"""Tokens of a cache block where the target's own size is not known."""
_Kind = Literal["target_id", "reply_id"]
_PIECES = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A request that was sent, its text, when its first attempt began and its last one ended."""

    request: Request
    text: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hit:
    """An answer with more cached tokens than its own side ever sent: `cached` tokens, of which the
    template and requests with its salt explain at most `own`. `shared` is what `source` sent too.
    """

    recipient: _Sent
    source: _Sent
    cached: int
    own: int
    shared: str


def check(history: History, *, separates: bool | None = None) -> CheckResult:
    """Findings for foreign cache hits and for ids that came more than once.

    `separates`: whether the target promises that a prefix serves only those who know its salt. Left
    out, only the embedded engine is known to; a foreign hit in any other target is a note.
    """
    sent = _sent(history)
    hits = list(_foreign_hits(history, sent))
    if separates is None:
        separates = bool((history.provenance.engine or {}).get("separates_salts"))
    reports = any(_cached(history, each.request.id) is not None for each in sent)
    salted = [each for each in sent if each.request.cache_salt is not None]
    notes = []
    if salted and not reports:
        notes.append("the target does not report cached tokens: salts were not tested")
    return CheckResult(
        check=CHECK,
        findings=(
            *(_foreign(history, hit, separates=separates) for hit in hits),
            *_duplicates(history, "target_id", "answers"),
            *_duplicates(history, "reply_id", "headers of the replies"),
        ),
        notes=tuple(notes),
        tables={TITLE: (COLUMNS, *_rows(history, salted, hits))} if salted and reports else {},
    )


def shared_ids(history: History) -> str | None:
    """How many answers came with an id that the answer to another request has too; None where all
    ids differ. No leak by itself.
    """
    found = _carriers(history)
    shared = {name: its for name, its in found.items() if len(its) > 1}
    if not shared:
        return None
    most = max(shared, key=lambda name: len(shared[name]))
    return (
        f"{sum(map(len, shared.values()))} of {sum(map(len, found.values()))} answers with an id "
        f"share it with the answer to another request ({one_line(most, limit=80)} came with "
        f"{len(shared[most])}): no leak by itself, but whoever keeps answers by their ids mixes "
        "them"
    )


def _sent(history: History) -> list[_Sent]:
    seen = history.observations.groupby("request_id").agg({"start_ns": "min", "end_ns": "max"})
    rows: list[Any] = list(seen.itertuples())
    found = []
    for row in rows:
        request = history.by_id(row.Index)
        found.append(
            _Sent(
                request=request,
                text="\n".join(each.content for each in request.messages),
                start_ns=int(row.start_ns),
                end_ns=int(row.end_ns),
            )
        )
    return found


def _cached(history: History, request_id: str) -> int | None:
    answer = history.answer(request_id)
    if answer is None or answer.outcome != "ok" or answer.usage is None:
        return None
    if answer.usage.impossible:
        return None
    if answer.attempt > 1:  # what an attempt before it left in the cache is its own
        return None
    return answer.usage.cached_tokens


def _foreign_hits(history: History, sent: list[_Sent]) -> Iterator[_Hit]:
    facts = history.provenance.facts
    block = facts.block_tokens or USUAL_BLOCK
    per_piece = max(1.0, facts.tokens_per_word)

    def most(text: str) -> float:
        return facts.overhead_tokens + per_piece * len(_PIECES.findall(text))

    public = math.ceil((facts.overhead_tokens + 1) / block) * block
    for mine in sent:
        cached, salt = _cached(history, mine.request.id), mine.request.cache_salt
        if salt is None or cached is None or cached <= public:
            continue
        own, theirs, source = "", "", None
        for other in sent:
            if other is mine or other.start_ns >= mine.end_ns:
                continue
            same = other.request.cache_salt == salt
            begun = _common(mine.text, other.text, at_least=len(own if same else theirs))
            if same:
                own = begun if len(begun) > len(own) else own
            elif len(begun) > len(theirs):
                theirs, source = begun, other
        floor = math.ceil(most(own) / block) * block
        if source is not None and len(theirs) > len(own) and floor < cached <= most(theirs) + block:
            yield _Hit(
                recipient=mine, source=source, cached=cached, own=max(floor, public), shared=theirs
            )


def _common(one: str, other: str, *, at_least: int) -> str:
    """The common beginning, if it is longer than `at_least` characters; else nothing."""
    if len(one) <= at_least or not other.startswith(one[: at_least + 1]):
        return ""
    low, high = at_least, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return one[:low]


def _rows(history: History, salted: list[_Sent], hits: list[_Hit]) -> list[tuple[Any, ...]]:
    foreign = {hit.recipient.request.id for hit in hits}
    cells: dict[str, list[int]] = {}
    for each in salted:
        cached = _cached(history, each.request.id)
        if cached is not None:
            row = cells.setdefault(each.request.cell, [0, 0, 0])
            row[0] += 1
            row[1] += cached > 0
            row[2] += each.request.id in foreign
    return [(cell or "any", *row) for cell, row in cells.items()]


def _foreign(history: History, hit: _Hit, *, separates: bool) -> Finding:
    recipient, source = hit.recipient.request, hit.source.request
    salts = "has none" if source.cache_salt is None else "has another"
    open_question = (
        ""
        if separates
        else " If this server promises to keep salts apart, that is a leak: say so with --set "
        "checks.metadata.separates=true"
    )
    text, mark = excerpt(hit.shared, max(0, len(hit.shared) - 60), len(hit.shared))
    return Finding(
        check=CHECK,
        anomaly="foreign-cache-hit",
        severity="leak" if separates else "note",
        scenario=recipient.scenario,
        window=recipient.window,
        recipient=recipient.id,
        source=source.id,
        relation=history.relation(source.id, recipient.id),
        excerpt=text,
        mark=mark,
        explanation=(
            f"{who(recipient, window=True)} found {hit.cached} tokens of its prompt cached, at "
            f"most {hit.own} of which the template and requests with its cache_salt explain; "
            f"{who(source)} had sent the same text and {salts}: a stranger can see, from usage or "
            f"from the time to the first token, that somebody else sent this text.{open_question}"
        ),
        evidence={
            "cached_tokens": hit.cached,
            "explained_tokens": hit.own,
            "source_tenant": source.tenant,
            "recipient_tenant": recipient.tenant,
            "cell": recipient.cell,
        },
    )


def _duplicates(history: History, kind: _Kind, which: str) -> Iterator[Finding]:
    """One finding for each id that came with the answers to several requests."""
    for its_id, names in _carriers(history, kind).items():
        if len(names) == 1:
            continue
        first, second = history.by_id(names[0]), history.by_id(names[1])
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""  # noqa: PLR2004 - the pair
        yield Finding(
            check=CHECK,
            anomaly="duplicate-id",
            severity="note",
            scenario=second.scenario,
            window=second.window,
            recipient=second.id,
            source=first.id,
            relation=history.relation(first.id, second.id),
            excerpt=its_id,
            explanation=(
                f"the {which} to {who(first, window=True)} and {who(second, window=True)}{more} "
                f"have one id: whoever keeps answers by their ids mixes them."
            ),
            evidence={kind: its_id, "answers": len(names)},
        )


def _carriers(history: History, kind: _Kind = "target_id") -> dict[str, list[str]]:
    """The ids that whole answers came with, and the requests that these answered. An id in headers
    that only says what the request was sent with is none.
    """
    found: dict[str, list[str]] = {}
    for name in history.requests["id"]:
        answer = history.answer(name)
        if answer is None or answer.outcome != "ok":
            continue
        its_id, sent = getattr(answer, kind), history.by_id(name).client_id
        if its_id and not (kind == "reply_id" and sent and sent in its_id):
            found.setdefault(its_id, []).append(name)
    return found
