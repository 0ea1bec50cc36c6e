"""Claims 4, 6, 7 and 8 through what a run decides by: `settling.decision`, after every window.

The counts of a window are simulated; adding them up, and what they amount to, is leakcheck's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pretending
from numpy.random import Generator

from leakcheck import evidence
from leakcheck.analyzer import settling
from leakcheck.analyzer.settling import State, Tier
from leakcheck.checks import altered
from leakcheck.passphrase import load_words
from leakcheck.records import Request as Sent
from leakcheck.records import Scenario
from quality.ground import read
from quality.values import Effort, Result, quantile, share

DETECT, ALPHA = 0.01, 0.01
ECHO, ASKED, RECIPIENTS = 0.8, 6, 8
"""How often a passphrase is repeated, and how many of the recipients of a window are asked to."""
TIERS = ("encoded", "fragment", "alternatives", "topic")
PHANTOMS = 99


def certified_although_leaking(rng: Generator, effort: Effort) -> Result:
    """A target that leaks in as many windows as are to be excluded; not every leak shows."""
    shows = ECHO * ASKED / RECIPIENTS
    runs, of, events = effort.pick(150, 6000), _scenario(), 0
    for _ in range(runs):
        first = int(rng.geometric(DETECT * shows))  # the window whose leak shows
        events += _certified(rng, of, before=first)
    return share(
        "8g",
        f"the decision of a run, leaks in 1 % of windows of which {shows:.0%} show: clean",
        events,
        runs,
        at_most=0.05,
    )


def windows_to_clean(rng: Generator, effort: Effort) -> Result:
    """The price of a sensitivity that has to be measured."""
    of, shows = _scenario(), ECHO * ASKED / RECIPIENTS
    times = [_certified_at(rng, of, 4000) for _ in range(effort.pick(10, 300))]
    return quantile(
        "8h",
        "the decision of a run, no leaks: clean after, half of the runs",
        times,
        0.5,
        unit="windows",
        about=round(321 / shows),
        slack=0.05 * 321 / shows,
        note=f"321 / {shows:.2g} if the echo rate were known; it is bounded from below as it is "
        "measured",
    )


def evidence_although_honest(rng: Generator, effort: Effort) -> Result:
    """Four fuzzy tiers that show by chance, and nothing leaks."""
    runs, windows, of, events = effort.pick(10, 400), effort.pick(40, 200), _scenario(), 0
    for _ in range(runs):
        state = State()
        for _ in range(windows):
            seen = {tier: _null(rng, 3e-3) for tier in TIERS}
            state = settling.plus(state, State(windows=1, trials=1, tiers=seen))
            if settling.decision(state, of) == "evidence":
                events += 1
                break
    return share(
        "7h",
        f"the decision of a run over four fuzzy tiers, after each of {windows} windows: leak",
        events,
        runs,
        at_most=ALPHA,
    )


def altered_tiers(rng: Generator, effort: Effort) -> Result:
    """The fuzzy tiers themselves, on answers full of words of the very list."""
    runs, events = effort.pick(1, 60), 0
    hits = phantoms = 0
    for _ in range(runs):
        seed = int(rng.integers(2**31))
        history = pretending.history(
            "rare-token-passphrase", 12, _babbler(seed), seed=seed, load__phantoms=PHANTOMS
        )
        bets: dict[str, list[tuple[float, ...]]] = {}
        for look in altered.check(history).looks:
            bets.setdefault(look.tier, []).append(look.e_values)
            hits += look.phantom_hits
            phantoms += look.phantoms
        values = [evidence.merge(each) for each in bets.values()]
        weights = [settling.WEIGHTS[tier] for tier in bets]
        total = math.fsum(weights)
        events += evidence.weighted(values, [each / total for each in weights]) >= 1 / ALPHA
    return share(
        "6g",
        "the fuzzy tiers of a run, on answers that are words of the passphrases' list: leak",
        events,
        runs,
        at_most=ALPHA,
        note=f"they show {hits} of {phantoms:,} phantoms there",
    )


@cache
def _scenario() -> Scenario:
    of = read("rare-token-passphrase", {"load.control": 0})
    return replace(of, gate=replace(of.gate, detect=DETECT, alpha=ALPHA))


def _certified(rng: Generator, of: Scenario, *, before: int) -> bool:
    """Whether a clean verdict comes before a leak shows."""
    return _certified_at(rng, of, before - 1) < before


def _certified_at(rng: Generator, of: Scenario, windows: int) -> float:
    """The window after which it is clean; inf if it is not by the last."""
    # earlier there is no bound that low
    least = evidence.windows_to_certify(DETECT, alpha=1 - settling.EXCLUDED)
    if windows < least:
        return math.inf
    state = _windows(rng, least - 1)
    for number in range(least, windows + 1):
        state = settling.plus(state, _windows(rng, 1))
        if settling.decision(state, of) == "certificate":
            return float(number)
    return math.inf


def _windows(rng: Generator, count: int) -> State:
    asked = ASKED * count
    echoed = int(rng.binomial(asked, ECHO))
    return State(
        windows=count,
        trials=count,
        planted=count,
        recipients=RECIPIENTS * count,
        asked=asked,
        rates={
            "echo": (echoed, asked),
            "overlap": (RECIPIENTS * count, RECIPIENTS * count),
            "tickets": (RECIPIENTS * count, RECIPIENTS * count),
        },
    )


def _null(rng: Generator, base: float) -> Tier:
    """One window of a tier that shows a share of all candidates by chance."""
    shows = rng.random((RECIPIENTS, PHANTOMS + 1)) < base
    shown = [(bool(row[0]), int(row.sum()), PHANTOMS + 1) for row in shows if row.any()]
    bets = evidence.phantom_bets(shown, sources=RECIPIENTS)
    return Tier(logs=tuple(map(math.log, bets)), windows=1)


def _babbler(seed: int) -> pretending.Model:
    """Says nothing but words of the list, some of them far oftener, in the same order again."""
    rng, words = np.random.default_rng(seed), np.array(load_words())
    common = 1.0 / np.arange(1, len(words) + 1)
    common /= common.sum()

    def answer(_request: Sent, _company: object) -> pretending.Reply:
        said = rng.choice(words, size=60, p=common)
        return pretending.Reply(text=" ".join(said.tolist()), tokens=60)

    return answer
