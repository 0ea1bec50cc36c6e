"""The lives of blocks, read back from a trace: who wrote what a request read."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakcheck.engine.inspection.terminal import folded, width
from leakcheck.engine.values import EngineError

Event = dict[str, Any]
SHORT_ID = 17
"""Characters of a target's id that are shown in tables: `chatcmpl-` and eight more."""
IN_FULL = 4
"""How many odd blocks of a request are shown with all that happened to them."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One use of a block: from the moment it was taken until it is taken again.

    `was` wrote it in the use before; `readings` maps each request that attended to it to what was
    odd about the first time (empty: nothing) and to which block of its positions it stood for.
    """

    block: int
    was: str | None
    events: list[Event] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    writers: list[str] = field(default_factory=list)
    readings: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Engine:
    """What one engine of a trace did: its `start` line, its requests by id, all lives in order."""

    start: Event
    requests: dict[str, Event] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    now: dict[int, Life] = field(default_factory=dict)

    def name(self, request_id: str | None) -> str:
        """The client's own id of a request, or a short form of the target's."""
        if request_id is None:
            return "-"
        told = self.requests.get(request_id, {})
        return str(told.get("client_id") or told.get("target_id", request_id)[:SHORT_ID])


def read(path: Path) -> list[Engine]:
    """The engines of a trace file. A torn last line is left out; EngineError for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"the trace {str(path)!r} cannot be read: {error}") from error
    engines: list[Engine] = []
    for event in parsed(text.splitlines(), path):
        if event["event"] == "start":
            engines.append(Engine(start=event))
        elif engines:
            follow(engines[-1], event)
    if not engines:
        raise EngineError(f"{str(path)!r} is no trace of an engine: it has no line `start`")
    return engines


def parsed(lines: list[str], path: Path) -> Iterator[Event]:
    """Each line as an event."""
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            event["event"]  # only whether it has one
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                return
            raise EngineError(
                f"line {number} of {str(path)!r} is no event of a trace: {line[:60]!r}"
            ) from error
        yield event


def follow(engine: Engine, event: Event) -> None:
    """Take one event into account."""
    kind = event["event"]
    if kind == "request":
        engine.requests[event["id"]] = event
    if "block" not in event:
        return
    block, request = event["block"], event["request"]
    if kind in ("alloc", "reuse") or block not in engine.now:
        engine.now[block] = Life(block=block, was=event.get("was"))
        engine.lives.append(engine.now[block])
    life = engine.now[block]
    life.events.append(event)
    if kind in ("alloc", "reuse", "share"):
        life.holders.add(request)
    elif kind in ("free", "release"):
        life.holders.discard(request)
    elif kind == "copy":
        source = engine.now.get(event["source"])
        life.writers += source.writers if source else []
    elif kind == "write" and request not in life.writers:
        life.writers.append(request)
    elif kind == "read" and request not in life.readings:
        life.readings[request] = oddness(engine, life, request), event["ordinal"]


def oddness(engine: Engine, life: Life, reader: str) -> str:
    """What is odd about a request's first look at a block; empty where it reads its own."""
    others = [engine.name(one) for one in life.writers if one != reader]
    wrote = "written by " + " and ".join(others)
    if not life.writers:
        before = f", in which {engine.name(life.was)} wrote" if life.was else ""
        return f"nobody had written it since it was taken: it holds its use before{before}"
    if reader not in life.holders:
        return f"read without a reference to it; {wrote}" if others else "read after it was freed"
    if others and reader in life.writers:
        return f"{wrote} too"
    if not others:
        return ""
    shares = [its for its in life.events if its["event"] == "share" and its["request"] == reader]
    if any(its.get("same_prefix") is False for its in shares):
        return f"{wrote}, shared by the prefix cache for another prefix or salt"
    return f"{wrote}, shared by the prefix cache or a fork"


def find(engines: list[Engine], given: str) -> list[tuple[Engine, str]]:
    """Engine and id of the requests that a target's, an engine's or a client's id names."""
    found = [
        (engine, request_id)
        for engine in engines
        for request_id, told in engine.requests.items()
        if given in (request_id, told.get("target_id"), told.get("client_id"))
    ]
    if not found:
        raise EngineError(f"the trace knows no request {given!r}: give the id of its answer")
    return found


