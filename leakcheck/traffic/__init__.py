"""Shapes of traffic: how the requests of one window relate to each other.

One shape is one module with one pure function ``plan(window, *, options...) -> Iterator[Request]``;
its keyword-only parameters are the options of the scenario's `[traffic]` table. Everything random
comes from `window.rng` and `window.minter`, so equal seeds give equal plans.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from leakcheck import wording
from leakcheck.passphrase import Minter
from leakcheck.records import (
    Arm,
    Ask,
    Load,
    Message,
    Passphrase,
    Phrasing,
    Request,
    Role,
    Sampling,
    TargetFacts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window to be planned.

    `ids` yields the numbers of the run's requests, `tenants` those of the window's tenants: each
    request has one of its own. `rng` and `minter` belong to this window alone, so that a window is
    the same whatever was planned before it.
    """

    scenario: str
    index: int
    arm: Arm
    load: Load
    facts: TargetFacts
    rng: random.Random
    minter: Minter
    ids: Iterator[int]
    tenants: Iterator[int] = field(default_factory=itertools.count)

    def owner(self, *, owns: bool) -> dict[str, Any]:
        """Fields `ticket`, `passphrase` and `withheld` of a request, freshly minted.

        In the control arm an owner's passphrase is withheld: drawn, checked for, never sent.
        """
        phrase = self.minter.mint() if owns else None
        planted = self.arm == "planted"
        return {
            "ticket": self.minter.mint(),
            "passphrase": phrase if planted else None,
            "withheld": None if planted else phrase,
        }

    def request(
        self,
        number: int,
        *,
        phase: int,
        role: Role,
        ask: Ask,
        text: str,
        system: str | None = None,
        sampling: Sampling | None = None,
        **fields: Any,
    ) -> Request:
        """The request that is `number`-th in its phase: dealt to a worker and a lane in turn.

        `text` is the user's message, after that of the `system` if there is one.
        A request with a ticket ends as the target's phrasing wants it; one to a target that
        continues texts with records, which make it repeat ticket and passphrase.
        """
        load = self.load
        after: tuple[Message, ...] = ()
        if fields.get("ticket") is not None:
            ending, after = _ending(
                "records" if self.facts.continues else self.facts.phrasing,
                ticket=fields["ticket"],
                passphrase=fields.get("passphrase"),
                withheld=fields.get("withheld"),
                note=fields.get("note"),
            )
            if system is None or self.facts.continues:
                text += ending
            else:  # where an owner's secrets are, and its question is to be the same as another's
                system += ending
        return Request(
            id=f"r{next(self.ids):05}",
            scenario=self.scenario,
            window=self.index,
            phase=phase,
            arm=self.arm,
            tenant=f"t{next(self.tenants):02}",
            role=role,
            ask=ask,
            worker=number % load.workers,
            lane=(number // load.workers) % load.lanes,
            messages=(
                *(() if system is None else (Message(role="system", content=system),)),
                Message(role="user", content=text),
                *after,
            ),
            sampling=sampling or Sampling(max_tokens=load.max_tokens),
            **fields,
        )


def _ending(
    phrasing: Phrasing,
    *,
    ticket: Passphrase,
    passphrase: Passphrase | None,
    withheld: Passphrase | None,
    note: Passphrase | None,
) -> tuple[str, tuple[Message, ...]]:
    return wording.ending(
        phrasing,
        ticket=ticket.text,
        passphrase=None if passphrase is None else passphrase.text,
        withheld_words=0 if withheld is None else len(withheld.words),
        note=None if note is None else note.text,
    )


def user_text(
    *,
    ticket: Passphrase,
    passphrase: Passphrase | None,
    withheld: Passphrase | None,
    before: str,
    between: str,
    ask: str,
    passphrase_first: bool = False,
    note: Passphrase | None = None,
) -> str:
    """A user's message: filler, ticket, passphrase (or as many words without one), filler, ask.

    With `passphrase_first` the passphrase stands in front of everything, filler included.
    """
    own = [wording.TICKET.format(ticket=ticket.text)]
    secret = ""
    if passphrase is not None:
        secret = wording.PASSPHRASE.format(passphrase=passphrase.text)
    elif note is not None:
        secret = wording.note(note.text)
    elif withheld is not None:
        secret = wording.blank(len(withheld.words))
    parts = [secret, before, *own, between] if passphrase_first else [before, *own, between, secret]
    return " ".join(part for part in [*parts, ask] if part)
