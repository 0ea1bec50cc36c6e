"""Claim 7: an e-value may be looked at after every window; a p-value may not.

Nothing leaks in any of these runs. Alpha is .01.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from leakcheck import evidence
from quality import bets
from quality.values import Effort, Result, share

ALPHA = 0.01
WINDOWS = 3000
PHANTOMS = 999
CANDIDATES = 64


def phantoms(rng: Generator, effort: Effort) -> Result:
    """A fuzzy tier that shows one phantom in a thousand."""
    return _phantoms(rng, effort, "7a", 1e-3)


def phantoms_often(rng: Generator, effort: Effort) -> Result:
    """One that shows one in a hundred."""
    return _phantoms(rng, effort, "7b", 1e-2)


def directed(rng: Generator, effort: Effort) -> Result:
    """Scores with heavy tails, and a planted candidate that is like any other."""
    runs, windows, events = effort.pick(60, 1000), effort.pick(60, 200), 0
    for _ in range(runs):
        scores = rng.standard_t(3, size=(windows, CANDIDATES)).tolist()
        logs = np.log(np.array([evidence.directed_bets(each, 0) for each in scores]))
        events += math.isfinite(bets.first_reaching(logs, 1 / ALPHA))
    claim = f"directed e-value, {CANDIDATES} candidates, {windows} windows: ever E >= 100"
    return share("7c", claim, events, runs, at_most=ALPHA)


def mixture(rng: Generator, effort: Effort) -> Result:
    """The mixture SPRT at a false-match rate that is as large as is allowed."""
    base, runs = 1e-3, effort.pick(300, 10_000)
    events = 0
    for _ in range(runs):
        hits = np.flatnonzero(rng.random(WINDOWS) < base) + 1
        events += any(
            evidence.sprt_mixture(count, int(at), base) >= 1 / ALPHA
            for count, at in enumerate(hits, start=1)
        )
    return share(
        "7d", "mixture SPRT, false matches in 0.1 % of windows", events, runs, at_most=ALPHA
    )


def signs(rng: Generator, effort: Effort) -> Result:
    """Pairs of windows that are alike."""
    runs, pairs, events = effort.pick(200, 5000), 300, 0
    known: dict[tuple[int, int], bool] = {}
    for _ in range(runs):
        ups = np.cumsum(rng.random(pairs) < 0.5)
        for at, up in enumerate(ups.tolist(), start=1):
            key = up, at - up
            if key not in known:
                known[key] = evidence.sign_e_value(*key) >= 1 / ALPHA
            if known[key]:
                events += 1
                break
    claim = f"two arms, signs of {pairs} discordant pairs"
    return share("7e", claim, events, runs, at_most=ALPHA)


def running_bound(rng: Generator, effort: Effort) -> Result:
    """The lower bound of a rate that holds after every window at once."""
    rate, runs, events = 0.9, effort.pick(100, 2000), 0
    known: dict[tuple[int, int], bool] = {}
    for _ in range(runs):
        seen = np.cumsum(rng.random(400) < rate)
        for at, count in enumerate(seen.tolist(), start=1):
            key = count, at
            if key not in known:
                known[key] = evidence.running_lower_bound(count, at, 0.95) > rate
            if known[key]:
                events += 1
                break
    claim = "running lower bound of an echo rate of 90 %: ever above it in 400 answers"
    return share("7f", claim, events, runs, at_most=0.05)


def fisher(rng: Generator, effort: Effort) -> Result:
    """What e-values are there for: Fisher's test at its nominal level, looked at 40 times."""
    runs, size, events = effort.pick(300, 10_000), 2000, 0
    test = _cached(evidence.fisher_one_sided)
    for _ in range(runs):
        ours, theirs = (np.cumsum(rng.random(size) < 0.02) for _ in range(2))
        looks = range(size // 40, size + 1, size // 40)
        events += any(test(int(ours[n - 1]), n, int(theirs[n - 1]), n) <= ALPHA for n in looks)
    return share(
        "7g",
        "Fisher's test at a nominal 1 %, looked at 40 times (rates of 2 %, to 2000 windows)",
        events,
        runs,
        at_least=0.015,
        expected="more than 1 %",
        note="what looking does to a p-value; leakcheck looks at one once",
    )


def _phantoms(rng: Generator, effort: Effort, number: str, base: float) -> Result:
    runs, windows, events = effort.pick(60, 2000), effort.pick(1000, WINDOWS), 0
    for _ in range(runs):
        planted = rng.random(windows) < base
        showing = planted + rng.binomial(PHANTOMS, base, size=windows)
        logs = bets.phantom_logs(planted, showing, PHANTOMS + 1)
        events += math.isfinite(bets.first_reaching(logs, 1 / ALPHA))
    claim = f"phantoms of which {base:g} show, {windows} windows: ever E >= 100"
    return share(number, claim, events, runs, at_most=ALPHA)


def _cached(test: Callable[[int, int, int, int], float]) -> Callable[[int, int, int, int], float]:
    known: dict[tuple[int, int, int, int], float] = {}

    def ask(a: int, b: int, c: int, d: int) -> float:
        key = a, b, c, d
        if key not in known:
            known[key] = test(*key)
        return known[key]

    return ask
