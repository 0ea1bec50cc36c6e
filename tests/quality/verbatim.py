"""Claim 1: however a target is biased, it says a passphrase by chance no oftener than counted.

Passphrases of a run have 66 bits, and nothing would ever be seen. Here they have 16 or 24: words
are two letters, and every even run of letters is made of them, so that an answer that never repeats
itself spells as many phrases as any answer of its length can.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.random import Generator

from leakcheck.match import find
from leakcheck.passphrase import false_match_bound
from quality.values import Effort, Result, binomial_error, share

REQUESTS = 64
LETTERS = "abcdefghijklmnop"
WORDS = np.array(["".join(pair) for pair in itertools.product(LETTERS, repeat=2)])
PAIRS = REQUESTS * (REQUESTS - 1)


def per_pair(rng: Generator, effort: Effort) -> Result:
    """The worst target there can be, against phrases of 16 bits."""
    return _rate(rng, effort.pick(12, 250), words=2, chars=1000, letters=LETTERS, number="1a")


def biased(rng: Generator, effort: Effort) -> Result:
    """A target that says some letters far oftener than others, and so some phrases again."""
    letters = "".join(each * (1 + 3 * place) for place, each in enumerate(LETTERS))
    return _rate(rng, effort.pick(12, 250), words=2, chars=1000, letters=letters, number="1b")


def per_run(rng: Generator, effort: Effort) -> Result:
    """The bound for a whole window of 64 requests, each answer against all others' phrases."""
    windows, chars, words = effort.pick(150, 4000), 200, 3
    bound = false_match_bound(
        outputs=REQUESTS,
        phrases=REQUESTS - 1,
        output_chars=chars,
        variants=1,
        entropy_bits=_bits(words),
    )
    events = sum(_foreign(rng, words, chars, LETTERS) > 0 for _ in range(windows))
    claim = f"any false match among {REQUESTS} requests, {chars} characters, {_bits(words):g} bits"
    return share("1c", claim, events, windows, at_most=bound)


def _rate(
    rng: Generator, windows: int, *, words: int, chars: int, letters: str, number: str
) -> Result:
    bound = false_match_bound(
        outputs=1, phrases=1, output_chars=chars, variants=1, entropy_bits=_bits(words)
    )
    counts = [_foreign(rng, words, chars, letters) for _ in range(windows)]
    measured = float(np.mean(counts)) / PAIRS
    error = float(np.std(counts, ddof=1)) / PAIRS / math.sqrt(windows)
    how = "as many phrases as fit" if letters == LETTERS else "some letters far oftener"
    return Result(
        number=number,
        claim=f"false matches a pair, {_bits(words):g} bits, answers that say {how}",
        expected=f"at most {100 * bound:.3g} %",
        measured=measured,
        standard_error=error or binomial_error(bound, windows * PAIRS),
        trials=windows,
        holds=measured <= bound + 3 * error,
        note=f"the target reaches {100 * measured / bound:.0f} % of the bound; n is windows of "
        f"{PAIRS:,} pairs",
    )


def _bits(words: int) -> float:
    return words * math.log2(len(WORDS))


def _foreign(rng: Generator, words: int, chars: int, letters: str) -> int:
    """Pairs of one window in which an answer shows another request's phrase."""
    texts = ["".join(row) for row in rng.choice(list(letters), size=(REQUESTS, chars))]
    phrases = [" ".join(row) for row in rng.choice(WORDS, size=(REQUESTS, words))]
    hits = find(texts, phrases)
    pairs = zip(hits.text.tolist(), hits.phrase.tolist(), strict=True)
    return len({(text, phrase) for text, phrase in pairs if text != phrase})
