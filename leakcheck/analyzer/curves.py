"""Leak rate against measured concurrency, and against the sub-conditions of the traffic shape."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pandas as pd

from leakcheck import evidence
from leakcheck.history import History
from leakcheck.records import Curve, Rate

STOPPED = "windows ended at the first leak, so no estimate"


def draw(history: History, leaking: Collection[str], *, stopped: bool = False) -> tuple[Curve, ...]:
    """Curves of one scenario; `leaking` are the recipients that show somebody else's content.

    The unit is the window: a level counts windows that have a recipient at it, and those in which
    such a recipient leaks. Replays do not count. Where the scenario `stopped` at its first leak,
    every title says so.
    """
    requests = history.requests
    shown = requests[requests["replays"].isna() & (requests["outcome"] == "ok")]
    shown = shown.assign(leaks=shown["id"].isin(leaking))
    curves = [_by_concurrency(history.windows, shown)]
    recipients = shown[shown["role"] == "recipient"]
    shared = recipients[recipients["shared_tokens"].notna()].sort_values("shared_tokens")
    curves.append(_by("Leak rate by shared prefix", "shared tokens", shared, "shared_tokens"))
    cells = recipients[recipients["cell"] != ""]
    curves += _by_cell(cells.sort_values(["shared_tokens", "cell"], kind="stable"))
    told = f" ({STOPPED})" if stopped else ""
    return tuple(replace(each, title=each.title + told) for each in curves if each.points)


def _by_concurrency(windows: pd.DataFrame, shown: pd.DataFrame) -> Curve:
    """Trial windows by the largest number of requests that were in flight at one time."""
    leaking = set(shown.loc[shown["leaks"], "window"])
    table = windows[~windows["replay"]].assign(leaks=windows["window"].isin(leaking))
    table = table[table["trial"]]
    upper = [_power_of_two(int(peak)) for peak in table["peak"]]
    points = tuple(
        (_span(int(level)), _rate(group["leaks"]))
        for level, group in table.groupby(pd.Series(upper, index=table.index, dtype="int64"))
    )
    return Curve(title="Leak rate by concurrency", axis="most requests in flight", points=points)


def _by(title: str, axis: str, rows: pd.DataFrame, column: str) -> Curve:
    levels = rows.groupby(column, sort=False)
    points = tuple(
        (str(level), _rate(group.groupby("window")["leaks"].any())) for level, group in levels
    )
    return Curve(title=title, axis=axis, points=points)


def _by_cell(cells: pd.DataFrame) -> list[Curve]:
    """A curve for each word in the names of cells: a shape that crosses conditions names a cell
    after all of them (`2*16-1 equal running`), and has too few windows in any one cell.
    """
    words = cells["cell"].str.split(" ", expand=True)
    if words.shape[1] == 1 or words.isna().any(axis=None):
        return [_by("Leak rate by cell", "cell", cells, "cell")]
    curves = []
    for n, column in enumerate(words.columns, start=1):
        table = cells.assign(word=words[column])
        mean = table.groupby("word")["shared_tokens"].mean().astype(float)
        table = table.assign(mean=table["word"].map(mean)).sort_values("mean", kind="stable")
        title = f"Leak rate by cell ({n} of {len(words.columns)})"
        curves.append(_by(title, "cell", table, "word"))
    return curves


def _rate(leaks: pd.Series[bool]) -> Rate:
    return evidence.rate(int(leaks.sum()), len(leaks))


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()


def _span(upper: int) -> str:
    """The numbers with this power of two: `1`, `2`, `3-4`, `5-8`."""
    lower = upper // 2 + 1
    return str(upper) if lower >= upper else f"{lower}-{upper}"
