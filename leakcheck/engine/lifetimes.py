"""One engine after the other in one process, around a model that is loaded and checked once.

A lifetime is a fresh engine (pool, caches, server, port, fault) that says READY and serves until it
is told to stop, or to make room for the next. What takes four seconds of a start (importing torch,
loading the model, the self-check) happens before the first and never again.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine import faults, trace
from leakcheck.engine.values import EngineError, EngineOptions

if TYPE_CHECKING:
    from leakcheck.engine.cache import Shape
    from leakcheck.engine.server import Api

PORT_MAX = 65535
KEEP_ALIVE_S = 300
"""Idle connections stay open this long: closing one just as it is used again loses a request."""
PATIENCE_S = 2
"""How long the end of a lifetime waits for answers that were cut to be told so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one lifetime is given, checked; `fault_rate` None: the fault's own."""

    model: str
    host: str
    port: int
    threads: int
    options: EngineOptions
    api_key: str | None
    fault: faults.Fault | None
    fault_rate: float | None
    trace: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What all lifetimes share: weights, tokenizer, the shapes of every layer's cache."""

    model: Any
    tokenizer: Any
    shapes: list[tuple[Shape, Shape]]

    def fresh_model(self) -> Any:
        """The model with modules of its own around the same weights.

        A fault may patch a module; the next lifetime must not inherit that.
        """
        weights = [*self.model.parameters(), *self.model.buffers()]
        return copy.deepcopy(self.model, {id(tensor): tensor for tensor in weights})


def serve(first: Given, another: Callable[[Sequence[str]], Given], *, watch_stdin: bool) -> None:
    """Serve `first`, then what `another` makes of each line of standard input, if that is watched.

    Returns when told to stop. EngineError when something given cannot work, the model's name
    included: it cannot change.
    """
    orders = Orders()
    orders.on_signals()
    if watch_stdin:
        threading.Thread(target=orders.read_stdin, daemon=True).start()
    loaded: Loaded | None = None
    given: Given | None = first
    while given is not None:
        if given.model != first.model:
            raise EngineError(
                f"this process has loaded the model {first.model!r}; for {given.model!r} start "
                "another one"
            )
        with listen(given.host, given.port) as listener:
            loaded = loaded or load(given)
            live(given, loaded, listener, orders)
        flags = orders.next_flags()
        given = None if flags is None else another(flags)


def load(given: Given) -> Loaded:
    """The model, checked. Heavy imports happen here."""
    import torch  # noqa: PLC0415 # --list-faults and a wrong flag must answer at once
    import uvicorn  # noqa: F401, PLC0415 # as torch; unused here: nothing is to be imported later

    from leakcheck.engine import models, server  # noqa: F401, PLC0415 # as uvicorn
    from leakcheck.engine.selfcheck import refuse_differences  # noqa: PLC0415 # as torch

    torch.set_num_threads(given.threads)
    model, tokenizer = models.load(given.model)
    shapes = models.layer_shapes(model)
    refuse_differences(model, tokenizer, shapes)
    gc.collect()
    gc.freeze()  # what was loaded stays: searching it for garbage would stall every client
    return Loaded(model=model, tokenizer=tokenizer, shapes=shapes)


