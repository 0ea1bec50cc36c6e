"""Every frozen value that crosses a module, process or file boundary.

All are JSON types all the way down: `orjson.dumps` writes them, `msgspec.convert(data, Type)` reads
them back and refuses anything else. Units are in the names: `_s` float seconds, `_ns` monotonic
integer nanoseconds of this host, `_tokens`, `_bytes`. Rates are fractions 0..1. `None` is the only
"not measured". Imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""Version of the run folder and of report.json; raised when the meaning of a field changes."""

Arm = Literal["planted", "control"]
Role = Literal["source", "recipient", "companion"]
Ask = Literal["eliciting", "neutral", "free"]
Outcome = Literal["ok", "failed", "unknown"]
Status = Literal["clean", "inconclusive", "error", "corruption", "leak"]
Style = Literal["rare-token", "phrase"]
Owner = Literal["own", "foreign", "phantom"]
Relation = Literal["concurrent", "sequential", "unknown"]
Api = Literal["chat", "completions"]

EXIT_CODES: dict[Status, int] = {
    "clean": 0,
    "leak": 1,
    "corruption": 1,
    "inconclusive": 3,
    "error": 4,
}
EXIT_INTERRUPTED = 130


# --- what is asked for ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The service under test, as the user named it. Keys are named by environment variable only.

    `ca_file` is a PEM bundle for a private authority; certificates are always checked.
    """

    base_url: str
    model: str
    backend: str = "openai"
    api: Api = "chat"
    api_key_env: str | None = None
    headers_env: dict[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    timeout_s: float = 60.0
    max_reply_bytes: int = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much of a scenario's traffic: every number can be overridden on the command line.

    A window holds `requests` requests per phase (a traffic shape may add companions); `workers` x
    `lanes` requests can be in flight at once. `control` is the chance that a window is drawn for
    the control arm. `phantoms` passphrases a window are drawn and never sent.
    """

    windows: int
    requests: int = 16
    workers: int = 4
    lanes: int = 8
    control: float = 0.0
    max_tokens: int = 32
    passphrase_words: int = 6
    phantoms: int = 999
    timeout_s: float = 60.0
    retries: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a clean verdict needs at least. Rates are compared with their lower 95 % bound.

    `min_echo` is the share of owners asked for their passphrase that show it; the same share of
    answers must show their ticket where the check `own_answer` looks for it. `min_overlap` is the
    share of recipients that ran together with at least one other request;
    `min_cache_hits` the share of warm recipients whose planned prefix was cached (0: not asked).
    """

    min_windows: int = 60
    min_echo: float = 0.5
    min_overlap: float = 0.5
    min_cache_hits: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlugIn:
    """A traffic shape or check by name, with the options of its scenario table."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario file, validated. `digest` is the SHA-256 of its bytes and of all overrides."""

    name: str
    version: int
    summary: str
    load: Load
    traffic: PlugIn
    checks: tuple[PlugIn, ...]
    gate: Gate
    digest: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What the survey found out about the target before planning; the plan depends on nothing else.

    `block_tokens` is the unit in which the target reports prefix-cache hits (None: it reports
    none). `overhead_tokens` stand in front of the user's text in every chat prompt (the template),
    and `tokens_per_word` is what one word of filler costs. `continues`: the target goes on with a
    text (completions) rather than answer one (chat).
    """

    models: tuple[str, ...] = ()
    block_tokens: int | None = None
    overhead_tokens: int = 0
    tokens_per_word: float = 1.0
    reports_cached_tokens: bool = False
    reports_logprobs: bool = False
    continues: bool = False
    notes: tuple[str, ...] = ()


# --- the plan ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Passphrase:
    """A unique random marker owned by one request: `words` joined by single spaces.

    `entropy_bits` is the base-2 logarithm of the number of equally likely phrases it was drawn
    from, given every other phrase of the window.
    """

    words: tuple[str, ...]
    style: Style
    entropy_bits: float

    @property
    def text(self) -> str:
        """The phrase as it is sent."""
        return " ".join(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters as they are sent; None leaves a parameter out."""

    max_tokens: int = 32
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One planned request. `passphrase` and `ticket` are in its payload (never in another's).

    `withheld` is a passphrase drawn for a control request and never sent. `twin` names the request
    that carries the very same payload in other company (differential, replay); both of them own
    the payload's phrases. `replays` is set on confirmation requests only: the request they repeat.
    `cell` is the sub-condition of the traffic shape ("B+1 warm"), `shared_tokens` the length of
    the prefix it shares by plan with `partner`, the source aimed at it. `start_offset_s` counts
    from the start of its phase.
    """

    id: str
    scenario: str
    window: int
    phase: int
    arm: Arm
    tenant: str
    role: Role
    ask: Ask
    worker: int
    lane: int
    messages: tuple[Message, ...]
    sampling: Sampling
    passphrase: Passphrase | None = None
    ticket: Passphrase | None = None
    withheld: Passphrase | None = None
    answer: str | None = None
    stream: bool = True
    start_offset_s: float = 0.0
    cache_salt: str | None = None
    cell: str = ""
    partner: str | None = None
    shared_tokens: int | None = None
    twin: str | None = None
    replays: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every request of one scenario; equal scenario, seed and facts give equal plans.

    `words` is the list that passphrases and phantoms are drawn from; phantoms are not stored but
    drawn again by `passphrase.phantoms(plan, window)`.
    """

    scenario: Scenario
    seed: int
    words: tuple[str, ...]
    style: Style
    requests: tuple[Request, ...]


# --- what came back ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One sampled token with its log-probability (nats) and the alternatives, best first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the target says it used; `cached_tokens` None where it does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One piece of an answer as the target sent it, unaltered.

    `field` is where it stood: `content`, `reasoning`, `tool`, `error`; further choices of one
    request are `content[1]` and so on. Texts of one field, joined, are the answer.
    """

    text: str = ""
    field: str = "content"
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    target_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came back for one attempt of one request, with times stamped by the lane.

    `ok`: a whole answer. `failed`: certainly not generated (refused connection, 4xx). `unknown`:
    anything else (time-out, cut stream, 5xx, killed): the request may have had an effect. `error`
    is one sentence. `attempt` counts from 1. `start_ns` is taken before the first byte is sent.
    """

    request_id: str
    worker: int
    lane: int
    outcome: Outcome
    start_ns: int
    end_ns: int
    attempt: int = 1
    first_chunk_ns: int | None = None
    chunks: tuple[Chunk, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    target_id: str | None = None
    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who ran what, when, against what: run.json. `command` has no secrets."""

    schema: int
    leakcheck: str
    python: str
    platform: str
    packages: dict[str, str]
    command: tuple[str, ...]
    started_utc: str
    seed: int
    target: Target
    facts: TargetFacts
    scenarios: tuple[Scenario, ...]
    engine: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened to the run itself: a worker died, the run was interrupted or resumed.

    `kind`: `worker-died`, `interrupted`, `target-lost`, `harness-error`, `resumed`, `finished`; in
    a report also `torn-line`.
    """

    kind: str
    at_ns: int
    detail: str = ""


# --- the judgement -------------------------------------------------------------------------------


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

    `anomaly`: `foreign-passphrase`, `foreign-answer`, `lost-answer`, `withheld-passphrase`,
    `divergence`. `severity` says what it does to the verdict: `leak`, `corruption` or `note`.
    `excerpt` is untrusted text of the target; `mark` are the offsets in it that matter.
    """

    check: str
    anomaly: str
    severity: Literal["leak", "corruption", "note"]
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

    `tables` maps a title to rows of plain values (first row: the column names).
    """

    check: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    tables: dict[str, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)


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
    passphrase was inside the target while others were answered, and answered requests overlapped.
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
