"""A pretended target whose logits are rounded: histories of whole runs, without sending anything.

Every answer is greedy over logits on the lattice of bfloat16 (steps of an eighth between 16 and
32), which err by noise with heavy tails. Some of that noise is fresh for every answer, some comes
back whenever the same company does. Nothing of anybody else's text ever enters an answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import numpy.typing as npt
import shorthand

from leakcheck import history as histories
from leakcheck import scenario
from leakcheck.history import History
from leakcheck.passphrase import load_words
from leakcheck.records import (
    Chunk,
    Observation,
    Plan,
    Request,
    Scenario,
    TargetFacts,
    TokenLogprob,
    Usage,
)
from leakcheck.runfolder import Invocation

FACTS = TargetFacts(
    block_tokens=16,
    overhead_tokens=2,
    reports_cached_tokens=True,
    reports_logprobs=True,
    samples=True,
)
PHASE_NS = 1_000_000_000
TOP = 20.0
QUANTUM = 0.125
ALTERNATIVES = 4
_WORDS = load_words()
_TAILS = 3

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy:
    """An honest target. `scale` of the noise of a logit, in nats; `sticky`, the share of it (in
    variance) that the same company brings back; `near`, the share of tokens at which another one is
    close at all. `seed` is that of its fresh noise.
    """

    seed: int
    scale: float = 0.035
    sticky: float = 0.5
    near: float = 0.3
    tokens: int = 48

    def answer(self, request: Request, company: Sequence[Request], turn: int) -> Chunk:
        """What the request is answered in this company."""
        if request.role != "recipient":
            return Chunk(text=_ticket(request) or "Yes.")
        text = request.messages[-1].content
        own = np.random.default_rng(crc32(text.encode()))
        logits = self._logits(own, ticket := _ticket(request).split())
        met = " ".join(sorted(each.messages[-1].content for each in company))
        again = np.random.default_rng(crc32(met.encode(), crc32(text.encode())))
        fresh = np.random.default_rng((self.seed, turn))
        logits = logits + self.scale * (
            self.sticky**0.5 * again.standard_t(_TAILS, logits.shape)
            + (1 - self.sticky) ** 0.5 * fresh.standard_t(_TAILS, logits.shape)
        )
        return _said(np.round(logits / QUANTUM) * QUANTUM, ticket, fresh, request)

    def _logits(self, own: np.random.Generator, ticket: Sequence[str]) -> Numbers:
        """Of the tokens that might stand at each place, the own one first."""
        near = own.random(self.tokens) < self.near
        near[: len(ticket)] &= own.random(len(ticket)) < 0.05
        gaps = np.where(near, own.exponential(2.0, self.tokens), own.uniform(3, 8, self.tokens))
        more = np.cumsum(own.exponential(1.5, (self.tokens, ALTERNATIVES - 1)), axis=1)
        others = np.concatenate([np.zeros((self.tokens, 1)), more], axis=1) + gaps[:, None]
        return np.concatenate([np.full((self.tokens, 1), TOP), TOP - others], axis=1)


def _ticket(request: Request) -> str:
    return "" if request.ticket is None else request.ticket.text


def _said(
    logits: Numbers, ticket: Sequence[str], fresh: np.random.Generator, request: Request
) -> Chunk:
    """Greedy, or by temperature; once it has said another token it goes on otherwise."""
    rest = np.log(np.exp(logits - TOP).sum(axis=1) + np.exp(-TOP / 2)) + TOP
    logprobs = logits - rest[:, None]
    picks = logits.argmax(axis=1)
    if request.sampling.temperature > 0:
        picks = (logits + fresh.gumbel(size=logits.shape)).argmax(axis=1)
    parted = np.flatnonzero(picks)
    end = len(picks) if not len(parted) else int(parted[0]) + 1
    shown, said = [], []
    for place in range(end):
        names = [_name(place, n, ticket) for n in range(logits.shape[1])]
        pick = int(picks[place])
        said.append(names[pick])
        if request.sampling.top_logprobs:
            order = np.argsort(-logprobs[place], kind="stable")
            shown.append(
                TokenLogprob(
                    token=names[pick],
                    logprob=float(logprobs[place, pick]),
                    top=tuple((names[n], float(logprobs[place, n])) for n in order),
                )
            )
    if end < len(ticket):  # a parting within the ticket is a slip: what follows is its own again
        said += [f" {word}" for word in ticket[end:]]
    return Chunk(text="".join(said), logprobs=tuple(shown))


def _name(place: int, choice: int, ticket: Sequence[str]) -> str:
    if choice == 0 and place < len(ticket):
        return f" {ticket[place]}"
    return f" {'abcdefgh'[choice]}{place}"


def planned(of: Scenario, seed: int) -> Plan:
    """The plan of a scenario against such a target."""
    return scenario.plan(of, seed=seed, facts=FACTS, words=_WORDS, style="phrase")


def played(
    of: Plan,
    target: Noisy,
    *,
    more: Callable[[History], Sequence[Request]],
    changed: Callable[[Request, Chunk], Chunk] | None = None,
) -> History:
    """The run of a plan with everything that `more` asks for afterwards, until it asks for no more.

    `changed` stands between target and answer: the place for a leak.
    """
    requests, seen = list(of.requests), _observed(of.requests, target, 0, changed)
    while True:
        history = _built(replace(of, requests=tuple(requests)), seen)
        asked = more(history)
        if not asked:
            return history
        seen += _observed(asked, target, len(seen), changed)
        requests += asked


def _observed(
    requests: Iterable[Request],
    target: Noisy,
    before: int,
    changed: Callable[[Request, Chunk], Chunk] | None,
) -> list[Observation]:
    phases: dict[tuple[int, int], list[Request]] = {}
    for request in requests:
        phases.setdefault((request.window, request.phase), []).append(request)
    seen: list[Observation] = []
    for number, key in enumerate(sorted(phases)):
        together = phases[key]
        for request in together:
            company = [each for each in together if each is not request]
            chunk = target.answer(request, company, before + len(seen))
            if changed is not None:
                chunk = changed(request, chunk)
            start = (before + number) * PHASE_NS
            seen.append(_observation(request, chunk, start))
    return seen


def _observation(request: Request, chunk: Chunk, start_ns: int) -> Observation:
    return Observation(
        request_id=request.id,
        worker=0,
        lane=0,
        outcome="ok",
        start_ns=start_ns,
        end_ns=start_ns + PHASE_NS * 8 // 10,
        chunks=(chunk,),
        usage=Usage(completion_tokens=len(chunk.text.split()), cached_tokens=0),
        finish_reason="stop",
        status=200,
    )


def _built(of: Plan, seen: Sequence[Observation]) -> History:
    sent = [
        Invocation(request_id=o.request_id, attempt=1, worker=0, lane=0, at_ns=o.start_ns)
        for o in seen
    ]
    return histories.build(
        [of],
        sent,
        seen,
        provenance=shorthand.provenance(of, facts=FACTS),
        events=shorthand.FINISHED,
    )


def chance(*parts: object) -> random.Random:
    """A generator that depends on these alone."""
    return random.Random(" ".join(map(str, parts)))