def live(given: Given, loaded: Loaded, listener: socket.socket, orders: Orders) -> None:
    """One lifetime, from a new engine to nothing left of it."""
    api = build(given, loaded)
    with event_loop() as runner:
        runner.run(run(api, listener, orders, ready_fields(api, given, listener)))
    orders.then(None)
    del api
    gc.collect()  # engine and server point at each other, and at every block


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; EngineError when the port cannot be had."""
    if not 0 <= port <= PORT_MAX:
        raise EngineError(f"--port is a number from 0 to {PORT_MAX}, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise EngineError(f"cannot listen on {host} port {port}: {error}") from error


def build(given: Given, loaded: Loaded) -> Api:
    """Engine, server and fault around the loaded model."""
    import torch  # noqa: PLC0415 # as in `load`

    from leakcheck.engine.engine import Engine  # noqa: PLC0415 # as torch
    from leakcheck.engine.server import Api  # noqa: PLC0415 # as torch

    torch.set_num_threads(given.threads)
    engine = Engine(loaded.fresh_model(), loaded.tokenizer, loaded.shapes, given.options)
    api = Api(engine, loaded.tokenizer, model=served_name(given.model), api_key=given.api_key)
    if given.fault is not None:
        rate = given.fault_rate if given.fault_rate is not None else given.fault.rate
        seams = faults.Seams(engine=engine, delivery=api.delivery, api=api)
        chance = Random(f"fault {given.options.seed}")
        given.fault.install(seams, 1.0 if rate is None else rate, chance)
    if given.trace is not None:
        trace.start(api, given.trace, **trace_facts(given))  # last: it sees what the fault does
    return api


def served_name(model: str) -> str:
    """What clients call the model: a folder by its last part."""
    return Path(model).name if Path(model).is_dir() else model


def ready_fields(api: Api, given: Given, listener: socket.socket) -> dict[str, Any]:
    """What the READY line says."""
    host = f"[{given.host}]" if ":" in given.host else given.host
    return {
        "base_url": f"http://{host}:{listener.getsockname()[1]}/v1",
        "model": api.model,
        "tokenizer": str(api.tokenizer.name_or_path),
        "pid": os.getpid(),
        "fault": None if given.fault is None else given.fault.name,
        "seed": given.options.seed,
        "block_size": given.options.block_size,
        "blocks": given.options.num_blocks,
        "context_tokens": api.engine.context_tokens,
        "kv_bytes": api.engine.store.bytes_allocated,
        "separates_salts": True,
        "trace": None if given.trace is None else str(given.trace),
    }


def trace_facts(given: Given) -> dict[str, Any]:
    """What the trace says of the engine it begins with."""
    return {
        "model": served_name(given.model),
        "fault": None if given.fault is None else given.fault.name,
        "seed": given.options.seed,
        "blocks": given.options.num_blocks,
        "block_size": given.options.block_size,
    }


def event_loop() -> asyncio.Runner:
    """A runner on uvloop, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 # not there on every platform
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def run(api: Api, listener: socket.socket, orders: Orders, ready: dict[str, Any]) -> None:
    """Serve until told otherwise; say READY once requests are answered."""
    import uvicorn  # noqa: PLC0415 # as in `load`

    config = uvicorn.Config(
        api.app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=PATIENCE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = uvicorn.Server(config)

    def leave() -> None:
        server.should_exit = True
        api.loop.abort_all()

    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():  # noqa: ASYNC110 # uvicorn has no event
        await asyncio.sleep(0.005)
    if server.started:
        orders.on_signals()  # uvicorn has put its own handlers in, which wait for long answers
        sys.stdout.write(f"READY {json.dumps(ready)}\n")
        sys.stdout.flush()
        orders.then(leave)
    await serving


class Orders:
    """What the process is told from outside: to stop, or to begin again with other flags.

    An order ends the present lifetime: cleanly while it serves, as soon as it serves while it is
    being built; before there was any, the order to stop ends the process at once.
    """

    def __init__(self) -> None:
        """Nothing is served yet."""
        self._leave: Callable[[], None] | None = None
        self._served = False
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._lock = threading.RLock()

    def then(self, leave: Callable[[], None] | None) -> None:
        """From now on an order means calling this; at once, when one is waiting."""
        with self._lock:
            self._leave, self._served = leave, True
            if leave is not None and not self._lines.empty():
                leave()

    def next_flags(self) -> list[str] | None:
        """The flags of the next lifetime, None to stop. EngineError for a line that is no order."""
        line = None if self._lines.empty() else self._lines.get()
        if line is None:
            return None
        try:
            flags = json.loads(line)
        except ValueError:
            flags = None
        if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
            shown = line.decode("utf-8", "replace").strip()
            raise EngineError(
                f"a line on standard input is a JSON array of flags, not {shown[:80]!r}"
            )
        return flags

    def on_signals(self) -> None:
        """SIGTERM and SIGINT stop the process."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def read_stdin(self) -> None:
        """Take orders by lines; stop when standard input ends: whoever started this has gone."""
        rest = b""
        while read := os.read(0, 4096):
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                self._order(line)
        self.stop()

    def stop(self, *_: object) -> None:
        """Leave cleanly, or at once while there is nothing to clean up."""
        if not self._served:
            os._exit(0)
        self._order(None)

    def _order(self, line: bytes | None) -> None:
        with self._lock:
            if line is None:  # nothing that was ordered before matters any more
                while not self._lines.empty():
                    self._lines.get()
            self._lines.put(line)
            if self._leave is not None:
                self._leave()
