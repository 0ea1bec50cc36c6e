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
    TimeRemainingColumn,
)

_LINE_EVERY_S = 10.0

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
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as bars:

        def watch(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

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
            if 0 < done < total:
                left_s = elapsed_s * (total - done) / done
                amount += f", {_about(left_s)} left"
            print(f"{what}{amount}", file=stream, flush=True)

    return watch


def _about(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes else f"about {max(1, round(seconds))} s"
