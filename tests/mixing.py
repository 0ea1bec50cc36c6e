"""Pretended targets for the differential: words with margins, and companies that change them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pretending

from leakcheck import history as histories
from leakcheck.analyzer.confirm import confirmations
from leakcheck.history import History
from leakcheck.records import Chunk, Plan, Request, TargetFacts, TokenLogprob

FACTS = replace(pretending.FACTS, reports_logprobs=True, samples=True)
WORDS = "one two three four five six seven eight".split()
WIDE = 8.0
SCENARIO = "mixed-batch-differential"

Change = Callable[[Request, Sequence[Request]], tuple[int, str] | None]
"""Of a request and its company: at which word it is answered otherwise, and with which."""


def plan(windows: int, *, seed: int = 0, requests: int = 6) -> Plan:
    """Few companions: what is in them hardly matters here."""
    return pretending.plan(SCENARIO, windows, seed=seed, load__requests=requests, load__phantoms=0)


def nothing(request: Request, company: Sequence[Request]) -> tuple[int, str] | None:
    """Nobody is answered otherwise than alone."""
    del request, company


def played(
    of: Plan,
    change: Change,
    *,
    margin: Callable[[Request, int], float] = lambda _request, _at: WIDE,
    logprobs: bool = True,
    step: float | None = None,
    facts: TargetFacts = FACTS,
) -> History:
    """The run of a plan. `margin(request, at)` is by how much the word there is preferred, in nats;
    `step` rounds log-probabilities as logits of a 16-bit model are.
    """

    def model(request: Request, company: Sequence[Request]) -> pretending.Reply:
        words = list(WORDS)
        changed = change(request, company)
        if changed is not None:
            words[changed[0]] = changed[1]
        own = "" if request.ticket is None else request.ticket.text
        return pretending.Reply(text="".join(f" {w}" for w in (*words, own)))

    h = pretending.played(of, model, facts=facts)
    if not logprobs:
        return h
    seen = []
    for o in h._run.seen:
        request = h.by_id(o.request_id)
        words = "".join(c.text for c in o.chunks).split()
        each = [_token(at, f" {w}", margin(request, at), step) for at, w in enumerate(words)]
        seen.append(replace(o, chunks=tuple(Chunk(text=t.token, logprobs=(t,)) for t in each)))
    return rebuilt(h, seen)


def _token(at: int, word: str, margin: float, step: float | None) -> TokenLogprob:
    usual = f" {WORDS[at]}" if at < len(WORDS) else word
    second = " tied" if word == usual else usual
    own, gaps = -0.01, (margin, margin + 1.3717)
    if step is not None:
        gaps = tuple(round(gap / step) * step for gap in gaps)  # type: ignore[assignment] # two stay
    others = ((second, own - gaps[0]), (" far", own - gaps[1]))
    return TokenLogprob(token=word, logprob=own, top=((word, own), *others))


def rebuilt(h: History, seen: Sequence[object]) -> History:
    """The same run with these observations."""
    run = h._run
    return histories.build(
        run.plans,
        [],
        seen,
        provenance=run.provenance,
        events=run.events,  # type: ignore[arg-type]
    )


def confirmed(of: Plan, change: Change, **more: object) -> History:
    """The run with all replays that it asks for."""
    h = played(of, change, **more)  # type: ignore[arg-type] # passed on
    while wanted := confirmations(h):
        again = played(replace(of, requests=wanted), change, **more)  # type: ignore[arg-type]
        of = replace(of, requests=(*of.requests, *wanted))
        run = h._run
        h = histories.build(
            [of], [], [*run.seen, *again._run.seen], provenance=run.provenance, events=run.events
        )
    return h


def contaminated(share: float, *, seed: int = 0) -> Change:
    """Some answers take a word of a companion, of the same one as long as it is there."""

    def change(request: Request, company: Sequence[Request]) -> tuple[int, str] | None:
        if not company or request.role != "recipient":
            return None
        pairs = (f"{seed} {request.messages} {each.messages}" for each in company)
        draws = random.Random(max(pairs, key=lambda pair: random.Random(pair).random()))
        draws.random()
        if draws.random() >= share:
            return None
        return draws.randrange(len(WORDS)), f"foreign{draws.randrange(1000)}"

    return change
