"""What the audition heard, as a table: style by phrasing, shown out of asked."""

from __future__ import annotations

from collections.abc import Sequence

from leakcheck.records import Echo

TITLE = "Passphrases echoed, by style and phrasing"
COLUMNS = (
    "style",
    "phrasing",
    "passphrase shown",
    "ticket returned",
    "both",
    "words",
    "tokens of an answer",
)


def table(echoes: Sequence[Echo]) -> tuple[tuple[str, ...], ...]:
    """Columns and a row for each cell that was asked, the best first; empty without any. Each rate
    has its numerator and denominator.
    """
    asked = sorted((each for each in echoes if each.asked), key=_share, reverse=True)
    return (COLUMNS, *map(_row, asked)) if asked else ()


def _share(cell: Echo) -> tuple[float, int]:
    return cell.both / cell.asked, cell.asked


def _row(cell: Echo) -> tuple[str, ...]:
    return (
        cell.style,
        cell.phrasing,
        *(f"{count}/{cell.asked}" for count in (cell.echoed, cell.returned, cell.both)),
        str(cell.words),
        "" if cell.tokens is None else f"{cell.tokens:.0f}",
    )
