"""Two tenants whose clients number their requests alike: both send one X-Request-Id.

A first request with a passphrase and a second one that asks for every passphrase in sight share an
id that no other pair has. The second comes at the same time (cell `together`, and another one a
moment later, while the first is decoding: `during`), when the first has been answered (`after`), or
when the first has hung up in the middle of its answer (`hung-up`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.records import Ask, Request, Role, Sampling
from leakcheck.traffic import Window, user_text
from leakcheck.traffic.concurrent import ask_text

TOGETHER, DURING, AFTER, HUNG_UP = "together", "during", "after", "hung-up"
CELLS = (TOGETHER, DURING, AFTER, HUNG_UP)
_ID_BITS = 64


def plan(
    window: Window,
    *,
    owners: float = 0.5,
    during_s: float = 0.04,
    abort_after_chunks: int = 2,
    long_tokens: int = 64,
    max_filler_words: int = 60,
    streamed: float = 0.5,
) -> Iterator[Request]:
    """Plan `load.requests` // 2 pairs over two phases; the cells take turns.

    `owners` is the share of second requests that carry a passphrase of their own. A first request
    that must still be decoding says up to `long_tokens`; its second starts `during_s` later. One
    that hangs up does so after `abort_after_chunks` chunks. `streamed` of the other answers arrive
    in chunks.
    """
    rng, numbers = window.rng, (itertools.count(), itertools.count())
    pairs = window.load.requests // 2
    for pair in range(pairs):
        cell = CELLS[(window.index * pairs + pair) % len(CELLS)]
        late = cell in {AFTER, HUNG_UP}
        lasts = cell in {DURING, HUNG_UP}
        client_id = f"{rng.getrandbits(_ID_BITS):016x}"
        first = _request(
            window,
            next(numbers[0]),
            role="source",
            cell=cell,
            client_id=client_id,
            words=max_filler_words,
            free_tokens=long_tokens if lasts else None,
        )
        second = _request(
            window,
            next(numbers[late]),
            role="recipient",
            cell=cell,
            client_id=client_id,
            words=max_filler_words,
            phase=int(late),
            owns=rng.random() < owners,
        )
        hangs_up = cell == HUNG_UP
        yield replace(
            first,
            stream=hangs_up or rng.random() < streamed,
            abort_after_chunks=abort_after_chunks if hangs_up else None,
        )
        yield replace(
            second,
            partner=first.id,
            stream=rng.random() < streamed,
            start_offset_s=during_s if cell == DURING else 0.0,
        )


def _request(
    window: Window,
    number: int,
    *,
    role: Role,
    cell: str,
    client_id: str,
    words: int,
    phase: int = 0,
    owns: bool = True,
    free_tokens: int | None = None,
) -> Request:
    """An eliciting request, or one for a free text of `free_tokens`."""
    rng = window.rng
    ask: Ask = "eliciting" if free_tokens is None else "free"
    owner = window.owner(owns=owns)
    text, _ = ask_text(window, ask)
    return window.request(
        number,
        phase=phase,
        role=role,
        ask=ask,
        text=user_text(
            **owner,
            before=wording.sentences(rng, rng.randint(0, words)),
            between=wording.sentences(rng, rng.randint(0, words // 2)),
            ask=text,
        ),
        sampling=Sampling(max_tokens=free_tokens or window.load.max_tokens),
        cell=cell,
        client_id=client_id,
        **owner,
    )
