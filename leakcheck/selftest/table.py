"""The figures of a self-test as text: for a terminal, and as docs/power.md. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakcheck.records import Rate
from leakcheck.selftest.aggregate import best, caught
from leakcheck.selftest.values import Cell, Power, Quiet

_HEALTHY = "healthy engine"
_HEAD = (
    "fault",
    "layer",
    "scenario",
    "detected",
    "at least",
    "windows of the detected",
    "reported as",
    "source right",
)
_QUIET_HEAD = ("no leak", "scenarios", "called a leak", "upper bound", "windows", "verdicts")
_FULL_LENGTH = ", at full length"


def terminal(power: Power) -> str:
    """The table that `leakcheck selftest` ends with, and a sentence for each failure."""
    rows = [_row(cell) for cell in power.cells if cell.claimed]
    lines = [*_columns(_HEAD, rows), ""] if rows else []
    quiet = [_quiet_row(each) for each in power.quiet if not each.scenario]
    lines += [*_columns(_QUIET_HEAD, quiet), *_short_note(power), ""] if quiet else []
    lines += [f"did not behave: {each}" for each in power.failures]
    return "\n".join([*lines, verdict(power)]) + "\n"


def verdict(power: Power) -> str:
    """The last line."""
    faults = {cell.fault for cell in power.cells if cell.claimed}
    quiet = len({each.fault for each in power.quiet})
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
    kind = " --full" if power.full else ""
    partial = " It was stopped before its end: these figures are partial." if power.partial else ""
    left = f" {power.unplayed} trials of the last table were left out for want of time."
    return f"""# What leakcheck catches

Written by `leakcheck selftest{kind} --out FILE.json --docs FILE.md`, leakcheck
{power.leakcheck}, the embedded engine with its {power.engine} model, {power.date}, seeds from
{power.seed} up; `make power` keeps the figures in `reports/baselines/power.json`.{partial}
{power.trials} trials: one fault, one scenario, one seed, in a fresh engine; a trial ends when the
verdict (leak, corruption or error) shows an anomaly that the fault must cause, or at its last
window: by default the scenario's own.
{left if power.unplayed else ""}
*at least* is the lower bound of the detection rate; *windows of the detected* is the median number
of windows to detection, over the trials that detected something. *source right* counts findings
that quote a passphrase or ticket: those that name, as the plan on disk has it, the request it came
from and one that was never given it. Bounds are exact (Clopper and Pearson), one-sided, at 95 %.

What these figures do not say: the bounds are over seeds, that is over traffic, for this one engine
and this one model; they promise nothing for another target. And a trial is judged at several of its
windows, with replays at some of these looks where the fault needs them, and ends with the first
look that detects it: a run of the same length is judged once, with one attempt at the replays, so
it may miss what a trial caught.
"""


def _heading(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *lines, ""]) if lines else ""


def _caught(power: Power) -> list[str]:
    return _table(_HEAD, [_row(cell) for cell in power.cells if cell.claimed])


def _not_caught(power: Power) -> list[str]:
    lines = []
    for fault in power.faults:
        cell = best(power.cells, fault.name)
        if fault.benign or cell is None or caught(cell):
            continue
        why = f" In the others: {cell.missed}." if cell.missed else ""
        lines.append(
            f"- `{fault.name}`: at best {_of(cell.right)} seeds, by `{cell.scenario}`. It needs "
            f"{fault.trigger}.{why}"
        )
    return lines or [
        "Every fault here is caught in at least 95 % of seeds by a scenario that claims it and was",
        "played with all of them.",
    ]


def _harmless(power: Power) -> list[str]:
    rows = [_quiet_row(each) for each in power.quiet if not each.scenario]
    note = _short_note(power)
    return [*_table(_QUIET_HEAD, rows), *([""] if note else []), *note] if rows else []


def _short_note(power: Power) -> list[str]:
    """What rows of a few windows cannot show; nothing where there are none."""
    short = max((each.budget for each in power.quiet if not each.full_length), default=0)
    if not short:
        return []
    long = any(each.full_length for each in power.quiet)
    return [
        f"Rows play at most {short} windows a trial"
        + (f", but for those{_FULL_LENGTH.removeprefix(',')}." if long else "."),
        "What judges over many windows (paired, contract, liveness) cannot accuse in so few: these",
        "rows say nothing of it.",
    ]


def _matrix(power: Power) -> list[str]:
    """One row a fault: detected of trials, median windows of them; bold where it is claimed."""
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
        "Detected of trials, and the median number of windows of the detected. In bold the",
        "scenarios that claim the fault, up to their own number of windows; all others at most",
        f"{few} windows, so that a 0 there says little.",
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
    found, least = _of(cell.detected), f"{100 * cell.detected.lower:.1f} %"
    return cell.fault, cell.layer, cell.scenario, found, least, median, ", ".join(kinds), sources


def _quiet_row(each: Quiet) -> tuple[str, ...]:
    statuses = ", ".join(f"{count} {status}" for status, count in each.statuses.items())
    return (
        (each.fault or _HEALTHY) + (_FULL_LENGTH if each.full_length else ""),
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
