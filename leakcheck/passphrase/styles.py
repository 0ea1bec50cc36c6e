"""Styles of passphrases: each is a list of words that `passphrase.Minter` draws from.

Whatever the style, a passphrase is a few words of one list, drawn at random. So entropy, phantoms,
matching and proofs are the same for all; what differs is what a model finds easy to repeat, which
is measured (`audition`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leakcheck import wording
from leakcheck.passphrase import load_words, whole_token_words
from leakcheck.records import Style

MADE_UP_WORDS = 8192
TOKENS_A_WORD: Mapping[Style, float] = MappingProxyType(
    {"rare-token": 1.0, "made-up": 4.0, "digits": 5.0, "phrase": 2.5}
)
"""The most that usual tokenizers make of a word of a style, the space before it included."""

_ONSETS, _VOWELS, _LAST = "bdfgklmnprtvz", "aeiou", "iou"
_STRIDE = 7919  # a prime that divides no number of syllables: walks through all words, mixed
_DIGITS = range(1000, 10_000)
_YEARS = range(1900, 2100)
_KNOWN = frozenset(
    "bikini domino kimono tomato potato mikado bonito dorado rotini tupelo gelato legato rubato "
    "zabini libido pomelo dilutu marabu".split()
)


def digit_groups() -> tuple[str, ...]:
    """Numbers of four digits, without those that an answer holds anyway: years, whole hundreds,
    one digit four times, steps of one up or down. Sorted; equally long, so none begins another.
    """
    return tuple(str(number) for number in _DIGITS if not _usual(number))


def _usual(number: int) -> bool:
    digits = [int(digit) for digit in str(number)]
    steps = {after - before for before, after in itertools.pairwise(digits)}
    return number in _YEARS or number % 100 == 0 or steps in ({0}, {1}, {-1})


@cache
def made_up_words() -> tuple[str, ...]:
    """Words of three syllables that mean nothing in English, the same for everybody, sorted.

    All have six letters, so none is within another. Left out are the few that are words after all,
    and whatever holds a word of the shipped list or of the prompts, or is part of one.
    """
    prose = {*load_words(), *wording.WORDS}
    taken = {word for word in prose if len(word) > 3}  # noqa: PLR2004 - shorter ones are syllables
    taken |= {word[at : at + 6] for word in prose for at in range(len(word) - 5)}
    chosen: list[str] = []
    for word in _syllables():
        if word not in _KNOWN and taken.isdisjoint(_parts(word)):
            chosen.append(word)
            if len(chosen) == MADE_UP_WORDS:
                break
    return tuple(sorted(chosen))


def _syllables() -> Iterator[str]:
    sizes = [len(_ONSETS), len(_VOWELS)] * 2 + [len(_ONSETS), len(_LAST)]
    letters = [_ONSETS, _VOWELS, _ONSETS, _VOWELS, _ONSETS, _LAST]
    total = math.prod(sizes)
    for turn in range(total):
        left, word = turn * _STRIDE % total, ""
        for size, choice in zip(sizes, letters, strict=True):
            left, at = divmod(left, size)
            word += choice[at]
        yield word


def _parts(word: str) -> Iterator[str]:
    for size in range(4, len(word) + 1):
        for at in range(len(word) - size + 1):
            yield word[at : at + size]


def lists(tokenizer: Any, file: Path | None = None) -> dict[Style, tuple[str, ...]]:
    """The words of every style that there is for a target, the usual one first.

    Words of a file are taken as they are and are the only ones; `rare-token` are those of the
    shipped list that are whole tokens of a known tokenizer.
    """
    words = load_words(file)
    whole = () if tokenizer is None else whole_token_words(tokenizer, words)
    if file is not None:
        return {"rare-token" if len(whole) == len(words) else "phrase": words}
    found: dict[Style, Callable[[], Sequence[str]]] = {
        "rare-token": lambda: whole,
        "phrase": lambda: words,
        "made-up": made_up_words,
        "digits": digit_groups,
    }
    return {style: listed for style, make in found.items() if (listed := tuple(make()))}
