"""What one keep-alive connection carries from one request to the next, with company on others.

Each lane, which is one connection, sends a chain of requests without a pause. First comes one like
any other (`opening`), then in any order:

- a request with a secret that the target refuses before it has read the body, as its path is none
  (`misdirected`), and at once a good one (`after misdirected`): is what was left unread taken for
  the beginning of the next request?
- a request whose body waits for the target's 100 (`expect`, streamed or not), then a plain one
  (`after expect`): is an interim reply taken for a reply, so that all that follow are one behind?
- plain requests (`reused`), which are what the others are compared with.

Nobody minds a wrong path, nor `Expect`; a wrong key, which some targets answer by locking it, is
not sent. Over connections that the target closes nothing of this is tested: `checks.reuse` says
how many were used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.records import Request, Role, Sent
from leakcheck.traffic import Window, user_text

OPENING, REUSED = "opening", "reused"
MISDIRECTED, AFTER_MISDIRECTED = "misdirected", "after misdirected"
EXPECT, AFTER_EXPECT = "expect", "after expect"


def plan(
    window: Window,
    *,
    owners: float = 0.5,
    reused: int = 2,
    long_words: int = 300,
    max_filler_words: int = 40,
    streamed: float = 0.5,
) -> Iterator[Request]:
    """Plan `load.requests` chains, each on a lane of its own as far as there are enough.

    A misdirected body has `long_words` words of filler, others up to `max_filler_words`; `reused`
    plain requests go in each chain. `owners` is the share of those that follow, and of the plain
    ones, with a passphrase of their own; `streamed` answers arrive in chunks.
    """
    rng = window.rng

    def one(
        cell: str, *, words: int | None = None, owns: bool = True, role: Role = "recipient"
    ) -> Request:
        owner = window.owner(owns=owns)
        size = rng.randint(0, max_filler_words) if words is None else words
        before = wording.sentences(rng, size)
        text = user_text(**owner, before=before, between="", ask=wording.ELICITING)
        return window.request(
            chain,
            phase=0,
            role=role,
            ask="eliciting",
            text=text,
            cell=cell,
            stream=rng.random() < streamed,
            **owner,
        )

    def pair(first_cell: str, next_cell: str, sent: Sent) -> list[Request]:
        lost = sent == "misdirected"
        first = one(
            first_cell,
            words=long_words if lost else None,
            role="source" if lost else "recipient",
        )
        follows = one(next_cell, owns=rng.random() < owners)
        return [replace(first, sent=sent), replace(follows, partner=first.id)]

    for chain in range(window.load.requests):
        yield one(OPENING, owns=chain == 0 or rng.random() < owners)
        parts = [
            pair(MISDIRECTED, AFTER_MISDIRECTED, "misdirected"),
            pair(EXPECT, AFTER_EXPECT, "expect"),
            *([one(REUSED, owns=rng.random() < owners)] for _ in range(reused)),
        ]
        rng.shuffle(parts)
        for part in parts:
            yield from part
