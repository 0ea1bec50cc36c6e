"""Runs one command of `inspect` and says with its exit code what came of it, whatever happens."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import TextIO, cast

from leakcheck.engine.inspection import terminal
from leakcheck.engine.values import EngineError

SUMMARIES = {
    "cache": "cached against uncached generation, layer by layer",
    "quant": "what a bfloat16, int8 or int4 cache costs in quality, against length",
    "size": "bytes of a KV cache from the config alone",
    "leak": "the first contaminated layer and block under a fault, and the source of it",
    "pool": "the blocks of a running embedded engine: who holds what",
}
EXIT_USAGE = 2
EXIT_ERROR = 4
EXIT_INTERRUPTED = 130
EXIT_CODES = (
    "exit codes: 0 nothing foreign was found, 1 contamination was found, 2 wrong flags or a model "
    "or file that cannot be used, 4 an error of inspect or of its output, 130 interrupted"
)
IMPORTING = "<frozen importlib._bootstrap>"


def process() -> int:
    """The whole of a process of its own: its exit code. 1 means contamination and nothing else."""
    if sys.stdout is None:  # closed by whoever started this; a file opened now could take its place
        terminal.complain("leakcheck inspect: standard output is closed\n")
        return EXIT_ERROR
    heard: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        leave_an_import(frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    output = terminal.Output(sys.stdout)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stdout = cast("TextIO", output)
    try:
        code = main(heard=heard)
    except SystemExit as error:  # argparse: 0 after --help, 2
        code = error.code if isinstance(error.code, int) and error.code != 1 else EXIT_ERROR
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said
    sys.stdout = output.stream
    return EXIT_INTERRUPTED if heard else code


def leave_an_import(frame: FrameType | None) -> None:
    """Exit if a module is being imported: libraries turn an interruption there into anything."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            os._exit(EXIT_INTERRUPTED)
        frame = frame.f_back


def main(arguments: Sequence[str] | None = None, *, heard: Sequence[int] = ()) -> int:
    """Run one command; its exit code. `heard`: signals that came, whatever became of them."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else ""
    who = f"leakcheck inspect {name}" if name in SUMMARIES else "leakcheck inspect"
    try:
        code = perform(name, arguments[1:])
        sys.stdout.flush()
    except EngineError as error:
        terminal.complain(f"{who}: {terminal.one_line(str(error))}\n")
        return EXIT_USAGE
    except terminal.OutputError as error:
        terminal.complain(f"{who}: {error}\n")
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 # Python's own exit code, 1, would say contamination
        if heard:
            return EXIT_INTERRUPTED
        said = terminal.one_line(f"{type(error).__name__}: {error}")
        terminal.complain(f"{traceback.format_exc()}{who}: this should not have happened: {said}\n")
        return EXIT_ERROR
    return code


def perform(name: str, flags: Sequence[str]) -> int:
    """Load the command, give it its flags; its verdict."""
    if name in ("-h", "--help"):
        sys.stdout.write(commands())
        return 0
    if name not in SUMMARIES:
        wrong = f"there is no command {name!r}" if name else "a command is missing"
        raise EngineError(f"{wrong}; it is one of {', '.join(SUMMARIES)}")
    module = importlib.import_module(f"leakcheck.engine.inspection.{name}")
    parser = argparse.ArgumentParser(
        prog=f"leakcheck inspect {name}", description=SUMMARIES[name], epilog=EXIT_CODES
    )
    module.add_flags(parser)
    given = parser.parse_args(flags)
    if (seed := getattr(given, "seed", None)) is not None:
        terminal.require_number("--seed", seed, 0, terminal.SEED_MAX)
    code: int = module.main(given)
    return code


def commands() -> str:
    """What there is, and what the exit codes mean."""
    lines = [
        line
        for name in SUMMARIES
        for line in terminal.folded(f"  {name:<8}{SUMMARIES[name]}", more=8)
    ]
    listed = "\n".join(lines)
    codes = "\n".join(terminal.folded(EXIT_CODES))
    return f"usage: leakcheck inspect COMMAND ...\n\n{listed}\n\n{codes}\n"
