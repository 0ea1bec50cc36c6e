"""`inspect pool`: who holds which block of a running engine, or who held it, by its trace."""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from leakcheck.engine.inspection import lives
from leakcheck.engine.inspection.terminal import folded, reader_left
from leakcheck.engine.keys import key_from_environment
from leakcheck.engine.latency import Percentiles
from leakcheck.engine.snapshot import FORMAT, HeldBlock, PoolState
from leakcheck.engine.values import EngineError

TIMEOUT_S = 15.0
WATCH_MAX_S = 1e6
ROWS_MAX = 40
"""Lines of one list on the screen; what is left out is counted."""
BLOCKS_A_LINE = 16
LABEL = 13
"""Columns before what is said of it."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """URL, or --trace with --request."""
    parser.add_argument(
        "url", nargs="?", metavar="URL", help="of an embedded engine, such as its base_url"
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="again every SECONDS")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a trace of `serve --trace`")
    parser.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="ID",
        help="of an answer in the trace (chatcmpl-...), of a client, or of the engine; repeatable",
    )
    parser.add_argument(
        "--all", action="store_true", help="with --trace: also the blocks with nothing odd"
    )


def main(arguments: argparse.Namespace) -> int:
    """Print what was asked for; 0. EngineError for wrong flags, a dead URL, a strange file."""
    if arguments.trace is not None:
        if arguments.url or not arguments.request:
            raise EngineError("--trace FILE goes with --request ID, and without a URL")
        text = lives.render(arguments.trace, arguments.request, everything=arguments.all)
        sys.stdout.write(text)
        return 0
    if not arguments.url or arguments.request:
        raise EngineError("give the URL of an embedded engine, or --trace FILE --request ID")
    watch = arguments.watch
    if watch is not None and not 0 < watch <= WATCH_MAX_S:
        raise EngineError(f"--watch is a number of seconds above 0, not {watch}")
    key = key_from_environment(arguments.api_key_env)
    while True:
        state = fetch(arguments.url, key)
        sys.stdout.write("\n".join(screen(state, arguments.url)) + "\n")
        sys.stdout.flush()
        if watch is None or reader_left():
            return 0
        time.sleep(watch)
        sys.stdout.write("\n")


def fetch(url: str, key: str | None) -> PoolState:
    """The pool of the engine at this URL, with or without `/v1`. EngineError says what is amiss."""
    host, port, base = address(url)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"{base}/debug/pool", headers=authorization(key))
        response = connection.getresponse()
        status, raw = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"nothing answers at {url}: {str(error) or repr(error)}") from error
    finally:
        connection.close()
    if status != http.client.OK:
        raise EngineError(refusal(url, status, raw))
    return decoded(url, raw)


def address(url: str) -> tuple[str, int, str]:
    """Host, port and the path before `/v1`. EngineError for what is no such URL."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port or http.client.HTTP_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname:
        raise EngineError(
            f"{url!r} is no URL of an embedded engine, as http://127.0.0.1:PORT/v1 is"
        )
    return parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1")


def authorization(key: str | None) -> dict[str, str]:
    """The header with the key, where there is one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def refusal(url: str, status: int, body: bytes) -> str:
    """One sentence for an HTTP error."""
    if status == http.client.UNAUTHORIZED:
        return f"{url} wants an API key: name its environment variable with --api-key-env"
    try:
        said = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        said = None
    if status == http.client.SERVICE_UNAVAILABLE and said:
        return f"the engine at {url} does not answer: {printable(str(said))}"
    return f"{url} is no embedded engine: GET /debug/pool was answered with status {status}"


def decoded(url: str, raw: bytes) -> PoolState:
    """The record behind the JSON."""
    try:
        form = msgspec.json.decode(raw, type=dict[str, Any]).get("format")
        state = msgspec.json.decode(raw, type=PoolState) if form == FORMAT else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineError(f"{url} is no embedded engine: /debug/pool holds no pool") from error
    if state is None:
        raise EngineError(
            f"{url} is no embedded engine of this version: its pool is in the form"
            f" {printable(str(form))}, and this reads {FORMAT}"
        )
    return state


def printable(text: str) -> str:
    """Text of another process without what would steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


# --- the screen ----------------------------------------------------------------------------------


