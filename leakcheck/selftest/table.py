"""The figures of a self-test as text: for a terminal, and as docs/power.md. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakcheck.records import Rate
from leakcheck.selftest.aggregate import GOAL
from leakcheck.selftest.values import Cell, Power, Quiet

_HEALTHY = "healthy engine"
_HEAD = ("fault", "layer", "scenario", "detected", "windows", "reported as", "source right")
_QUIET_HEAD = ("no leak", "scenarios", "called a leak", "upper bound", "windows", "verdicts")


def terminal(power: Power) -> str:
    """The table that `leakcheck selftest` ends with, and a sentence for each failure."""
    rows = [_row(cell) for cell in power.cells if cell.claimed]
    lines = [*_columns(_HEAD, rows), ""] if rows else []
    quiet = [_quiet_row(each) for each in power.quiet if not each.scenario]
    lines += [*_columns(_QUIET_HEAD, quiet), ""] if quiet else []
    lines += [f"did not behave: {each}" for each in power.failures]
    return "\n".join([*lines, verdict(power)]) + "\n"


def verdict(power: Power) -> str:
    """The last line."""
    faults = {cell.fault for cell in power.cells if cell.claimed}
    quiet = sum(not each.scenario for each in power.quiet)
    played = f"{power.trials} trials, {len(faults)} faults, {quiet} targets without a leak"
    if power.failures:
        return f"self-test failed: {len(power.failures)} did not behave ({played})"
    return f"self-test passed: everything behaved ({played})"


def markdown(power: Power) -> str:
    """docs/power.md."""
    parts = [
        _introduction(power),
        _heading("Caught", _caught(power)),
        _heading("Not caught, or not often enough", _not_caught(power)),
        _heading("Not a leak, and not called one", _harmless(power)),
        _heading("Every fault in every scenario", _matrix(power)),
    ]
    return "\n".join(part for part in parts if part)


def _introduction(power: Power) -> str:
    kind = "" if power.full else " (a fast self-test: one seed a fault)"
    left = f" {power.unplayed} trials of the last table were left out for want of time."
    return f"""# What leakcheck catches

Written by `leakcheck selftest --full --matrix --out FILE`{kind}, leakcheck {power.leakcheck}, the
embedded engine with its {power.engine} model, {power.date}, seeds from {power.seed} up. The figures
are in [`reports/baselines/power.json`](../reports/baselines/power.json). {power.trials} trials: one
fault, one scenario, one seed, in a fresh engine; a trial ends when the verdict (leak, corruption or
error) shows an anomaly that the fault must cause, or after the scenario's own number of windows.
{left if power.unplayed else ""}
*windows* is the median number of windows to detection. *source right* counts findings that quote a
passphrase or ticket: those that name, as the plan on disk has it, the request it came from and one
that was never given it. Intervals and bounds are exact (Clopper and Pearson), at 95 %.
"""


def _heading(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *lines, ""]) if lines else ""


def _caught(power: Power) -> list[str]:
    return _table(_HEAD, [_row(cell) for cell in power.cells if cell.claimed])


def _not_caught(power: Power) -> list[str]:
    lines = []
    for fault in power.faults:
        mine = [cell for cell in power.cells if cell.fault == fault.name]
        best = max(mine, key=lambda cell: cell.right.value or 0.0, default=None)
        if fault.benign or best is None or (best.right.value or 0.0) >= GOAL:
            continue
        why = f" In the others: {best.missed}." if best.missed else ""
        lines.append(
            f"- `{fault.name}`: at best {_of(best.right)} seeds, by `{best.scenario}`. It needs "
            f"{fault.trigger}.{why}"
        )
    return lines or ["Every fault here is caught in at least 95 % of seeds by some scenario."]


def _harmless(power: Power) -> list[str]:
    rows = [_quiet_row(each) for each in power.quiet if not each.scenario]
    return _table(_QUIET_HEAD, rows) if rows else []


def _matrix(power: Power) -> list[str]:
    """One row a fault: detected of trials and median windows; bold where it is claimed."""
    if all(cell.claimed for cell in power.cells):
        return []
    by_place = {(cell.fault, cell.scenario): cell for cell in power.cells}
    few = max((cell.budget for cell in power.cells if not cell.claimed), default=0)
    rows = [
        (f"`{fault.name}`", *(_brief(by_place.get((fault.name, s))) for s in power.scenarios))
        for fault in power.faults
        if any(cell.fault == fault.name for cell in power.cells)
    ]
    return [
        "Detected of trials, and the median number of windows to it. In bold the scenarios that",
        f"claim the fault, up to their own number of windows; all others at most {few} windows, so",
        "that a 0 there says little.",
        "",
        *_table(("fault", *power.scenarios), rows),
    ]


def _brief(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = _of(cell.detected)
    if cell.median_windows is not None:
        text += f", {cell.median_windows:g}"
    return f"**{text}**" if cell.claimed else text


def _row(cell: Cell) -> tuple[str, ...]:
    median = "" if cell.median_windows is None else f"{cell.median_windows:g}"
    kinds = sorted(cell.anomalies, key=lambda name: -cell.anomalies[name])
    sources = f"{cell.sources_right}/{cell.sources}" if cell.sources else "none to check"
    found = _of(cell.detected)
    return cell.fault, cell.layer, cell.scenario, found, median, ", ".join(kinds), sources


def _quiet_row(each: Quiet) -> tuple[str, ...]:
    statuses = ", ".join(f"{count} {status}" for status, count in each.statuses.items())
    return (
        each.fault or _HEALTHY,
        each.scenario or "all played",
        _of(each.accused),
        f"{100 * each.accused.upper:.1f} %",
        str(each.windows),
        statuses,
    )


def _of(rate: Rate) -> str:
    return f"{rate.events}/{rate.trials}"


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
