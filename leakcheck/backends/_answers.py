"""OpenAI's JSON, whole replies and stream events alike, read into chunks.

Targets send all sorts of things: what has another type than it should is passed over, what is
missing is None; only a reply that cannot be an answer at all raises Broken.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Any

import orjson

from leakcheck.backends import Broken
from leakcheck.backends._http import error_text
from leakcheck.records import Chunk, TokenLogprob, Usage
from leakcheck.redact import one_line

_LARGEST_COUNT = 2**53
PROMPT = "prompt"
"""The field of the prompt's own tokens, which come with `prompt_logprobs`."""


class Answer:
    """One answer in the making: feed it every JSON document of the reply, in order."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._target_id: str | None = None
        self._choices: dict[int, bool] = {}
        self.done = False
        """The target said that the stream is over (`[DONE]`)."""

    @property
    def begun(self) -> bool:
        """At least one choice was seen."""
        return bool(self._choices)

    @property
    def finished(self) -> bool:
        """Every choice seen has its finish_reason."""
        return self.begun and all(self._choices.values())

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one document. Raises Broken (after the chunks it could read)."""
        if raw.strip() == b"[DONE]":
            self.done = True
            return
        document = yield from decoded(raw)
        if document.get("error"):
            text = error_text(document)
            yield Chunk(text=text, field="error")
            raise Broken(f"the target reported an error: {one_line(text)}")
        yield from self._chunks(document)

    def _chunks(self, document: dict[str, Any]) -> Iterator[Chunk]:
        target_id = text_of(document.get("id")) or None
        if target_id == self._target_id:
            target_id = None  # said once; again only where it changes, which would be evidence
        else:
            self._target_id = target_id or self._target_id
        choices = document.get("choices")
        for place, choice in enumerate(choices if isinstance(choices, list) else ()):
            if not isinstance(choice, dict):
                continue
            index = _count(choice.get("index"))
            for chunk in self._choice(choice, place if index is None else index, target_id):
                target_id = None
                yield chunk
        prompt = _prompt(document.get("prompt_logprobs"))
        if prompt:
            yield Chunk(text=prompt, field=PROMPT, target_id=target_id)
            target_id = None
        usage = usage_of(document.get("usage"))
        if usage is None:
            usage = _timed(document.get("timings"))
        if usage is not None or target_id is not None:
            yield Chunk(usage=usage, target_id=target_id)

    def _choice(self, choice: dict[str, Any], index: int, target_id: str | None) -> Iterator[Chunk]:
        finish_reason = text_of(choice.get("finish_reason")) or None
        self._choices[index] = self._choices.get(index, False) or finish_reason is not None
        logprobs = _logprobs(choice.get("logprobs"))
        if prompt := _prompt(choice.get("prompt_logprobs")):
            yield Chunk(text=prompt, field=PROMPT)
        suffix = f"[{index}]" if index else ""
        texts = [(name, text) for name, text in _texts(choice) if text]
        if not texts and (finish_reason or logprobs):
            texts = [("content", "")]
        for number, (name, text) in enumerate(texts, start=1):
            yield Chunk(
                text=text,
                field=name + suffix,
                logprobs=logprobs if number == 1 else (),
                finish_reason=finish_reason if number == len(texts) else None,
                target_id=target_id if number == 1 else None,
            )


def decoded(raw: bytes) -> Generator[Chunk, None, dict[str, Any]]:
    """The JSON object of a reply; of what is none the text as a chunk, and then Broken."""
    text = raw.decode("utf-8", "replace")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        yield Chunk(text=text, field="error")
        raise Broken(f"the target sent invalid JSON: {one_line(text, limit=80)!r}") from None
    if not isinstance(document, dict):
        yield Chunk(text=_shown(document), field="error")
        raise Broken(f"the target sent JSON that is no answer: {_shown(document)[:80]}")
    return document


