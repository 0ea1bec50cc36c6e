"""The command line: `main` runs one command, whatever happens in it, and returns its exit code."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from leakcheck.cli import commands
from leakcheck.cli.parser import parser
from leakcheck.errors import LeakcheckError, UsageError
from leakcheck.records import EXIT_CODES, EXIT_INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never a traceback for a user's mistake."""
    try:
        arguments = _parsed(argv)
    except UsageError as error:
        _complain(str(error))
        return error.exit_code
    for signal_ in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_, signal.default_int_handler)  # as Ctrl-C: with a report
    code: int = 0
    try:
        _require_text(sys.argv[1:] if argv is None else argv)
        if arguments.command is commands.run and arguments.resume:
            _require_nothing_else(arguments, parser().parse_args(["run"]))
        code = arguments.command(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except LeakcheckError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        plain = arguments.command is not commands.run or arguments.selftest
        _complain("interrupted" if plain else f"interrupted{_judged(arguments)}")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `leakcheck list | head`; a verdict has been returned by then
        commands.drop_output()
        return code
    except Exception as error:  # noqa: BLE001 - an exit code of 1 would say `leak`
        import traceback  # noqa: PLC0415 - only a defect needs it

        commands.drop_output()
        detail = "" if isinstance(error, OSError) else traceback.format_exc()
        _complain(
            f"this should not have happened: {type(error).__name__}: {error}\n{detail}".strip()
        )
        return EXIT_CODES["error"]
    return code


def _judged(arguments: argparse.Namespace) -> str:
    folder = arguments.resume or f"{arguments.out}/latest"
    return (
        f"; `leakcheck analyze {folder}` judges what the run has observed so far, and "
        f"`leakcheck run --resume {folder}` goes on"
    )


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    its = parser()
    arguments, rest = its.parse_known_args(argv)
    if arguments.command in (commands.serve, commands.inspect):
        arguments.flags = rest  # the engine knows its own flags
    elif rest:
        its.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _complain(text: str) -> None:
    """A sentence on standard error: no secret is in it, whatever went wrong, and what a target put
    into it cannot steer the terminal.
    """
    from leakcheck import redact  # noqa: PLC0415 - only a complaint needs it
    from leakcheck.report.untrusted import visible  # noqa: PLC0415 - only a complaint needs it

    text = redact.redact(f"leakcheck: {text}", redact.spoken_of(sys.argv))
    lines = [visible(line) for line in text.splitlines()]
    with contextlib.suppress(OSError):  # nobody listens
        print("\n".join(lines), file=sys.stderr)


def _require_text(arguments: Sequence[str]) -> None:
    for text in arguments:
        if not text.isprintable():
            raise UsageError(f"{text!r} holds characters that no flag, file or name here can have")


def _require_nothing_else(arguments: argparse.Namespace, bare: argparse.Namespace) -> None:
    """Refuse flags beside --resume: the plan and the target of a run are fixed."""
    for name, value in vars(arguments).items():
        if name not in ("resume", "yes_i_am_allowed") and value != vars(bare)[name]:
            what = "--" + name.replace("_", "-")
            if name == "scenarios":
                what = " ".join(value)
            raise UsageError(f"--resume goes on with the run as it was planned; leave out {what}")
