"""How many windows a run like this one takes until it excludes the leaks that were to be excluded.

What the run has counted goes into the rule by which `plan` promises windows, so that both say the
same of the same target.
"""

from __future__ import annotations

import math

from leakcheck.analyzer import echoes, exposure, prospect
from leakcheck.analyzer.case import Case
from leakcheck.history import History


def windows_sent(history: History) -> int:
    """Windows of which anything was sent, replays left out."""
    requests = history.requests[history.requests["replays"].isna()]
    return int(requests.loc[requests["outcome"] != "unsent", "window"].nunique())


def windows_needed(case: Case) -> int | None:
    """Windows in all, control windows included; None where nothing says how many, where no number
    is enough, or where something leaked. Rests on the echo that was measured: after a few windows
    it is hardly known.
    """
    if case.bound is None or not windows_sent(case.history):
        return None
    history, scenario = case.history, case.plan.scenario
    windows = history.windows[~history.windows["replay"]]
    begun = windows["window"].isin(
        history.requests.loc[history.requests["outcome"] != "unsent", "window"]
    )
    windows = windows[begun]
    planted = int((windows["arm"] == "planted").sum())
    trials = int(windows["trial"].sum())
    echo, recipients = echoes.rate(history), exposure.askable(history)
    if not planted or not trials or not len(recipients):
        return None
    return prospect.to_exclude(
        scenario,
        prospect.Prospect(
            trials=(1 - scenario.load.control) * trials / planted,
            owners=echo.trials / planted,
            echo=echo.lower,
            recipients=len(recipients) / len(windows),
            asked=exposure.asked_share(history),
            spread=_spread(history),
            counted=len(recipients),
        ),
    )


def _spread(history: History) -> float:
    """See planning.Sampled: the variance of the share that was asked, for one recipient."""
    recipients = exposure.askable(history)
    asked = (recipients["ask"] == "eliciting").astype(float)
    apart = (asked - asked.mean()).groupby(recipients["window"]).sum()
    return math.fsum(each * each for each in apart) / len(recipients)
