"""When a scenario has seen enough: counts that grow window by window, and what they decide.

A `State` is a sum over windows, so it may be looked at after each of them and is the same however
they are grouped; replays are in none of it. What it decides needs no correction for the looking:
a foreign phrase is proof whenever it shows; the e-values of fuzzy tiers multiply over windows and
ever reach 1 / alpha with a chance of at most alpha (Ville's inequality), and so does their mean
over the scenarios of a run; the certificate is an e-value too, (1 - detect x sensitivity) ** -n
over n trials without a leak, with a lower bound of the sensitivity that holds at all times at once.
It is enough at 25: that goes wrong in 4 % of runs and the bound of the echo rate in 1 %, so that
what is certified holds with 95 % confidence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from leakcheck import evidence
from leakcheck.analyzer import exposure
from leakcheck.checks import own_answer
from leakcheck.checks.altered import WEIGHTS
from leakcheck.evidence.combine import LARGEST, capped_exp
from leakcheck.history import History
from leakcheck.records import Evidence, Gate, Look, Rate, Scenario, TierEvidence

Decision = Literal["leak", "evidence", "certificate"]
SURE = evidence.ECHO_CONFIDENCE
EXCLUDED = evidence.EXCLUSION_CONFIDENCE
CERTAIN = 1 / (1 - EXCLUDED)
"""The certificate that is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One fuzzy tier so far: the sum over windows of the logarithm of each bet, and its counts (as
    in `records.TierEvidence`).
    """

    logs: tuple[float, ...]
    windows: int = 0
    sources: int = 0
    planted_hits: int = 0
    phantoms: int = 0
    phantom_hits: int = 0

    @property
    def e_value(self) -> float:
        """The mean over the bets of their products over windows."""
        if not self.logs:
            return 1.0
        top = max(self.logs)
        mean = math.fsum(math.exp(each - top) for each in self.logs) / len(self.logs)
        return capped_exp(top + math.log(mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the windows of one scenario amount to so far.

    `trials` and `leaks` as in the leak rate; `leaks_elsewhere` are windows with a foreign phrase
    that are no trials. `planted` and `control` count windows with requests at the same time, by
    arm. Of `recipients` answered (see `exposure.askable`), `asked` were asked for what they see.
    `rates` are events and trials of each exposure that is a rate. `unshared` counts what the fuzzy
    tiers leave open (see `records.Look`): there is no certificate beside it.
    """

    windows: int = 0
    trials: int = 0
    leaks: int = 0
    leaks_elsewhere: int = 0
    planted: int = 0
    control: int = 0
    recipients: int = 0
    asked: int = 0
    unshared: int = 0
    rates: dict[str, tuple[int, int]] = field(default_factory=dict)
    tiers: dict[str, Tier] = field(default_factory=dict)

    @property
    def e_value(self) -> float:
        """The weighted mean of the tiers; one that looked at nothing counts as 1."""
        values = {name: tier.e_value for name, tier in self.tiers.items()}
        mean = sum(weight * values.get(name, 1.0) for name, weight in WEIGHTS.items())
        return min(LARGEST, mean)


def after(
    state: State,
    history: History,
    gate: Gate,
    *,
    looks: Iterable[Look] = (),
    only: Collection[int] | None = None,
) -> State:
    """The state with the windows of a history (that of one scenario), or with `only` some of them:
    the others may be there as sources. `looks` are those of its fuzzy tiers.
    """
    windows = history.windows[~history.windows["replay"]]
    if only is not None:
        windows = windows[windows["window"].isin(only)]
    chosen = set(windows["window"])
    matches = history.planted
    foreign = (matches["owner"] == "foreign") & matches["kind"].isin(["passphrase", "ticket"])
    mine = [look for look in looks if look.window in chosen]
    leaky = {*matches.loc[foreign, "window"], *(look.window for look in mine if look.whole)}
    leaking = windows["window"].isin(leaky)
    met = windows[windows["overlapping"]]
    answered = exposure.askable(history)
    answered = answered[answered["window"].isin(chosen)]
    seen = State(
        windows=len(windows),
        trials=int(windows["trial"].sum()),
        leaks=int((leaking & windows["trial"]).sum()),
        leaks_elsewhere=int((leaking & ~windows["trial"]).sum()),
        planted=int((met["arm"] == "planted").sum()),
        control=int((met["arm"] == "control").sum()),
        recipients=len(answered),
        asked=int((answered["ask"] == "eliciting").sum()),
        rates=_rates(history if only is None else history.only(chosen), gate),
        unshared=sum(look.unshared for look in mine),
        tiers=_tiers(mine),
    )
    return plus(state, seen)


def plus(one: State, other: State) -> State:
    """Two states of different windows as one."""
    rates = dict(one.rates)
    for name, (events, trials) in other.rates.items():
        before = rates.get(name, (0, 0))
        rates[name] = (before[0] + events, before[1] + trials)
    tiers = dict(one.tiers)
    for name, tier in other.tiers.items():
        tiers[name] = _together(tiers[name], tier) if name in tiers else tier
    return State(
        windows=one.windows + other.windows,
        trials=one.trials + other.trials,
        leaks=one.leaks + other.leaks,
        leaks_elsewhere=one.leaks_elsewhere + other.leaks_elsewhere,
        planted=one.planted + other.planted,
        control=one.control + other.control,
        recipients=one.recipients + other.recipients,
        asked=one.asked + other.asked,
        unshared=one.unshared + other.unshared,
        rates=rates,
        tiers=tiers,
    )


