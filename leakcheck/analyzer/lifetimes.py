"""Leaks by lifetime of the target: windows of one lifetime may share one bug."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from typing import Any

from leakcheck import evidence
from leakcheck.history import History
from leakcheck.records import Exposure

TITLE = "Leaks by lifetime of the target"
COLUMNS = ("lifetime", "windows", "trials", "trials with a leak", "at least", "at most")


def table(
    history: History, leaking: Collection[str]
) -> tuple[dict[str, tuple[tuple[Any, ...], ...]], tuple[Exposure, ...]]:
    """Windows of one scenario and those with a leak, by lifetime, and how many lifetimes it saw;
    nothing of either where the run never restarted its target. Only restarts that were seen begin
    another lifetime; without any there is no table.

    `leaking` are the recipients that show somebody else's content. Replays do not count. A window
    belongs to the lifetime in which its first request was sent; bounds are one-sided, 95 %.
    """
    begins, unseen = _begins(history), _unseen(history)
    if not (begins or unseen):
        return {}, ()
    requests = history.requests[history.requests["replays"].isna()]
    shown = set(requests.loc[requests["id"].isin(leaking), "window"])
    seen = history.observations.merge(
        requests[["id", "window"]], left_on="request_id", right_on="id"
    )
    first = seen.groupby("window")["start_ns"].min()
    windows = history.windows[
        ~history.windows["replay"] & history.windows["window"].isin(first.index)
    ]
    lives = [bisect_right(begins, first[window]) + 1 for window in windows["window"]]
    windows = windows.assign(life=lives, leaks=windows["window"].isin(shown))
    rows = []
    for life, group in windows.groupby("life"):
        trials = group[group["trial"]]
        rate = evidence.rate(int(trials["leaks"].sum()), len(trials))
        bounds = math.floor(1e4 * rate.lower) / 1e4, math.ceil(1e4 * rate.upper) / 1e4
        rows.append((life, len(group), rate.trials, rate.events, *bounds))
    blocks = {bisect_right(sorted([*begins, *unseen]), first[each]) for each in windows["window"]}
    exposed = (_exposure(len(rows), len(blocks) - len(rows)),)
    return {TITLE: (COLUMNS, *rows)} if begins else {}, exposed


def _begins(history: History) -> list[int]:
    """When another lifetime began; a resumed run has started its embedded engine anew."""
    kinds = {"restarted"} | ({"resumed"} if history.provenance.engine else set())
    return sorted(event.at_ns for event in history.events if event.kind in kinds)


def _unseen(history: History) -> list[int]:
    """When a command returned that was to restart the target, and nothing showed that it did."""
    return sorted(event.at_ns for event in history.events if event.kind == "restart-unseen")


def _exposure(lifetimes: int, unseen: int) -> Exposure:
    many = "lifetime" if lifetimes == 1 else "lifetimes"
    text = f"windows were sent to {lifetimes} {many} of the target"
    if lifetimes > 1 or not unseen:
        text += ", restarted in between"
    if unseen:
        times = "once more" if lifetimes > 1 else "once"
        times = times if unseen == 1 else f"{unseen} times" + " more" * (lifetimes > 1)
        text += (
            f", by the restarts that were seen; {times} the command returned 0, and whether the "
            "target restarted was not seen"
        )
    return Exposure(
        name="lifetimes",
        measured=float(lifetimes),
        minimum=None,
        enough=None,
        text=text,
    )
