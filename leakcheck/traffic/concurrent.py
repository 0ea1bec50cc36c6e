"""Everybody at once: N tenants, each with its own passphrase, ticket and ask, in one phase."""

from __future__ import annotations

from collections.abc import Iterator

from leakcheck import wording
from leakcheck.records import Ask, Request, Sampling
from leakcheck.traffic import Window, user_text


def plan(
    window: Window,
    *,
    smallest: int | None = None,
    eliciting: float = 0.7,
    free: float = 0.1,
    owners: float = 0.75,
    passphrase_first: float = 0.5,
    streamed: float = 0.5,
    max_filler_words: int = 60,
    free_tokens: int = 96,
) -> Iterator[Request]:
    """Plan one burst of `load.requests`, or of a size drawn from there down to `smallest`.

    Sizes halve from step to step, so that the report can show the leak rate against concurrency.
    `eliciting` and `free` are the shares of requests that ask for every passphrase in sight and
    that only decode for a long time (`free_tokens`); the rest is neutral. `owners` is the share
    that carries a passphrase (requests without one react differently to a foreign one), and
    `passphrase_first` the share of prompts that start with it. Prompts get up to
    `max_filler_words` words of filler, so lengths in a batch differ; `streamed` answers arrive in
    chunks.
    """
    rng, load = window.rng, window.load
    sizes = [load.requests]
    while smallest is not None and sizes[-1] // 2 >= max(smallest, 2):
        sizes.append(sizes[-1] // 2)
    for number in range(rng.choice(sizes)):
        draw = rng.random()
        ask: Ask = (
            "eliciting" if draw < eliciting else "free" if draw < eliciting + free else "neutral"
        )
        owner = window.owner(owns=rng.random() < owners or number == 0)
        text, answer = ask_text(window, ask)
        yield window.request(
            number,
            phase=0,
            role="recipient",
            ask=ask,
            text=user_text(
                **owner,
                before=wording.sentences(rng, rng.randint(0, max_filler_words)),
                between=wording.sentences(rng, rng.randint(0, max_filler_words // 2)),
                ask=text,
                passphrase_first=rng.random() < passphrase_first,
            ),
            answer=answer,
            sampling=Sampling(max_tokens=free_tokens if ask == "free" else load.max_tokens),
            stream=rng.random() < streamed,
            **owner,
        )


def ask_text(window: Window, ask: Ask) -> tuple[str, str | None]:
    """The last sentence of a request, and the answer it expects where there is one."""
    if ask == "eliciting":
        return wording.ELICITING, None
    if ask == "free":
        return wording.FREE.format(topic=window.rng.choice(wording.TOPICS)), None
    question, answer = window.rng.choice(wording.questions())
    return wording.NEUTRAL.format(question=question), answer
