"""Claim 6: a phrase that was planted is ranked among those that were not: exact for any scorer.

The pretended answers are heavily biased to the common words of the list, so that common phrases
show far oftener than rare ones, and the scorers are as bad as they can be.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from leakcheck import evidence
from quality.values import Effort, Result, share

WINDOWS, PHANTOMS, WORDS, LENGTH, SAID = 40, 99, 512, 6, 24
LEVEL = 0.05
Indexes = npt.NDArray[np.int64]
Scorer = Callable[[Indexes, Indexes], npt.NDArray[np.float64]]
"""An answer [words] and candidates [candidates, words] to a score of each."""

_COMMON = 1.0 / np.arange(1, WORDS + 1) ** 1.1
_COMMON /= _COMMON.sum()


def shared_words(answer: Indexes, candidates: Indexes) -> npt.NDArray[np.float64]:
    """How many words of a phrase the answer says: common phrases score high."""
    return np.asarray(np.isin(candidates, answer).sum(axis=1), float)


def arbitrary(answer: Indexes, candidates: Indexes) -> npt.NDArray[np.float64]:
    """Nonsense, though always the same nonsense."""
    said = crc32(answer.tobytes())
    return np.array([float(crc32(each.tobytes(), said) % 64) for each in candidates])


def favourite(answer: Indexes, candidates: Indexes) -> npt.NDArray[np.float64]:
    """Likes some words whatever is said, and likes them better after some answers."""
    return np.asarray((candidates < answer.min() + 8).sum(axis=1), float)


def exact_test(rng: Generator, effort: Effort) -> Result:
    """The exact test on phrases of which three words show."""
    return _exact(
        rng, effort.pick(300, 6000), "6a", "three words of a phrase", scorer=shared_words, enough=3
    )


def exact_test_arbitrary(rng: Generator, effort: Effort) -> Result:
    """The same on nonsense."""
    return _exact(
        rng, effort.pick(150, 6000), "6b", "a meaningless score", scorer=arbitrary, enough=62
    )


def e_value(rng: Generator, effort: Effort) -> Result:
    """The e-value, looked at after every window."""
    return _sequential(
        rng, effort.pick(150, 6000), "6c", "three words", scorer=shared_words, enough=3
    )


def e_value_favourite(rng: Generator, effort: Effort) -> Result:
    """The same with a scorer that has favourites."""
    return _sequential(
        rng, effort.pick(150, 6000), "6d", "a scorer with favourites", scorer=favourite, enough=2
    )


def directed(rng: Generator, effort: Effort) -> Result:
    """Scores themselves, not thresholds of them."""
    return _directed(rng, effort.pick(80, 2000), "6e", shared_words, "words in common")


def directed_arbitrary(rng: Generator, effort: Effort) -> Result:
    """Scores that mean nothing."""
    return _directed(rng, effort.pick(80, 2000), "6f", arbitrary, "a meaningless score")


def _exact(
    rng: Generator, runs: int, number: str, how: str, *, scorer: Scorer, enough: float
) -> Result:
    events = sum(evidence.phantom_p(_shown(rng, scorer, enough)) <= LEVEL for _ in range(runs))
    claim = f"exact test, {how}, answers biased to common words: false alarms at 5 %"
    return share(number, claim, events, runs, at_most=LEVEL)


def _sequential(
    rng: Generator, runs: int, number: str, how: str, *, scorer: Scorer, enough: float
) -> Result:
    events = 0
    for _ in range(runs):
        windows = [evidence.phantom_bets([s], sources=1) for s in _shown(rng, scorer, enough)]
        events += _ever(windows, 1 / LEVEL)
    claim = f"e-value, {how}, looked at after every window: false alarms at 5 %"
    return share(number, claim, events, runs, at_most=LEVEL)


def _directed(rng: Generator, runs: int, number: str, scorer: Scorer, how: str) -> Result:
    events = 0
    for _ in range(runs):
        windows = []
        for _ in range(WINDOWS):
            answer, candidates = _window(rng)
            scores = scorer(answer, candidates).tolist()
            windows.append(evidence.directed_bets(scores, 0))
        events += _ever(windows, 1 / LEVEL)
    claim = f"directed e-value of scores ({how}), after every window: false alarms at 5 %"
    return share(number, claim, events, runs, at_most=LEVEL)


def _shown(rng: Generator, scorer: Scorer, enough: float) -> list[tuple[bool, int, int]]:
    """Windows with any candidate that shows."""
    found = []
    for _ in range(WINDOWS):
        scores = scorer(*_window(rng)) >= enough
        if scores.any():
            found.append((bool(scores[0]), int(scores.sum()), len(scores)))
    return found


def _window(rng: Generator) -> tuple[Indexes, Indexes]:
    """A biased answer of a target that leaks nothing; the planted phrase, then its phantoms."""
    answer = rng.choice(WORDS, size=SAID, p=_COMMON)
    return answer, rng.integers(0, WORDS, size=(PHANTOMS + 1, LENGTH))


def _ever(windows: list[tuple[float, ...]], threshold: float) -> bool:
    """Whether the merged e-value reaches a threshold after any window."""
    if not windows:
        return False
    logs = np.cumsum(np.log(np.maximum(np.array(windows), 1e-300)), axis=0)
    reached = np.exp(logs).mean(axis=1) >= threshold
    at = int(np.argmax(reached)) if reached.any() else len(windows) - 1
    return evidence.merge(windows[: at + 1]) >= threshold * (1 - 1e-9)
