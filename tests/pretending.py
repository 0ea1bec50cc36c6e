"""Real plans of shipped scenarios, answered by a pretended target: a function from a request and
those in flight beside it to what comes back.

::

    history("parameter-twins", 14, obedient)          nobody shapes another's answer
    history("parameter-twins", 14, cut_by_company)    .. and here somebody does
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import shorthand

from leakcheck import history as histories
from leakcheck import scenario
from leakcheck.history import History
from leakcheck.passphrase import load_words
from leakcheck.records import (
    Chunk,
    Observation,
    Outcome,
    Plan,
    Request,
    Sampling,
    TargetFacts,
    Usage,
)
from leakcheck.runfolder import Invocation

FACTS = TargetFacts(block_tokens=16, overhead_tokens=2, reports_cached_tokens=True)
PHASE_NS = 1_000_000_000
_ECHO = re.compile(r"Repeat exactly: (.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a pretended target says."""

    text: str = ""
    outcome: Outcome = "ok"
    finish: str | None = "stop"
    tokens: int | None = None
    cached: int | None = None
    status: int | None = 200
    error: str | None = None
    target_id: str | None = None
    retry_after_s: float | None = None


Model = Callable[[Request, Sequence[Request]], Reply]


def plan(name: str, windows: int, *, seed: int = 0, **overrides: Any) -> Plan:
    """The plan of a shipped scenario; `overrides` as `load__requests=4`."""
    path = {each.stem: each for each in scenario.shipped_files()}[name]
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    read = scenario.read(path, {"load.windows": windows, **keys})
    return scenario.plan(read, seed=seed, facts=FACTS, words=load_words(), style="phrase")


def history(
    name: str, windows: int, model: Model, *, seed: int = 0, facts: TargetFacts = FACTS, **more: Any
) -> History:
    """The run of a shipped scenario against this model."""
    return played(plan(name, windows, seed=seed, **more), model, facts=facts)


def played(of: Plan, model: Model, *, facts: TargetFacts = FACTS) -> History:
    """The run of a plan: phases one after the other, everybody of a phase at once."""
    phases: dict[tuple[int, int], list[Request]] = {}
    for request in of.requests:
        phases.setdefault((request.window, request.phase), []).append(request)
    seen = []
    for number, key in enumerate(sorted(phases)):
        together = phases[key]
        for request in together:
            company = [each for each in together if each is not request]
            seen.append(_observation(request, model(request, company), number * PHASE_NS))
    return built(of, seen, facts=facts)


def built(of: Plan, seen: Iterable[Observation], *, facts: TargetFacts = FACTS) -> History:
    """A history that came to its end."""
    seen = list(seen)
    sent = [
        Invocation(request_id=o.request_id, attempt=1, worker=0, lane=0, at_ns=o.start_ns)
        for o in seen
    ]
    provenance = shorthand.provenance(of, facts=facts)
    return histories.build([of], sent, seen, provenance=provenance, events=shorthand.FINISHED)


def _observation(request: Request, reply: Reply, start_ns: int) -> Observation:
    start = start_ns + int(request.start_offset_s * 1e9)
    return Observation(
        request_id=request.id,
        worker=0,
        lane=0,
        outcome=reply.outcome,
        start_ns=start,
        end_ns=max(start, start_ns) + PHASE_NS * 8 // 10,
        chunks=(Chunk(text=reply.text),) if reply.text else (),
        usage=Usage(completion_tokens=reply.tokens, cached_tokens=reply.cached),
        finish_reason=reply.finish if reply.outcome == "ok" else None,
        target_id=reply.target_id,
        status=reply.status,
        error=reply.error,
        retry_after_s=reply.retry_after_s,
    )


# --- a model that obeys --------------------------------------------------------------------------


def obedient(request: Request, company: Sequence[Request]) -> Reply:
    """Does what it is asked, by the parameters of the request alone; nobody lives at an address
    that is wrong.
    """
    del company
    if request.sent == "misdirected":
        return Reply(outcome="failed", finish=None, status=404, error="refused with status 404")
    return say(request, request.sampling)


def say(request: Request, sampling: Sampling) -> Reply:
    """The answer to a request under these parameters."""
    words = _wanted(request)
    if sampling.temperature > 0:
        draws = random.Random(f"{sampling.seed}")
        words = [f"w{draws.randrange(1000)}" for _ in range(100)]
    forced = [*(token for token, _ in sampling.logit_bias), *sampling.allowed_token_ids]
    if forced:
        words = [f"token{forced[0]}"] * 100
    finish = "stop" if len(words) <= sampling.max_tokens else "length"
    words = words[: sampling.max_tokens]
    text = " ".join(words)
    ends = [at for stop in sampling.stop if (at := text.find(stop)) >= 0]
    if ends:
        text, finish = text[: min(ends)], "stop"
    return Reply(text=text, finish=finish, tokens=len(text.split()))


def _wanted(request: Request) -> list[str]:
    echo = _ECHO.search(request.messages[-1].content)
    if echo:
        return echo[1].split()
    said = [request.ticket, request.passphrase]
    phrases = [phrase.text for phrase in said if phrase is not None]
    return f"There is a lot to say. {' '.join(phrases)} and more".split()


def noisy(model: Model, share: float, *, seed: int = 0) -> Model:
    """The same model, that loses a share of its answers altogether, whatever the company."""
    draws = random.Random(seed)

    def answer(request: Request, company: Sequence[Request]) -> Reply:
        reply = model(request, company)
        return replace(reply, text="So it goes on.") if draws.random() < share else reply

    return answer


def changed(sampling: Sampling, changes: Mapping[str, Any]) -> Sampling:
    """Sampling parameters with some of them replaced."""
    return replace(sampling, **dict(changes))
