"""`python -m leakcheck.engine`: one engine, one port, one READY line on standard output.

With `--exit-with-stdin` one after the other: see `lifetimes`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from leakcheck.engine import faults, lifetimes
from leakcheck.engine.flags import Parser
from leakcheck.engine.keys import key_from_environment
from leakcheck.engine.values import EngineError, EngineOptions

LOOPBACK = ("127.0.0.1", "::1", "localhost")
EXIT_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal or the end of standard input; 0, or 2 after one sentence of error."""
    try:
        given = parsed(parser(), sys.argv[1:] if arguments is None else arguments)
        if given.list_faults:
            rows = [fault.as_row() for fault in faults.FAULTS]
            sys.stdout.write(json.dumps(rows, indent=2) + "\n")
            return 0
        serve(given)
    except EngineError as error:
        sys.stderr.write(f"leakcheck: {error}\n")
        return EXIT_USAGE
    return 0


def parser() -> argparse.ArgumentParser:
    """Every flag; what cannot be parsed is an EngineError."""
    defaults = EngineOptions()
    its = Parser(
        prog="leakcheck serve",
        description="The embedded engine as an OpenAI-compatible server for this machine only. Its "
        "line READY {...} on standard output has the base URL and the model.",
    )
    its.add_argument("--model", default="witness", help="witness, smollm2-135m, a folder, a hub id")
    its.add_argument("--host", default=LOOPBACK[0], choices=LOOPBACK)
    its.add_argument("--port", type=int, default=0, help="0: any free port")
    its.add_argument(
        "--fault",
        choices=[fault.name for fault in faults.FAULTS],
        metavar="NAME",
        help="break in a known way; `leakcheck list faults` has the names",
    )
    its.add_argument("--fault-rate", type=float, help="how often, 0 to 1; see --list-faults")
    its.add_argument("--list-faults", action="store_true", help="print the faults as JSON and end")
    its.add_argument("--seed", type=int, default=0, help="of sampling and faults")
    for flag, number, what in (
        ("--blocks", defaults.num_blocks, "blocks of the cache"),
        ("--block-size", defaults.block_size, "tokens of a block"),
        ("--max-running", defaults.max_running, "sequences in the batch at most"),
        ("--step-tokens", defaults.step_tokens, "tokens computed in a step at most"),
    ):
        its.add_argument(flag, type=int, default=number, help=f"{what} (default {number})")
    its.add_argument("--no-prefix-cache", action="store_true", help="share no prefixes")
    its.add_argument("--share-partial", action="store_true", help="share the head of a block")
    its.add_argument("--threads", type=int, default=1, help="torch threads")
    its.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key")
    its.add_argument("--trace", type=Path, metavar="FILE", help="add every block event to FILE")
    its.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="end when stdin ends; a line on it, a JSON array of flags, begins another lifetime",
    )
    return its


def parsed(its: argparse.ArgumentParser, flags: Sequence[str]) -> argparse.Namespace:
    """The flags, behind those that the fault among them needs: so that these can be overridden."""
    given = its.parse_args(flags)
    if given.fault is None:
        return given
    return its.parse_args([*faults.find(given.fault).engine_flags, *flags])


def serve(given: argparse.Namespace) -> None:
    """Serve one lifetime after the other. EngineError when something given cannot work."""

    def another(flags: Sequence[str]) -> lifetimes.Given:
        its = parser()
        its.set_defaults(model=given.model)
        return checked(parsed(its, flags))

    lifetimes.serve(checked(given), another, watch_stdin=given.exit_with_stdin)


def checked(given: argparse.Namespace) -> lifetimes.Given:
    """What one lifetime is given; EngineError names what cannot work."""
    rate = given.fault_rate
    if rate is not None and not 0 <= rate <= 1:
        raise EngineError(f"--fault-rate is a share from 0 to 1, not {rate}")
    if rate is not None and given.fault is None:
        raise EngineError("--fault-rate says how often a fault shows: name that with --fault")
    return lifetimes.Given(
        model=given.model,
        host=given.host,
        port=given.port,
        threads=given.threads,
        options=engine_options(given),
        api_key=key_from_environment(given.api_key_env),
        fault=faults.find(given.fault) if given.fault else None,
        fault_rate=rate,
        trace=None if given.trace is None else given.trace.absolute(),
    )


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


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to save, and taking torch down in order lasts two seconds
