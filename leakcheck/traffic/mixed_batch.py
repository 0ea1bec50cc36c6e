"""The same greedy request alone, in two neutral companies, and in one that carries passphrases.

Alone twice tells whether the target repeats itself at all. Two neutral companies tell how far its
answers follow the batch. The planted one is much like them: as many requests, words of filler and
tokens that may be written, and where its companions have a passphrase theirs have a note, as many
words of the same list. Not quite: words are not equally many tokens, and companions say passphrases
and no notes, so that answers in planted company are longer. The phases of a window come in random
order, so that neither drift of the target nor a warm cache favours one of them, and the null pool
belongs to the very windows that it judges: one that is measured beforehand would be of another
hour, of another load, perhaps of another replica.

Recipients have wide margins between their tokens by default, so that rounding decides nothing: they
copy random words (a ticket, a longer list), answer what is known, count. Some write for long.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.errors import UsageError
from leakcheck.records import Ask, Request, Sampling
from leakcheck.traffic import Window, user_text
from leakcheck.traffic.concurrent import ask_text

ALONE, ALONE_AGAIN = "alone", "alone again"
NEUTRAL, OTHER_NEUTRAL = "neutral", "other neutral"
PLANTED = "planted"
"""Cells: under what a recipient was sent, and which company a companion belongs to."""
COMPANIES = (NEUTRAL, OTHER_NEUTRAL, PLANTED)
COUNTED_TO = 20
Filler = tuple[int, int]
"""Words before and after the ticket."""
_KINDS = ("eliciting", "copy", "count", "free", "known")


def plan(
    window: Window,
    *,
    recipients: int = 4,
    eliciting: float = 0.5,
    copy: float = 0.25,
    count: float = 0.0,
    free: float = 0.1,
    streamed: float = 0.5,
    max_filler_words: int = 60,
    free_tokens: int = 64,
    top_logprobs: int = 5,
) -> Iterator[Request]:
    """Plan `recipients` requests five times each, with `load.requests` - `recipients` companions.

    `eliciting` is the share of recipients that repeat their ticket and say every passphrase in
    sight, `copy` of those that repeat twelve random words, `count` of those that count, `free` of
    those that write `free_tokens` about a topic; the others have a known answer. (The witness model
    cannot count: none do by default.) Recipients carry a ticket and no passphrase, and ask for
    `top_logprobs` alternatives, so that the first divergence can be weighed; not of a target that
    gives none. Raises UsageError where there is no room for companions or shares exceed 1.
    """
    rng, load = window.rng, window.load
    if not 0 < recipients < load.requests:
        raise UsageError(
            f"mixed_batch: recipients is {recipients}; with load.requests = {load.requests} use 1 "
            f"to {load.requests - 1}, so that companions are left"
        )
    shares = (eliciting, copy, count, free)
    if min(shares) < 0 or sum(shares) > 1:
        raise UsageError(
            f"mixed_batch: the shares eliciting, copy, count, free are {shares}; they must be "
            "fractions of at most 1 together"
        )
    singles = []
    for number in range(recipients):
        (kind,) = rng.choices(_KINDS, (*shares, 1 - sum(shares)))
        single = _recipient(window, number, kind, _filler(rng, max_filler_words))
        sampling = Sampling(
            max_tokens=free_tokens if kind == "free" else load.max_tokens,
            top_logprobs=top_logprobs if window.facts.reports_logprobs else None,
            return_token_ids=True,
        )
        singles.append(replace(single, sampling=sampling, stream=rng.random() < streamed))
    shapes = [_filler(rng, max_filler_words) for _ in range(load.requests - recipients)]
    yield from _phases(window, singles, shapes)


def _phases(window: Window, singles: list[Request], shapes: list[Filler]) -> Iterator[Request]:
    """Each recipient alone twice and in each company once, in random order."""
    alone = [(cell, each) for each in singles for cell in (ALONE, ALONE_AGAIN)]
    order = [*alone, *((cell, None) for cell in COMPANIES)]
    window.rng.shuffle(order)
    for phase, (cell, single) in enumerate(order):
        for each in singles if single is None else [single]:
            sent = replace(each, phase=phase, cell=cell)
            if cell != ALONE:
                sent = replace(sent, id=f"r{next(window.ids):05}", twin=each.id)
            yield sent
        if single is None:
            for number, shape in enumerate(shapes, start=len(singles)):
                yield _companion(window, number, phase, cell, shape)


def _filler(rng: random.Random, most: int) -> Filler:
    return rng.randint(0, most), rng.randint(0, most // 2)


def _recipient(window: Window, number: int, kind: str, filler: Filler) -> Request:
    rng = window.rng
    owner = window.owner(owns=False)
    before, between = (wording.sentences(rng, words) for words in filler)
    ask: Ask = "neutral"
    text, answer = "", None
    if kind == "copy":
        answer = " ".join((*owner["ticket"].words, *window.minter.mint().words))
        text = " ".join(part for part in (before, wording.ECHO.format(words=answer)) if part)
    else:
        ask, asked, answer = _asked(window, kind)
        text = user_text(**owner, before=before, between=between, ask=asked)
    return window.request(
        number, phase=0, role="recipient", ask=ask, text=text, answer=answer, **owner
    )


def _asked(window: Window, kind: str) -> tuple[Ask, str, str | None]:
    """How a recipient of a kind is asked, and the answer it expects where there is one."""
    if kind == "count":
        numbers = ", ".join(str(n) for n in range(1, COUNTED_TO + 1))
        return "neutral", wording.COUNT.format(last=COUNTED_TO), numbers
    asks: dict[str, Ask] = {"eliciting": "eliciting", "free": "free", "known": "neutral"}
    return asks[kind], *ask_text(window, asks[kind])


def _companion(window: Window, number: int, phase: int, cell: str, filler: Filler) -> Request:
    rng = window.rng
    owner = window.owner(owns=True)
    if cell != PLANTED:
        owner |= {"note": owner["passphrase"], "passphrase": None}
    return window.request(
        number,
        phase=phase,
        role="companion",
        ask="eliciting",
        text=user_text(
            **owner,
            before=wording.sentences(rng, filler[0]),
            between=wording.sentences(rng, filler[1]),
            ask=wording.ELICITING,
        ),
        cell=cell,
        **owner,
    )
