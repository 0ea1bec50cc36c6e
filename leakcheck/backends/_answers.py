"""OpenAI's JSON, whole replies and stream events alike, read into chunks.

Targets send all sorts of things: what has another type than it should is passed over, what is
missing is None; only a reply that cannot be an answer at all raises Broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leakcheck.backends import _json as json
from leakcheck.records import PROMPT, Chunk, TokenLogprob, Usage


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
        yield from json.read(raw, self._chunks)

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
            index = json.count(choice.get("index"))
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
        logprobs, ids = _logprobs(choice.get("logprobs")), json.ids(choice.get("token_ids"))
        if prompt := _prompt(choice.get("prompt_logprobs")):
            yield Chunk(text=prompt, field=PROMPT)
        suffix = f"[{index}]" if index else ""
        texts = [(name, text) for name, text in _texts(choice) if text]
        if not texts and (finish_reason or logprobs or ids):
            texts = [("content", "")]
        for number, (name, text) in enumerate(texts, start=1):
            yield Chunk(
                text=text,
                field=name + suffix,
                logprobs=logprobs if number == 1 else (),
                token_ids=ids if number == 1 else (),
                finish_reason=finish_reason if number == len(texts) else None,
                target_id=target_id if number == 1 else None,
            )


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


def usage_of(value: object) -> Usage | None:
    """What was used, by all the names there are: OpenAI's of chat and of responses, Anthropic's,
    DeepSeek's and Moonshot's. None where nothing is told.
    """
    if not isinstance(value, dict):
        return None
    return json.usage(
        _first(value, "prompt_tokens", "input_tokens"),
        _first(value, "completion_tokens", "output_tokens"),
        _cached(value),
    )


def _cached(usage: dict[str, Any]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict) and (cached := _first(details, "cached_tokens")) is not None:
            return cached
    return _first(usage, "prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens")


def _timed(value: object) -> Usage | None:
    """llama.cpp's own figures: `prompt_n` tokens were computed, `cache_n` more were cached."""
    if not isinstance(value, dict):
        return None
    computed, cached = json.count(value.get("prompt_n")), json.count(value.get("cache_n"))
    if computed is None:
        return None
    return json.usage(computed + (cached or 0), value.get("predicted_n"), cached)


def _first(of: dict[str, Any], *names: str) -> int | None:
    """The first count of these names; a number below 0 where there is none."""
    given = [of.get(name) for name in names]
    counts = [count for each in given if (count := json.count(each)) is not None]
    return next(iter([*counts, *filter(json.is_negative, given)]), None)


def _logprobs(value: object) -> tuple[TokenLogprob, ...]:
    """Both shapes: chat (`content`: a list of objects) and completions (parallel lists)."""
    if not isinstance(value, dict):
        return ()
    if isinstance(content := value.get("content"), list):
        return json.logprobs(content)
    tokens, numbers, tops = (
        json.array(value.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs")
    )
    tops = [*tops, *[None] * (len(tokens) - len(tops))]
    return json.logprobs(
        [
            {"token": token, "logprob": number, "top_logprobs": _pairs(top)}
            for token, number, top in zip(tokens, numbers, tops, strict=False)
        ]
    )


def _pairs(top: object) -> list[dict[str, Any]]:
    return [{"token": word, "logprob": number} for word, number in json.table(top).items()]


def _prompt(value: object) -> str:
    """The prompt's tokens as vLLM gives them: a list of {token id: {decoded_token, rank}}, of which
    the first is that of the prompt.
    """
    firsts = (next(iter(json.table(each).values()), None) for each in json.array(value))
    return "".join(json.text(json.table(first).get("decoded_token")) for first in firsts)
