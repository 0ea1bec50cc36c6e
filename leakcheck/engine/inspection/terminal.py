"""Standard output that may be narrow, gone, full or closed. Needs neither torch nor rich."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import textwrap
from typing import TextIO

from leakcheck.engine.values import EngineError

WIDTH = 100
"""Columns where nothing says how many there are."""
NARROWEST = 20
SEED_MAX = 2**63 - 1


class OutputError(Exception):
    """One sentence: standard output takes nothing more, and somebody wanted to read it."""


class Output:
    """Standard output. What a reader that left early does not read is dropped: that is no error."""

    def __init__(self, stream: TextIO) -> None:
        """`stream` is what Python opened on descriptor 1."""
        self.stream = stream
        self.reader_left = False

    @property
    def encoding(self) -> str:
        """For rich, which draws with what can be encoded."""
        return self.stream.encoding

    def isatty(self) -> bool:
        """Whether a terminal shows it."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """Its descriptor."""
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """OutputError when it cannot be written for another reason than a reader that left."""
        try:
            return self.stream.write(text)
        except OSError as error:
            self.fail(error)
            return len(text)

    def flush(self) -> None:
        """As `write`."""
        try:
            self.stream.flush()
        except OSError as error:
            self.fail(error)

    def fail(self, error: OSError) -> None:
        """From here on nothing reaches the descriptor, at exit neither."""
        drop(1)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"standard output cannot be written: {error.strerror or error}"
            ) from error
        self.reader_left = True


def drop(descriptor: int) -> None:
    """Send what is written there to nowhere: what is still buffered cannot fail at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def reader_left() -> bool:
    """Whether nobody reads standard output any more: a reason to stop what has no end."""
    return isinstance(sys.stdout, Output) and sys.stdout.reader_left


def complain(text: str) -> None:
    """On standard error; where that is closed or full too, nowhere."""
    try:
        if sys.stderr is not None:  # closed by whoever started this
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        drop(2)


def one_line(text: str) -> str:
    """Without line breaks and without what would steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def width() -> int:
    """Columns to wrap text at: COLUMNS, else the terminal's, else 100."""
    return max(shutil.get_terminal_size((WIDTH, 40)).columns, NARROWEST)


def folded(line: str, *, more: int = 4) -> list[str]:
    """A line of text at this width; what follows is indented by `more`."""
    if len(line) <= width():
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(),
        width(),
        initial_indent=indent,
        subsequent_indent=f"{indent}{' ' * more}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def require_number(flag: str, value: float, low: float, high: float = math.inf) -> None:
    """EngineError when the number of a flag is outside; infinite and NaN always are."""
    if not math.isfinite(value) or not low <= value <= high:
        end = f" and at most {high}" if math.isfinite(high) and value > high else ""
        raise EngineError(f"{flag} must be at least {low}{end}, not {value}")