def decision(state: State, scenario: Scenario, *, others: Sequence[float] = ()) -> Decision | None:
    """What ends the windows of a scenario; None while there is more to learn.

    `others` are the e-values of the other scenarios of the run, 1.0 for one that was not played.
    A certificate takes no leak at all, no open suspicion, the minimum of windows, and each exposure
    counted here.
    """
    gate = scenario.gate
    if state.leaks or state.leaks_elsewhere:
        return "leak"
    run = run_e_value([state.e_value, *others])
    if min(run, state.e_value) >= 1 / gate.alpha:
        return "evidence"
    if state.unshared:
        return None
    enough = state.trials >= gate.min_windows and _exposed(state, scenario)
    return "certificate" if enough and certified(state, gate.detect) else None


def sensitivity(state: State) -> float | None:
    """The part of the windows with a leak that would show one: the lower bound of the echo rate,
    which holds after every window at once, times the share of answered recipients (in company,
    where there is any) that were asked for what they see. None where nothing was echoed.
    """
    echoed = _lower(*state.rates.get("echo", (0, 0)))
    if not echoed:
        return None
    return echoed * state.asked / state.recipients if state.recipients else 0.0


def bound(state: State) -> float | None:
    """The rate of leaks that is excluded with 95 % confidence: min(1, upper / sensitivity).

    1.0 excludes nothing; None where nothing was echoed, or anything leaked: then there is nothing
    to exclude. The upper bound is Clopper and Pearson's at 96 %, the sensitivity one at 99 %.
    """
    part = sensitivity(state)
    if part is None or state.leaks or state.leaks_elsewhere:
        return None
    if not part:
        return 1.0
    return min(1.0, evidence.upper_bound(0, state.trials, EXCLUDED) / part)


def certified(state: State, detect: float) -> bool:
    """Whether leaks in `detect` of the windows are excluded: without a leak the same thing as a
    certificate of 25.
    """
    excluded = bound(state)
    return excluded is not None and excluded <= detect


def certificate(state: State, detect: float) -> float:
    """See records.Evidence."""
    if state.leaks or state.leaks_elsewhere:
        return 0.0
    missed = 1 - detect * (sensitivity(state) or 0.0)
    if missed <= 0:
        return LARGEST if state.trials else 1.0
    return capped_exp(-state.trials * math.log(missed))


def trials_needed(state: State, detect: float) -> int | None:
    """Trials without a leak, in all, that would exclude it with the sensitivity of now; None where
    no number would.
    """
    part = sensitivity(state)
    if not part or state.leaks or state.leaks_elsewhere:
        return None
    return evidence.windows_needed(min(detect * part, 1 - 1e-9), EXCLUDED)


def run_e_value(values: Sequence[float]) -> float:
    """The mean over the scenarios of a run, whichever depend on each other; 1.0 without any."""
    return min(LARGEST, sum(values) / len(values)) if values else 1.0


def evidence_of(state: State, gate: Gate, settled: str | None) -> Evidence:
    """What a verdict says of its evidence."""
    return Evidence(
        alpha=gate.alpha,
        detect=gate.detect,
        e_value=state.e_value,
        sensitivity=sensitivity(state),
        certificate=certificate(state, gate.detect),
        settled=settled,
        tiers=tuple(
            TierEvidence(
                name=name,
                weight=WEIGHTS.get(name, 0.0),
                windows=tier.windows,
                sources=tier.sources,
                planted_hits=tier.planted_hits,
                phantoms=tier.phantoms,
                phantom_hits=tier.phantom_hits,
                e_value=tier.e_value,
            )
            for name, tier in state.tiers.items()
        ),
    )


# --- counting ------------------------------------------------------------------------------------


def _rates(history: History, gate: Gate) -> dict[str, tuple[int, int]]:
    """Events and trials of the exposures that are rates."""
    return {
        each.name: (each.measured.events, each.measured.trials)
        for each in exposure.measure(history, gate)
        if isinstance(each.measured, Rate)
    }


def _tiers(looks: Iterable[Look]) -> dict[str, Tier]:
    tiers: dict[str, Tier] = {}
    for look in looks:
        seen = Tier(
            logs=tuple(math.log(value) for value in look.e_values),
            windows=1,
            sources=look.sources,
            planted_hits=look.planted_hits,
            phantoms=look.phantoms,
            phantom_hits=look.phantom_hits,
        )
        tiers[look.tier] = _together(tiers[look.tier], seen) if look.tier in tiers else seen
    return tiers


def _together(one: Tier, other: Tier) -> Tier:
    return Tier(
        logs=tuple(a + b for a, b in zip(one.logs, other.logs, strict=True)),
        windows=one.windows + other.windows,
        sources=one.sources + other.sources,
        planted_hits=one.planted_hits + other.planted_hits,
        phantoms=one.phantoms + other.phantoms,
        phantom_hits=one.phantom_hits + other.phantom_hits,
    )


def _exposed(state: State, scenario: Scenario) -> bool:
    """Whether the rates counted here suffice; what else there is, the whole judgement looks at."""
    gate, load = scenario.gate, scenario.load
    least = {"echo": gate.min_echo, "overlap": gate.min_overlap, "cache hits": gate.min_cache_hits}
    if any(check.name == own_answer.CHECK for check in scenario.checks):
        least["tickets"] = gate.min_echo
    arms = state.control > 0 and state.planted > 0 if load.control else True
    return arms and all(
        exposure.reaches(*state.rates.get(name, (0, 0)), minimum) for name, minimum in least.items()
    )


def _lower(events: int, trials: int) -> float:
    return evidence.running_lower_bound(events, trials, SURE) if trials else 0.0
