"""`python -m leakcheck.engine`: one engine, one port, one READY line on standard output."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine import faults
from leakcheck.engine.values import EngineError, EngineOptions

if TYPE_CHECKING:
    from leakcheck.engine.server import Api

LOOPBACK = ("127.0.0.1", "::1", "localhost")
EXIT_USAGE = 2
PORT_MAX = 65535
KEEP_ALIVE_S = 300
"""Idle connections stay open this long: closing one just as it is used again loses a request."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal or the end of standard input; 0, or 2 after one sentence of error."""
    given = parser().parse_args(arguments)
    if given.list_faults:
        sys.stdout.write(json.dumps([fault.as_row() for fault in faults.FAULTS], indent=2) + "\n")
        return 0
    try:
        serve(given)
    except EngineError as error:
        sys.stderr.write(f"leakcheck.engine: {error}\n")
        return EXIT_USAGE
    return 0


def parser() -> argparse.ArgumentParser:
    """Every flag."""
    defaults = EngineOptions()
    its = argparse.ArgumentParser(prog="leakcheck.engine", description="The embedded target.")
    its.add_argument("--model", default="witness", help="witness, smollm2-135m, a folder, a hub id")
    its.add_argument("--host", default=LOOPBACK[0], choices=LOOPBACK)
    its.add_argument("--port", type=int, default=0, help="0: any free port")
    its.add_argument("--fault", choices=[fault.name for fault in faults.FAULTS])
    its.add_argument("--fault-rate", type=float, help="how often, 0 to 1; see --list-faults")
    its.add_argument("--list-faults", action="store_true", help="print the faults as JSON and end")
    its.add_argument("--seed", type=int, default=0)
    its.add_argument("--blocks", type=int, default=defaults.num_blocks)
    its.add_argument("--block-size", type=int, default=defaults.block_size, help="tokens")
    its.add_argument("--max-running", type=int, default=defaults.max_running, help="sequences")
    its.add_argument("--step-tokens", type=int, default=defaults.step_tokens)
    its.add_argument("--no-prefix-cache", action="store_true")
    its.add_argument("--share-partial", action="store_true", help="share the head of a block")
    its.add_argument("--threads", type=int, default=1, help="torch threads")
    its.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key")
    its.add_argument("--exit-with-stdin", action="store_true", help="end when stdin ends")
    return its


def serve(given: argparse.Namespace) -> None:
    """Load, listen, say READY, serve. EngineError when something given cannot work."""
    options = engine_options(given)
    api_key = key_from_environment(given.api_key_env)
    if given.fault_rate is not None and not 0 <= given.fault_rate <= 1:
        raise EngineError(f"--fault-rate is a share from 0 to 1, not {given.fault_rate}")
    stop = Stopper()
    stop.on_signals()
    if given.exit_with_stdin:
        threading.Thread(target=stop.after_stdin, daemon=True).start()
    with listen(given.host, given.port) as listener:
        api = build(given, options, api_key)
        gc.freeze()  # what was loaded stays: searching it for garbage would stall every client
        with event_loop() as runner:
            runner.run(run(api, listener, stop, ready_fields(api, given, listener)))


