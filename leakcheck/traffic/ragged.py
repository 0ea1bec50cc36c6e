"""Very unequal requests in one batch: short beside long, early finishers, prompts that join late.

Rows of a batch are padded, moved and dropped as requests of different lengths come and go. So
windows take every size from one request to `load.requests` in turn; prompts have from a few words
to some hundred, spread evenly over orders of magnitude; answers end after a few tokens or go on for
long; and long prompts often start only when others are decoding already. Some requests are sent
alone too (cell `alone`), to be compared with themselves in the batch (`ragged`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.records import Ask, Request, Sampling
from leakcheck.traffic import Window, user_text
from leakcheck.traffic.concurrent import ask_text

ALONE, RAGGED = "alone", "ragged"
_STRIDE = 7  # walks through the sizes in a mixed order; sizes that it divides take their turn too
_FEW_WORDS = 2
_BETWEEN_WORDS = 30  # after more than these a small model forgets its ticket
_EXTREMES = (1, 2)
"""The second request of a window is the longest possible, the third the shortest."""


def plan(
    window: Window,
    *,
    twins: int = 2,
    eliciting: float = 0.6,
    free: float = 0.2,
    owners: float = 0.75,
    max_words: int = 380,
    free_tokens: int = 96,
    late: float = 0.5,
    latest_s: float = 0.15,
    streamed: float = 0.5,
) -> Iterator[Request]:
    """Plan one burst, and up to `twins` of its requests alone, before or after it.

    `eliciting` and `free` are shares as in `concurrent`; a free request decodes `free_tokens`, so
    its prompt has at most a quarter of `max_words`. The share `late` starts up to `latest_s` later.
    """
    rng, load = window.rng, window.load
    size = _size(window.index, load.requests)
    burst = []
    for number in range(size):
        draw = rng.random()
        ask: Ask = (
            "eliciting" if draw < eliciting else "free" if draw < eliciting + free else "neutral"
        )
        if number == 0 or (ask == "free" and number in _EXTREMES):
            ask = "eliciting"
        words = _words(window, number, max_words if ask != "free" else max_words // 4)
        request = _request(window, number, ask, words, owns=number == 0 or rng.random() < owners)
        tokens = free_tokens if ask == "free" else load.max_tokens
        burst.append(
            replace(
                request,
                sampling=Sampling(max_tokens=tokens),
                stream=rng.random() < streamed,
                start_offset_s=rng.uniform(0, latest_s) if rng.random() < late else 0.0,
            )
        )
    yield from _phases(window, burst, twins)


def _size(index: int, most: int) -> int:
    """Every size from 1 to `most` once in so many windows, in a mixed order."""
    stride = _STRIDE if math.gcd(_STRIDE, most) == 1 else 1
    return (index % most * stride) % most + 1


def _words(window: Window, number: int, most: int) -> int:
    """Words of filler: the second and third of a window are the extremes, the others are drawn
    evenly over orders of magnitude.
    """
    if number in _EXTREMES:
        return most if number == _EXTREMES[0] else _FEW_WORDS
    return round(math.exp(window.rng.uniform(math.log(_FEW_WORDS), math.log(most))))


def _request(window: Window, number: int, ask: Ask, words: int, *, owns: bool) -> Request:
    rng = window.rng
    owner = window.owner(owns=owns)
    text, answer = ask_text(window, ask)
    between = rng.randint(0, min(words, _BETWEEN_WORDS))
    return window.request(
        number,
        phase=0,
        role="recipient",
        ask=ask,
        text=user_text(
            **owner,
            before=wording.sentences(rng, words - between),
            between=wording.sentences(rng, between),
            ask=text,
            passphrase_first=rng.random() < 0.5,  # noqa: PLR2004 - either way
        ),
        answer=answer,
        cell=RAGGED,
        **owner,
    )


def _phases(window: Window, burst: list[Request], twins: int) -> Iterator[Request]:
    """The burst and its twins, in random order."""
    alone = burst[: min(twins, len(burst) - 1)]
    order = [*range(len(alone)), None]
    window.rng.shuffle(order)
    for phase, what in enumerate(order):
        if what is not None:
            first = alone[what]
            yield replace(first, phase=phase, cell=ALONE, start_offset_s=0.0)
            continue
        for request in burst:
            if request in alone:
                twin = request.id
                yield replace(request, id=f"r{next(window.ids):05}", phase=phase, twin=twin)
            else:
                yield replace(request, phase=phase)
