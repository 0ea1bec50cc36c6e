"""Requests come and go around a long one that says one token over and over.

A batch is kept dense: where a request ends, another moves to its place, with all that belongs to
it. What stays at the old place meets whoever comes there next. So every window has

- one *biased* request, made to say one token over and over by a logit bias or, in every second
  window, by `allowed_token_ids` (an extension that some engines have). It comes a moment after
  others, and outlasts them;
- *recipients*, owners of passphrases that are asked for them, in chains: on a few lanes each comes
  as soon as the one before has been answered, so that requests end and join at any speed of the
  target while the biased one is decoded.

Cells: `turnover`, and `alone`, the biased one by itself. The phases come in random order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leakcheck import wording
from leakcheck.errors import UsageError
from leakcheck.records import Request, Sampling
from leakcheck.traffic import Window
from leakcheck.traffic.parameter_twins import ALONE, BIAS, TELL, TOKEN_IDS, eliciting

TURNOVER = "turnover"
JOINS_S = (0.02, 0.1)
"""When the biased one comes: after the first of the others, before they have been answered."""
_LAPS = 2
"""So many on a lane, one after the other, at least."""
ALLOWED = "allowed_token_ids"


def plan(
    window: Window,
    *,
    lasts: float = 2.0,
    streamed: float = 0.5,
    max_filler_words: int = 20,
) -> Iterator[Request]:
    """Plan a biased request of `lasts` * `load.max_tokens` on the last lane, and
    `load.requests` - 1 recipients on as many others as have two each at least.

    Answers of recipients are of `load.max_tokens` and some more, no two equally long; `streamed` of
    them arrive in chunks. Raises UsageError where there is no such lane.
    """
    rng, load = window.rng, window.load
    if lasts < 1:
        raise UsageError(f"row_turnover: lasts is {lasts:g}; the biased request outlasts from 1 on")
    lanes, recipients = load.workers * load.lanes, load.requests - 1
    chains = min(lanes - 1, recipients // _LAPS)
    if chains < 1:
        raise UsageError(
            f"row_turnover: {load.requests} requests on {lanes} lanes leave no lane on which one "
            "recipient follows another beside the biased request: use 2 lanes and 3 requests, or "
            "more"
        )
    phases = [0, 1]
    rng.shuffle(phases)
    alone = _biased(window, lanes - 1, round(lasts * load.max_tokens), max_filler_words)
    yield replace(alone, phase=phases[0])
    yield replace(
        alone,
        id=f"r{next(window.ids):05}",
        phase=phases[1],
        cell=TURNOVER,
        twin=alone.id,
        start_offset_s=rng.uniform(*JOINS_S),
    )
    for number in range(recipients):
        lap, chain = divmod(number, chains)
        place = lap * lanes + chain
        yield replace(
            eliciting(window, number, place, TURNOVER, max_filler_words),
            phase=phases[1],
            stream=rng.random() < streamed,
        )


def _biased(window: Window, place: int, tokens: int, max_filler_words: int) -> Request:
    """The one whose parameters lead it to one token, by itself."""
    rng = window.rng
    token = rng.choice(TOKEN_IDS)
    allows = window.index % 2 == 1 and ALLOWED not in window.facts.refuses
    filler = wording.sentences(rng, rng.randint(0, max_filler_words))
    topic = TELL.format(topic=rng.choice(wording.TOPICS))
    return window.request(
        place,
        phase=0,
        role="companion",
        ask="free",
        text=f"{filler} {topic}".strip(),
        sampling=Sampling(
            max_tokens=tokens,
            logit_bias=() if allows else ((token, BIAS),),
            allowed_token_ids=(token,) if allows else (),
        ),
        cell=ALONE,
    )
