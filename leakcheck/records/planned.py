"""The plan: every request of a scenario, with who owns what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from leakcheck.records.asked import Arm, Ask, Role, Scenario, Sent, Style


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
    """Sampling parameters as they are sent; None leaves a parameter out, and so do False and ().

    `n` answers are asked for: the fields `content`, `content[1]` and so on. Extensions that some
    engines have: `prompt_logprobs`, `ignore_eos`, `allowed_token_ids`, the only tokens that may be
    written, and `return_token_ids`, which asks for the ids of those that were.
    """

    max_tokens: int = 32
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    n: int | None = None
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    return_token_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One planned request. `passphrase` and `ticket` are in its payload (never in another's).

    `withheld` is a passphrase drawn for a control request and never sent. `note` is as many words
    of the same list in its payload, where a passphrase is left out: no secret, and not looked for,
    so that prompts without passphrases are as long as those with them. `twin` names the request
    that carries the very same payload in other company (differential, replay), or the first turn
    of the conversation that this one goes on with; both of them own the payload's phrases.
    `replays` is set on confirmation requests only: the request they repeat.
    `cell` is the sub-condition of the traffic shape ("B+1 warm"), `shared_tokens` the length of
    the prefix it shares by plan with `partner`, the source aimed at it. `start_offset_s` counts
    from the start of its phase.

    `tenant` is whose secret it is in the plan; `key` names the tenant of the target whose API key
    it is sent with (None: the target's own key).

    `tools` are functions, each with `name`, `description` and `parameters` (a JSON schema), and
    `tool_choice` says whether one must be called; `response_format` is OpenAI's. With
    `prompt_token_ids` these are the prompt of a completion, in place of the messages. `extra` are
    fields of the JSON body that go beyond all that, by their names at the target.

    `sent` is how it goes over HTTP: `plain`; `expect`, whose body waits until the target has said
    that it goes on (`Expect: 100-continue`, a second at most); or `misdirected`, to a path that no
    target has, so that it is refused while its body is still unread. Backends without HTTP send all
    of them plain.

    `client_id` is sent as the header X-Request-Id, `conversation` as a conversation id in the
    metadata of the request. The lane hangs up `abort_after_s` after sending, or once
    `abort_after_chunks` pieces of the answer have come, whichever is first.
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
    note: Passphrase | None = None
    answer: str | None = None
    stream: bool = True
    start_offset_s: float = 0.0
    cache_salt: str | None = None
    cell: str = ""
    partner: str | None = None
    shared_tokens: int | None = None
    twin: str | None = None
    replays: str | None = None
    client_id: str | None = None
    conversation: str | None = None
    abort_after_s: float | None = None
    abort_after_chunks: int | None = None
    key: str | None = None
    sent: Sent = "plain"
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | None = None
    response_format: dict[str, Any] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


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