def _texts(choice: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of one choice with their fields, in the order a model produces them."""
    message = choice.get("delta") or choice.get("message")
    if not isinstance(message, dict):
        yield "content", text_of(choice.get("text"))
        return
    # Some servers send both names of it with the same text.
    reasoning = text_of(message.get("reasoning_content"))
    other = text_of(message.get("reasoning"))
    yield "reasoning", reasoning or other
    if reasoning and other and other != reasoning:
        yield "reasoning", other
    yield "content", text_of(message.get("content"))
    yield "content", text_of(message.get("refusal"))
    calls = message.get("tool_calls")
    for call in (*(calls if isinstance(calls, list) else ()), message):
        function = call.get("function_call" if call is message else "function") or {}
        if isinstance(function, dict):
            yield "tool", text_of(function.get("name"))
            yield "tool", text_of(function.get("arguments"))


def text_of(value: object) -> str:
    """A text, or the texts of a list of content parts, joined."""
    if isinstance(value, list):
        return "".join(text_of(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _shown(value: object) -> str:
    return orjson.dumps(value).decode()


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _LARGEST_COUNT else None


def usage_of(value: object) -> Usage | None:
    """What was used, by all the names there are: OpenAI's of chat and of responses, Anthropic's,
    DeepSeek's and Moonshot's. None where nothing is told.
    """
    if not isinstance(value, dict):
        return None
    usage = Usage(
        prompt_tokens=_first(value, "prompt_tokens", "input_tokens"),
        completion_tokens=_first(value, "completion_tokens", "output_tokens"),
        cached_tokens=_cached(value),
    )
    return None if usage == Usage() else usage


def _cached(usage: dict[str, Any]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if (
            isinstance(details, dict)
            and (cached := _count(details.get("cached_tokens"))) is not None
        ):
            return cached
    return _first(usage, "prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens")


def _timed(value: object) -> Usage | None:
    """llama.cpp's own figures: `prompt_n` tokens were computed, `cache_n` more were cached."""
    if not isinstance(value, dict):
        return None
    computed, cached = _count(value.get("prompt_n")), _count(value.get("cache_n"))
    if computed is None:
        return None
    return Usage(
        prompt_tokens=computed + (cached or 0),
        completion_tokens=_count(value.get("predicted_n")),
        cached_tokens=cached,
    )


def _first(of: dict[str, Any], *names: str) -> int | None:
    counts = (_count(of.get(name)) for name in names)
    return next((count for count in counts if count is not None), None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _logprobs(value: object) -> tuple[TokenLogprob, ...]:
    """Both shapes: chat (`content`: a list of objects) and completions (parallel lists).

    Empty as soon as one token has no finite number: a hole would shift all that follow.
    """
    if not isinstance(value, dict):
        return ()
    if isinstance(content := value.get("content"), list):
        return chat_logprobs(content)
    if isinstance(tokens := value.get("tokens"), list):
        numbers, tops = value.get("token_logprobs"), value.get("top_logprobs")
        numbers = numbers if isinstance(numbers, list) else []
        tops = tops if isinstance(tops, list) else []
        tops = [*tops, *[None] * (len(tokens) - len(tops))]
        found = [
            _token_logprob(token, number, top.items() if isinstance(top, dict) else ())
            for token, number, top in zip(tokens, numbers, tops, strict=False)
        ]
        return _whole(found)
    return ()


def chat_logprobs(value: object) -> tuple[TokenLogprob, ...]:
    """Those of chats and responses, a list of objects; empty as soon as one has no number."""
    return _whole([_chat_logprob(item) for item in value]) if isinstance(value, list) else ()


def _whole(found: list[TokenLogprob | None]) -> tuple[TokenLogprob, ...]:
    whole = tuple(item for item in found if item is not None)
    return whole if len(whole) == len(found) else ()


def _prompt(value: object) -> str:
    """The prompt's tokens as vLLM gives them: a list of {token id: {decoded_token, rank}}, of which
    the first is that of the prompt.
    """
    texts = []
    for each in value if isinstance(value, list) else ():
        first = next(iter(each.values()), None) if isinstance(each, dict) else None
        if isinstance(first, dict):
            texts.append(text_of(first.get("decoded_token")))
    return "".join(texts)


def _chat_logprob(item: object) -> TokenLogprob | None:
    if not isinstance(item, dict):
        return None
    tops = item.get("top_logprobs")
    pairs = [
        (top.get("token"), top.get("logprob"))
        for top in (tops if isinstance(tops, list) else ())
        if isinstance(top, dict)
    ]
    return _token_logprob(item.get("token"), item.get("logprob"), pairs)


def _token_logprob(token: object, number: object, pairs: Any) -> TokenLogprob | None:
    logprob = _number(number)
    if not isinstance(token, str) or logprob is None:
        return None
    top = (
        (text, value)
        for text, raw in pairs
        if isinstance(text, str) and (value := _number(raw)) is not None
    )
    return TokenLogprob(
        token=token, logprob=logprob, top=tuple(sorted(top, key=lambda pair: -pair[1]))
    )
