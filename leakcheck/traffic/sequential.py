"""One request at a time on an idle target: what the one before may leave to the next.

Every phase holds one request, so that nothing runs together. Two kinds of sequences:

- *pair*: a source with a passphrase (cell `before`), then a recipient without one that asks for
  every passphrase it can see (`after`). Half of the recipients have the very shape of their source:
  as many words, the ticket in the same place.
- *sandwich*: a payload with a passphrase (`cold`), another tenant's request in between
  (`between`), then the very same payload once more (`warm`, twin of the first).

Each sequence begins with random words of its own, more than a block of a usual cache, so that what
is called cold was never computed before. Half of the sequences stay on one lane and so on one
connection, the others change lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakcheck import wording
from leakcheck.records import Request, Role
from leakcheck.traffic import Window, user_text

BEFORE, AFTER = "before", "after"
COLD, BETWEEN, WARM = "cold", "between", "warm"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Words of filler in front of the ticket and after it."""

    before: int
    between: int


def plan(
    window: Window,
    *,
    pairs: int = 1,
    sandwiches: int = 1,
    min_filler_words: int = 24,
    max_filler_words: int = 64,
    streamed: float = 0.5,
) -> Iterator[Request]:
    """Plan `pairs` and `sandwiches` in random order, one request a phase.

    Every prompt begins with `min_filler_words` to `max_filler_words` words; `streamed` answers
    arrive in chunks. `load.requests` does not matter here.
    """
    rng = window.rng
    kinds = [*[_pair] * pairs, *[_sandwich] * sandwiches]
    rng.shuffle(kinds)
    phase = 0
    for kind in kinds:
        one_lane = rng.random() < 0.5  # noqa: PLR2004 - half of them
        for request in kind(window, (min_filler_words, max_filler_words), streamed):
            number = 0 if one_lane else phase
            yield replace(
                request,
                phase=phase,
                worker=number % window.load.workers,
                lane=number // window.load.workers % window.load.lanes,
            )
            phase += 1


def _pair(window: Window, words: tuple[int, int], streamed: float) -> Iterator[Request]:
    shape = _shape(window, words)
    source = _request(window, shape, BEFORE, role="source", streamed=streamed)
    yield source
    if window.rng.random() < 0.5:  # noqa: PLR2004 - half of them
        shape = _shape(window, words)
    after = _request(window, shape, AFTER, owns=False, streamed=streamed)
    yield replace(after, partner=source.id)


def _sandwich(window: Window, words: tuple[int, int], streamed: float) -> Iterator[Request]:
    cold = _request(window, _shape(window, words), COLD, role="source", streamed=streamed)
    yield cold
    yield _request(window, _shape(window, words), BETWEEN, streamed=streamed)
    again = f"r{next(window.ids):05}"
    yield replace(cold, id=again, role="recipient", cell=WARM, twin=cold.id)


def _shape(window: Window, words: tuple[int, int]) -> _Shape:
    low, high = words
    return _Shape(before=window.rng.randint(low, high), between=window.rng.randint(0, low))


def _request(
    window: Window,
    shape: _Shape,
    cell: str,
    *,
    streamed: float,
    role: Role = "recipient",
    owns: bool = True,
) -> Request:
    """An eliciting request; one without a passphrase has a blank sentence in its place."""
    rng = window.rng
    owner = window.owner(owns=owns)
    between = wording.sentences(rng, shape.between)
    if not owns:
        between = " ".join([between, wording.blank(window.load.passphrase_words)]).strip()
    return window.request(
        0,
        phase=0,
        role=role,
        ask="eliciting",
        text=user_text(
            **owner,
            before=wording.sentences(rng, shape.before),
            between=between,
            ask=wording.ELICITING,
        ),
        cell=cell,
        stream=rng.random() < streamed,
        **owner,
    )
