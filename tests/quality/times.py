"""Claim 4: how many windows it takes to see a leak that shows in 1 % of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from leakcheck import evidence
from leakcheck.match import find
from leakcheck.passphrase import load_words
from quality import bets
from quality.values import Effort, Result, quantile

LEAK = 0.01
PHANTOMS = 999
REQUESTS = 8
POOL = 200
"""Windows whose answers are searched; runs are drawn from them."""


def verbatim_median(rng: Generator, effort: Effort) -> Result:
    """The verbatim tier, half of the runs."""
    times = _verbatim(rng, effort.pick(1000, 20_000))
    return quantile(
        "4a", "whole passphrase, half of the runs", times, 0.5, unit="windows", about=69
    )


def verbatim_late(rng: Generator, effort: Effort) -> Result:
    """The verbatim tier, nearly all runs."""
    times = _verbatim(rng, effort.pick(1000, 20_000))
    return quantile(
        "4b", "whole passphrase, 95 % of the runs", times, 0.95, unit="windows", at_most=299
    )


def phantom_median(rng: Generator, effort: Effort) -> Result:
    """A fuzzy tier that never shows by chance."""
    return _phantom(rng, effort, "4c", base=0.0, threshold=100.0, about=63, slack=4)


def phantom_sure(rng: Generator, effort: Effort) -> Result:
    """The same, to 1 in 10,000."""
    return _phantom(rng, effort, "4d", base=0.0, threshold=1e4, about=182, slack=10)


def phantom_noisy(rng: Generator, effort: Effort) -> Result:
    """A fuzzy tier that shows every thousandth phantom by chance."""
    return _phantom(rng, effort, "4e", base=1e-3, threshold=100.0, about=375, slack=25)


def phantom_noisy_sure(rng: Generator, effort: Effort) -> Result:
    """The same, to 1 in 10,000."""
    return _phantom(rng, effort, "4f", base=1e-3, threshold=1e4, about=745, slack=45)


def two_arms(rng: Generator, effort: Effort) -> Result:
    """Where there is no phantom: pairs of windows, with and without, by their signs."""
    ups = 1
    while evidence.sign_e_value(ups, 0) < 100:
        ups += 1
    times = rng.geometric(LEAK, size=(effort.pick(1000, 20_000), ups)).sum(axis=1)
    return quantile(
        "4g",
        "two arms, signs of pairs, E >= 100, half of the runs",
        times.astype(float),
        0.5,
        unit="windows an arm",
        about=870,
        slack=30,
        note=f"{ups} signs, all up",
    )


def _verbatim(rng: Generator, runs: int) -> list[float]:
    """Windows to the first foreign passphrase that `match.find` finds."""
    seen = [_searched(rng, leaking=leaking) for leaking in (False, True) for _ in range(POOL)]
    clean, leaking = np.array(seen[:POOL]), np.array(seen[POOL:])
    times = []
    for _ in range(runs):
        leaks = rng.random(3000) < LEAK
        drawn = rng.integers(0, POOL, size=3000)
        shows = np.flatnonzero(np.where(leaks, leaking[drawn], clean[drawn]))
        times.append(shows[0] + 1.0 if len(shows) else math.inf)
    return times


def _searched(rng: Generator, *, leaking: bool) -> bool:
    """Whether one window shows a foreign passphrase; in a leaking one, somebody says another's."""
    phrases = _phrases(rng)
    texts = [f"Of course. It is {phrase}, as far as I know." for phrase in phrases]
    if leaking:
        source, recipient = rng.choice(REQUESTS, size=2, replace=False)
        texts[recipient] = f"The one before said: {phrases[source].title()}!"
    hits = find(texts, phrases)
    return bool(np.any(hits.text != hits.phrase))


def _phrases(rng: Generator) -> list[str]:
    words = rng.permutation(np.array(load_words()))[: 6 * REQUESTS].reshape(REQUESTS, 6)
    return [" ".join(row) for row in words.tolist()]


def _phantom(
    rng: Generator,
    effort: Effort,
    number: str,
    *,
    base: float,
    threshold: float,
    about: float,
    slack: float,
) -> Result:
    windows, times = 4000, []
    for _ in range(effort.pick(60 if base else 400, 1500 if base else 5000)):
        planted = rng.random(windows) < LEAK
        planted |= rng.random(windows) < base
        showing = planted + rng.binomial(PHANTOMS, base, size=windows)
        logs = bets.phantom_logs(planted, showing, PHANTOMS + 1)
        times.append(bets.first_reaching(logs, threshold))
    chance = "never shows by chance" if not base else f"shows {base:g} of phantoms by chance"
    return quantile(
        number,
        f"a tier that {chance}, {PHANTOMS} phantoms, E >= {threshold:,.0f}, half of the runs",
        times,
        0.5,
        unit="windows",
        about=about,
        slack=slack,
    )
