"""Requests with unlike sampling parameters in one batch, beside the same payloads alone.

Nothing but an answer's own parameters may shape it. Every window has

- *recipients* that repeat their ticket and some common words, greedy. Every other one has a stop
  string among its own words; its other stop string is a word of a recipient without any, and of
  nobody else, so that an answer cut there names whose parameters cut it;
- *hot* requests, one payload at a high temperature from several tenants, each with its own seed;
- a *biased* request whose logit bias makes it say one token over and over, and which ends early;
- *owners* of passphrases, greedy, each with a `max_tokens` of its own.

Cells: `alone`, one request in flight; `plain`, recipients without stop strings among greedy owners;
`seeded`, one hot request among greedy owners, in one phase the first, in another the second and the
biased one; `mixed`, all of them at once. In mixed and seeded phases some come a moment later, so
that they take the places of those that have ended, and one ends early. The phases come in random
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakcheck import wording
from leakcheck.errors import UsageError
from leakcheck.records import Passphrase, Request, Sampling
from leakcheck.traffic import Window, user_text

ALONE, PLAIN, SEEDED, MIXED = "alone", "plain", "seeded", "mixed"
_SECOND = "seeded, second"
TELL = "Tell me about {topic}."
TOKEN_IDS = range(300, 1000)
"""Tokens to bias: beyond the special ones and within nearly every vocabulary."""
BIAS = 100.0
JOINING_S = (0.0, 0.0, 0.02, 0.05)
"""When some requests of mixed and seeded phases start, drawn from these."""
TAIL_WORDS = 6
"""Common words that a recipient repeats after its ticket."""
_STOP_LETTERS = 5  # a short word is part of too many others to stop at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast:
    """The requests of a window that come more than once, as they are sent alone."""

    recipients: list[Request]
    biased: Request
    hot: list[Request]

    @property
    def plain(self) -> list[Request]:
        """Recipients without stop strings of their own."""
        return [request for request in self.recipients if not request.sampling.stop]


def plan(
    window: Window,
    *,
    recipients: int = 4,
    hot: int = 3,
    temperature: float = 2.0,
    hot_tokens: int = 24,
    biased_tokens: int = 8,
    streamed: float = 0.5,
    max_filler_words: int = 20,
) -> Iterator[Request]:
    """Plan `recipients` of which half have stop strings, `hot` twins at `temperature` that say
    `hot_tokens`, one biased request of `biased_tokens`, and owners that fill the mixed phase up to
    `load.requests`. `streamed` answers arrive in chunks. Raises UsageError where these are too few.
    """
    rng = window.rng
    recipients, hot = max(2, recipients), max(2, hot)
    if recipients + 1 + hot > window.load.requests:
        raise UsageError(
            f"parameter_twins: {recipients} recipients, 1 biased and {hot} hot requests are sent "
            f"together, and load.requests is {window.load.requests}: use at least "
            f"{recipients + 1 + hot} requests"
        )
    cast = _Cast(
        recipients=_recipients(window, recipients, max_filler_words),
        biased=_biased(window, biased_tokens),
        hot=_hot(window, hot, min(temperature, window.facts.hottest), hot_tokens),
    )
    stream = {
        each.id: rng.random() < streamed for each in [*cast.recipients, cast.biased, *cast.hot]
    }
    alone = [*cast.recipients, cast.biased, *cast.hot[:2]]
    order = [*range(len(alone) + 1), PLAIN, SEEDED, _SECOND, MIXED]
    rng.shuffle(order)
    for phase, what in enumerate(order):
        for request in _phase(window, cast, alone, what):
            first = request.twin or request.id
            streams = stream.get(first, rng.random() < streamed)
            yield replace(request, phase=phase, stream=streams)


def _phase(window: Window, cast: _Cast, alone: list[Request], what: int | str) -> Iterator[Request]:
    """The requests of one phase; those after the last of `alone` are the first hot one again."""
    if isinstance(what, int):
        if what < len(alone):
            yield alone[what]
        else:
            yield _again(window, cast.hot[0], 0, ALONE)
        return
    cell, joined = {
        PLAIN: (PLAIN, cast.plain),
        SEEDED: (SEEDED, cast.hot[:1]),
        _SECOND: (SEEDED, [cast.hot[1], cast.biased]),
        MIXED: (MIXED, [*cast.recipients, cast.biased, *cast.hot]),
    }[what]
    places = list(range(window.load.requests))
    window.rng.shuffle(places)
    sent = {each.id for each in alone}
    for request in joined:
        late = what == MIXED and request.role == "recipient"
        again = _again(window, request, places.pop(), cell)
        again = again if request.id in sent else replace(again, id=request.id, twin=None)
        yield replace(again, start_offset_s=window.rng.choice(JOINING_S) if late else 0.0)
    if what == SEEDED and places:  # the biased one leaves early elsewhere
        yield _leaver(window, places.pop(), cast.biased.sampling.max_tokens)
    for number, place in enumerate(places):
        late = cell == SEEDED and number < len(cast.recipients)
        owner = _owner(window, number, place, cell)
        yield replace(owner, start_offset_s=window.rng.choice(JOINING_S) if late else 0.0)


def _again(window: Window, request: Request, place: int, cell: str) -> Request:
    """The same payload in another cell, dealt to the worker and lane of its place."""
    load = window.load
    return replace(
        request,
        id=f"r{next(window.ids):05}",
        cell=cell,
        twin=request.id,
        worker=place % load.workers,
        lane=(place // load.workers) % load.lanes,
    )


def _recipients(window: Window, count: int, max_filler_words: int) -> list[Request]:
    """Recipients, the first, third, .. with stop strings: a word of their own, and one of others'.

    Words to stop at are nowhere in any recipient's other words, not even as a part.
    """
    rng = window.rng
    tickets = [window.owner(owns=False) for _ in range(count)]
    taken = " ".join(owner["ticket"].text.lower() for owner in tickets)
    stops = [w for w in wording.WORDS if len(w) >= _STOP_LETTERS and w not in taken]
    marks = rng.sample([w for w in stops if sum(w in other for other in wording.WORDS) == 1], count)
    rest = [w for w in wording.WORDS if not any(mark in w for mark in marks)]
    return [
        _recipient(
            window,
            number,
            owner,
            words=[*rng.sample(rest, TAIL_WORDS - 2), marks[number], rng.choice(rest)],
            stop=(marks[number], marks[(number + 1) % count]) if number % 2 == 0 else (),
            filler=" ".join(rng.choices(rest, k=rng.randint(0, max_filler_words))),
        )
        for number, owner in enumerate(tickets)
    ]


def _recipient(
    window: Window,
    number: int,
    owner: dict[str, Passphrase | None],
    *,
    words: list[str],
    stop: tuple[str, ...],
    filler: str,
) -> Request:
    ticket = owner["ticket"]
    assert ticket is not None  # noqa: S101 - Window.owner always mints one
    said = f"{ticket.text} {' '.join(words)}"
    wanted = wording.ECHO_CONTINUED if window.facts.continues else wording.ECHO
    text = " ".join(part for part in (filler, wanted.format(words=said)) if part)
    request = window.request(
        number,
        phase=0,
        role="recipient",
        ask="neutral",
        text=text,
        sampling=Sampling(max_tokens=window.load.max_tokens, stop=stop),
        cell=ALONE,
    )
    return replace(request, ticket=ticket)  # set now: the text needs no records of it


def _hot(window: Window, count: int, temperature: float, tokens: int) -> list[Request]:
    """One payload from several tenants, with different seeds."""
    text = _tell(window)
    seeds = window.rng.sample(range(1, 1_000_000), count)
    return [
        window.request(
            number,
            phase=0,
            role="companion",
            ask="free",
            text=text,
            sampling=Sampling(max_tokens=tokens, temperature=temperature, seed=seed),
            cell=ALONE,
        )
        for number, seed in enumerate(seeds)
    ]


def _biased(window: Window, tokens: int) -> Request:
    return window.request(
        0,
        phase=0,
        role="companion",
        ask="free",
        text=_tell(window),
        sampling=Sampling(max_tokens=tokens, logit_bias=((window.rng.choice(TOKEN_IDS), BIAS),)),
        cell=ALONE,
    )


def _leaver(window: Window, place: int, tokens: int) -> Request:
    """A greedy request that ends after as many tokens as the biased one."""
    return window.request(
        place,
        phase=0,
        role="companion",
        ask="free",
        text=_tell(window),
        sampling=Sampling(max_tokens=tokens),
        cell=SEEDED,
    )


def _tell(window: Window) -> str:
    rng = window.rng
    topic = TELL.format(topic=rng.choice(wording.TOPICS))
    return f"{wording.sentences(rng, rng.randint(6, 16))} {topic}"


def _owner(window: Window, number: int, place: int, cell: str) -> Request:
    """A greedy owner that is asked for its passphrase; no two of a phase may say equally much."""
    owner = window.owner(owns=True)
    return window.request(
        place,
        phase=0,
        role="recipient",
        ask="eliciting",
        text=user_text(
            **owner,
            before=wording.sentences(window.rng, window.rng.randint(0, 30)),
            between="",
            ask=wording.ELICITING,
        ),
        sampling=Sampling(max_tokens=window.load.max_tokens + number),
        cell=cell,
        **owner,
    )