def engine_options(given: argparse.Namespace) -> EngineOptions:
    """The engine's options; EngineError names a number that cannot work."""
    numbers = ("blocks", "block_size", "max_running", "step_tokens", "threads")
    for name in numbers:
        if getattr(given, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise EngineError(f"{flag} must be at least 1, not {getattr(given, name)}")
    return EngineOptions(
        num_blocks=given.blocks,
        block_size=given.block_size,
        max_running=given.max_running,
        step_tokens=given.step_tokens,
        prefix_cache=not given.no_prefix_cache,
        share_partial=given.share_partial,
        seed=given.seed,
    )


def key_from_environment(name: str | None) -> str | None:
    """The API key that clients must send; EngineError when the variable is empty."""
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise EngineError(f"the environment variable {name}, named by --api-key-env, is not set")
    return key


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; EngineError when the port cannot be had."""
    if not 0 <= port <= PORT_MAX:
        raise EngineError(f"--port is a number from 0 to {PORT_MAX}, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise EngineError(f"cannot listen on {host} port {port}: {error}") from error


def build(given: argparse.Namespace, options: EngineOptions, api_key: str | None) -> Api:
    """Model, engine, server and fault. Heavy imports happen here."""
    import torch  # noqa: PLC0415 # --list-faults and a wrong flag must answer at once

    from leakcheck.engine import models  # noqa: PLC0415 # as torch
    from leakcheck.engine.engine import Engine  # noqa: PLC0415 # as torch
    from leakcheck.engine.selfcheck import refuse_differences  # noqa: PLC0415 # as torch
    from leakcheck.engine.server import Api  # noqa: PLC0415 # as torch

    torch.set_num_threads(given.threads)
    model, tokenizer = models.load(given.model)
    shapes = models.layer_shapes(model)
    refuse_differences(model, tokenizer, shapes)
    engine = Engine(model, tokenizer, shapes, options)
    api = Api(engine, tokenizer, model=served_name(given.model), api_key=api_key)
    if given.fault:
        fault = faults.find(given.fault)
        rate = given.fault_rate if given.fault_rate is not None else fault.rate
        seams = faults.Seams(engine=engine, delivery=api.delivery, api=api)
        fault.install(seams, 1.0 if rate is None else rate, Random(f"fault {given.seed}"))
    return api


def served_name(model: str) -> str:
    """What clients call the model: a folder by its last part."""
    return Path(model).name if Path(model).is_dir() else model


def ready_fields(api: Api, given: argparse.Namespace, listener: socket.socket) -> dict[str, Any]:
    """What the READY line says."""
    host = f"[{given.host}]" if ":" in given.host else given.host
    return {
        "base_url": f"http://{host}:{listener.getsockname()[1]}/v1",
        "model": api.model,
        "tokenizer": str(api.tokenizer.name_or_path),
        "pid": os.getpid(),
        "fault": given.fault,
        "seed": given.seed,
        "block_size": given.block_size,
        "blocks": given.blocks,
        "context_tokens": api.engine.context_tokens,
        "kv_bytes": api.engine.store.bytes_allocated,
    }


def event_loop() -> asyncio.Runner:
    """A runner on uvloop, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 # as torch
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def run(api: Api, listener: socket.socket, stop: Stopper, ready: dict[str, Any]) -> None:
    """Serve until told to stop; say READY once requests are answered."""
    import uvicorn  # noqa: PLC0415 # as torch

    config = uvicorn.Config(
        api.app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = uvicorn.Server(config)

    def leave() -> None:
        server.should_exit = True
        api.loop.abort_all()

    stop.then(leave)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():  # noqa: ASYNC110 # uvicorn has no event
        await asyncio.sleep(0.005)
    if server.started:
        stop.on_signals()  # uvicorn has put its own handlers in, which wait for long answers
        sys.stdout.write(f"READY {json.dumps(ready)}\n")
        sys.stdout.flush()
    await serving


class Stopper:
    """Ends the process: at once while it loads, cleanly once it serves."""

    def __init__(self) -> None:
        """Nothing to clean up yet."""
        self._leave: Callable[[], None] | None = None

    def then(self, leave: Callable[[], None]) -> None:
        """From now on, stopping means calling this."""
        self._leave = leave

    def on_signals(self) -> None:
        """SIGTERM and SIGINT stop the process."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def after_stdin(self) -> None:
        """Stop when standard input ends: whoever started this process has gone."""
        while os.read(0, 4096):
            pass
        self.stop()

    def stop(self, *_: object) -> None:
        """Leave cleanly, or at once while there is nothing to clean up."""
        if self._leave is None:
            os._exit(0)
        self._leave()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to save, and taking torch down in order lasts two seconds
