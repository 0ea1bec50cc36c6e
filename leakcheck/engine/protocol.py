"""OpenAI's request bodies, read strictly: what the engine cannot do is refused by name."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from leakcheck.engine.values import RequestError, SamplingParams

Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Positive = Annotated[int, Meta(ge=1)]
Choices = Annotated[int, Meta(ge=1, le=128)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]
TokenId = Annotated[int, Meta(ge=0, le=2**31)]
STOPS_MAX = 4
BIAS_MAX = 100


class StreamOptions(Struct, frozen=True, kw_only=True):
    """What a stream carries besides text."""

    include_usage: bool = False


class ResponseFormat(Struct, frozen=True, kw_only=True):
    """Only plain text."""

    type: Literal["text"] = "text"


class TextPart(Struct, frozen=True, kw_only=True):
    """One part of a message's content; only text."""

    type: Literal["text"]
    text: str


class Message(Struct, frozen=True, kw_only=True):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def template_form(self) -> dict[str, str]:
        """What a chat template reads."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class Common(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of both endpoints. Those after the blank line are accepted and change nothing.

    Not OpenAI's, as vLLM has them: `cache_salt` keeps a prefix to those who know the salt,
    `ignore_eos` goes on to `max_tokens`, `allowed_token_ids` are the only ones that may be
    written, `return_token_ids` gives the ids of those that were. `temperature` is 0 when absent,
    unlike OpenAI's 1.
    """

    model: str
    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: int | None = None
    n: Choices | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[TokenId] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    cache_salt: str | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """The engine's parameters. RequestError names the field that is wrong."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", param="stream_options")
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            stop=stop_strings(self.stop),
            logit_bias=bias_pairs(self.logit_bias),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logprobs=logprobs,
            ignore_eos=self.ignore_eos,
        )


class CompletionBody(Common, frozen=True, kw_only=True):
    """`POST /v1/completions`. `echo` and `suffix` are refused by their types."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Alternatives | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    best_of: Choices | None = None

    def alternatives(self) -> int | None:
        """How many alternatives to report a token; None: no logprobs."""
        return self.logprobs


class ChatBody(Common, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`. Tools, audio and structured output are refused by type."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: Annotated[list[Any], Meta(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    def alternatives(self) -> int | None:
        """How many alternatives to report a token; None: no logprobs."""
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


Body = TypeVar("Body", CompletionBody, ChatBody)


def decode(raw: bytes, kind: type[Body]) -> Body:
    """A body of this kind; RequestError with the offending field otherwise."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        message = str(error)
        if unknown := re.search(r"unknown field `(\w+)`", message):
            name = unknown[1]
            raise RequestError(f"unrecognized request argument: {name}", param=name) from error
        if missing := re.search(r"missing required field `(\w+)`", message):
            raise RequestError(f"you must provide {missing[1]}", param=missing[1]) from error
        where = re.search(r"`\$\.?(.*)`$", message)
        param = where[1] or None if where else None
        raise RequestError(message, param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """At most four stop strings, none empty."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > STOPS_MAX or not all(stops):
        raise RequestError("stop takes up to 4 strings, none of them empty", param="stop")
    return stops


def bias_pairs(bias: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs, biases within -100..100."""
    pairs = []
    for key, value in (bias or {}).items():
        if not key.isdecimal() or not -BIAS_MAX <= value <= BIAS_MAX:
            raise RequestError(
                f"logit_bias maps token ids to numbers from -100 to 100, not {key!r} to {value}",
                param="logit_bias",
            )
        pairs.append((int(key), value))
    return tuple(pairs)


def error_body(message: str, *, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    """OpenAI's shape of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
