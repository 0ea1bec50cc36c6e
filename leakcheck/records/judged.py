"""The judgement: findings, exposure, verdicts, the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from leakcheck.records.asked import Owner, Relation, Status
from leakcheck.records.observed import Provenance, RunEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A passphrase or ticket found in an answer.

    `source` is the id of the request that owns it, or `phantom`. `start`/`end` are character
    offsets into the field's joined text as received. `variant`: `exact` (byte for byte) or
    `normalised`.
    """

    recipient: str
    source: str
    kind: Literal["passphrase", "ticket", "withheld", "phantom"]
    owner: Owner
    field: str
    start: int
    end: int
    variant: Literal["exact", "normalised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One instance of a broken rule, as a sentence and as data.

    `anomaly`: `foreign-passphrase`, `foreign-answer`, `foreign-cache-hit` (leaks); `lost-answer`,
    `changed-answer`, `foreign-parameters` (corruption); `lost-capacity` (error);
    `withheld-passphrase`, `divergence`, `duplicate-id` (notes). `severity` says what it does to
    the verdict.
    `excerpt` is untrusted text of the target; `mark` are the offsets in it that matter.
    """

    check: str
    anomaly: str
    severity: Literal["leak", "corruption", "error", "note"]
    scenario: str
    window: int
    recipient: str
    source: str | None = None
    relation: Relation = "unknown"
    excerpt: str = ""
    mark: tuple[int, int] | None = None
    explanation: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`events` of `trials`, with the exact two-sided 95 % interval and one-sided 95 % bounds."""

    events: int
    trials: int
    low: float
    high: float
    lower: float
    upper: float

    @property
    def value(self) -> float | None:
        """The plain fraction; None without trials."""
        return self.events / self.trials if self.trials else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Evidence that the condition under test did occur.

    `measured` is compared with `minimum` by its lower bound where it is a rate; `enough` is None
    where the scenario sets no minimum. `text` says it in words, numerator and denominator included.
    """

    name: str
    measured: Rate | float | None
    minimum: float | None
    enough: bool | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check says about one scenario's history: findings, and figures for the report.

    `tables` maps a title to rows of plain values (first row: the column names). `untested` says why
    what the check is there for was not tested at all: no verdict is clean then.
    """

    check: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    tables: dict[str, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)
    untested: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Leak rate by level of a condition: `level` is what the axis says, `rate` of that level."""

    title: str
    axis: str
    points: tuple[tuple[str, Rate], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement on one scenario.

    `leak_rate` counts trials with a leak over trials: windows of the planted arm in which a
    passphrase was inside the target while others were answered, and answered requests overlapped
    (or the plan sends the requests of the window one at a time).
    Leaks anywhere else (control windows, replays) make the status `leak` and are not in the rate.
    `bound` is what a clean verdict certifies: min(1, upper / (echo x asked)), of its one-sided 95 %
    upper bound, the lower bound of the echo rate, and the share of answered recipients that were
    asked for what they see (eliciting): a leak reaches any recipient, and only these would say it.
    1 excludes nothing; None where nothing was echoed. `false_match_bound` is the entropy
    bound for the figures of this very run. `reasons` explain the status in plain sentences.
    """

    scenario: str
    version: int
    status: Status
    reasons: tuple[str, ...]
    windows_planned: int
    leak_rate: Rate
    bound: float | None
    false_match_bound: float
    exposure: tuple[Exposure, ...] = ()
    findings: tuple[Finding, ...] = ()
    findings_total: int = 0
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    tables: dict[str, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """report.json: the judgement. `requests` counts outcomes, `events` what befell the run."""

    schema: int
    status: Status
    exit_code: int
    interrupted: bool
    duration_s: float
    requests: dict[str, int]
    verdicts: tuple[Verdict, ...]
    provenance: Provenance
    events: tuple[RunEvent, ...] = ()
    leaks_by_pair: tuple[tuple[str, str, int], ...] = ()
