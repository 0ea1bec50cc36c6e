"""A history on a line, so that checks can be tried on tiny runs written by hand.

::

    history("a> b> a=aA b=bB")      a and b ran together; each got its own ticket and passphrase
    history("a> a=aA b> b=bA")      b was answered with the passphrase of a, which had ended
    history("a> b> a! b=bA")        .. and a timed out
    history("a> a=a | b> b=b")      two windows;  "a> a=a / b> b=b" two phases of one window

Every request is a letter. `x>` sends it, `x=..` is its whole answer, `x!` an outcome that nobody
knows, `x-` a refusal, `x^..` a planned abort after that much of an answer; without any of them the
attempt never came back (its worker died). `x.` is planned and not sent. In an answer a lower-case
letter is the ticket of that request, an upper-case one its passphrase, `~x` the passphrase that was
withheld from it and `_` plain words. Time goes on by 0.1 s with every word of the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leakcheck import history as histories
from leakcheck.history import History
from leakcheck.records import (
    SCHEMA,
    Chunk,
    Gate,
    Load,
    Message,
    Observation,
    Passphrase,
    Plan,
    PlugIn,
    Provenance,
    Request,
    RunEvent,
    Sampling,
    Scenario,
    Target,
    TargetFacts,
    Usage,
)
from leakcheck.runfolder import Invocation

STEP_NS = 100_000_000
FINISHED = (RunEvent(kind="finished", at_ns=10**12),)
BITS = 66.0
_SYLLABLES = "ba de fi go hu ka le mi no pu ra se ti vo zu".split()


def ticket(name: str) -> str:
    """The ticket of request `name`."""
    return _phrase("ticket", name).text


def passphrase(name: str) -> str:
    """The passphrase of request `name`."""
    return _phrase("secret", name).text


def withheld(name: str) -> str:
    """The passphrase that was withheld from request `name`."""
    return _phrase("hidden", name).text


def _phrase(kind: str, name: str) -> Passphrase:
    number = ord(name[0].lower()) - ord("a")
    tail = _SYLLABLES[number // 5 % 15] + _SYLLABLES[number % 15]
    words = tuple(f"{kind}{syllable}{tail}" for syllable in _SYLLABLES[:6])
    return Passphrase(words=words, style="phrase", entropy_bits=BITS)


def history(
    line: str,
    *,
    scenario: str = "tiny",
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    control: str = "",
    checks: tuple[str, ...] = ("foreign_passphrase", "own_answer"),
    gate: Gate | None = None,
    load: Load | None = None,
    facts: TargetFacts | None = None,
    events: tuple[RunEvent, ...] = FINISHED,
    torn: tuple[str, ...] = (),
    cached: Mapping[str, int] | None = None,
    engine: dict[str, Any] | None = None,
) -> History:
    """The run on the line, which came to its end unless its events say otherwise. `changes` maps
    letters to fields of their request; those in `control` are of the control arm; `cached` maps
    letters to cached tokens; `engine` is what an embedded engine says of itself.
    """
    requests: dict[str, Request] = {}
    invocations, observations = [], []
    started: dict[str, int] = {}
    attempts: dict[str, int] = {}
    window, phase = 0, 0
    for step, word in enumerate(line.split(), start=1):
        now = step * STEP_NS
        if word in "|/":
            window, phase = (window + 1, 0) if word == "|" else (window, phase + 1)
            continue
        name, what = word[0], word[1]
        if what in ">.":
            base = _request(name, scenario, window, phase, control=name in control)
            requests.setdefault(name, replace(base, **dict((changes or {}).get(name, {}))))
            if what != ".":
                started[name] = now
                attempts[name] = attempts.get(name, 0) + 1
                invocations.append(
                    Invocation(request_id=name, attempt=attempts[name], worker=0, lane=0, at_ns=now)
                )
            continue
        seen = _observation(
            name, what, word[2:], attempt=attempts[name], start_ns=started[name], end_ns=now
        )
        tokens = (cached or {}).get(name)
        observations.append(replace(seen, usage=Usage(cached_tokens=tokens)))
    plan = Plan(
        scenario=_scenario(scenario, checks, gate, load),
        seed=7,
        words=tuple(f"w{n}{s}" for n in range(20) for s in _SYLLABLES),
        style="phrase",
        requests=tuple(requests.values()),
    )
    return histories.build(
        [plan],
        invocations,
        observations,
        provenance=provenance(plan, facts=facts, engine=engine),
        events=events,
        torn=torn,
    )


def with_chunks(h: History, name: str, *chunks: Chunk, **more: Any) -> History:
    """The same run, in which the request `name` was answered with these chunks instead."""
    run = h._run
    seen = [replace(o, chunks=chunks, **more) if o.request_id == name else o for o in run.seen]
    return histories.build(run.plans, [], seen, provenance=run.provenance, events=run.events)


def said(text: str) -> str:
    """What an answer says, from its shorthand."""
    words, rest = [], list(text)
    while rest:
        letter = rest.pop(0)
        if letter == "~":
            words.append(withheld(rest.pop(0)))
        elif letter == "_":
            words.append("The weather is fine.")
        else:
            words.append(ticket(letter) if letter.islower() else passphrase(letter))
    return ". ".join(words)


def provenance(
    *plans: Plan, facts: TargetFacts | None = None, engine: dict[str, Any] | None = None
) -> Provenance:
    """Of a run that never was."""
    return Provenance(
        schema=SCHEMA,
        leakcheck="0",
        python="3",
        platform="here",
        packages={},
        command=("leakcheck", "run"),
        started_utc="2026-01-01T00:00:00+00:00",
        seed=7,
        target=Target(base_url="http://127.0.0.1:9/v1", model="m"),
        facts=facts or TargetFacts(),
        scenarios=tuple(plan.scenario for plan in plans),
        engine=engine,
    )


def _scenario(name: str, checks: tuple[str, ...], gate: Gate | None, load: Load | None) -> Scenario:
    return Scenario(
        name=name,
        version=1,
        summary="",
        load=load or Load(windows=1, phantoms=20),
        traffic=PlugIn(name="concurrent"),
        checks=tuple(PlugIn(name=check) for check in checks),
        gate=gate or Gate(detect=1.0, min_windows=1, min_echo=0.0, min_overlap=0.0),
        digest="0" * 64,
        path="tiny.toml",
    )


def _request(name: str, scenario: str, window: int, phase: int, *, control: bool) -> Request:
    own = _phrase("ticket", name), None if control else _phrase("secret", name)
    text = " ".join(phrase.text for phrase in own if phrase is not None)
    return Request(
        id=name,
        scenario=scenario,
        window=window,
        phase=phase,
        arm="control" if control else "planted",
        tenant=f"t{ord(name) - ord('a'):02}",
        role="recipient",
        ask="eliciting",
        worker=0,
        lane=0,
        messages=(Message(role="user", content=text),),
        sampling=Sampling(),
        ticket=own[0],
        passphrase=own[1],
        withheld=_phrase("hidden", name) if control else None,
    )


def _observation(
    name: str, what: str, answer: str, *, attempt: int, start_ns: int, end_ns: int
) -> Observation:
    text = said(answer)
    middle = len(text) // 2
    pieces = (text[:middle], text[middle:])
    return Observation(
        request_id=name,
        worker=0,
        lane=0,
        outcome={"=": "ok", "!": "unknown", "-": "failed", "^": "aborted"}[what],
        start_ns=start_ns,
        end_ns=end_ns,
        attempt=attempt,
        first_chunk_ns=end_ns if text else None,
        chunks=tuple(Chunk(text=piece) for piece in pieces if piece),
        finish_reason="stop" if what == "=" else None,
        status=429 if what == "-" else 200 if what == "=" else None,
        error={"!": "no answer within 60 s", "-": "refused: 429 Too Many Requests"}.get(what),
    )
