"""OpenAI's JSON, whole replies and stream events alike, read into chunks.

Targets send all sorts of things: what has another type than it should is passed over, what is
missing is None; only a reply that cannot be an answer at all raises Broken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import orjson

from leakcheck.backends import Broken
from leakcheck.backends._http import error_text
from leakcheck.records import Chunk, TokenLogprob, Usage
from leakcheck.redact import one_line

_LARGEST_COUNT = 2**53


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
        document = self._decoded(raw)
        if isinstance(document, Chunk):
            yield document
            raise Broken(f"the target sent invalid JSON: {one_line(document.text, limit=80)!r}")
        if not isinstance(document, dict):
            yield Chunk(text=_shown(document), field="error")
            raise Broken(f"the target sent JSON that is no answer: {_shown(document)[:80]}")
        if document.get("error"):
            text = error_text(document)
            yield Chunk(text=text, field="error")
            raise Broken(f"the target reported an error: {one_line(text)}")
        yield from self._chunks(document)

    def _decoded(self, raw: bytes) -> object:
        """The document, or an error chunk with its text where it is not JSON."""
        text = raw.decode("utf-8", "replace")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return Chunk(text=text, field="error")

    def _chunks(self, document: dict[str, Any]) -> Iterator[Chunk]:
        target_id = _text(document.get("id")) or None
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
        usage = _usage(document.get("usage"))
        if usage is not None or target_id is not None:
            yield Chunk(usage=usage, target_id=target_id)

    def _choice(self, choice: dict[str, Any], index: int, target_id: str | None) -> Iterator[Chunk]:
        finish_reason = _text(choice.get("finish_reason")) or None
        self._choices[index] = self._choices.get(index, False) or finish_reason is not None
        logprobs = _logprobs(choice.get("logprobs"))
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


def _texts(choice: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of one choice with their fields, in the order a model produces them."""
    message = choice.get("delta") or choice.get("message")
    if not isinstance(message, dict):
        yield "content", _text(choice.get("text"))
        return
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    yield "reasoning", _text(reasoning)
    yield "content", _text(message.get("content"))
    yield "content", _text(message.get("refusal"))
    calls = message.get("tool_calls")
    for call in (*(calls if isinstance(calls, list) else ()), message):
        function = call.get("function_call" if call is message else "function") or {}
        if isinstance(function, dict):
            yield "tool", _text(function.get("name"))
            yield "tool", _text(function.get("arguments"))


def _text(value: object) -> str:
    """A text, or the texts of a list of content parts, joined."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _shown(value: object) -> str:
    return orjson.dumps(value).decode()


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _LARGEST_COUNT else None


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    usage = Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        completion_tokens=_count(value.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )
    return None if usage == Usage() else usage


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
        found = [_chat_logprob(item) for item in content]
    elif isinstance(tokens := value.get("tokens"), list):
        numbers, tops = value.get("token_logprobs"), value.get("top_logprobs")
        numbers = numbers if isinstance(numbers, list) else []
        tops = tops if isinstance(tops, list) else []
        tops = [*tops, *[None] * (len(tokens) - len(tops))]
        found = [
            _token_logprob(token, number, top.items() if isinstance(top, dict) else ())
            for token, number, top in zip(tokens, numbers, tops, strict=False)
        ]
    else:
        return ()
    whole = tuple(item for item in found if item is not None)
    return whole if len(whole) == len(found) else ()


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
