"""What the commands print: tables and numbers with units, readable on 100 columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

WIDTH = 100
KIB = 1024


def console() -> Console:
    """Standard output; 100 columns where it is no terminal."""
    wide = None if sys.stdout.isatty() else WIDTH
    return Console(width=wide, highlight=False, soft_wrap=False)


def progress() -> Progress:
    """A bar on standard error, only on a terminal."""
    hidden = not sys.stderr.isatty()
    return Progress(console=Console(stderr=True), transient=True, disable=hidden)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> Table:
    """A plain table; a heading that begins with `>` is of a right-aligned column."""
    made = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        show_header=any(headings),
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in headings:
        right = heading.startswith(">")
        made.add_column(Text(heading.lstrip(">")), justify="right" if right else "left")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def amount(size: int) -> str:
    """Bytes in the largest unit that keeps a whole number: `1.00 GiB`."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= KIB and len(units) > 1:
        value, units = value / KIB, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.2f} {units[0]}"


def several(numbers: Sequence[int]) -> str:
    """Numbers with runs drawn together: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def milliseconds(seconds: float) -> str:
    """`1.23 ms`."""
    return f"{1000 * seconds:.2f} ms"
