"""Find passphrases in texts: all texts x all phrases in near-linear time.

Both sides are folded (`folding.fold`): streams of letters and digits are compared, so case,
compatibility forms, accents, separators, markdown and zero-width characters make no difference, and
a phrase glued into a longer word is found. One phrase can match at a given start position in
one way only, which is what `passphrase.false_match_bound` counts.

Two paths give the same hits: `find_reference` (Aho-Corasick by ahocorasick_rs, simple, the measure
of truth in the tests) and `fast.find_fast` (numba), which large jobs take.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ahocorasick_rs import AhoCorasick, Implementation

from leakcheck.folding import fold, origins

FAST_FROM = 16_000_000
"""Size of a job (characters of texts + 5 x characters of phrases) that takes the numba path.

Measured (one core of 2023): the reference needs 0.08 us a unit (the automaton makes a character of
a phrase five times as dear), 1.3 s in all; the fast path a twentieth or less of that, after
0.4 s of importing numba with compiled code from its cache, or 3.3 s where it must compile first.
"""
FAST_FROM_LOADED = 20_000
"""The same size once this process has loaded the fast path: what is left is its 0.3 ms a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Where phrases stand in texts: columns of equal length, sorted by text, start, end, phrase.

    `text` and `phrase` are indexes into the arguments of `find`; `text[start:end]` of the original
    text is the passage, from its first to its last letter or digit. `exact`: the passage is the
    phrase as it was given, character for character.
    """

    text: npt.NDArray[np.int64]
    phrase: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """The number of hits."""
        return len(self.text)


def find(texts: Sequence[str], phrases: Sequence[str]) -> Hits:
    """Every occurrence of every phrase in every text, overlapping ones included.

    A phrase without a letter or digit matches nowhere; equal phrases are all reported. Large jobs
    take the fast path (`FAST_FROM`), which changes nothing but the time; it holds a few hundred
    bytes a phrase beyond the arguments.
    """
    if not _is_large(texts, phrases):
        return find_reference(texts, phrases)
    from leakcheck.match.fast import find_fast  # noqa: PLC0415 - numba: half a second of import

    try:
        return find_fast(texts, phrases)
    except OSError:  # only numba's cache of compiled code touches a disk: full, or gone meanwhile
        return find_reference(texts, phrases)


def _is_large(texts: Sequence[str], phrases: Sequence[str]) -> bool:
    """Whether a job is worth the fast path; looks no further than to the answer."""
    least = FAST_FROM_LOADED if "leakcheck.match.fast" in sys.modules else FAST_FROM
    lengths = itertools.chain(map(len, texts), (5 * len(phrase) for phrase in phrases))
    return any(size >= least for size in itertools.accumulate(lengths))


def find_reference(texts: Sequence[str], phrases: Sequence[str]) -> Hits:
    """`find` by Aho-Corasick over folded streams: slower on large jobs, and obviously right."""
    owners: dict[str, list[int]] = {}
    for index, phrase in enumerate(phrases):
        owners.setdefault(fold(phrase), []).append(index)
    owners.pop("", None)
    if not owners:
        return hits_from_rows([], texts, phrases)
    patterns = list(owners)
    automaton = AhoCorasick(patterns, implementation=Implementation.ContiguousNFA)
    rows: list[tuple[int, int, int, int]] = []
    for index, text in enumerate(texts):
        found = automaton.find_matches_as_indexes(fold(text), overlapping=True)
        if not found:
            continue
        origin = origins(text)
        for pattern, start, end in found:
            first, last = origin[start], origin[end - 1] + 1
            rows.extend((index, first, last, phrase) for phrase in owners[patterns[pattern]])
    return hits_from_rows(rows, texts, phrases)


def hits_from_rows(
    rows: Sequence[tuple[int, int, int, int]] | npt.NDArray[np.int64],
    texts: Sequence[str],
    phrases: Sequence[str],
) -> Hits:
    """Rows of (text, start, end, phrase) as sorted columns, with `exact` looked up in the texts."""
    table = np.asarray(rows, dtype=np.int64).reshape(-1, 4)
    text, start, end, phrase = table[np.lexsort(table.T[::-1])].T.copy()
    columns = zip(text.tolist(), start.tolist(), end.tolist(), phrase.tolist(), strict=True)
    exact = np.fromiter(
        (texts[t][a:b] == phrases[p] for t, a, b, p in columns), np.bool_, len(text)
    )
    return Hits(text=text, phrase=phrase, start=start, end=end, exact=exact)
