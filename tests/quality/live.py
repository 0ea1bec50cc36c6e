"""End to end: claims 2, 3, 4 and 8 against the embedded engine, by the ordinary path of a run.

Each group has so many seconds; what was played by then is what the figures rest on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from quality.ground import Clock, Ground, Played, ground, read
from quality.values import Result, quantile, share

NOISE = "batch-noise"
SWAP, BLEED = "response-swap", "one-layer-bleed"
RUNS = 100
SMOKE = 0.05
Group = Callable[[int, float], Iterator[Result]]
"""Of a seed and the seconds there are."""


def noise(seed: int, seconds: float) -> Iterator[Result]:
    """Claims 2 and 3: rounding that depends on the batch, in the differential."""
    small = {"load.windows": 8, "load.requests": 8}
    clock = Clock.of(seconds)
    with ground() as its:
        played = list(
            _runs(
                its,
                clock,
                "mixed-batch-differential",
                small,
                most=RUNS,
                seed=seed,
                fault=NOISE,
            )
        )
    if not played:
        return
    accused = [each for each in played if each.report.status in ("leak", "corruption")]
    differing = sum(each.diverged > 0 for each in played)
    compared = sum(each.compared for each in played)
    parted = sum(each.diverged for each in played)
    yield share(
        "2d",
        f"end to end: {NOISE}, 8 windows of the differential: called leaking or corrupt",
        len(accused),
        len(played),
        at_most=0.01,
        errors=0,
        note=f"{parted} of {compared} answers in planted company differ from those alone; "
        "its logits err by up to 48 roundings, far more than an honest engine's",
    )
    yield share(
        "3c",
        f'end to end: the same runs, "any difference is a leak", {compared // len(played)} '
        "answers a run: accused",
        differing,
        len(played),
        at_least=0.3,
        expected="(more than 2d)",
        note="over 99 % takes as many answers as 3a has; here there are few, and most have wide "
        "margins",
    )


def planted(seed: int, seconds: float) -> Iterator[Result]:
    """Claim 4: faults at a hundredth and a tenth of full strength."""
    clock = Clock.of(seconds)
    cases = [("4h", SWAP, 0.1), ("4i", SWAP, 0.01), ("4j", BLEED, 0.1), ("4k", BLEED, 0.01)]
    with ground() as its:
        for place, (number, fault, rate) in enumerate(cases):
            part = Clock.of((clock.until_s - Clock.of(0).until_s) / (len(cases) - place))
            windows = {"load.windows": 400, "load.requests": 8, "traffic.smallest": 8}
            name = "rare-token-passphrase"
            played = list(
                _runs(its, part, name, windows, most=25, seed=seed, fault=fault, rate=rate)
            )
            if played:
                yield _detection(number, fault, rate, played)


def _detection(number: str, fault: str, rate: float, played: list[Played]) -> Result:
    found = [each.report.status == "leak" for each in played]
    times = [
        float(each.windows) if leak else math.inf for each, leak in zip(played, found, strict=True)
    ]
    total = sum(each.windows for each in played)
    chance = sum(found) / total
    median = math.log(0.5) / math.log1p(-chance) if 0 < chance < 1 else 1.0
    return quantile(
        number,
        f"end to end: {fault} at {rate:.0%}, 8 requests a window, half of the runs",
        times,
        0.5,
        unit="windows",
        about=round(median, 1),
        slack=1 + 0.5 * median,
        note=f"{sum(found)} of {len(played)} runs ended with a leak, in {total} windows: it shows "
        f"in {100 * chance:.2g} % of windows, whose median waiting time is what is expected",
    )


def certificates(seed: int, seconds: float) -> Iterator[Result]:
    """Claim 8: no clean verdict for who leaks in as many windows as are to be excluded."""
    small = {
        "load.windows": 400,
        "load.requests": 4,
        "traffic.smallest": 4,
        "gate.detect": SMOKE,
        "gate.min_windows": 50,
        "load.max_tokens": 24,
    }
    clock = Clock.of(seconds)
    with ground() as its:
        played = list(
            _runs(
                its,
                clock,
                "rare-token-passphrase",
                small,
                most=60,
                seed=seed,
                fault=SWAP,
                rate=0.02,
            )
        )
    if not played:
        return
    total = sum(each.windows for each in played)
    leaks = sum(each.report.status == "leak" for each in played)
    yield share(
        "8f",
        f"end to end: {SWAP} in about 5 % of windows, 5 % to be excluded: called clean",
        sum(each.report.status == "clean" for each in played),
        len(played),
        at_most=0.05,
        note=f"it was seen in {leaks} of {total} windows ({100 * leaks / total:.2g} %) before the "
        "runs ended",
    )


GROUPS: tuple[tuple[Group, float], ...] = ((noise, 560.0), (planted, 280.0), (certificates, 280.0))
"""Groups, and the share of the time each has on one of two cores, in seconds."""


def results(name: str, seed: int, scale: float) -> list[Result]:
    """The figures of one group; `scale` says how much of its time it has."""
    group, seconds = next(each for each in GROUPS if each[0].__name__ == name)
    return list(group(seed, seconds * scale))


def _runs(
    its: Ground,
    clock: Clock,
    name: str,
    overrides: dict[str, float],
    *,
    most: int,
    seed: int,
    fault: str,
    rate: float | None = None,
) -> Iterator[Played]:
    """Runs with seeds of their own, until there are enough or it is time."""
    of = read(name, overrides)
    seeds = np.random.default_rng([seed, *fault.encode()]).integers(1, 2**31, most)
    for each in seeds.tolist():
        if clock.over:
            return
        yield its.play(of, seed=each, fault=fault, rate=rate)
