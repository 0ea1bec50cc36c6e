"""Conversations of several turns that come between each other; each goes on as its own.

A conversation is one tenant's. Its first turn gives ticket and passphrase; the turns after it hold
all that was said before, and the last one asks for every passphrase. What the target answered to an
earlier turn is part of the plan, in the words that are expected of it, not what it did answer: so
every request is known before anything is sent. All turns of a conversation go over one lane; the
turns after the first are twins of it, as they own the same secrets. Every window has one pair of
conversations A and B of each kind (the cell), one pair after another, in random order:

- `in turn`: A and B take turns, three each, one request at a time;
- `nested`: B comes and goes between the two turns of A;
- `at once`: both first turns together, one a little late. One asks for the passphrase and one asks
  something shorter, so that who came last need not be the last to end. Then the second turns, one
  by one or together, and the third ones together;
- `same`: as `in turn`, two turns each, and the last turn has the same words in both;
- `joined`: after two turns of A comes the third of B, whose earlier ones were never sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from leakcheck import wording
from leakcheck.records import Message, Passphrase, Request
from leakcheck.traffic import Window, user_text
from leakcheck.traffic.concurrent import ask_text

IN_TURN, NESTED, AT_ONCE, SAME, JOINED = "in turn", "nested", "at once", "same", "joined"
LATE_S = 0.03
"""How much later the second of two comes, where both come at once."""
LEAST_WORDS = 6
"""Of filler in each turn: without any, turns of different conversations would be the same."""


@dataclass(slots=True, kw_only=True)
class _Talk:
    """One conversation so far; `said` is what its next turn repeats. Its lane is `number`-th."""

    number: int
    owner: dict[str, Any]
    said: tuple[Message, ...] = ()
    first: Request | None = None
    last: Request | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deal:
    """A window and what it takes to word a turn in it."""

    window: Window
    most_words: int
    streamed: float
    talks: list[_Talk] = field(default_factory=list)

    def pair(self) -> tuple[_Talk, _Talk]:
        """Two conversations in which nothing was said yet."""
        one, two = (_Talk(number=n, owner=self.window.owner(owns=True)) for n in range(2))
        return one, two

    def filler(self) -> str:
        """Random sentences."""
        rng = self.window.rng
        return wording.sentences(rng, rng.randint(LEAST_WORDS, max(LEAST_WORDS, self.most_words)))

    def turn(
        self, talk: _Talk, cell: str, *, filler: str = "", short: bool = False, late: bool = False
    ) -> Request:
        """The next turn of a conversation, which from then on holds it and an answer.

        The first one gives ticket and passphrase. A `short` one asks a question instead of the
        passphrase.
        """
        ask, answer = ask_text(self.window, "neutral" if short else "eliciting")
        filler = filler or self.filler()
        text = f"{filler} {ask}"
        if not talk.said:
            text = user_text(**talk.owner, before=filler, between="", ask=ask)
        made = self.window.request(
            talk.number,
            phase=0,
            role="recipient" if talk.said else "source",
            ask="neutral" if short else "eliciting",
            text=text,
            cell=cell,
            answer=answer,
            stream=self.window.rng.random() < self.streamed,
            start_offset_s=LATE_S if late else 0.0,
            **talk.owner,
        )
        made = replace(made, messages=(*talk.said, *made.messages))
        if talk.first is not None:
            made = replace(made, tenant=talk.first.tenant, twin=talk.first.id)
        talk.said = (*_sent(made), Message(role="assistant", content=self.answered(talk, answer)))
        return made

    def answered(self, talk: _Talk, answer: str | None) -> str:
        """What an obedient target says in this conversation, asked for its passphrase or not."""
        ticket, secret = talk.owner["ticket"], talk.owner["passphrase"]
        assert isinstance(ticket, Passphrase)  # noqa: S101 - Window.owner always mints one
        facts = self.window.facts
        return wording.answered(
            "records" if facts.continues else facts.phrasing,
            ticket=ticket.text,
            passphrase=None if secret is None else secret.text,
            answer=answer,
        )


def plan(
    window: Window, *, kinds: int = 5, max_filler_words: int = 20, streamed: float = 0.5
) -> Iterator[Request]:
    """Plan one pair of conversations of each kind, in random order; of fewer `kinds` those drawn.

    Every turn has up to `max_filler_words` words of filler; `streamed` answers arrive in chunks.
    `load.requests` does not matter here.
    """
    deal = _Deal(window=window, most_words=max_filler_words, streamed=streamed)
    every = [_in_turn, _nested, _at_once, _same, _joined]
    window.rng.shuffle(every)
    phase = 0
    for kind in every[:kinds]:
        for together in kind(deal):
            yield from (replace(request, phase=phase) for request in together)
            phase += 1


def _in_turn(deal: _Deal) -> Iterator[list[Request]]:
    one, two = deal.pair()
    for _ in range(3):
        yield [_next(deal, one, two, IN_TURN)]
        yield [_next(deal, two, one, IN_TURN)]


def _nested(deal: _Deal) -> Iterator[list[Request]]:
    one, two = deal.pair()
    for mine, other in ((one, two), (two, one), (two, one), (one, two)):
        yield [_next(deal, mine, other, NESTED)]


def _at_once(deal: _Deal) -> Iterator[list[Request]]:
    rng, (one, two) = deal.window.rng, deal.pair()
    short, late = rng.random() < 0.5, rng.random() < 0.5  # noqa: PLR2004 - half of them
    yield [
        _next(deal, one, two, AT_ONCE, short=short, late=late),
        _next(deal, two, one, AT_ONCE, short=not short, late=not late),
    ]
    both = [(one, two), (two, one)]
    rng.shuffle(both)
    seconds = [_next(deal, mine, other, AT_ONCE) for mine, other in both]
    yield from [seconds] if rng.random() < 0.5 else [[each] for each in seconds]  # noqa: PLR2004 - half of them
    yield [_next(deal, mine, other, AT_ONCE) for mine, other in both]


def _same(deal: _Deal) -> Iterator[list[Request]]:
    one, two = deal.pair()
    yield [_next(deal, one, two, SAME)]
    yield [_next(deal, two, one, SAME)]
    filler = deal.filler()
    yield [_next(deal, one, two, SAME, filler=filler)]
    yield [_next(deal, two, one, SAME, filler=filler)]


def _joined(deal: _Deal) -> Iterator[list[Request]]:
    one, two = deal.pair()
    yield [_next(deal, one, two, JOINED)]
    yield [_next(deal, one, two, JOINED)]
    for _ in range(2):  # never sent: no request of the plan
        deal.turn(two, JOINED)
    yield [_next(deal, two, one, JOINED)]


def _next(deal: _Deal, mine: _Talk, other: _Talk, cell: str, **how: Any) -> Request:
    """The next turn of `mine`, aimed at what was sent last of the `other`."""
    made = deal.turn(mine, cell, **how)
    if made.role == "recipient" and other.last is not None:
        made = replace(made, partner=other.last.id)
    mine.first, mine.last = mine.first or made, made
    return made


def _sent(request: Request) -> Iterable[Message]:
    """The messages of a turn up to the user's last one: the answer may have been begun in it."""
    *earlier, last = request.messages
    return earlier if last.role == "assistant" else request.messages
