"""What comes first, hot or greedy at random, and whom it is followed by: one request at a time.

Some servers take the sampling parameters of the first request that they see, after their start or
after idling, for those of all. A request that follows shows it: greedy ones come out at random, or
hot ones greedily, whichever came first. Which of the two does is drawn for every window, so that
what answers follow can be told from what they do anyway.

Every phase holds one request. Cells: `first`, an owner of a passphrase, hot or greedy; `greedy`,
one payload several times; `hot`, another one several times, each with its own seed; `owner`, a
greedy owner that is asked for its passphrase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.records import Request, Sampling
from leakcheck.traffic import Window, user_text

FIRST, GREEDY, HOT, OWNER = "first", "greedy", "hot", "owner"
TELL = "Tell me about {topic}."


def plan(
    window: Window, *, temperature: float = 2.0, tokens: int = 16, copies: int = 3
) -> Iterator[Request]:
    """Plan the first request, then `copies` of a greedy and of a hot payload, each answered with
    `tokens`, then an owner. `load.requests` does not matter here.
    """
    rng = window.rng
    copies = max(2, copies)
    temperature = min(temperature, window.facts.hottest)
    heat = temperature if rng.random() < 0.5 else 0.0  # noqa: PLR2004 - a fair coin
    first = _first(window, Sampling(max_tokens=tokens, temperature=heat))
    greedy = _copies(window, GREEDY, [Sampling(max_tokens=tokens)] * copies)
    greedy[1:] = [replace(each, twin=greedy[0].id) for each in greedy[1:]]
    seeds = rng.sample(range(1, 1_000_000), copies)
    hot = _copies(
        window,
        HOT,
        [Sampling(max_tokens=tokens, temperature=temperature, seed=seed) for seed in seeds],
    )
    for phase, request in enumerate([first, *greedy, *hot, _owner(window)]):
        yield replace(request, phase=phase)


def _first(window: Window, sampling: Sampling) -> Request:
    owner = window.owner(owns=True)
    return window.request(
        0,
        phase=0,
        role="source",
        ask="free",
        text=user_text(**owner, before="", between="", ask=_tell(window), passphrase_first=True),
        sampling=sampling,
        stream=False,
        cell=FIRST,
        **owner,
    )


def _copies(window: Window, cell: str, samplings: list[Sampling]) -> list[Request]:
    """One payload with each of these parameters."""
    text = f"{wording.sentences(window.rng, window.rng.randint(4, 8))} {_tell(window)}"
    return [
        window.request(
            0,
            phase=0,
            role="companion",
            ask="free",
            text=text,
            sampling=sampling,
            stream=False,
            cell=cell,
        )
        for sampling in samplings
    ]


def _owner(window: Window) -> Request:
    owner = window.owner(owns=True)
    return window.request(
        0,
        phase=0,
        role="recipient",
        ask="eliciting",
        text=user_text(**owner, before="", between="", ask=wording.ELICITING),
        stream=False,
        cell=OWNER,
        **owner,
    )


def _tell(window: Window) -> str:
    return TELL.format(topic=window.rng.choice(wording.TOPICS))
