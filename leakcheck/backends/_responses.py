"""OpenAI's responses, whole replies and stream events alike, read into chunks.

A stream ends with the whole response once more. What that says otherwise than the pieces before it
is kept as a field of its own, `final`: an answer of somebody else may stand in either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leakcheck.backends import _json as json
from leakcheck.backends._answers import text_of, usage_of
from leakcheck.records import Chunk

_DELTAS = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_summary.delta": "reasoning",
    "response.function_call_arguments.delta": "tool",
    "response.custom_tool_call_input.delta": "tool",
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")
FINAL = "final"
"""The field of what only the end of a stream says."""


class Response:
    """One response in the making: feed it every JSON document of the reply, in order."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._target_id: str | None = None
        self._streamed: dict[str, str] = {}
        self._streams = False
        self.begun = False
        """Some part of an answer was seen."""
        self.done = False
        """The response is over, by its own word."""

    @property
    def finished(self) -> bool:
        """Nothing but its own word says that a response is over."""
        return self.done

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one document. Raises Broken (after the chunks it could read)."""
        if raw.strip() == b"[DONE]":
            self.done = self.begun
            return
        document = yield from json.decoded(raw)
        kind = document.get("type")
        if isinstance(kind, str) and (kind == "error" or kind.startswith("response.")):
            self._streams = True
            yield from self._event(kind, document)
        else:
            yield from self._whole(document)

    def _event(self, kind: str, event: dict[str, Any]) -> Iterator[Chunk]:
        if kind == "error":
            yield from json.failed(event)
        if kind in _DELTAS:
            self.begun = True
            chunk = self._piece(_DELTAS[kind], text_of(event.get("delta")))
            logprobs = json.logprobs(event.get("logprobs"))
            if chunk.text or logprobs:
                yield Chunk(text=chunk.text, field=chunk.field, logprobs=logprobs)
        elif kind == "response.output_item.added":
            item = event.get("item")
            if isinstance(item, dict) and (name := text_of(item.get("name"))):
                self.begun = True
                yield self._piece("tool", name)
        elif isinstance(response := event.get("response"), dict):
            if kind in _ENDS:
                yield from self._whole(response)
            else:
                self.begun = True
                yield from self._named(response)

    def _whole(self, response: dict[str, Any]) -> Iterator[Chunk]:
        """A complete response: of a stream, its last event; else all there is."""
        yield from self._named(response)
        if response.get("error") or response.get("status") == "failed":
            yield from json.failed(response)
        output = response.get("output")
        if not isinstance(output, list):
            return
        self.begun = self.done = True
        said: dict[str, str] = {}
        chunks: list[Chunk] = []
        for item in output:
            for chunk in _item(item) if isinstance(item, dict) else ():
                said[chunk.field] = said.get(chunk.field, "") + chunk.text
                chunks.append(chunk)
        for chunk in chunks:
            before = self._streamed.get(chunk.field, "")
            if not before:
                yield chunk
            elif before != said[chunk.field] and chunk.text:
                yield Chunk(text=chunk.text, field=FINAL)
        yield Chunk(finish_reason=_reason(response), usage=usage_of(response.get("usage")))

    def _piece(self, field: str, text: str) -> Chunk:
        self._streamed[field] = self._streamed.get(field, "") + text
        return Chunk(text=text, field=field)

    def _named(self, response: dict[str, Any]) -> Iterator[Chunk]:
        """Its id, said once; again only where it changes, which would be evidence."""
        target_id = text_of(response.get("id")) or None
        if target_id not in (None, self._target_id):
            self._target_id = target_id
            yield Chunk(target_id=target_id)


def _item(item: dict[str, Any]) -> Iterator[Chunk]:
    """The texts of one item of the output: a message, reasoning, a call of a tool."""
    if item.get("type") == "reasoning":
        for name in ("summary", "content"):
            yield Chunk(text=text_of(item.get(name)), field="reasoning")
        return
    content = item.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            text = text_of(part.get("text")) + text_of(part.get("refusal"))
            yield Chunk(text=text, logprobs=json.logprobs(part.get("logprobs")))
    if isinstance(content, str):
        yield Chunk(text=content)
    for name in ("name", "arguments", "input"):
        if text := text_of(item.get(name)):
            yield Chunk(text=text, field="tool")


def _reason(response: dict[str, Any]) -> str | None:
    details = response.get("incomplete_details")
    if isinstance(details, dict) and (reason := text_of(details.get("reason"))):
        return "length" if reason == "max_output_tokens" else reason
    status = text_of(response.get("status"))
    return "stop" if status in ("", "completed") else status
