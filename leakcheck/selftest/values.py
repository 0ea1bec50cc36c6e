"""What the self-test plays and what it found: plain values, JSON all the way down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from leakcheck.records import Rate, Status

Kind = Literal["caught", "also", "benign", "healthy", "long", "matrix"]
"""Why a trial is played: its scenario is the first, or another, that claims to catch the fault; the
fault is benign; there is none; either of these at full length; or nobody claims anything."""

HEALTHY = ""
"""The name of no fault at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """What must be known of a fault of the embedded engine; it tells it of itself.

    `anomalies`: the findings any of which must report it; none for a benign fault.
    """

    name: str
    layer: str
    anomalies: tuple[str, ...] = ()
    engine_flags: tuple[str, ...] = ()
    trigger: str = ""

    @property
    def benign(self) -> bool:
        """Whether it must never be called a leak."""
        return not self.anomalies


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One trial to play: a fault, a scenario, a seed, and at most so many windows."""

    kind: Kind
    fault: FaultRow
    scenario: str
    seed: int
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of a job.

    `detected`: a verdict of leak, corruption or error showed an expected anomaly, `anomaly` (the
    gravest of them), after `windows`. `anomalies` are all graver than a note. `sources` findings
    quote a phrase whose owner the plan on disk knows; `sources_right` of them name that owner as
    the source and somebody else as the recipient. `reason` is the verdict's own, or that of a trial
    that is `broken`: it could not be played to its end, so nothing was judged.
    """

    kind: Kind
    fault: str
    scenario: str
    seed: int
    windows: int
    budget: int
    detected: bool
    status: Status
    anomaly: str | None = None
    anomalies: tuple[str, ...] = ()
    sources: int = 0
    sources_right: int = 0
    requests: int = 0
    seconds: float = 0.0
    reason: str = ""
    broken: bool = False

    @property
    def accused(self) -> bool:
        """Whether the target was said to mix up its requests."""
        return self.status in ("leak", "corruption")

    @property
    def right(self) -> bool:
        """Detected, and every source and recipient that can be checked is right."""
        return self.detected and self.sources == self.sources_right


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All trials of one fault in one scenario.

    `right` are trials with the right anomaly, source and recipient. `median_windows` is that of the
    detected ones, to detection. `windows` were played in all; `budget` at most in a trial.
    """

    fault: str
    layer: str
    scenario: str
    claimed: bool
    budget: int
    windows: int
    detected: Rate
    right: Rate
    median_windows: float | None
    sources: int
    sources_right: int
    anomalies: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    missed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """All trials of a benign fault, or of the healthy engine, in one scenario; or in all of them
    (`scenario` empty), where a trial is a seed of the whole set. `accused` should be zero. `budget`
    is the most windows of a trial; `full_length`: as many as the scenario has, not a few.
    """

    fault: str
    scenario: str
    windows: int
    accused: Rate
    budget: int
    full_length: bool = False
    statuses: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What a self-test found: power.json. Every list is in the order of faults, then scenarios.

    `failures` are sentences: what did not behave. `date` is a day, UTC. `unplayed` trials were left
    out, for want of time or because it was stopped: then the figures are `partial`.
    """

    schema: int
    leakcheck: str
    engine: str
    date: str
    full: bool
    seed: int
    trials: int
    unplayed: int
    faults: tuple[FaultRow, ...]
    scenarios: tuple[str, ...]
    cells: tuple[Cell, ...]
    quiet: tuple[Quiet, ...]
    failures: tuple[str, ...]
    partial: bool = False
