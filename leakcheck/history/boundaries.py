"""Which trust boundary lies between two requests, and how many pairs met over each.

The plan says whose key a request is sent with, the observation over which connection of which lane
it came and, where the target names it, which replica answered. The strongest boundary counts:
another key, then another connection with the same key, then the same connection. A replica is a
fact of its own: to cross into another one is no stronger than to cross into another key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leakcheck.records import Boundary, Observation, Request

ANOTHER_KEY: Boundary = "another key"
SAME_KEY: Boundary = "same key"
SAME_CONNECTION: Boundary = "same connection"
ORDER: tuple[Boundary, ...] = (ANOTHER_KEY, SAME_KEY, SAME_CONNECTION)
"""Strongest first."""
Replica = Literal["same replica", "another replica"]
REPLICAS: tuple[Replica, ...] = ("another replica", "same replica")

Connection = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What lies between a source and a recipient. `replica`: None where it is not known of both.
    `one_connection`: whether both came over one connection, whoever's key; None where not known.
    """

    boundary: Boundary
    replica: Replica | None = None
    one_connection: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """So many pairs of a source and a recipient that might have seen it: `together`, in flight at
    one time; `apart`, the recipient after the source.
    """

    together: int = 0
    apart: int = 0


def crossed(
    source: Request, sent: Observation | None, recipient: Request, shows: Observation | None
) -> Crossing:
    """The boundary between two requests, by the attempts that matter of each."""
    one = None
    if sent is not None and shows is not None:
        ends = connection(sent), connection(shows)
        one = None if None in ends else ends[0] == ends[1]
    replica: Replica | None = None
    if sent is not None and shows is not None and sent.replica and shows.replica:
        replica = "same replica" if sent.replica == shows.replica else "another replica"
    boundary = SAME_CONNECTION if one else SAME_KEY
    if source.key != recipient.key:
        boundary = ANOTHER_KEY
    return Crossing(boundary=boundary, replica=replica, one_connection=one)


def connection(seen: Observation) -> Connection | None:
    """What tells one connection from all others of a run; None where the backend does not say."""
    return None if seen.connection is None else (seen.worker, seen.lane, seen.connection)


def told(crossing: Crossing, source: Request, recipient: Request) -> str:
    """The crossing as the end of a sentence; empty where there is nothing to tell: one key, and
    connections of their own.
    """
    parts = []
    if crossing.boundary == ANOTHER_KEY:
        by, to = (each.key or "the target itself" for each in (source, recipient))
        over = ", over one connection" if crossing.one_connection else ""
        parts.append(f"a secret sent with the key of {by} was shown to {to}{over}")
    elif crossing.one_connection:
        key = "" if source.key is None else f", with the key of {source.key}"
        parts.append(f"both came over one connection{key}")
    elif source.key is not None:
        parts.append(f"both were sent with the key of {source.key}")
    if crossing.replica is not None:
        parts.append(f"{crossing.replica} answered")
    return ", and ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request that was sent, its payload's number and what decided its outcome."""

    request: Request
    seen: Observation
    group: int
    ended: bool


def exposed(window: Sequence[Sent]) -> dict[Boundary | Replica, Pairs]:
    """The pairs of one window by boundary, and by replica where that is known.

    A source carries a secret and was not refused (a misdirected one is, by plan, with its secret in
    the target's hands); a recipient was answered, after the source was sent, with another payload.
    """
    sources = [each for each in window if _carries(each)]
    recipients = [each for each in window if each.seen.outcome == "ok"]
    if not sources or not recipients:
        return {}
    start = np.array([each.seen.start_ns for each in sources], np.int64)[:, None]
    end = np.array([_end_ns(each) for each in sources], np.int64)[:, None]
    began = np.array([each.seen.start_ns for each in recipients], np.int64)[None, :]
    over = np.array([_end_ns(each) for each in recipients], np.int64)[None, :]
    every, cut = [*sources, *recipients], len(sources)
    met = (start < over) & ~_equal([each.group for each in every], cut)
    together = met & (end > began)
    keys = _equal([each.request.key for each in every], cut)
    ways = [connection(each.seen) for each in every]
    one = _equal(ways, cut) & _known(ways, cut)
    masks: dict[Boundary | Replica, NDArray[np.bool_]] = {
        ANOTHER_KEY: ~keys,
        SAME_KEY: keys & ~one,
        SAME_CONNECTION: keys & one,
    }
    replicas = [each.seen.replica for each in every]
    known = _known(replicas, cut)
    if known.any():
        same = _equal(replicas, cut)
        masks |= {"another replica": known & ~same, "same replica": known & same}
    return {
        name: Pairs(
            together=int((mask & together).sum()), apart=int((mask & met & ~together).sum())
        )
        for name, mask in masks.items()
    }


def summed(windows: Iterable[dict[Boundary | Replica, Pairs]]) -> dict[Boundary | Replica, Pairs]:
    """The pairs of several windows; every boundary is there, be it with none."""
    together: Counter[Boundary | Replica] = Counter(dict.fromkeys(ORDER, 0))
    apart: Counter[Boundary | Replica] = Counter()
    for window in windows:
        for name, pairs in window.items():
            together[name] += pairs.together
            apart[name] += pairs.apart
    return {name: Pairs(together=together[name], apart=apart[name]) for name in together}


def _carries(sent: Sent) -> bool:
    request = sent.request
    if request.passphrase is None and request.ticket is None:
        return False
    return sent.seen.outcome != "failed" or request.sent == "misdirected"


def _end_ns(sent: Sent) -> int:
    """When it ended; of one whose end nobody saw, the end of all time."""
    return max(sent.seen.end_ns, sent.seen.start_ns + 1) if sent.ended else 2**62


def _equal(values: Sequence[object], cut: int) -> NDArray[np.bool_]:
    """Whether source and recipient have the same value; `values` are of `cut` sources, then of the
    recipients.
    """
    numbers: dict[object, int] = {}
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
    return np.equal.outer(codes[:cut], codes[cut:])


def _known(values: Sequence[object], cut: int) -> NDArray[np.bool_]:
    """Whether the value is known of both."""
    there = np.array([value is not None for value in values], np.bool_)
    return np.logical_and.outer(there[:cut], there[cut:])
