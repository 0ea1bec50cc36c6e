"""The same thing from other tenants: who asks must matter, however alike the questions are.

First and second are different tenants; the second asks for every passphrase it can see. What they
have in common (the cell of both; `salt` names them by what the metadata must show):

- `same`: the very same user message; ticket and passphrase stand in the system message alone, so
  that the right answers differ. The two come together or one after the other, in turn;
- `alike`: as `same`, with a few words of the user message changed, or the ask in other words;
- `salt`: a prefix of some cache blocks. The first one's cache_salt is sent by one recipient, which
  should find that prefix cached (`same salt`), and another salt by another (`other salt`): no
  sender with that salt ever sent it, so nothing of it may count as cached;
- `conversation`: a small conversation id, each with its own tenant as user;
- `address`: nothing at all but where they come from. Second follows first with nothing between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from leakcheck import wording
from leakcheck.records import Request, Role
from leakcheck.traffic import Window, user_text

SAME, ALIKE, CONVERSATION, ADDRESS = "same", "alike", "conversation", "address"
FIRST_SALT, SAME_SALT, OTHER_SALT = "salt", "same salt", "other salt"
KINDS = (SAME, ALIKE, FIRST_SALT, CONVERSATION)
USUAL_BLOCK_TOKENS = 16
LEAST_WORDS = 6
"""Of filler: without any, the messages of different windows would be the same."""
_SALT_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deal:
    """A window whose requests are dealt to lanes phase by phase; `most_words` of filler each."""

    window: Window
    most_words: int
    numbers: dict[int, itertools.count[int]] = field(default_factory=dict)

    def filler(self) -> str:
        """Random sentences."""
        return wording.sentences(
            self.window.rng, self.window.rng.randint(LEAST_WORDS, self.most_words)
        )

    def request(
        self, phase: int, role: Role, cell: str, text: str, owner: dict[str, Any], **fields: Any
    ) -> Request:
        """The next request of a phase."""
        number = next(self.numbers.setdefault(phase, itertools.count()))
        return self.window.request(
            number, phase=phase, role=role, ask="eliciting", text=text, cell=cell, **owner, **fields
        )


def plan(
    window: Window,
    *,
    owners: float = 0.5,
    prefix_blocks: int = 3,
    changed_words: int = 2,
    max_filler_words: int = 16,
    streamed: float = 0.5,
) -> Iterator[Request]:
    """Plan `load.requests` firsts over the first four kinds in turn, with their seconds in the next
    phase; then one pair of the last kind, each in a phase of its own.

    `owners` is the share of seconds with a passphrase of their own (those of `same` and `alike`
    always have one). A salted prefix is of `prefix_blocks` cache blocks, `changed_words` of a user
    message differ between those alike. `streamed` answers arrive in chunks.
    """
    rng, deal = window.rng, _Deal(window=window, most_words=max(LEAST_WORDS, max_filler_words))
    size = window.load.requests
    for turn in range(window.index * size, (window.index + 1) * size):
        kind, owns = KINDS[turn % len(KINDS)], rng.random() < owners
        if kind in {SAME, ALIKE}:
            changed = changed_words if kind == ALIKE else 0
            requests = _twins(deal, kind, changed, together=bool(turn // len(KINDS) % 2))
        elif kind == FIRST_SALT:
            requests = _salted(deal, prefix_blocks, owns=owns)
        else:
            # No tenant of a window has an id that a tenant of the same name had in another.
            requests = _strangers(deal, kind, 0, owns=owns, conversation=str(turn + 1))
        for request in requests:
            yield replace(request, stream=rng.random() < streamed)
    for request in _strangers(deal, ADDRESS, 2, owns=rng.random() < owners):
        yield replace(request, stream=rng.random() < streamed)


def _twins(deal: _Deal, kind: str, changed: int, *, together: bool) -> Iterator[Request]:
    texts = _alike(deal, changed) if changed else [f"{deal.filler()} {wording.ELICITING}"] * 2
    first = ""
    for phase, role, text in zip((0, 0 if together else 1), _ROLES, texts, strict=True):
        owner = deal.window.owner(owns=True)
        system = user_text(**owner, before=wording.SYSTEM, between="", ask="")
        partner = {"partner": first} if first else {}
        request = deal.request(phase, role, kind, text, owner, system=system, **partner)
        first = request.id
        yield request


def _alike(deal: _Deal, changed: int) -> list[str]:
    """A user message, and the same with a few other words or with the other wording of the ask."""
    rng = deal.window.rng
    words = deal.filler().split()
    first = " ".join(words)
    if rng.random() < 0.5:  # noqa: PLR2004 - half of them
        return [f"{first} {ask}" for ask in wording.ALIKE]
    for at in rng.sample(range(len(words)), min(changed, len(words))):
        words[at] = rng.choice(wording.WORDS)
    return [f"{text} {wording.ELICITING}" for text in (first, " ".join(words))]


def _salted(deal: _Deal, blocks: int, *, owns: bool) -> Iterator[Request]:
    rng, facts = deal.window.rng, deal.window.facts
    tokens = blocks * (facts.block_tokens or USUAL_BLOCK_TOKENS)
    count = max(0, math.ceil((tokens - facts.overhead_tokens) / facts.tokens_per_word))
    prefix = wording.filler(rng, count)
    ends = rng.sample(wording.WORDS, 3)
    salts = [f"{rng.getrandbits(_SALT_BITS):016x}" for _ in range(2)]
    owner = deal.window.owner(owns=True)
    first = deal.request(
        0, "source", FIRST_SALT, _text(f"{prefix} {ends[0]}", owner), owner, cache_salt=salts[0]
    )
    yield first
    for cell, salt, end in zip((SAME_SALT, OTHER_SALT), salts, ends[1:], strict=True):
        own = deal.window.owner(owns=owns)
        yield deal.request(
            1,
            "recipient",
            cell,
            _text(f"{prefix} {end}", own),
            own,
            cache_salt=salt,
            partner=first.id,
            shared_tokens=tokens,
        )


def _strangers(
    deal: _Deal, kind: str, phase: int, *, owns: bool, conversation: str | None = None
) -> Iterator[Request]:
    owner, own = deal.window.owner(owns=True), deal.window.owner(owns=owns)
    texts = [_text(deal.filler(), each) for each in (owner, own)]
    talk = {} if conversation is None else {"conversation": conversation}
    first = deal.request(phase, "source", kind, texts[0], owner, **talk)
    yield first
    yield deal.request(phase + 1, "recipient", kind, texts[1], own, partner=first.id, **talk)


def _text(before: str, owner: dict[str, Any]) -> str:
    return user_text(**owner, before=before, between="", ask=wording.ELICITING)


_ROLES: tuple[Role, Role] = ("source", "recipient")
