"""Show on standard error how far a run has come: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

_LINE_EVERY_S = 10.0
_PACE_SHARE = 0.05
_PACE_S = 3.0
"""Before so much of the work and of the time the pace is that of a start, and foretells nothing."""

Watch = Callable[[str, int, int], None]


@contextmanager
def progress(stream: IO[str], unit: str = "requests") -> Iterator[Watch]:
    """Give a function to be told (what, done, total); quiet until there is something to say.

    `unit`: what is counted. The time left is estimated from the pace so far.
    """
    console = Console(file=stream)
    if not console.is_terminal:
        yield _lines(stream, unit)
        return
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    tasks: dict[str, TaskID] = {}
    begun: dict[str, float] = {}
    with Progress(*columns, console=console, transient=True) as bars:

        def watch(what: str, done: int, total: int) -> None:
            now = time.monotonic()
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, left="")
            left = time_left(done, total, now - begun.setdefault(what, now))
            bars.update(tasks[what], completed=done, total=total, left=left)

        yield watch


def _lines(stream: IO[str], unit: str) -> Watch:
    begun: dict[str, float] = {}
    last: dict[str, tuple[int, float]] = {}

    def watch(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        elapsed_s = now - begun.setdefault(what, now)
        before, at = last.get(what, (-1, 0.0))
        due = done == total > 1 or now - at >= _LINE_EVERY_S
        if done != before and (before < 0 or due):
            last[what] = done, now
            amount = f" {done}/{total} {unit}" if total > 1 else ""
            if left := time_left(done, total, elapsed_s):
                amount += f", {left}"
            print(f"{what}{amount}", file=stream, flush=True)

    return watch


def time_left(done: int, total: int, elapsed_s: float) -> str:
    """`about 2 min left`, by the pace so far; nothing where it is over or too early to tell."""
    if not 0 < done < total or done < _PACE_SHARE * total or elapsed_s < _PACE_S:
        return ""
    left_s = elapsed_s * (total - done) / done
    minutes = round(left_s / 60)
    return f"about {minutes} min left" if minutes else f"about {max(1, round(left_s))} s left"
