"""`leakcheck plan`: read what is asked, and print what the claims take and why."""

from __future__ import annotations

import argparse
import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakcheck.cli import asked
from leakcheck.errors import UsageError

if TYPE_CHECKING:
    from leakcheck.planning import Bill, Figure, Need, Terms
    from leakcheck.records import Provenance

_TITLE = (
    "What it takes to see a leak of that rate once at least, with a power of {power}, and to "
    "exclude leaks of that rate or more with 95 % confidence, where none was seen."
)
_REST = (
    "Not counted: the survey before a run and the replays that confirm a suspicion. A leak that is "
    "seen ends a scenario early."
)
_UNKNOWN = "-"
_TEXTS = 3
"""Columns of the table that are words, and stand left."""


def terms(arguments: argparse.Namespace) -> Terms:
    """What the flags ask for. Raises UsageError for what cannot be."""
    from leakcheck.planning import Price, Terms  # noqa: PLC0415 - heavy

    given = {"--price-in": arguments.price_in, "--price-out": arguments.price_out}
    prices = {
        flag: _amount(flag, value, least=0.0) for flag, value in given.items() if value is not None
    }
    if len(prices) == 1:
        (missing,) = given.keys() - prices.keys()
        raise UsageError(f"{missing} is missing: a cost needs the prices of prompts and of answers")
    price = None
    if prices:
        price = Price(prompt_usd=prices["--price-in"], answer_usd=prices["--price-out"])
    rate = arguments.rate
    return Terms(
        power=asked.percent("--power", arguments.power),
        requests_per_s=None if rate is None else _amount("--rate", rate, least=1e-6),
        price=price,
    )


def like(arguments: argparse.Namespace) -> Path | None:
    """The run to take figures from: --like, or `latest` where run folders go; None without one."""
    if arguments.like is not None:
        folder: Path = arguments.like
        if not (folder / "run.json").is_file():
            raise UsageError(f"--like: {folder} is no run folder: there is no run.json in it")
        return folder
    latest = Path(os.environ.get("LEAKCHECK_OUT") or "reports") / "latest"
    return latest if (latest / "run.json").is_file() else None


def render(
    bills: Sequence[Bill], asked_for: Terms, origin: tuple[Path, Provenance] | None, width: int
) -> str:
    """Everything as text: the table, the sources of its figures, what is not in it."""
    power = _percent(asked_for.power)
    blocks = [
        [_TITLE.format(power=power)],
        list(_table(bills, priced=asked_for.price is not None)),
        list(_origin(origin)),
        *[list(_sources(each)) for each in bills],
        [_REST],
    ]
    lines = ["\n".join(_wrapped(line, width) for line in block) for block in blocks if block]
    return "\n\n".join(lines) + "\n"


def _table(bills: Sequence[Bill], *, priced: bool) -> Iterator[str]:
    head = [
        "scenario",
        "leak rate",
        "to",
        "windows",
        "requests",
        "prompt tokens",
        "answer tokens",
        "minutes",
    ]
    rows = [head + ["USD"] * priced]
    needs = [need for each in bills for need in each.needs]
    for each in bills:
        rate = _percent(each.scenario.gate.detect)
        rows += [_row((n.scenario, rate, n.goal), [n], priced=priced) for n in each.needs]
    if len(bills) > 1:
        for goal in ("see", "exclude"):
            of_goal = [need for need in needs if goal in need.goal.split()]
            rows.append(_row(("all of them", "", goal), of_goal, priced=priced))
        if rows[-1][3:] == rows[-2][3:]:
            rows[-2:] = [["all of them", "", "see or exclude", *rows[-1][3:]]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(wide) if number < _TEXTS else cell.rjust(wide)
            for number, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _row(words: tuple[str, str, str], needs: Sequence[Need], *, priced: bool) -> list[str]:
    def total(values: Sequence[float | None], digits: int = 0) -> str:
        known = [value for value in values if value is not None]
        return f"{sum(known):,.{digits}f}" if len(known) == len(values) else _UNKNOWN

    cells = [
        total([need.windows for need in needs]),
        total([need.requests for need in needs]),
        total([need.prompt_tokens for need in needs]),
        total([need.answer_tokens for need in needs]),
        total([need.minutes for need in needs], 1),
    ]
    cells += [total([need.cost_usd for need in needs], 2)] * priced
    return [*words, *cells]


def _origin(origin: tuple[Path, Provenance] | None) -> Iterator[str]:
    if origin is None:
        yield (
            "No run to take figures from (--like RUN_DIR): what no plan can tell is assumed, and "
            "says so."
        )
        return
    folder, of = origin
    yield (
        f"Figures of {folder}: the run of {of.started_utc} against {of.target.model} at "
        f"{of.target.base_url}. Another target, or another load on it, has others."
    )


def _sources(of: Bill) -> Iterator[str]:
    yield f"{of.scenario.name}"
    for what, figure, unit in (
        ("a leak shows in", of.sensitivity, "of the windows that have one"),
        ("trials", of.trials, "of the windows"),
        ("requests", of.requests, "a window"),
        ("prompt tokens", of.prompt_tokens, "a request"),
        ("answer tokens", of.answer_tokens, "a request"),
        ("requests", of.requests_per_s, "a second"),
    ):
        yield f"  {what} {_value(figure, unit)}: {figure.source}"
    most = max((need.windows or 0 for need in of.needs), default=0)
    if not most:
        yield "  no number of windows is enough: nothing would show a leak here"
    elif most > of.scenario.load.windows:
        budget = f"its budget is {of.scenario.load.windows} windows (load.windows)"
        yield f"  {budget}: --windows {most} makes it enough"


def _value(figure: Figure, unit: str) -> str:
    if figure.value is None:
        return unit
    number = _percent(figure.value) if unit.startswith("of the") else f"{figure.value:.3g}"
    return f"{number} {unit}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _wrapped(line: str, width: int) -> str:
    """A line of prose, with a hanging indent; the lines of the table are left as they are."""
    if "  " in line.strip() or len(line) <= width:
        return line
    indent = len(line) - len(line.lstrip())
    return textwrap.fill(line, width, subsequent_indent=" " * (2 * indent))


def _amount(flag: str, value: float, *, least: float) -> float:
    if not (math.isfinite(value) and value >= least):
        what = "a number from 0" if least == 0 else "a number above 0"
        raise UsageError(f"{flag}: {value:g} is out of range; use {what}")
    return value
