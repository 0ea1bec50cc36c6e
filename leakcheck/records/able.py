"""What a target can do, found by asking: the answer of `leakcheck doctor`.

Of every ability `None` is "not asked, or it did not say": never a no.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from leakcheck.records.asked import EXIT_CODES, EXIT_INTERRUPTED, Api, TargetFacts
from leakcheck.records.judged import Rate

Part = Literal["survey", "abilities", "audition", "noise"]
"""Of an examination, in this order: block size and template; what its answers show that it can do;
which passphrases it repeats; how far it repeats itself, alone and in company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address of the target and how it answered a request without content: `there` None where
    that does not say it (a key is missing, it is overloaded). `words` are the target's.
    """

    method: Literal["GET", "POST"]
    path: str
    there: bool | None
    status: int | None
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a target can do, by its answers to `requests` requests of at most so many `tokens`.

    `engine` is what it looks like, by its own words, and decides nothing. `apis` are those that
    answered a tiny request. `context_tokens` is the limit that it names. `pieces`: an answer of
    several tokens came in so many. `logprobs` is how many alternatives a token came with (0: none),
    `token_ids` whether answers came as ids too. `refuses` are the fields that it does not take.
    `salts`: whether a prefix cached under one cache_salt is found under another (`together`) or not
    (`apart`). `limits` are the headers in which it names limits. `unsaid` are abilities that its
    backend has no words for, so that they were not asked for. `lost`: it answered nothing at all
    any more in the end.
    """

    base_url: str
    backend: str
    api: Api
    model: str
    models: tuple[str, ...] = ()
    engine: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    apis: tuple[Api, ...] = ()
    context_tokens: int | None = None
    pieces: int | None = None
    usage: bool | None = None
    usage_in_streams: bool | None = None
    cached_tokens: bool | None = None
    logprobs: int | None = None
    temperature: bool | None = None
    seed: bool | None = None
    stop: bool | None = None
    n: bool | None = None
    tools: Literal["called", "accepted", "refused"] | None = None
    response_format: Literal["followed", "ignored", "refused"] | None = None
    token_prompts: bool | None = None
    prompt_logprobs: bool | None = None
    token_ids: bool | None = None
    reasoning: bool | None = None
    salts: Literal["apart", "together"] | None = None
    refuses: tuple[str, ...] = ()
    metrics: str | None = None
    limits: dict[str, str] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()
    lost: bool = False
    requests: int = 0
    tokens: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far the target repeats itself, by as few `windows`; of `compared` answers `differ`, alone
    and in company without passphrases, and their log-probabilities by up to `drift_nats` before.

    `grade`: D0 to the bit also in company, D1 in company not (tokens, or only log-probabilities),
    D2 not even alone; None where nothing differed and no log-probabilities say whether to the bit.
    """

    grade: Literal["D0", "D1", "D2"] | None
    windows: int
    alone_differ: int
    alone_compared: int
    company_differ: int
    company_compared: int
    alone_drift_nats: float | None = None
    company_drift_nats: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a run of one scenario would give on this target: whether it `can` be judged (None: only
    a run can tell), why not, and what to know of it. `windows`, `requests` and `minutes` are what
    it takes to exclude leaks in `detect` of the windows, as far as that is known.
    """

    scenario: str
    can: bool | None
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    detect: float
    windows: int | None = None
    requests: int | None = None
    minutes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that `leakcheck doctor` found out, and what it took: attempts of requests, seconds.

    `echo` is how often owners in company were answered with their own passphrase, of the style and
    phrasing in `facts`, where those that were tried stand too; None where none was in company.
    `unmeasured` is what the examination did not come to, and `ended` why (kind of the event, and a
    sentence); None where it came to its end.
    """

    abilities: Abilities
    facts: TargetFacts
    noise: Noise | None
    echo: Rate | None
    outlooks: tuple[Outlook, ...]
    requests: int
    duration_s: float
    requests_per_s: float | None
    unmeasured: tuple[Part, ...] = ()
    ended: tuple[str, str] | None = None

    @property
    def exit_code(self) -> int:
        """0 where all was measured; 4 where the target was lost or would take no more, 3 where the
        caps were used up, 130 where it was interrupted.
        """
        if self.ended is None:
            return 0
        return {"interrupted": EXIT_INTERRUPTED, "spent": EXIT_CODES["inconclusive"]}.get(
            self.ended[0], EXIT_CODES["error"]
        )
