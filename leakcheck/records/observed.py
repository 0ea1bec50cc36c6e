"""What came back, and what befell the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leakcheck.records.asked import Caps, Outcome, Pace, Scenario, Target, TargetFacts

PROMPT = "prompt"
"""The field of the prompt's own tokens (`prompt_logprobs`): what was sent, said again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One sampled token with its log-probability (nats) and the alternatives, best first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the target says it used; `cached_tokens` None where it does not say. `negative`: it
    named a count below 0, which is not kept.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    negative: bool = False

    @property
    def impossible(self) -> bool:
        """Whether no request can have used that: a count below 0, or more tokens of its prompt
        cached than it has.
        """
        prompt, cached = self.prompt_tokens, self.cached_tokens
        return self.negative or (prompt is not None and cached is not None and cached > prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a target says that it still takes: so many `requests` until its limit is reset,
    `reset_s` seconds after the reply.
    """

    requests: int
    reset_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One piece of an answer as the target sent it, unaltered.

    `field` is where it stood: `content`, `reasoning`, `tool`, `error`, `prompt` (see PROMPT);
    further choices of one request are `content[1]` and so on. Texts of one field, joined, are the
    answer. `token_ids` are those of its tokens, where they were asked for. A chunk with a
    `connection` comes first and says that only: the number of the lane's connection that the answer
    comes over, counted from 1, and, where headers say it, which `replica` answers, which `reply_id`
    the target gives the reply and what is left of a `quota`.
    """

    text: str = ""
    field: str = "content"
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    target_id: str | None = None
    connection: int | None = None
    replica: str | None = None
    reply_id: str | None = None
    quota: Quota | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came back for one attempt of one request, with times stamped by the lane.

    `ok`: a whole answer. `failed`: certainly not generated (refused connection, 4xx). `aborted`:
    the lane hung up, as planned. `unknown`: anything else (time-out, cut stream, 5xx, killed): the
    request may have had an effect. `error` is one sentence. `attempt` counts from 1. `start_ns` is
    taken before the first byte is sent. `target_id` stands in the answer, `reply_id` in a header of
    the reply: what the logs of the target know it by.
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
    connection: int | None = None
    replica: str | None = None
    reply_id: str | None = None
    quota: Quota | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What the target said of itself at one moment, on its page of metrics: metrics.jsonl.

    `running` is the number of requests that it computes (in its busiest engine, where it has
    several), by the metric `name`; `waiting` those in its queue. `preemptions` and
    `cached_tokens` (of prompts, found in the prefix cache) count from its start; `kv_usage` is the
    used share of its KV cache.
    """

    at_ns: int
    name: str
    running: float
    waiting: float | None = None
    preemptions: float | None = None
    cached_tokens: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What leakcheck showed of itself before a run: that it can say `leak`, and does not cry wolf.

    Of `faults` of the embedded engine that some scenario claims, `caught` were caught in every seed
    with the right source and recipient; of `harmless` targets (the healthy engine, benign faults)
    `accused` were called leaking. `failures` are sentences. `date` is a day, UTC.
    """

    date: str
    passed: bool
    faults: int
    caught: int
    harmless: int
    accused: int
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who ran what, when, against what: run.json. `command` has no secrets.

    `play_all`: every planned window was to be played, whatever the ones before it showed.
    `lifetimes` of the target were to be seen by each scenario; `restart` is the command that a
    target which is not embedded is restarted with.
    """

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
    selftest: SelfTest | None = None
    play_all: bool = False
    lifetimes: int = 1
    restart: str | None = None
    caps: Caps = field(default_factory=Caps)
    pace: Pace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened to the run itself: a worker died, the run was interrupted or resumed.

    `kind`: `worker-died`, `interrupted`, `target-lost`, `harness-error`, `resumed`, `finished`,
    `settled` (the windows of a scenario ended before its budget: `detail` is its name), `spent` (a
    cap of requests, tokens or cost would have been exceeded by what came next: `detail` says
    which), `breaker` (too many errors: `detail` counts them), `told-to-wait` (the target refuses,
    and wants more time to pass than the run has),
    `restarted` (another lifetime of the target begins: `detail` is the scenario, and which of how
    many, and what showed it), `restart-unseen` (as that, where nothing showed that the target did
    restart); in a report also `torn-line`.
    """

    kind: str
    at_ns: int
    detail: str = ""
