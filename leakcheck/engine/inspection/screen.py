"""What the commands print: text as wide as the terminal, tables as wide as they need."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from leakcheck.engine.inspection.terminal import width

KIB = 1024
NO_LIMIT = 10_000
PROSE = 32
"""A cell with more characters than this may be wrapped."""


def console() -> Console:
    """Standard output, as wide as the terminal. Names of models and files are no markup."""
    return Console(width=width(), highlight=False, soft_wrap=False, markup=False, emoji=False)


def show(on: Console, made: Table) -> None:
    """A table, wider than the console where its numbers need it: only prose in it is wrapped."""
    narrow = on.width
    on.width = max(narrow, Measurement.get(on, on.options.update(width=NO_LIMIT), made).minimum)
    try:
        on.print(made)
    finally:
        on.width = narrow


def progress() -> Progress:
    """A bar on standard error, only on a terminal."""
    hidden = sys.stderr is None or not sys.stderr.isatty()
    return Progress(console=Console(stderr=True), transient=True, disable=hidden)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> Table:
    """A plain table; a heading that begins with `>` is of a right-aligned column."""
    made = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        show_header=any(headings),
        box=None,
        padding=(0, 2, 0, 0),
    )
    for number, heading in enumerate(headings):
        right = heading.startswith(">")
        longest = max(len(cell) for cell in (heading.lstrip(">"), *(row[number] for row in rows)))
        made.add_column(
            Text(heading.lstrip(">")),
            justify="right" if right else "left",
            no_wrap=longest <= PROSE,
            min_width=longest if longest <= PROSE else None,
        )
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
