"""`python -m leakcheck.engine.inspection`: one command a module, loaded only when it is asked for.

Exit codes: 0 all is well, 1 a difference that looks like contamination, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from leakcheck.engine.values import EngineError

SUMMARIES = {
    "cache": "cached against uncached generation, layer by layer",
    "quant": "what a bfloat16, int8 or int4 cache costs in quality, against length",
    "size": "bytes of a KV cache from the config alone",
    "leak": "the first contaminated layer and block under a fault, and the source of it",
    "pool": "the blocks of a running embedded engine: who holds what",
}
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code, or 2 after one sentence of error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments else ""
    if command not in SUMMARIES:
        return say_commands(command)
    module = importlib.import_module(f"leakcheck.engine.inspection.{command}")
    parser = argparse.ArgumentParser(
        prog=f"leakcheck inspect {command}", description=SUMMARIES[command]
    )
    module.add_flags(parser)
    try:
        code: int = module.main(parser.parse_args(arguments[1:]))
    except EngineError as error:
        sys.stderr.write(f"leakcheck inspect {command}: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def say_commands(given: str) -> int:
    """The commands, on standard output when they were asked for; else an error that names them."""
    if given in ("-h", "--help"):
        lines = [f"  {name:<8}{text}" for name, text in SUMMARIES.items()]
        sys.stdout.write("usage: leakcheck inspect COMMAND ...\n\n" + "\n".join(lines) + "\n")
        return 0
    wrong = f"there is no command {given!r}" if given else "a command is missing"
    sys.stderr.write(f"leakcheck inspect: {wrong}; it is one of {', '.join(SUMMARIES)}\n")
    return EXIT_USAGE


def without_pager_noise(code: int) -> int:
    """Flush what was printed; a reader that left early (`| head`) is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(without_pager_noise(main()))
