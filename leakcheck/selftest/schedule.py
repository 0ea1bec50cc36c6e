"""Which trials are played, in which order. Pure: what there is decides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakcheck.records import Scenario
from leakcheck.selftest.values import HEALTHY, FaultRow, Job, Kind

NO_FAULT = FaultRow(name=HEALTHY, layer="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is played.

    Seeds of a leaking fault in the first scenario that claims it, and in each other one; of a
    benign fault and of the healthy engine. A seed of a benign fault is played in
    `benign_scenarios` of the scenarios, others with every seed (None: in all). `windows` bounds a
    leaking trial below its scenario's own number (None: that), the others play `quiet_windows`.
    `matrix_seeds` of every other cell, `matrix_windows` long. `long_seeds` more of `long_faults`
    play as many windows as a leaking trial at most, in `long_scenarios`: what judges over many
    windows can accuse only there.
    """

    seeds: int
    also_seeds: int
    benign_seeds: int
    healthy_seeds: int
    benign_scenarios: int | None
    quiet_windows: int
    windows: int | None = None
    matrix_seeds: int = 0
    matrix_windows: int = 6
    long_seeds: int = 0
    long_faults: tuple[str, ...] = ()
    long_scenarios: tuple[str, ...] = ()


FAST = Effort(
    seeds=1,
    also_seeds=0,
    benign_seeds=1,
    healthy_seeds=1,
    benign_scenarios=2,
    quiet_windows=2,
    windows=48,
)
"""What a user can wait for: under three minutes."""
FULL = Effort(
    seeds=20,
    also_seeds=4,
    benign_seeds=10,
    healthy_seeds=30,
    benign_scenarios=2,
    quiet_windows=2,
    windows=100,
    long_seeds=1,
    long_faults=(HEALTHY, "batch-noise"),
    long_scenarios=(
        "rare-token-passphrase",
        "control-group",
        "mixed-batch-differential",
        "ragged-batch",
        "parameter-twins",
        "cache-pressure",
    ),
)
"""What the published figures rest on."""


def claims(fault: str, scenarios: Sequence[Scenario]) -> tuple[Scenario, ...]:
    """The scenarios that say they catch a fault, first the one that names it earliest: a scenario
    names first what it was made for.
    """
    mine = [each for each in scenarios if fault in each.catches]
    return tuple(sorted(mine, key=lambda each: (each.catches.index(fault), each.name)))


def jobs(
    faults: Sequence[FaultRow], scenarios: Sequence[Scenario], effort: Effort, *, seed: int
) -> tuple[Job, ...]:
    """Every trial: seeds from `seed` up; what can be left out for want of time comes last."""
    return (
        *_claimed(faults, scenarios, effort, seed),
        *_quiet(faults, scenarios, effort, seed),
        *_long(faults, scenarios, effort, seed),
        *_matrix(faults, scenarios, effort, seed),
    )


def _claimed(
    faults: Sequence[FaultRow], scenarios: Sequence[Scenario], effort: Effort, seed: int
) -> Iterator[Job]:
    for fault in faults:
        if fault.benign:
            continue
        for place, scenario in enumerate(claims(fault.name, scenarios)):
            kind: Kind = "also" if place else "caught"
            windows = scenario.load.windows
            for number in range(effort.also_seeds if place else effort.seeds):
                yield Job(
                    kind=kind,
                    fault=fault,
                    scenario=scenario.name,
                    seed=seed + number,
                    windows=min(windows, effort.windows or windows),
                )


def _quiet(
    faults: Sequence[FaultRow], scenarios: Sequence[Scenario], effort: Effort, seed: int
) -> Iterator[Job]:
    benign = [fault for fault in faults if fault.benign]
    for turn, fault in enumerate((NO_FAULT, *benign)):
        healthy = fault is NO_FAULT
        few = None if healthy else effort.benign_scenarios
        for number in range(effort.healthy_seeds if healthy else effort.benign_seeds):
            for scenario in _some(scenarios, few, turn + number):
                yield Job(
                    kind="healthy" if healthy else "benign",
                    fault=fault,
                    scenario=scenario.name,
                    seed=seed + number,
                    windows=min(effort.quiet_windows, scenario.load.windows),
                )


def _long(
    faults: Sequence[FaultRow], scenarios: Sequence[Scenario], effort: Effort, seed: int
) -> Iterator[Job]:
    """Seeds behind those of `_quiet`: the same ones would play the same first windows again."""
    first = seed + max(effort.healthy_seeds, effort.benign_seeds)
    for fault in (NO_FAULT, *(each for each in faults if each.benign)):
        for scenario in scenarios:
            if fault.name in effort.long_faults and scenario.name in effort.long_scenarios:
                for number in range(effort.long_seeds):
                    yield Job(
                        kind="long",
                        fault=fault,
                        scenario=scenario.name,
                        seed=first + number,
                        windows=min(scenario.load.windows, effort.windows or scenario.load.windows),
                    )


def _some(scenarios: Sequence[Scenario], few: int | None, turn: int) -> Sequence[Scenario]:
    """All, or `few` of them, others at every turn."""
    if few is None or few >= len(scenarios):
        return scenarios
    first = turn * few % len(scenarios)
    return [*scenarios, *scenarios][first : first + few]


def _matrix(
    faults: Sequence[FaultRow], scenarios: Sequence[Scenario], effort: Effort, seed: int
) -> Iterator[Job]:
    for number in range(effort.matrix_seeds):
        for fault in faults:
            for scenario in scenarios:
                if not fault.benign and fault.name not in scenario.catches:
                    yield Job(
                        kind="matrix",
                        fault=fault,
                        scenario=scenario.name,
                        seed=seed + number,
                        windows=min(effort.matrix_windows, scenario.load.windows),
                    )


def looks(windows: int) -> tuple[int, ...]:
    """After how many windows it is judged: after each at first, then after half as many again."""
    found, at = [], 1
    while at < windows:
        found.append(at)
        at += max(1, at // 3)
    return (*found, windows)