def render(path: Path, given: Iterable[str], *, everything: bool) -> str:
    """What each request read; blocks with something odd about them in full, or all of them."""
    engines = read(path)
    parts = [
        story(engine, request_id, everything=everything)
        for one in given
        for engine, request_id in find(engines, one)
    ]
    return "\n".join(parts)


def story(engine: Engine, request_id: str, *, everything: bool) -> str:
    """One request and the blocks that it read."""
    told = engine.requests[request_id]
    read_by_it = [life for life in engine.lives if request_id in life.readings]
    plain = [life for life in read_by_it if not life.readings[request_id][0]]
    odd = [life for life in read_by_it if life.readings[request_id][0]]
    client = f" (its client calls it {told['client_id']})" if told.get("client_id") else ""
    prompt, fault = told["prompt_tokens"], engine.start.get("fault") or "none"
    lines = [
        *folded(f"{told['target_id']}{client}"),
        *folded(f"  {prompt} prompt tokens; the engine's fault: {fault}"),
        f"  blocks it read: {len(read_by_it)}",
        *block_list("its own and nobody else's", plain),
    ]
    for why in dict.fromkeys(life.readings[request_id][0] for life in odd):
        lines += block_list(why, [life for life in odd if life.readings[request_id][0] == why])
    for life in read_by_it if everything else odd[:IN_FULL]:
        lines += ["", *life_lines(engine, life, request_id, everything=everything)]
    if not everything and len(odd) > IN_FULL:
        lines += ["", f"  {len(odd) - IN_FULL} more of these blocks: --all shows every block"]
    return "\n".join(lines) + "\n"


def block_list(title: str, several: list[Life]) -> list[str]:
    """`27 TITLE: 1 2 3 ...`, wrapped."""
    if not several:
        return []
    numbers = " ".join(str(life.block) for life in several)
    text = f"{len(several)} {title}: {numbers}"
    return textwrap.wrap(text, width(), initial_indent="    ", subsequent_indent="      ")


def life_lines(engine: Engine, life: Life, request_id: str, *, everything: bool) -> Iterator[str]:
    """A headline and a table of what happened to a block in this use of it.

    Unless `everything` is asked for, only what its reader and its writers had to do with it.
    """
    why, ordinal = life.readings[request_id]
    first = ordinal * int(engine.start["block_size"])
    last = first + int(engine.start["block_size"]) - 1
    title = f"block {life.block}, read as positions {first}-{last}: {why or 'its own'}"
    yield from textwrap.wrap(title, width(), initial_indent="  ", subsequent_indent="    ")
    yield f"    {'step':>6}  {'event':<8}{'request':<19}{'references':>10}  why"
    concerned = {request_id, *life.writers}
    left_out = []
    for event in life.events:
        if not everything and event["request"] not in concerned:
            left_out.append(event["request"])
            continue
        mark = "  <- this" if event["event"] == "read" and event["request"] == request_id else ""
        yield (
            f"    {event['step']:>6}  {event['event']:<8}{engine.name(event['request']):<19}"
            f"{event['references']:>10}  {reason(engine, event)}{mark}"
        )
    if left_out:
        yield f"            and {len(left_out)} events of {len(set(left_out))} other requests"


def reason(engine: Engine, event: Event) -> str:
    """Why an event happened, with what else it tells."""
    more = [str(event["cause"])] if event["cause"] else []
    if event.get("was"):
        more.append(f"after {engine.name(event['was'])}")
    if "source" in event:
        more.append(f"of block {event['source']}")
    if event["event"] in ("share", "keep", "evict") and event["hash"]:
        more.append(f"hash {event['hash'][:8]}")
    if event.get("same_prefix") is False:
        more.append("not its prefix")
    if event.get("forgotten") is False:
        more.append("the prefix cache still finds it")
    if event["event"] in ("read", "write") and event["mask"]:
        more.append(f"mask {'x'.join(map(str, event['mask']))}")
    return ", ".join(more)
