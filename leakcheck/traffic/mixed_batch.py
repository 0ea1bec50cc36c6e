"""The same greedy request alone, among neutral companions, and among passphrase-carrying ones.

Companions of both kinds have the same shape: equal numbers of requests and of words. The phases
come in random order, so that neither drift of the target nor a warm cache favours one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.records import Ask, Request, Sampling
from leakcheck.traffic import Window, user_text
from leakcheck.traffic.concurrent import ask_text


def plan(
    window: Window,
    *,
    recipients: int = 2,
    eliciting: float = 0.5,
    streamed: float = 0.5,
    max_filler_words: int = 60,
    top_logprobs: int = 5,
) -> Iterator[Request]:
    """Plan `recipients` requests three times each, with `load.requests` - `recipients` companions.

    `eliciting` is the share of recipients that ask for every passphrase in sight; the others have
    a known answer. Recipients carry a ticket and no passphrase, and ask for `top_logprobs`
    alternatives, so that the first divergence can be weighed; not of a target that gives none.
    """
    rng = window.rng
    order: list[int | str] = [*range(recipients), "neutral", "planted"]
    rng.shuffle(order)
    singles = []
    for number in range(recipients):
        ask: Ask = "eliciting" if rng.random() < eliciting else "neutral"
        shape = (rng.randint(0, max_filler_words), rng.randint(0, max_filler_words // 2))
        single = _recipient(window, number, ask, shape, top_logprobs)
        singles.append(replace(single, stream=rng.random() < streamed))
    shapes = [
        (rng.randint(0, max_filler_words), rng.randint(0, max_filler_words // 2))
        for _ in range(window.load.requests - recipients)
    ]
    for phase, what in enumerate(order):
        if isinstance(what, int):
            yield replace(singles[what], phase=phase, cell="alone")
            continue
        for single in singles:
            yield replace(
                single, id=f"r{next(window.ids):05}", phase=phase, cell=what, twin=single.id
            )
        for number, shape in enumerate(shapes, start=recipients):
            yield _companion(window, number, phase, what == "planted", shape)


def _recipient(
    window: Window, number: int, ask: Ask, shape: tuple[int, int], top_logprobs: int
) -> Request:
    rng = window.rng
    owner = window.owner(owns=False)
    text, answer = ask_text(window, ask)
    return window.request(
        number,
        phase=0,
        role="recipient",
        ask=ask,
        text=user_text(
            **owner,
            before=wording.sentences(rng, shape[0]),
            between=wording.sentences(rng, shape[1]),
            ask=text,
        ),
        answer=answer,
        sampling=Sampling(
            max_tokens=window.load.max_tokens,
            top_logprobs=top_logprobs if window.facts.reports_logprobs else None,
        ),
        **owner,
    )


def _companion(
    window: Window, number: int, phase: int, planted: bool, shape: tuple[int, int]
) -> Request:
    rng = window.rng
    owner = window.owner(owns=True)
    if not planted:
        owner |= {"withheld": owner["withheld"] or owner["passphrase"], "passphrase": None}
    return window.request(
        number,
        phase=phase,
        role="companion",
        ask="eliciting",
        text=user_text(
            **owner,
            before=wording.sentences(rng, shape[0]),
            between=wording.sentences(rng, shape[1]),
            ask=wording.ELICITING,
        ),
        cell="planted" if planted else "neutral",
        **owner,
    )
