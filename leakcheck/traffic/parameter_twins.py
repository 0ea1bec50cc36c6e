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

Beside these, three pairs of one tenant, whose prompts are the same to the byte and nobody else's.
The two differ in one parameter: `max_tokens` in one window, a stop string in the next. The *tight*
one is cut in the middle of what both are asked to repeat, the *free* one goes on. Of one pair the
tight one comes first, of another the free one, and their seconds are the next phase (`twins`); of
the third both come together (`twins, together`). A cache of answers whose key leaves that parameter
out gives a second the answer of its first; firsts, which nobody came before, are the controls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakcheck import wording
from leakcheck.errors import UsageError
from leakcheck.records import Passphrase, Request, Sampling
from leakcheck.traffic import Window, user_text

ALONE, PLAIN, SEEDED, MIXED = "alone", "plain", "seeded", "mixed"
TWINS, TOGETHER = "twins", "twins, together"
_SECOND = "seeded, second"
TELL = "Tell me about {topic}."
TOKEN_IDS = range(300, 1000)
"""Tokens to bias: beyond the special ones and within nearly every vocabulary."""
BIAS = 100.0
JOINING_S = (0.0, 0.0, 0.02, 0.05)
"""When some requests of mixed and seeded phases start, drawn from these."""
TAIL_WORDS = 6
"""Common words that a recipient repeats after its ticket."""
LIMITS = 8
"""So many different `max_tokens` a tight twin may have: a cut at another's is seldom by chance."""
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
    shortest: int = 4,
    streamed: float = 0.5,
    max_filler_words: int = 20,
) -> Iterator[Request]:
    """Plan `recipients` of which half have stop strings, `hot` twins at `temperature` that say
    `hot_tokens`, one biased request of `biased_tokens`, and owners that fill the mixed phase up to
    `load.requests`. Tight twins may say `shortest` tokens or up to 7 more. `streamed` answers
    arrive in chunks. Raises UsageError where these are too few.
    """
    rng = window.rng
    least = {"recipients": (recipients, 2), "hot": (hot, 2), "biased_tokens": (biased_tokens, 1)}
    least |= {"hot_tokens": (hot_tokens, 1), "shortest": (shortest, 1)}
    for name, (given, fewest) in least.items():
        if given < fewest:
            raise UsageError(f"parameter_twins: {name} is {given}; use {fewest} or more")
    if temperature <= 0:
        raise UsageError(f"parameter_twins: temperature is {temperature:g}; use more than 0")
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
    order = [*range(len(alone) + 1), PLAIN, SEEDED, _SECOND, MIXED, TWINS]
    rng.shuffle(order)
    phase = 0
    for what in order:
        if what == TWINS:
            for request in _pairs(window, shortest, streamed):
                yield replace(request, phase=phase + request.phase)
            phase += 2
            continue
        for request in _phase(window, cast, alone, what):
            first = request.twin or request.id
            streams = stream.get(first, rng.random() < streamed)
            yield replace(request, phase=phase, stream=streams)
        phase += 1


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
        owner = eliciting(window, number, place, cell)
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
    marks = rng.sample([word for word in _stops() if word not in taken], count)
    rest = [w for w in wording.WORDS if w not in marks]
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


def _stops() -> list[str]:
    """Common words that are in no other one, not even as a part."""
    long = [word for word in wording.WORDS if len(word) >= _STOP_LETTERS]
    return [word for word in long if sum(word in other for other in wording.WORDS) == 1]


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
    text = " ".join(part for part in (filler, _echo(window, said)) if part)
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


def _echo(window: Window, words: str) -> str:
    wanted = wording.ECHO_CONTINUED if window.facts.continues else wording.ECHO
    return wanted.format(words=words)


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


def eliciting(window: Window, number: int, place: int, cell: str, most_words: int = 30) -> Request:
    """A greedy owner that is asked for its passphrase; no two of a phase may say equally much."""
    owner = window.owner(owns=True)
    return window.request(
        place,
        phase=0,
        role="recipient",
        ask="eliciting",
        text=user_text(
            **owner,
            before=wording.sentences(window.rng, window.rng.randint(0, most_words)),
            between="",
            ask=wording.ELICITING,
        ),
        sampling=Sampling(max_tokens=window.load.max_tokens + number),
        cell=cell,
        **owner,
    )


# --- one prompt, one parameter -------------------------------------------------------------------


def _pairs(window: Window, shortest: int, streamed: float) -> Iterator[Request]:
    """Three pairs, of phases 0 and 1: a tight one first, a free one first, and two together."""
    rng = window.rng
    tight_first = [True, False, rng.random() < 0.5]  # noqa: PLR2004 - as often as not
    places = [iter(rng.sample(range(size), size)) for size in (4, 2)]
    for tight, cell in zip(tight_first, (TWINS, TWINS, TOGETHER), strict=True):
        text, samplings = _tight_and_free(window, shortest)
        ordered = samplings if tight else samplings[::-1]
        stream = rng.random() < streamed
        made: list[Request] = []
        for sampling in ordered:
            phase = 1 if made and cell == TWINS else 0
            request = window.request(
                next(places[phase]),
                phase=phase,
                role="companion",
                ask="free",
                text=text,
                sampling=sampling,
                cell=cell,
                stream=stream,
            )
            if made:
                request = replace(request, tenant=made[0].tenant, partner=made[0].id)
            made.append(request)
        yield from made


def _tight_and_free(window: Window, shortest: int) -> tuple[str, tuple[Sampling, Sampling]]:
    """A prompt, and the parameters of the two that have it. The stop string is one of the words to
    repeat, at or next to the middle; there are more of them than the tight one may say tokens.
    """
    rng, most = window.rng, window.load.max_tokens
    mark = rng.choice(_stops())
    words = rng.sample([word for word in wording.WORDS if word != mark], shortest + LIMITS + 1)
    words.insert(len(words) // 2 + rng.randint(-1, 1), mark)
    limit = rng.randint(shortest, shortest + LIMITS - 1)
    by_length = window.index % 2 == 0
    tight = Sampling(max_tokens=limit) if by_length else Sampling(max_tokens=most, stop=(mark,))
    free = Sampling(max_tokens=max(most, limit + LIMITS))
    return _echo(window, " ".join(words)), (tight, free)
