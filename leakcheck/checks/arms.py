"""Windows with passphrases against windows without: what shows in one arm only, and how sure.

The control arm has the same shape and no passphrases. What earlier planted windows left in the
target may still show there; that is a sequential leak and reported as one by `foreign_passphrase`.
What can never show are the passphrases drawn for the control arm and withheld.
"""

from __future__ import annotations

import pandas as pd

from leakcheck import evidence
from leakcheck.history import History
from leakcheck.records import CheckResult

TITLE = "Windows by arm"


def check(history: History) -> CheckResult:
    """A table of both arms, and Fisher's one-sided p that planted windows show more.

    Windows count that ran: those with an answered request.
    """
    windows = history.windows[~history.windows["replay"] & (history.windows["answered"] > 0)]
    matches = history.planted
    foreign = matches["owner"] == "foreign"
    shows = {
        "with a foreign passphrase": matches[foreign & (matches["kind"] == "passphrase")],
        "with a foreign ticket": matches[foreign & (matches["kind"] == "ticket")],
        "with a withheld passphrase": matches[matches["kind"] == "withheld"],
    }
    counts = {what: _by_arm(windows, rows) for what, rows in shows.items()}
    sizes = {arm: int((windows["arm"] == arm).sum()) for arm in ("planted", "control")}
    rows = tuple(
        (arm, sizes[arm], *(count[arm] for count in counts.values()))
        for arm in ("planted", "control")
    )
    return CheckResult(
        check="arms",
        notes=(_comparison(sizes, counts["with a foreign passphrase"]),),
        tables={TITLE: (("arm", "windows", *counts), *rows)},
    )


def _by_arm(windows: pd.DataFrame, matches: pd.DataFrame) -> dict[str, int]:
    hit = windows[windows["window"].isin(matches["window"])]
    return {arm: int((hit["arm"] == arm).sum()) for arm in ("planted", "control")}


def _comparison(sizes: dict[str, int], hits: dict[str, int]) -> str:
    if not all(sizes.values()):
        empty = "planted" if not sizes["planted"] else "control"
        return f"the arms cannot be compared: no window was drawn for the {empty} arm"
    p = evidence.fisher_one_sided(
        hits["planted"], sizes["planted"], hits["control"], sizes["control"]
    )
    return (
        f"windows with a foreign passphrase: {hits['planted']} of {sizes['planted']} planted, "
        f"{hits['control']} of {sizes['control']} control (Fisher's exact test, one-sided: "
        f"p = {p:.2g})"
    )
