"""How many windows a run takes until it certifies that a leak is absent.

What a run has counted after n windows is drawn by chance, and what ends it looks at nothing else.
So each count is taken as low as it is in one run of twenty, and the rule itself is asked
(settling.decision). Trials, and owners that got their passphrase back, are binomial; the share of
recipients that were asked varies as between planned windows, and is only as well known as so many
of them say. All counts are so low together in far fewer runs than one of twenty.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from leakcheck import evidence
from leakcheck.analyzer import settling
from leakcheck.records import Scenario

CONFIDENCE = 0.95
"""That a run certifies after the windows that it is told to take."""
_LOW = 1.6449
"""Standard deviations below the mean that one normal draw of twenty is."""
_MOST = 10**8
"""Windows, beyond which nothing is said to be enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What the counts of a run of a scenario grow by.

    `trials` is the chance of a window to be one and `owners` ask in each of them, of whom a share
    of `echo` at least is answered with their own passphrase. There are `recipients` a window; the
    share `asked` of them was counted over `counted`, `spread` as in `Sampled`.
    """

    trials: float
    owners: float
    echo: float
    recipients: float
    asked: float
    spread: float
    counted: int


def to_exclude(of: Scenario, ahead: Prospect) -> int | None:
    """The fewest windows after which 95 of 100 runs of a target without a leak have ended with a
    certificate; None where no number is enough.
    """

    def enough(windows: int) -> bool:
        return settling.decision(_unlucky(ahead, windows), of) == "certificate"

    few, many = of.gate.min_windows - 1, of.gate.min_windows  # a window is one trial at most
    while not enough(many):
        few, many = many, 2 * many
        if many > _MOST:
            return None
    return few + 1 + bisect_left(range(few + 1, many), x=True, key=enough)


def _unlucky(ahead: Prospect, windows: int) -> settling.State:
    """What a run has counted after so many windows, with each count as low as in one of twenty.
    Nothing but echo falls short of what the gate wants.
    """
    trials = _fewest(windows, ahead.trials)
    owners = math.floor(ahead.owners * trials)
    recipients = math.floor(ahead.recipients * windows)
    if not recipients or not ahead.counted:
        return settling.State(windows=windows)
    error = math.sqrt(ahead.spread * (1 / recipients + 1 / ahead.counted))
    fine = (recipients, recipients)
    return settling.State(
        windows=windows,
        trials=trials,
        planted=trials,
        control=windows - trials,
        recipients=recipients,
        asked=max(0, math.floor(recipients * (ahead.asked - _LOW * error))),
        rates={
            "echo": (_fewest(owners, ahead.echo), owners),
            "overlap": fine,
            "tickets": fine,
            "cache hits": fine,
        },
    )


def _fewest(trials: int, chance: float) -> int:
    """The most events that there are at least with 95 % confidence: a binomial quantile."""
    return bisect_left(
        range(1, trials + 1),  # the first that are too many has as many before it as are not
        x=True,
        key=lambda events: evidence.at_least(events, trials, chance) < CONFIDENCE,
    )