def screen(state: PoolState, url: str) -> Iterator[str]:
    """Text as wide as the terminal, every percentage with its numerator and denominator."""
    stats = state.stats
    yield from folded(
        f"{printable(state.model)} at {url}: {state.blocks} blocks of {state.block_size} tokens"
    )
    yield ""
    yield from labelled(
        "blocks",
        f"{share(state.used, state.blocks)} used, {state.cached} cached, {state.free} free",
    )
    empty = state.held_positions - state.filled_positions
    yield from labelled(
        "empty", f"{share(empty, state.held_positions)} of the positions in live tables"
    )
    hits = share(stats.prefix_hits_tokens, stats.prefix_queries_tokens)
    yield from labelled(
        "prefix", f"{hits} of prompt tokens were cached; {stats.evictions} evictions"
    )
    yield from labelled(
        "requests",
        f"{stats.requests} accepted, {stats.running} running, {stats.waiting} waiting,"
        f" {stats.finished} finished, {stats.aborted} aborted",
    )
    yield from labelled(
        "work",
        f"{stats.generated_tokens} tokens generated in {stats.steps} steps; "
        f"{stats.preemptions} preemptions",
    )
    yield ""
    yield f"  {'latency':<13}{'count':>8}{'p50':>12}{'p99':>12}{'p99.9':>12}{'largest':>12}"
    for name, label in (("step", "step"), ("first_token", "first token"), ("request", "request")):
        if name in state.latencies:
            yield latency_line(label, state.latencies[name])
    yield ""
    yield from limited("live requests", list(request_lines(state)), len(state.requests))
    yield ""
    shared = [line for its in state.shared for line in folded(f"    block {held(its)}")]
    yield from limited("blocks in several tables", shared, len(state.shared))
    yield ""
    yield from limited("what does not add up", list(problem_lines(state)), len(problems(state)))


def labelled(label: str, text: str) -> Iterator[str]:
    """Text beside its label, wrapped beside it too."""
    first, *rest = folded(f"{' ' * LABEL}{text}")
    yield f"  {label:<{LABEL - 2}}{first.strip()}"
    yield from (f"{' ' * LABEL}{line.strip()}" for line in rest)


def latency_line(label: str, its: Percentiles) -> str:
    """One row of the latency table, in milliseconds."""
    values = (its.p50_s, its.p99_s, its.p999_s, its.max_s)
    shown = "".join(f"{'-' if v is None else f'{v * 1000:.2f} ms':>12}" for v in values)
    return f"  {label:<13}{its.count:>8}{shown}"


def share(part: int, whole: int) -> str:
    """`12.5 % (1 of 8)`."""
    return f"{part / whole:.1%} ({part} of {whole})".replace("%", " %", 1) if whole else "0 of 0"


def limited(title: str, lines: list[str], count: int) -> Iterator[str]:
    """A titled list of at most ROWS_MAX lines; what is left out is said."""
    yield f"  {title}: {count or 'none'}"
    yield from lines[:ROWS_MAX]
    if len(lines) > ROWS_MAX:
        yield f"    ... and {len(lines) - ROWS_MAX} lines more"


def request_lines(state: PoolState) -> Iterator[str]:
    """Each live request with its block table."""
    for its in state.requests:
        yield f"    {printable(its.id)} {printable(its.state)}"
        yield from folded(
            f"      {its.prompt_tokens} prompt tokens, {its.cached_tokens} of them cached; "
            f"{its.generated_tokens} generated; {its.computed_tokens} in {len(its.table)} blocks:"
        )
        for start in range(0, len(its.table), BLOCKS_A_LINE):
            part = " ".join(map(str, its.table[start : start + BLOCKS_A_LINE]))
            yield f"        {part}"


def held(its: HeldBlock) -> str:
    """`12, 2 references, hash 1a2b3c4d: ID, ID`."""
    hash_ = f", hash {printable(its.hash)[:8]}" if its.hash else ""
    holders = ", ".join(printable(one)[: lives.SHORT_ID] for one in its.holders[:3])
    more = f" and {len(its.holders) - 3} more" if len(its.holders) > 3 else ""  # noqa: PLR2004 # a line's worth
    noun = "reference" if its.references == 1 else "references"
    return f"{its.block}, {its.references} {noun}{hash_}: {holders or 'no table'}{more}"


def problems(state: PoolState) -> list[str]:
    """One line a block whose references and tables disagree."""
    return [
        *(f"leaked: block {held(its)}" for its in state.leaked),
        *(f"freed while in use: block {held(its)}" for its in state.dangling),
        *(f"lost: block {block} is neither held nor cached nor free" for block in state.lost),
    ]


def problem_lines(state: PoolState) -> Iterator[str]:
    """The problems, indented."""
    for line in problems(state):
        yield from folded(f"    {line}")
