"""Filler of one request in another's answer: runs of common words, ranked against fresh draws.

The filler of a request is what `wording.sentences` drew for it: words independent of each other and
of everything else, so that given how many there are, any words might stand there. Phantoms are the
same number of words drawn anew. Five consecutive words in an answer, none of them in another order
or with another between, are a hit, unless the recipient's own messages hold them.

Sentences alone count as filler: prefixes that two requests share by plan have no full stops. Of a
filler that another request of the window shares all the same, nothing is concluded.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakcheck import wording
from leakcheck.records import Message

RUN = 5
"""Consecutive words that make a hit."""
SHAPES = frozenset(
    "abort_storm cache_pressure concurrent duplicate_ids mixed_batch parameter_twins ragged "
    "sequential shared_prefix".split()
)
"""Traffic whose sentences are drawn independently. `identity_twins` changes a few words of another
request's sentences on purpose, and of shapes that are not ours nobody knows.
"""
_NUMBER = {word: number for number, word in enumerate(wording.WORDS)}
_SIZE = len(wording.WORDS)
_SENTENCE = re.compile(r"[^.\n]+[.\n]?")
_FILLER = re.compile(r" ?[A-Z][a-z]*(?: [a-z]+)*\.")
_WORD = re.compile(r"[^\W\d_]+")
_FAIR = 2**16 - 2**16 % _SIZE  # numbers of 16 bits from here on would favour some words
_POWERS = _SIZE ** np.arange(RUN - 1, -1, -1)

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filler:
    """The sentences of one payload: each part the numbers of consecutive words."""

    parts: tuple[tuple[int, ...], ...]

    @property
    def words(self) -> int:
        """How many, in parts long enough to be recognised."""
        return sum(map(len, self.parts))

    def runs(self) -> frozenset[int]:
        """Every run of its words."""
        return frozenset(itertools.chain.from_iterable(map(_runs, self.parts)))


def filler(messages: Iterable[Message]) -> Filler:
    """The filler of a payload, in parts of at least RUN words."""
    parts: list[list[int]] = []
    for message in messages:
        parts.append([])
        for sentence in _SENTENCE.findall(message.content):
            numbers = [_NUMBER.get(word) for word in sentence.strip(" .").lower().split(" ")]
            known = [number for number in numbers if number is not None]
            if _FILLER.fullmatch(sentence) and len(known) == len(numbers):
                parts[-1] += known
            else:
                parts.append([])
    return Filler(parts=tuple(tuple(part) for part in parts if len(part) >= RUN))


def runs_of(text: str) -> frozenset[int]:
    """Every run of RUN common words in a text; a run is a number."""
    found: set[int] = set()
    for _, words in _stretches(text):
        found.update(_runs(words))
    return frozenset(found)


def _stretches(text: str) -> Iterator[tuple[list[tuple[int, int]], list[int]]]:
    """Stretches of common words in a text: where each word stands, and their numbers."""
    spans: list[tuple[int, int]] = []
    words: list[int] = []
    for token in _WORD.finditer(text):
        number = _NUMBER.get(token[0].lower())
        if number is not None:
            spans.append(token.span())
            words.append(number)
            continue
        if len(words) >= RUN:
            yield spans, words
        spans, words = [], []
    if len(words) >= RUN:
        yield spans, words


def _runs(words: Sequence[int]) -> Iterator[int]:
    run, top = 0, _SIZE ** (RUN - 1)
    for at, number in enumerate(words):
        run = run % top * _SIZE + number
        if at >= RUN - 1:
            yield run


def passage(text: str, of: Filler, *, within: frozenset[int]) -> tuple[int, int] | None:
    """Where the longest stretch of a filler stands in a text, of runs `within` those shown."""
    wanted = of.runs() & within
    best: tuple[int, int] | None = None
    length = 0
    for spans, words in _stretches(text):
        hits = [run in wanted for run in _runs(words)]
        for hit, group in itertools.groupby(enumerate(hits), key=lambda item: item[1]):
            places = [at for at, _ in group]
            if hit and len(places) > length:
                length = len(places)
                best = spans[places[0]][0], spans[places[-1] + RUN - 1][1]
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Phantoms:
    """Words drawn as `wording.sentences` draws them, a row a phantom: `hits` are the places at
    which a run begins that answers of the window show, `run` says which.

    A filler of n words is compared with the first n of each row, whatever the others are compared
    with: each source has its own exact test, and what they have in common does no harm to a mean.
    """

    row: Numbers
    at: Numbers
    run: Numbers

    def hits(self, like: Filler, shown: frozenset[int]) -> int:
        """How many phantoms of the shape of a filler have a run among those `shown`."""
        mine = np.isin(self.run, np.fromiter(shown, np.int64, len(shown)))
        within = np.zeros_like(mine)
        start = 0
        for part in like.parts:
            within |= (self.at >= start) & (self.at <= start + len(part) - RUN)
            start += len(part)
        return len(np.unique(self.row[mine & within]))


def phantoms(
    window: tuple[int, str, int], *, words: int, count: int, shown: frozenset[int]
) -> Phantoms:
    """`count` rows of so many `words` that were never sent, searched for the runs `shown`.

    `window` is named by seed, scenario and number: the same rows for the same, on every machine.
    """
    table = drawn(window, words=words, count=count)
    wanted = np.fromiter(shown, np.int64, len(shown))
    begins = np.zeros(_SIZE, np.bool_)
    begins[wanted // _SIZE ** (RUN - 1)] = True
    row, at = np.nonzero(begins[table[:, : max(0, words - RUN + 1)]])
    run = table[row[:, None], at[:, None] + np.arange(RUN)].astype(np.int64) @ _POWERS
    hit = np.isin(run, wanted)
    return Phantoms(row=row[hit], at=at[hit], run=run[hit])


def drawn(window: tuple[int, str, int], *, words: int, count: int) -> NDArray[np.uint16]:
    """Numbers of common words, each as likely as any other, in `count` rows.

    What `wording.sentences` would draw, and not by it: that would take a second a window.
    """
    digest = hashlib.sha256("/".join(map(str, (*window, "topics"))).encode()).digest()
    # of numpy's generators only the raw numbers are promised to stay the same
    bits = np.random.PCG64(int.from_bytes(digest))
    fair = np.empty(0, np.uint16)
    while len(fair) < count * words:
        raw = bits.random_raw((count * words - len(fair)) // 4 + 64).astype("<u8").view("<u2")
        fair = np.concatenate((fair, raw[raw < _FAIR]))
    return (fair[: count * words] % _SIZE).reshape(count, words)
