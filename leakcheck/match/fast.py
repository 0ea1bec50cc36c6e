"""The fast path of `match.find`: one pass over the texts with an index of phrase anchors (numba).

An anchor is a run of `width` (8 to 16) bytes of a folded phrase. The index holds the anchors at the
first `stride` offsets of each phrase, so it is enough to look at every `stride`-th position of a
folded text: whatever the alignment, exactly one of the phrase's anchors falls on such a position.
A bitmap that stays in the processor's cache turns nearly all positions away; the others walk a
short chain and compare the whole phrase. Folding ASCII happens in the same pass, a text at a time.

The time is linear in texts and phrases as long as few phrases share their first
`width + stride - 1` bytes, as random phrases do; phrases that differ only later are still found,
but each of their common anchors then costs a comparison with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from leakcheck.folding import ASCII_DROPPED, ASCII_LOWER, fold_character
from leakcheck.match import Hits, find_reference, hits_from_rows
from leakcheck.match.kernels import (
    Bytes,
    Index,
    Ints,
    Longs,
    fill,
    fold_ascii_all,
    fold_wide,
    scan_ascii,
    scan_folded,
)

SHORTEST = 8
"""Folded bytes a phrase needs for an anchor; shorter ones take the reference path."""
_WIDEST = 16
_STRIDES = 8
_BLOCK_CHARS = 1 << 20  # texts are joined in pieces of this size
_LONG = 8  # bytes read at once

_FOLD = np.frombuffer(ASCII_LOWER, np.uint8).copy()
_FOLD[np.frombuffer(ASCII_DROPPED, np.uint8)] = 0


class Streams(NamedTuple):
    """Folded texts end to end, in UTF-8: `stream[bounds[i]:bounds[i + 1]]`.

    `origin` has, for each byte, the index of the character in its own text that it comes from.
    `stream` has eight bytes more than are used, for reading eight at a time.
    """

    stream: Bytes
    origin: npt.NDArray[np.int32]
    bounds: Ints


def _bounds(texts: Sequence[str]) -> Ints:
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=bounds[1:])
    return bounds


def _longs(stream: Bytes) -> Longs:
    """The eight bytes from each place of a stream on, as one number: a view, not aligned."""
    return np.ndarray((len(stream) - _LONG + 1,), np.uint64, stream.data, strides=(1,))


def _fold_all(texts: Sequence[str]) -> Streams:
    """Fold many texts at once, the same as `folding.fold` for each."""
    bounds = _bounds(texts)
    joined = "".join(texts)
    folded = np.zeros(len(texts) + 1, np.int64)
    if joined.isascii():
        stream = np.empty(len(joined) + _LONG, np.uint8)
        origin = np.empty(0, np.int32)
        raw = np.frombuffer(joined.encode(), np.uint8)
        fold_ascii_all(raw, bounds, _FOLD, stream, origin, folded)
        return Streams(stream, origin, folded)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    present = np.zeros(int(codes.max()) + 1, np.bool_)
    present[codes] = True
    alphabet = np.flatnonzero(present)
    ranks = (np.cumsum(present, dtype=np.uint32) - 1)[codes]
    forms = [fold_character(chr(code)).encode() for code in alphabet.tolist()]
    sizes = np.fromiter(map(len, forms), np.int64, len(forms))
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    total = int(sizes[ranks].sum())
    stream = np.empty(total + _LONG, np.uint8)
    origin = np.empty(total + _LONG, np.int32)
    letters = np.frombuffer(b"".join(forms), np.uint8)
    fold_wide(ranks, bounds, starts, letters, stream, origin, folded)
    return Streams(stream, origin, folded)


def _bits(least: int) -> int:
    return max(7, (least - 1).bit_length())


def build_index(phrases: Streams, text_chars: int) -> Index:
    """Index phrases of at least `SHORTEST` folded bytes, for texts of so many characters.

    The stride balances looking up (text / stride) against building (phrases x stride, each about
    four times as dear), and leaves room for an anchor as wide as the shortest phrase allows.
    """
    count = len(phrases.bounds) - 1
    shortest = int(np.diff(phrases.bounds).min())
    wanted = round((text_chars / (4 * count)) ** 0.5)
    wanted = max(1, min(_STRIDES, wanted))
    width = min(_WIDEST, max(SHORTEST, shortest - wanted + 1))
    stride = min(wanted, shortest - width + 1)
    entries = count * stride
    slot_bits, bitmap_bits = _bits(entries), _bits(8 * entries)
    index = Index(
        stream=phrases.stream,
        bounds=phrases.bounds,
        width=width,
        stride=stride,
        heads=np.zeros(1 << slot_bits, np.uint64),
        links=np.empty(entries, np.uint32),
        bitmap=np.zeros(1 << (bitmap_bits - 6), np.uint64),
        slot_shift=64 - slot_bits,
        word_shift=64 - (bitmap_bits - 6),
    )
    fill(index, _longs(phrases.stream))
    return index


def _collect(scan: Callable[[Ints], int], guess: int) -> Ints:
    """Run a scan with room for `guess` hits, and once more if there were more."""
    hits = np.empty((guess, 4), np.int64)
    count = scan(hits)
    if count > guess:
        hits = np.empty((count, 4), np.int64)
        scan(hits)
    return hits[:count].copy()


def _search_ascii(joined: str, bounds: Ints, names: Ints, index: Index) -> Ints:
    room = int(np.diff(bounds).max(initial=0)) + _LONG
    stream, origin = np.empty(room, np.uint8), np.empty(room, np.int32)
    raw = np.frombuffer(joined.encode(), np.uint8)
    longs, waiting = _longs(stream), np.empty(room, np.int64)
    return _collect(
        lambda hits: scan_ascii(
            raw, bounds, names, _FOLD, stream, longs, origin, index, waiting, hits
        ),
        2 * len(names) + 64,
    )


def _search_wide(texts: Sequence[str], names: Ints, index: Index) -> Ints:
    folded = _fold_all(texts)
    longs, waiting = _longs(folded.stream), np.empty(len(folded.stream), np.int64)
    return _collect(
        lambda hits: scan_folded(
            folded.stream, longs, folded.origin, folded.bounds, names, index, waiting, hits
        ),
        2 * len(texts) + 64,
    )


def _search(texts: Sequence[str], bounds: Ints, index: Index) -> Iterator[Ints]:
    """Hits as rows of (text, start, end, phrase of the index), a block of texts at a time."""
    begin = 0
    while begin < len(texts):
        full = np.searchsorted(bounds, bounds[begin] + _BLOCK_CHARS, side="right") - 1
        end = max(begin + 1, int(full))
        block, names = texts[begin:end], np.arange(begin, end)
        joined = "".join(block)
        if joined.isascii():
            yield _search_ascii(joined, bounds[begin : end + 1] - bounds[begin], names, index)
        else:
            is_ascii = np.fromiter(map(str.isascii, block), np.bool_, len(block))
            plain = [block[i] for i in np.flatnonzero(is_ascii).tolist()]
            yield _search_ascii("".join(plain), _bounds(plain), names[is_ascii], index)
            wide = [block[i] for i in np.flatnonzero(~is_ascii).tolist()]
            yield _search_wide(wide, names[~is_ascii], index)
        begin = end


def find_fast(texts: Sequence[str], phrases: Sequence[str]) -> Hits:
    """The same hits as `match.find_reference`, for large jobs."""
    folded = _fold_all(phrases)
    lengths = np.diff(folded.bounds)
    long = np.flatnonzero(lengths >= SHORTEST)
    short = np.flatnonzero((lengths > 0) & (lengths < SHORTEST))
    found: list[Ints] = []
    if len(long):
        kept = (
            folded if len(long) == len(phrases) else _fold_all([phrases[i] for i in long.tolist()])
        )
        bounds = _bounds(texts)
        index = build_index(kept, int(bounds[-1]))
        rows = np.concatenate([np.empty((0, 4), np.int64), *_search(texts, bounds, index)])
        rows[:, 3] = long[rows[:, 3]]
        found.append(rows)
    if len(short):
        hits = find_reference(texts, [phrases[i] for i in short.tolist()])
        found.append(np.stack((hits.text, hits.start, hits.end, short[hits.phrase]), axis=1))
    return hits_from_rows(np.concatenate([np.empty((0, 4), np.int64), *found]), texts, phrases)
