"""What goes into the engine and comes out of it. Imports nothing of ours and no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


class EngineError(Exception):
    """One sentence for whoever started the engine: this model, file or flag cannot work."""


class RequestError(Exception):
    """One sentence for a client: this request cannot be served. `param` names the field."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        """`status` is the HTTP status it becomes."""
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine is built.

    `num_blocks` physical blocks of `block_size` token positions; at most `step_tokens` tokens are
    computed in one step (chunked prefill) for at most `max_running` sequences. `share_partial` lets
    a request share the matching head of a block that does not match to its end (copied on write).
    """

    num_blocks: int = 1024
    block_size: int = 16
    max_running: int = 64
    step_tokens: int = 512
    prefix_cache: bool = True
    share_partial: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen. `temperature` 0 is greedy.

    `logprobs` is the number of alternatives reported for each token (0: the chosen one only), of
    the model's own distribution: before bias, penalties and temperature. `None`: none reported.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One prompt with `n` choices. `salt` keeps its cached prefix apart from other salts."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    n: int = 1
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One generated token with its natural-log probability and its `top` (id, logprob) pairs.

    `offset` is the character offset in the answer at which the token's text begins.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one choice; `cached_tokens` of the prompt came out of the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one step added to choice `index` of request `id`: a token, and what text came of it.

    `finish_reason` and `usage` come together, with the last update of that choice.
    """

    id: str
    index: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Gauges of this moment, then counts since the start. Prefix counts are prompt tokens."""

    running: int
    waiting: int
    blocks_used: int
    blocks_free: int
    blocks_cached: int
    requests: int
    finished: int
    aborted: int
    preemptions: int
    evictions: int
    prefix_queries_tokens: int
    prefix_hits_tokens: int
    generated_tokens: int
    steps: int
