"""What is asked for: the target, and a scenario as its file says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""Version of the run folder and of report.json; raised when the meaning of a field changes."""

Arm = Literal["planted", "control"]
Role = Literal["source", "recipient", "companion"]
Ask = Literal["eliciting", "neutral", "free"]
Outcome = Literal["ok", "failed", "unknown", "aborted"]
Status = Literal["clean", "inconclusive", "error", "corruption", "leak"]
Style = Literal["rare-token", "made-up", "digits", "phrase"]
Phrasing = Literal["asked", "exactly", "records", "again", "begun"]
Owner = Literal["own", "foreign", "phantom"]
Relation = Literal["concurrent", "sequential", "unknown"]
Api = Literal["chat", "completions", "responses"]
Sent = Literal["plain", "expect", "misdirected"]
Boundary = Literal["same connection", "same key", "another key"]

EXIT_CODES: dict[Status, int] = {
    "clean": 0,
    "leak": 1,
    "corruption": 1,
    "inconclusive": 3,
    "error": 4,
}
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One identity at the target: its own API key and headers (named by environment variable only),
    cache salt and user field. `name` is how plan and report call it.
    """

    name: str
    api_key_env: str | None = None
    headers_env: dict[str, str] = field(default_factory=dict)
    cache_salt: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The service under test, as the user named it. Keys are named by environment variable only.

    `base_url` is what the backend makes of it: a URL, or a command, or `module:function`.
    `ca_file` is a PEM bundle for a private authority; certificates are always checked. `tenants`
    are the identities that requests are dealt to; with none, all are sent with `api_key_env`.
    Without `keep_alive` each request has a connection of its own. `replica_header` is the header of
    a reply that names the replica (None: the usual ones are looked at). `refuses` are the fields of
    a request, by their names in its protocol, that the target was found to refuse before the run:
    they are not sent, and for `max_tokens` its successor is. `hottest` is the highest temperature
    that it was found to take, 2 at most.
    """

    base_url: str
    model: str
    backend: str = "openai"
    api: Api = "chat"
    api_key_env: str | None = None
    headers_env: dict[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    tenants: tuple[Tenant, ...] = ()
    keep_alive: bool = True
    replica_header: str | None = None
    refuses: tuple[str, ...] = ()
    hottest: float = 2.0
    timeout_s: float = 60.0
    max_reply_bytes: int = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What a run may use and never exceeds, survey, retries and replays included; None: no limit.

    `tokens` are those of prompts and answers together. `prompt_usd` and `answer_usd` are what the
    target charges for a million tokens of each; without them there is no cost.
    """

    requests: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    prompt_usd: float | None = None
    answer_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How hard a run may press: at most `requests` attempts in any `per_s` seconds and `in_flight`
    at one time, over all workers; None: no limit.

    A share of errors above `max_errors` ends the run, and so does a target that wants more than
    `max_wait_s` to pass before the next request.
    """

    requests: int | None = None
    per_s: float = 1.0
    in_flight: int | None = None
    max_errors: float | None = None
    max_wait_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much of a scenario's traffic: every number can be overridden on the command line.

    A window holds `requests` requests per phase (a traffic shape may add companions); `workers` x
    `lanes` requests can be in flight at once. `control` is the chance that a window is drawn for
    the control arm. `max_tokens` is raised where an answer could not hold a ticket and two
    passphrases of this target's tokens. `phantoms` passphrases a window are drawn and never sent.
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
    """What a clean verdict needs at least. Rates are compared with a lower 95 % bound that holds at
    all looks at once.

    `detect` is the leak rate (of windows) that a clean verdict excludes with 95 % confidence, and
    `alpha` the chance of calling an honest target leaking on evidence short of a whole foreign
    passphrase. `min_windows` trials are needed whatever they exclude.
    `min_echo` is the share of owners asked for their passphrase that show it; the same share of
    answers must show their ticket where the check `own_answer` looks for it. `min_overlap` is the
    share of recipients that ran together with at least one other request;
    `min_cache_hits` the share of warm recipients whose planned prefix was cached (0: not asked).
    """

    detect: float = 0.01
    alpha: float = 0.01
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
    """One scenario file, validated. `digest` is the SHA-256 of its bytes and of all overrides.

    `catches` names the faults of the embedded engine that it is made to find: `leakcheck selftest`
    holds it to that.
    """

    name: str
    version: int
    summary: str
    load: Load
    traffic: PlugIn
    checks: tuple[PlugIn, ...]
    gate: Gate
    digest: str
    path: str
    catches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """What owners did with passphrases of one style, asked for in one phrasing.

    Of `asked` answers, `echoed` show their own passphrase, `returned` their own ticket, and `both`
    the two of them. `words` is how many words a passphrase had, and `tokens` the mean number of
    tokens of an answer, as the target counts them (None: it does not say).
    """

    style: Style
    phrasing: Phrasing
    asked: int = 0
    echoed: int = 0
    returned: int = 0
    both: int = 0
    words: int = 0
    tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What the survey found out about the target before planning; the plan depends on nothing else.

    `block_tokens` is the unit in which the target reports prefix-cache hits (None: it reports
    none). `overhead_tokens` stand in front of the user's text in every chat prompt (the template),
    `tokens_per_word` is what one word of filler costs, `tokens_per_phrase_word` what one word of
    a passphrase does. `continues`: the target goes on with a text (completions) rather than answer
    one (chat). `samples`: the target follows temperature and seed (None: it did not say). `tenants`
    are the names of the target's tenants, whose API keys requests are sent with.
    `refuses` are fields of a request that it refuses, so that they are not sent, and `hottest` is
    the highest temperature that it takes (see `Target`).
    `style` and `phrasing` are those of passphrases that the target echoes best of all `echoes`
    (empty: it was not measured).
    """

    models: tuple[str, ...] = ()
    block_tokens: int | None = None
    overhead_tokens: int = 0
    tokens_per_word: float = 1.0
    tokens_per_phrase_word: float = 1.0
    reports_cached_tokens: bool = False
    reports_logprobs: bool = False
    continues: bool = False
    samples: bool | None = None
    refuses: tuple[str, ...] = ()
    hottest: float = 2.0
    tenants: tuple[str, ...] = ()
    style: Style | None = None
    phrasing: Phrasing = "asked"
    echoes: tuple[Echo, ...] = ()
    notes: tuple[str, ...] = ()
