"""The compiled inner loops of `match.fast` (numba): fold ASCII, index anchors, scan.

All in one file: numba's cache of compiled code notices a change of the file it is in, no other.
"""
# ruff: noqa: PLR0917 - compiled code takes its arrays by position

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

P = ParamSpec("P")
R = TypeVar("R")
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Longs = npt.NDArray[np.uint64]


def _jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile, keeping the machine code on disk where numba finds a writable folder."""
    try:
        return cast("Callable[P, R]", njit(cache=True)(function))
    except RuntimeError:  # no writable folder beside the package nor in the home folder
        return cast("Callable[P, R]", njit(function))


class Index(NamedTuple):
    """Anchors of phrases, in a form that compiled code takes (hence a tuple).

    Phrase p is `stream[bounds[p]:bounds[p + 1]]`; entry e is the anchor at offset e % stride of
    phrase e // stride. `bitmap` is a Bloom filter of the anchors' hashes. `heads[slot]` is the last
    entry with a hash of that slot, 0 where there is none: 32 bits of the hash (so that a stranger
    is turned away without another look into memory), 31 bits of entry + 1, and one bit that says
    whether `links[entry]` goes on with an earlier one. The shifts cut a hash to its slot and word.
    """

    stream: Bytes
    bounds: Ints
    width: int
    stride: int
    heads: Longs
    links: npt.NDArray[np.uint32]
    bitmap: Longs
    slot_shift: int
    word_shift: int


@_jit
def _hash(left: np.uint64, right: np.uint64) -> np.uint64:
    """Mix two longs; the high bits of the result are the good ones."""
    mixed = left * np.uint64(0x9E3779B97F4A7C15)
    mixed = ((mixed ^ (mixed >> np.uint64(32))) + right) * np.uint64(0xD6E8FEB86659FD93)
    return (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)


@_jit
def _mark(key: np.uint64) -> np.uint64:
    """The three bits of a hash in its word of the bitmap (a Bloom filter, one word a hash)."""
    six, one = np.uint64(63), np.uint64(1)
    return (
        (one << (key & six))
        | (one << ((key >> np.uint64(6)) & six))
        | (one << ((key >> np.uint64(12)) & six))
    )


@_jit
def _tag(key: np.uint64) -> np.uint64:
    """The 32 bits of a hash that decide neither its slot nor most of its bits in the bitmap."""
    return (key >> np.uint64(12)) & np.uint64(0xFFFFFFFF)


@_jit
def fill(index: Index, longs: Longs) -> None:
    """Enter the anchors of all phrases; `longs` are the eight bytes from each place of them on."""
    bounds, heads, links, bitmap = index.bounds, index.heads, index.links, index.bitmap
    slot_shift, word_shift = np.uint64(index.slot_shift), np.uint64(index.word_shift)
    right = index.width - 8
    for phrase in range(len(bounds) - 1):
        for offset in range(index.stride):
            at = bounds[phrase] + offset
            key = _hash(longs[at], longs[at + right])
            entry = phrase * index.stride + offset
            slot = key >> slot_shift
            chain = heads[slot]
            heads[slot] = (_tag(key) << np.uint64(32)) | np.uint64(2 * entry + 2)
            if chain != 0:
                links[entry] = chain & np.uint64(0xFFFFFFFF)
                heads[slot] |= np.uint64(1)
            bitmap[key >> word_shift] |= _mark(key)


@_jit
def _scan(
    stream: Bytes,
    longs: Longs,
    origin: npt.NDArray[np.int32],
    begin: int,
    end: int,
    text: int,
    index: Index,
    waiting: Ints,
    hits: Ints,
    count: int,
) -> int:
    """Look for phrases in `stream[begin:end]`; gives the new count of hits, stored or not."""
    bitmap, bounds, known = index.bitmap, index.bounds, index.stream
    slot_shift, word_shift = np.uint64(index.slot_shift), np.uint64(index.word_shift)
    right, stride = index.width - 8, index.stride
    ready = 0
    for at in range(begin, end - index.width + 1, stride):
        key = _hash(longs[at], longs[at + right])
        mark = _mark(key)
        waiting[ready] = at  # no branch: a guess gone wrong would cost more than the store
        ready += int(bitmap[key >> word_shift] & mark == mark)
    for at in waiting[:ready]:
        key = _hash(longs[at], longs[at + right])
        tag = _tag(key)
        chain = index.heads[key >> slot_shift]
        while chain != 0:
            entry = np.int64((chain >> np.uint64(1)) & np.uint64(0x7FFFFFFF)) - 1
            if chain >> np.uint64(32) == tag:
                phrase = entry // stride
                first = at - entry % stride
                low = bounds[phrase]
                length = bounds[phrase + 1] - low
                if first >= begin and first + length <= end:
                    same = 0
                    while same < length and stream[first + same] == known[low + same]:
                        same += 1
                    if same == length:
                        if count < len(hits):
                            hits[count, 0] = text
                            hits[count, 1] = origin[first]
                            hits[count, 2] = origin[first + length - 1] + 1
                            hits[count, 3] = phrase
                        count += 1
            if chain & np.uint64(1) == 0:
                break
            chain = (tag << np.uint64(32)) | np.uint64(index.links[entry])
    return count


@_jit
def _fold_ascii(
    raw: Bytes,
    begin: int,
    end: int,
    table: Bytes,
    stream: Bytes,
    origin: npt.NDArray[np.int32],
    at: int,
) -> int:
    """Fold `raw[begin:end]` to `stream[at:]`; gives its end. No branch: the next overwrites."""
    traced = len(origin) > 0
    for place in range(begin, end):
        folded = table[raw[place]]
        stream[at] = folded
        if traced:
            origin[at] = place - begin
        at += int(folded != 0)
    return at


@_jit
def scan_ascii(
    raw: Bytes,
    bounds: Ints,
    names: Ints,
    table: Bytes,
    stream: Bytes,
    longs: Longs,
    origin: npt.NDArray[np.int32],
    index: Index,
    waiting: Ints,
    hits: Ints,
) -> int:
    """Fold and scan `raw[bounds[i]:bounds[i + 1]]`, named `names[i]`, in a room for one text.

    Gives the count of hits, rows of (name, start, end, phrase); what has no room is only counted.
    """
    count = 0
    for text in range(len(names)):
        end = _fold_ascii(raw, bounds[text], bounds[text + 1], table, stream, origin, 0)
        count = _scan(stream, longs, origin, 0, end, names[text], index, waiting, hits, count)
    return count


@_jit
def scan_folded(
    stream: Bytes,
    longs: Longs,
    origin: npt.NDArray[np.int32],
    bounds: Ints,
    names: Ints,
    index: Index,
    waiting: Ints,
    hits: Ints,
) -> int:
    """As `scan_ascii`, for texts that are folded already."""
    count = 0
    for text in range(len(names)):
        begin, end = bounds[text], bounds[text + 1]
        count = _scan(stream, longs, origin, begin, end, names[text], index, waiting, hits, count)
    return count


@_jit
def fold_ascii_all(
    raw: Bytes,
    bounds: Ints,
    table: Bytes,
    stream: Bytes,
    origin: npt.NDArray[np.int32],
    folded: Ints,
) -> None:
    """Fold texts end to end; `folded` becomes their bounds. An empty `origin` stays empty."""
    for text in range(len(bounds) - 1):
        begin, end = bounds[text], bounds[text + 1]
        folded[text + 1] = _fold_ascii(raw, begin, end, table, stream, origin, folded[text])


@_jit
def fold_wide(
    ranks: npt.NDArray[np.uint32],
    bounds: Ints,
    starts: Ints,
    letters: Bytes,
    stream: Bytes,
    origin: npt.NDArray[np.int32],
    folded: Ints,
) -> None:
    """As `fold_ascii_all`, for text as ranks: r folds to `letters[starts[r]:starts[r + 1]]`."""
    at = 0
    for text in range(len(bounds) - 1):
        for place in range(bounds[text], bounds[text + 1]):
            rank = ranks[place]
            for letter in range(starts[rank], starts[rank + 1]):
                stream[at] = letters[letter]
                origin[at] = place - bounds[text]
                at += 1
        folded[text + 1] = at
