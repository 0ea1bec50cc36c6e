"""From trials to figures, and to what did not behave. Pure; the order is that of what was asked."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from leakcheck import evidence
from leakcheck.records import Scenario
from leakcheck.selftest.schedule import claims
from leakcheck.selftest.values import HEALTHY, Cell, FaultRow, Quiet, Trial

GOAL = 0.95
"""The share of seeds in which a leaking fault must be caught, by one scenario with all of them."""
MUTE = "mute"
"""The fault that refuses everything: nothing was tested, and that must be said."""


def cells(
    trials: Sequence[Trial], faults: Sequence[FaultRow], scenarios: Sequence[Scenario]
) -> tuple[Cell, ...]:
    """One for each leaking fault and scenario that were played together; the scenarios that claim
    the fault come first.
    """
    found = []
    for fault in faults:
        if fault.benign:
            continue
        claimed = claims(fault.name, scenarios)
        others = [each for each in scenarios if each not in claimed]
        for scenario in (*claimed, *others):
            mine = _of(trials, fault.name, scenario.name)
            if mine:
                found.append(_cell(fault, scenario, scenario in claimed, mine))
    return tuple(found)


def _of(trials: Iterable[Trial], fault: str, scenario: str) -> list[Trial]:
    mine = [each for each in trials if (each.fault, each.scenario) == (fault, scenario)]
    return sorted(mine, key=lambda each: each.seed)


def _cell(fault: FaultRow, scenario: Scenario, claimed: bool, mine: Sequence[Trial]) -> Cell:
    detected = [each for each in mine if each.detected]
    missed = Counter(each.reason for each in mine if not each.detected and each.reason)
    return Cell(
        fault=fault.name,
        layer=fault.layer,
        scenario=scenario.name,
        claimed=claimed,
        budget=max(each.budget for each in mine),
        windows=sum(each.windows for each in mine),
        detected=evidence.rate(len(detected), len(mine)),
        right=evidence.rate(sum(each.right for each in mine), len(mine)),
        median_windows=statistics.median(each.windows for each in detected) if detected else None,
        sources=sum(each.sources for each in mine),
        sources_right=sum(each.sources_right for each in mine),
        anomalies=_counts(each.anomaly for each in detected),
        statuses=_counts(each.status for each in mine),
        missed=missed.most_common(1)[0][0] if missed else "",
    )


def _counts(values: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(value for value in values if value is not None).items()))


def quiet(
    trials: Sequence[Trial], faults: Sequence[FaultRow], scenarios: Sequence[Scenario]
) -> tuple[Quiet, ...]:
    """The healthy engine, then every benign fault: all seeds first, then by scenario. After them
    the same at full length. What could not be played counts nowhere.
    """
    found = []
    for long in (False, True):
        for name in (HEALTHY, *(fault.name for fault in faults if fault.benign)):
            mine = [
                each
                for each in trials
                if each.fault == name and (each.kind == "long") == long and not each.broken
            ]
            if not mine:
                continue
            bad = {each.seed for each in mine if each.accused}
            found.append(_quiet(name, "", mine, len(bad), len({each.seed for each in mine})))
            for scenario in scenarios:
                part = _of(mine, name, scenario.name)
                if part:
                    accused = sum(each.accused for each in part)
                    found.append(_quiet(name, scenario.name, part, accused, len(part)))
    return tuple(found)


def _quiet(name: str, scenario: str, mine: Sequence[Trial], accused: int, of: int) -> Quiet:
    return Quiet(
        fault=name,
        scenario=scenario,
        windows=sum(each.windows for each in mine),
        accused=evidence.rate(accused, of),
        budget=max(each.budget for each in mine),
        full_length=mine[0].kind == "long",
        statuses=_counts(each.status for each in mine),
    )


def failures(
    trials: Sequence[Trial],
    faults: Sequence[FaultRow],
    scenarios: Sequence[Scenario],
    known: Collection[str],
) -> tuple[str, ...]:
    """What did not behave, a sentence each; empty if all is as it should be. `known`: all faults
    that there are, of which `faults` were played.
    """
    table = cells(trials, faults, scenarios)
    said = []
    for fault in faults:
        if fault.benign:
            continue
        cell = best(table, fault.name)
        if not claims(fault.name, scenarios):
            said.append(f"{fault.name}: no scenario says that it catches this fault")
        elif cell is not None and not caught(cell):
            said.append(_below(cell))
    said += [
        f"{scenario.name}: says that it catches {name!r}, and there is no such fault"
        for scenario in scenarios
        for name in scenario.catches
        if name not in known
    ]
    said += [_accusation(each) for each in trials if each.accused and _must_not(each, faults)]
    said += [
        f"{MUTE} in {each.scenario}, seed {each.seed}: a target that refuses everything was called "
        f"{each.status}, not inconclusive"
        for each in trials
        if each.fault == MUTE
        and each.status != "inconclusive"
        and not each.accused
        and not each.broken
    ]
    said += [
        f"{each.fault or 'the healthy engine'} in {each.scenario}, seed {each.seed}: the trial "
        f"could not be played: {each.reason}"
        for each in trials
        if each.broken
    ]
    return tuple(said)


def best(table: Sequence[Cell], fault: str) -> Cell | None:
    """The cell that a fault is judged by: the best of the scenarios that claim it and were played
    with as many seeds as the first of them. A cell of a few seeds is easily all right by luck, and
    the best of several such cells more easily still. None where nothing was played.
    """
    mine = [cell for cell in table if cell.fault == fault and cell.claimed]
    whole = [cell for cell in mine if cell.right.trials >= mine[0].right.trials]
    return max(whole, key=_reached, default=None)


def caught(cell: Cell) -> bool:
    """Whether its share of seeds with the right source and recipient is enough."""
    return _reached(cell) >= GOAL


def _reached(cell: Cell) -> float:
    return cell.right.value or 0.0


def _must_not(trial: Trial, faults: Sequence[FaultRow]) -> bool:
    return trial.fault == HEALTHY or any(f.benign and f.name == trial.fault for f in faults)


def _below(cell: Cell) -> str:
    rate = cell.right
    text = (
        f"{cell.fault}: caught with the right source and recipient in {rate.events} of "
        f"{rate.trials} seeds by {cell.scenario}, its best"
    )
    if cell.detected.events > rate.events:
        wrong = cell.sources - cell.sources_right
        text += f" (detected in {cell.detected.events}; {wrong} of {cell.sources} sources wrong)"
    return f"{text}; in the others: {cell.missed}" if cell.missed else text


def _accusation(trial: Trial) -> str:
    name = trial.fault or "the healthy engine"
    return (
        f"{name} in {trial.scenario}, seed {trial.seed}: called {trial.status} "
        f"({', '.join(trial.anomalies)}): {trial.reason}"
    )
