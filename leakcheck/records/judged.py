"""The judgement: findings, exposure, verdicts, the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from leakcheck.records.asked import Owner, Relation, Status
from leakcheck.records.observed import Provenance, RunEvent

BOUNDARIES = "Leaks by trust boundary"
"""The table of a verdict: boundary, leaks (pairs of source and recipient), and the pairs exposed,
those together and those one after the other."""


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
    `changed-answer`, `foreign-parameters`, `diverted-answer`, `broken-connection` (corruption);
    `lost-capacity` (error);
    `withheld-passphrase`, `divergence`, `influence`, `duplicate-id` (notes); `altered-passphrase`,
    `foreign-topic` (notes, until the evidence of all of them makes them leaks). A whole passphrase
    in another form, `evidence["whole"]`, is a leak at once; a note with `evidence["open"]` keeps a
    scenario from being clean. `severity` says what it does to the verdict.
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
class Look:
    """What one fuzzy tier saw in one window: the planted candidates against their phantoms.

    `e_values`: one for each bet of the tier, never more than 1 on average where nothing leaks, so
    that they may be multiplied over windows and looked at after each. `sources` candidates were
    planted, `planted_hits` of them showed; of their `phantoms`, `phantom_hits` did. `whole` answers
    showed all of a passphrase in another form, which is proof; `unshared` showed a part of one that
    none of its phantoms shares, which is an open suspicion.
    """

    tier: str
    window: int
    e_values: tuple[float, ...]
    sources: int
    planted_hits: int
    phantoms: int
    phantom_hits: int
    whole: int = 0
    unshared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierEvidence:
    """A fuzzy tier over all windows: counts as in `Look`, summed, and its e-value.

    `phantom_hits` of `phantoms` is the false-positive rate of the tier, measured in this very run.
    """

    name: str
    weight: float
    windows: int
    sources: int
    planted_hits: int
    phantoms: int
    phantom_hits: int
    e_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How sure the verdict on one scenario is, and why its windows ended where they did.

    `e_value` weighs all tiers: where nothing leaks it ever reaches 1 / `alpha` with a chance of at
    most `alpha` (Ville). `detect` is the leak rate to be excluded. `sensitivity` is the part of the
    windows with a leak that would show it (echo x asked; None where nothing was echoed), and
    `certificate` the e-value against leaks in `detect` of the windows, (1 - detect x sensitivity)
    ** -trials while nothing leaked, in whatever way, else 0: at 25 they are excluded with 95 %
    confidence, as the echo rate in it has a bound of 99 %.
    `settled`: `leak`, `evidence` (e_value), `certificate`, or None where the budget of windows, or
    something else, ended them.
    """

    alpha: float
    detect: float
    e_value: float
    sensitivity: float | None
    certificate: float
    settled: str | None
    tiers: tuple[TierEvidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check says about one scenario's history: findings, and figures for the report.

    `tables` maps a title to rows of plain values (first row: the column names). `untested` says why
    what the check is there for was not tested at all: no verdict is clean then. `looks` are what
    its fuzzy tiers saw, window by window.
    """

    check: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    tables: dict[str, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)
    untested: tuple[str, ...] = ()
    looks: tuple[Look, ...] = ()


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
    `bound` is what a clean verdict certifies: min(1, upper / (echo x asked)), of its one-sided 96 %
    upper bound, the lower bound of the echo rate (99 %, at every look at once), and the share of
    answered recipients (of those in company, where there is any) that were asked for what they see
    (eliciting): a leak reaches any recipient, and only these would say it.
    1 excludes nothing; None where nothing was echoed, or anything leaked. `false_match_bound` is
    the entropy bound for the figures of this very run. `reasons` explain the status in plain
    sentences. `windows_planned` is the budget of windows, `windows_sent` those of which anything
    was sent. `windows_needed` are about the windows in all, control windows included, after which
    95 of 100 runs like this one would exclude `detect` (analyzer.prospect); None where nothing says
    it, or something leaked.
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
    evidence: Evidence | None = None
    windows_sent: int | None = None
    windows_needed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a run has used: attempts, their tokens, and for how many of them these were counted from
    characters.
    """

    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    estimated: int = 0

    @property
    def tokens(self) -> int:
        """Of prompts and answers."""
        return self.prompt_tokens + self.answer_tokens

    def __add__(self, other: Use) -> Use:
        """Both together."""
        return Use(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            answer_tokens=self.answer_tokens + other.answer_tokens,
            estimated=self.estimated + other.estimated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Attempts that brought no whole answer for one kind of reason: `attempts` of all `of`.

    `kind` is `status 500` or the beginning of the lane's sentence, `first` what else was said the
    first time, one line of untrusted text. `waited_out`: the target refused for the moment, and the
    request was sent again.
    """

    kind: str
    attempts: int
    of: int
    first: str = ""
    waited_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """report.json: the judgement. `requests` counts outcomes, `events` what befell the run.

    `e_value` is the mean over the scenarios of a run, those not played yet counting as 1: the
    largest that there was at the end of one. Fuzzy evidence makes a leak only where it reaches
    1 / alpha. `troubles` are the attempts that brought no whole answer, by kind.
    """

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
    e_value: float = 1.0
    used: Use | None = None
    troubles: tuple[Trouble, ...] = ()
