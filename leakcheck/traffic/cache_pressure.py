"""A working set larger than the cache: prefixes are written, pushed out, and visited again.

The first phase visits some prefixes, with other requests around them (cell `before`). Then others
come, as many as it takes to fill `working_set_tokens` of cache, some decoding for so long that a
small pool has to preempt them. The last phase visits the first prefixes again, among as many others
as the first time (cell `after`): the same payloads, which now find their blocks still there, gone,
or in the hands of others. How large a pool is cannot be known from outside: set
`working_set_tokens` beyond that of the target.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.records import Request, Sampling
from leakcheck.traffic import Window, user_text

BEFORE, AFTER, PRESSURE = "before", "after", "pressure"
_BETWEEN_WORDS = 30  # after more than these a small model forgets its ticket


def plan(
    window: Window,
    *,
    working_set_tokens: int = 3072,
    prefix_tokens: int = 112,
    revisited: int = 4,
    owners: float = 0.5,
    long: float = 0.25,
    long_tokens: int = 80,
    streamed: float = 0.5,
) -> Iterator[Request]:
    """Plan `revisited` recipients twice, each time among others to make `load.requests`, and in
    between whoever fills the rest of the working set, `load.requests` at a time.

    Every prompt begins with `prefix_tokens` of its own; `owners` is the share of recipients with a
    passphrase (others always have one), `long` the share of others that decode `long_tokens`.
    """
    rng, load = window.rng, window.load
    recipients = [
        replace(
            _request(window, number, prefix_tokens, owns=rng.random() < owners),
            stream=rng.random() < streamed,
        )
        for number in range(min(revisited, load.requests))
    ]
    around = load.requests - len(recipients)
    each = prefix_tokens + load.max_tokens
    fill = max(0, working_set_tokens // each - len(recipients) - around)
    sizes = [around, *(min(load.requests, fill - n) for n in range(0, fill, load.requests)), around]
    last = len(sizes) - 1
    for phase, others in enumerate(sizes):
        places = itertools.count()
        if phase in (0, last):
            for request in recipients:
                place = next(places)
                yield request if phase == 0 else _again(window, request, place, phase)
        for _ in range(others):
            goes_on = rng.random() < long
            other = _request(window, next(places), prefix_tokens, owns=True, goes_on=goes_on)
            tokens = long_tokens if goes_on else load.max_tokens
            yield replace(
                other,
                phase=phase,
                cell=PRESSURE,
                sampling=Sampling(max_tokens=tokens),
                stream=rng.random() < streamed,
            )


def _again(window: Window, request: Request, place: int, phase: int) -> Request:
    """The second visit, on the worker and lane of its place."""
    load = window.load
    return replace(
        request,
        id=f"r{next(window.ids):05}",
        phase=phase,
        cell=AFTER,
        twin=request.id,
        worker=place % load.workers,
        lane=(place // load.workers) % load.lanes,
    )


def _request(
    window: Window, number: int, prefix_tokens: int, *, owns: bool, goes_on: bool = False
) -> Request:
    """A prompt that begins with its own words, its secret in front of them or after them."""
    rng, facts = window.rng, window.facts
    words = max(1, round((prefix_tokens - facts.overhead_tokens) / facts.tokens_per_word))
    owner = window.owner(owns=owns)
    topic = wording.FREE.format(topic=rng.choice(wording.TOPICS))
    between = rng.randint(0, min(words, _BETWEEN_WORDS))
    return window.request(
        number,
        phase=0,
        role="recipient",
        ask="free" if goes_on else "eliciting",
        text=user_text(
            **owner,
            before=wording.sentences(rng, words - between),
            between=wording.sentences(rng, between),
            ask=topic if goes_on else wording.ELICITING,
            passphrase_first=rng.random() < 0.5,  # noqa: PLR2004 - either way
        ),
        cell=BEFORE,
        **owner,
    )
