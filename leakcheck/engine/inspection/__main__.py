"""`python -m leakcheck.engine.inspection`: one command a module, loaded only when it is asked for.

Exit codes: 0 nothing foreign, 1 contamination and nothing else, 2 usage, 4 anything unforeseen
(an output that cannot be written included), 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code, after one sentence of error when it is 2."""
    from leakcheck.engine.inspection import command  # noqa: PLC0415 # see `leave`

    return command.main(arguments)


def leave(*_: object) -> None:
    """Interrupted before anything was done. Set before the imports, which take a while."""
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, leave)
    from leakcheck.engine.inspection import command

    sys.exit(command.process())
