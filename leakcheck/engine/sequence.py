"""One choice of one request while it lives in the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from leakcheck.engine.text import TextStream
from leakcheck.engine.values import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenLogprob,
    Usage,
)


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """Tokens, the blocks that hold their keys and values, and the state of its sampler and text.

    `table[i]` is the physical block of positions `i * block_size` onwards; the first `computed`
    positions are filled. `digests` names the full blocks already known to the prefix cache. A
    sequence with `forks` choices to come splits when its prompt has been computed.
    """

    request: GenerateRequest
    order: tuple[int, int]
    params: SamplingParams
    tokens: list[int]
    rng: Random
    text: TextStream
    forks: int = 0
    table: list[int] = field(default_factory=list)
    computed: int = 0
    digests: list[bytes] = field(default_factory=list)
    cached_tokens: int | None = None
    held_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def index(self) -> int:
        """Which choice of its request this is."""
        return self.order[1]

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values have still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def generated(self) -> int:
        """How many tokens have been generated."""
        return len(self.tokens) - len(self.request.prompt)

    def usage(self) -> Usage:
        """What this choice has cost."""
        return Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.generated,
            cached_tokens=self.cached_tokens or 0,
        )
