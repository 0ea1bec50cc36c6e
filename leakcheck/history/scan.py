"""Every answer of a run searched for every passphrase, ticket, withheld and phantom of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from leakcheck.errors import RunFolderError
from leakcheck.match import find
from leakcheck.passphrase import phantoms_of
from leakcheck.records import PROMPT, Match, Observation, Plan, Request

LOGPROBS = "logprobs"
ERROR_MESSAGE = "error message"
PHANTOM = "phantom"
PHRASES_AT_ONCE = 250_000
"""So many phantoms are held in memory and searched for at one time."""
MANY_PHRASES = 100_000
"""From here on `match.find` takes its fast path, some hundred times as fast for so many phrases."""

Integers = NDArray[np.int64]
Texts = Sequence[Mapping[str, str]]
Nearest = Callable[[int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """How much was searched: `chars` in `texts` texts, for `phrases` phrases that were sent, the
    easiest to guess of `entropy_bits`.
    """

    texts: int
    chars: int
    phrases: int
    entropy_bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phrases:
    """Columns: the text to find, its kind, the payload that owns it, its first request."""

    text: list[str]
    kind: list[str]
    group: Integers
    first: Integers


def fields(observation: Observation) -> dict[str, str]:
    """Everything of an observation that is searched: field to joined text, empty ones left out.

    `content`, `reasoning`, `tool`, `error`, `content[1]`, .. as they came; `logprobs`, the token
    strings of log-probabilities, where they say anything else than the content; `error message`,
    the sentence that the lane made of what went wrong; `prompt`, what the target says was sent.
    """
    parts: dict[str, list[str]] = {}
    for chunk in observation.chunks:
        if chunk.text:
            parts.setdefault(chunk.field, []).append(chunk.text)
        if chunk.logprobs:
            parts.setdefault(LOGPROBS, []).extend(each.token for each in chunk.logprobs)
    joined = {field: "".join(pieces) for field, pieces in parts.items()}
    if joined.get(LOGPROBS) == joined.get("content"):
        joined.pop(LOGPROBS, None)
    if observation.error:
        joined[ERROR_MESSAGE] = observation.error
    return joined


def payload_groups(requests: Sequence[Request], position: Mapping[str, int]) -> Integers:
    """A number for each request, equal for requests linked by `twin` or `replays`.

    Raises RunFolderError when such a link names a request that is in no plan.
    """
    links = [
        (here, _position(other, request, position))
        for here, request in enumerate(requests)
        for other in (request.twin, request.replays)
        if other is not None
    ]
    pairs = np.array(links, np.int64).reshape(-1, 2)
    size = len(requests)
    graph = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), (size, size))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def search(
    requests: Sequence[Request],
    groups: Integers,
    *,
    texts: Texts,
    sent: Integers,
    nearest: Nearest,
) -> tuple[pd.DataFrame, Scanned]:
    """Matches of everything planned, and how much was searched. In a prompt that the target says
    again, what its request owns is no match: it stood there before.

    `texts` are the fields of each observation, `sent` the position of its request. `nearest` picks,
    of all requests that carry the payload of one, the likeliest source for an observation.
    """
    phrases = _phrases(requests, groups)
    rows = _rows(texts)
    bodies = [text for _, _, text in rows]
    hits = find(bodies, phrases.text)
    row = np.array([r for r, _, _ in rows], np.int64)[hits.text]
    recipient = sent[row]
    own = groups[recipient] == phrases.group[hits.phrase]
    source = np.where(own, recipient, phrases.first[hits.phrase])
    _choose_sources(source, row, ~own, groups, nearest)
    table = pd.DataFrame(
        {
            "recipient": [requests[p].id for p in recipient],
            "source": [requests[p].id for p in source],
            "kind": [phrases.kind[p] for p in hits.phrase],
            "owner": np.where(own, "own", "foreign"),
            "field": [rows[t][1] for t in hits.text],
            "start": hits.start,
            "end": hits.end,
            "variant": np.where(hits.exact, "exact", "normalised"),
            "observation": row,
            "scenario": [requests[p].scenario for p in recipient],
            "window": np.array([requests[p].window for p in recipient], np.int64),
        }
    )
    table = table[(table["field"] != PROMPT) | (table["owner"] != "own")].reset_index(drop=True)
    bits = [p.entropy_bits for r in requests for p in (r.passphrase, r.ticket) if p is not None]
    return table, Scanned(
        texts=len(bodies),
        chars=sum(map(len, bodies)),
        phrases=sum(kind != "withheld" for kind in phrases.kind),
        entropy_bits=min(bits, default=0.0),
    )


def search_phantoms(
    plans: Sequence[Plan], requests: Sequence[Request], *, texts: Texts, sent: Integers
) -> tuple[pd.DataFrame, int]:
    """Matches of the phantoms of each recipient's own window, and how many phantoms were drawn.

    A phantom that stands in the payload of a request is none: an answer may show it honestly.
    """
    rows = _rows(texts)
    here: dict[tuple[str, int], list[int]] = {}
    for number, (row, _, _) in enumerate(rows):
        request = requests[sent[row]]
        here.setdefault((request.scenario, request.window), []).append(number)
    by_name = {plan.scenario.name: plan for plan in plans}
    found: list[dict[str, Any]] = []
    drawn = 0
    for some in _batches(list(here), by_name):
        phrases = [(key, text) for key in some for text in phantoms_of(by_name[key[0]], key[1])]
        numbers = [number for key in some for number in here[key]]
        drawn += len(phrases)
        hits = find([rows[n][2] for n in numbers], [text for _, text in phrases])
        sent_too = _in_payloads({phrases[p][1] for p in hits.phrase.tolist()}, requests)
        for text, phrase, start, end, exact in zip(
            hits.text, hits.phrase, hits.start, hits.end, hits.exact, strict=True
        ):
            row, field, _ = rows[numbers[text]]
            recipient = requests[sent[row]]
            if phrases[phrase][0] != (recipient.scenario, recipient.window):
                continue
            if phrases[phrase][1] in sent_too:
                continue
            match = Match(
                recipient=recipient.id,
                source=PHANTOM,
                kind="phantom",
                owner="phantom",
                field=field,
                start=int(start),
                end=int(end),
                variant="exact" if exact else "normalised",
            )
            where = {"scenario": recipient.scenario, "window": recipient.window}
            found.append({**asdict(match), "observation": row, **where})
    return pd.DataFrame(found), drawn


def _in_payloads(phrases: set[str], requests: Sequence[Request]) -> set[str]:
    """Those of some phrases that stand in the payload of any request."""
    if not phrases:
        return set()
    texts = ["\n".join(message.content for message in request.messages) for request in requests]
    some = sorted(phrases)
    return {some[at] for at in find(texts, some).phrase.tolist()}


def _batches(
    windows: Sequence[tuple[str, int]], plans: Mapping[str, Plan]
) -> Iterator[Sequence[tuple[str, int]]]:
    """Windows whose phantoms are searched for together.

    Few are taken one by one, many in equal shares: between, the matcher is at its slowest.
    """
    total = sum(plans[name].scenario.load.phantoms for name, _ in windows)
    shares = math.ceil(total / PHRASES_AT_ONCE)
    step = 1 if total < MANY_PHRASES else math.ceil(len(windows) / shares)
    for at in range(0, len(windows), step):
        yield windows[at : at + step]


def _rows(texts: Texts) -> list[tuple[int, str, str]]:
    """Row of the observation, field and text of everything that is searched."""
    return [(row, field, text) for row, named in enumerate(texts) for field, text in named.items()]


def _position(other: str, request: Request, position: Mapping[str, int]) -> int:
    if other not in position:
        raise RunFolderError(f"{request.id} is linked to {other}, which is in no plan of this run")
    return position[other]


def _phrases(requests: Sequence[Request], groups: Integers) -> _Phrases:
    """Each phrase once: twins and replays own the same."""
    first: dict[str, tuple[str, int]] = {}
    for here, request in enumerate(requests):
        for kind, phrase in (
            ("passphrase", request.passphrase),
            ("ticket", request.ticket),
            ("withheld", request.withheld),
        ):
            if phrase is None:
                continue
            known = first.setdefault(phrase.text, (kind, here))
            if groups[known[1]] != groups[here]:
                raise RunFolderError(
                    f"{requests[known[1]].id} and {request.id} own the same phrase; "
                    "every phrase must belong to one payload"
                )
    owner = np.array([here for _, here in first.values()], np.int64)
    kinds = [kind for kind, _ in first.values()]
    return _Phrases(text=list(first), kind=kinds, group=groups[owner], first=owner)


def _choose_sources(
    source: Integers,
    row: Integers,
    foreign: NDArray[np.bool_],
    groups: Integers,
    nearest: Nearest,
) -> None:
    """Where several requests carry the leaked payload, set `source` to the likeliest of them."""
    shared = np.bincount(groups)[groups] > 1 if groups.size else np.zeros(0, bool)
    chosen: dict[tuple[int, int], int] = {}
    for at in np.flatnonzero(foreign & shared[source]):
        pair = (int(source[at]), int(row[at]))
        if pair not in chosen:
            chosen[pair] = nearest(*pair)
        source[at] = chosen[pair]
