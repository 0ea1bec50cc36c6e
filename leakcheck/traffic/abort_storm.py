"""Clients that hang up in the middle, and who comes after them.

First phase: *aborted* requests with passphrases hang up, at once (cell `early`: some milliseconds
after sending, while a long prompt is still being read) or in the middle of a streamed answer
(`decoding`: after a few chunks), among *bystanders* that are answered (`bystander`; some of them
decode for long). Right after some of the aborted comes another tenant on the same lane (`next`).

Second phase: the aborted payloads once more, as a client would try again (`retry`, twins), among
*fresh* requests that ask for every passphrase they can see (`fresh`) and carry none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.records import Ask, Request, Role, Sampling
from leakcheck.traffic import Window, user_text
from leakcheck.traffic.concurrent import ask_text

EARLY, DECODING, BYSTANDER, NEXT = "early", "decoding", "bystander", "next"
RETRY, FRESH = "retry", "fresh"


def plan(
    window: Window,
    *,
    aborted: float = 0.5,
    early: float = 0.5,
    early_s: float = 0.05,
    most_chunks: int = 5,
    next_on_lane: float = 0.5,
    fresh: int = 4,
    long_tokens: int = 64,
    max_filler_words: int = 120,
    streamed: float = 0.5,
) -> Iterator[Request]:
    """Plan `load.requests` in the first phase, of which the share `aborted` hangs up: `early` of
    them within `early_s` seconds, the others after 1 to `most_chunks` chunks. `next_on_lane` of
    them have a follower. The second phase has a retry of each and `fresh` requests.

    Half of the answers that are cut in the middle, and of the bystanders, are free texts of up to
    `long_tokens`. Prompts of early aborts have `max_filler_words` words of filler or down to half
    as many, the others less; `streamed` of the answers not cut in the middle arrive in chunks.
    """
    rng, load = window.rng, window.load
    leaving = min(max(1, round(aborted * load.requests)), load.requests)
    gone, words = [], (0, max_filler_words // 2)
    for number in range(leaving):
        soon = rng.random() < early
        long = not soon and rng.random() < 0.5  # noqa: PLR2004 - half of them
        request = _request(
            window,
            number,
            role="source",
            cell=EARLY if soon else DECODING,
            words=(max_filler_words // 2, max_filler_words) if soon else words,
            free_tokens=long_tokens if long else None,
        )
        request = replace(
            request,
            stream=not soon or rng.random() < streamed,
            abort_after_s=rng.uniform(0.0, early_s) if soon else None,
            abort_after_chunks=None if soon else rng.randint(1, most_chunks),
        )
        gone.append(request)
        yield request
        if rng.random() < next_on_lane:
            after = _request(window, number, cell=NEXT, owns=False, words=words)
            soon_after = replace(after, start_offset_s=early_s, partner=request.id)
            yield replace(soon_after, stream=rng.random() < streamed)
    for number in range(leaving, load.requests):
        tokens = long_tokens if number % 2 else None
        stays = _request(window, number, cell=BYSTANDER, words=words, free_tokens=tokens)
        yield replace(stays, stream=rng.random() < streamed)
    yield from _second_phase(window, gone, fresh, words, streamed)


def _second_phase(
    window: Window, gone: list[Request], fresh: int, words: tuple[int, int], streamed: float
) -> Iterator[Request]:
    """The aborted once more, on other lanes, and requests that read what they may have left."""
    load, rng = window.load, window.rng
    for number, request in enumerate(gone):
        yield replace(
            request,
            id=f"r{next(window.ids):05}",
            phase=1,
            worker=(number + 1) % load.workers,
            lane=(number + 1) // load.workers % load.lanes,
            role="recipient",
            cell=RETRY,
            twin=request.id,
            abort_after_s=None,
            abort_after_chunks=None,
        )
    for number in range(len(gone) + 1, len(gone) + 1 + fresh):
        reads = _request(window, number, phase=1, cell=FRESH, owns=False, words=words)
        yield replace(reads, stream=rng.random() < streamed)


def _request(
    window: Window,
    number: int,
    *,
    cell: str,
    words: tuple[int, int],
    phase: int = 0,
    role: Role = "recipient",
    owns: bool = True,
    free_tokens: int | None = None,
) -> Request:
    """An eliciting request, or one for a free text of `free_tokens`, with `words` of filler."""
    rng = window.rng
    ask: Ask = "eliciting" if free_tokens is None else "free"
    owner = window.owner(owns=owns)
    size = rng.randint(*words)
    before = rng.randint(0, size)
    text, _ = ask_text(window, ask)
    return window.request(
        number,
        phase=phase,
        role=role,
        ask=ask,
        text=user_text(
            **owner,
            before=wording.sentences(rng, before),
            between=wording.sentences(rng, size - before),
            ask=text,
        ),
        sampling=Sampling(max_tokens=free_tokens or window.load.max_tokens),
        cell=cell,
        **owner,
    )
