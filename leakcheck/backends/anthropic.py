"""Anthropic's Messages API, streamed or not.

It has no seed, logprobs, logit bias or cache salts: those are left out. System messages are not
among its messages and go to `system`. Its input tokens are those that no cache held; the prompt is
these and those read from and written to the cache. What makes an outcome is said in `_http`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from yarl import URL

from leakcheck.backends import Address, Turns
from leakcheck.backends import _json as json
from leakcheck.backends import _probe as probing
from leakcheck.backends._http import Connection
from leakcheck.backends._probe import Dialect, Visit, accepted, require
from leakcheck.records import Chunk, Request, Target

ADDRESS = Address(right="https://api.anthropic.com", key_env="ANTHROPIC_API_KEY")
VERSION = "2023-06-01"
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
"""Its stop reasons in the words that checks know; others stay as they are."""


def connect(target: Target) -> Anthropic:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as
    `Connection`.
    """
    return Anthropic(target)


DIALECT = Dialect(
    protocol="Anthropic API",
    key_env="ANTHROPIC_API_KEY",
    always=("temperature",),
    some={"top_p": ("top_p",), "stop": ("stop_sequences",), "conversation": ("metadata",)},
    also=frozenset({"tools"}),
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and the models it offers, none where it does not tell.

    Raises TargetError for a target that is dead or broken, UsageError for a wrong URL, key or
    model: one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect, _models)


async def _models(visit: Visit) -> tuple[str, ...]:
    page = await visit.get(below(visit.http, "models"))
    if page.status in {404, 405}:
        return ()  # gateways seldom have it; the tiny request will tell
    listed = json.array(json.table(page.document).get("data"))
    require(page, isinstance(page.document, dict) and "data" in page.document, visit)
    return tuple(name for each in listed if (name := json.text(json.table(each).get("id"))))


def authorize(key: str) -> dict[str, str]:
    """The headers of an API key."""
    return {"x-api-key": key}


def below(http: Connection, path: str) -> URL:
    """An address of the API: below a base URL with or without its `/v1`."""
    version = () if http.base.path.rstrip("/").endswith("/v1") else ("v1",)
    return http.url(*version, path)


class Anthropic:
    """One lane's connection."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self.http = Connection(target, authorize=authorize, common={"anthropic-version": VERSION})

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        url, document = below(self.http, "messages"), body(self._target, request)
        return self.http.stream(request, url, document, Answer())

    async def close(self) -> None:
        """Close the connection."""
        await self.http.close()


def body(target: Target, request: Request) -> dict[str, Any]:
    """The JSON of one request: only what it asks for, and what the API knows.

    Whose it is is said as `user_id`: by a tenant of the target that has a user, else only with a
    conversation.
    """
    sampling = request.sampling
    system = [message.content for message in request.messages if message.role == "system"]
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "system": "\n\n".join(system) or None,
        "top_p": sampling.top_p,
        "stop_sequences": list(sampling.stop) or None,
        "metadata": _metadata(target, request),
        "tools": [_tool(tool) for tool in request.tools] or None,
        "stream": request.stream or None,
    }
    return {
        "model": target.model,
        "max_tokens": sampling.max_tokens,
        "messages": [
            {"role": message.role, "content": message.content}
            for message in request.messages
            if message.role != "system"
        ],
        **accepted(target, fields),
        **request.extra,
    }


def _metadata(target: Target, request: Request) -> dict[str, str] | None:
    mine = next((each for each in target.tenants if each.name == request.key), None)
    user = None if mine is None else mine.user
    if user is None and request.conversation is not None:
        user = request.tenant
    return None if user is None else {"user_id": user}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    named = {name: function[name] for name in ("name", "description") if name in function}
    return named | {"input_schema": function.get("parameters", {"type": "object"})}


class Answer:
    """One answer in the making: feed it every JSON document of the reply, in order."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._used: dict[str, Any] = {}
        self.begun = False
        """A message has started."""
        self.done = False
        """The message has stopped."""

    @property
    def finished(self) -> bool:
        """The message has stopped."""
        return self.done

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one document. Raises Broken (after the chunks it could read)."""
        return json.read(raw, self._chunks)

    def _chunks(self, event: dict[str, Any]) -> Iterator[Chunk]:
        match event.get("type"):
            case "message":
                yield from self._whole(event)
            case "message_start":
                message = json.table(event.get("message"))
                self.begun = True
                self._used |= json.table(message.get("usage"))
                if message_id := json.text(message.get("id")):
                    yield Chunk(target_id=message_id)
                for block in json.array(message.get("content")):
                    yield from _block(json.table(block))
            case "content_block_start":
                yield from _block(json.table(event.get("content_block")))
            case "content_block_delta":
                yield from _delta(json.table(event.get("delta")))
            case "message_delta":
                self._used |= json.table(event.get("usage"))
                yield from self._end(json.table(event.get("delta")))
            case "message_stop":
                self.done = self.begun

    def _whole(self, message: dict[str, Any]) -> Iterator[Chunk]:
        self.begun = self.done = True
        self._used |= json.table(message.get("usage"))
        if message_id := json.text(message.get("id")):
            yield Chunk(target_id=message_id)
        for block in json.array(message.get("content")):
            yield from _block(json.table(block))
        yield from self._end(message)

    def _end(self, end: dict[str, Any]) -> Iterator[Chunk]:
        reason = json.text(end.get("stop_reason"))
        yield Chunk(finish_reason=_REASONS.get(reason, reason) or None, usage=self._usage())

    def _usage(self) -> Any:
        read, written = (
            json.count(self._used.get(f"cache_{name}_input_tokens"))
            for name in ("read", "creation")
        )
        fresh = json.count(self._used.get("input_tokens"))
        prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
        return json.usage(prompt, self._used.get("output_tokens"), read)


def _block(block: dict[str, Any]) -> Iterator[Chunk]:
    """One content block as it starts, or whole. What a block that is not known says is kept as of
    a tool: server tools bring their results so.
    """
    match block.get("type"):
        case "text":
            found = [("content", json.text(block.get("text")))]
        case "thinking":
            found = [("reasoning", json.text(block.get("thinking")))]
        case "redacted_thinking":
            found = []
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            found = [
                ("tool", json.text(block.get("name"))),
                ("tool", json.shown(block.get("input"))),
            ]
        case _:
            found = [("tool", json.shown(block))]
    for field, text in found:
        if text:
            yield Chunk(text=text, field=field)


def _delta(delta: dict[str, Any]) -> Iterator[Chunk]:
    """One piece of a block; signatures and citations are no text of the answer."""
    for field, name in (("content", "text"), ("reasoning", "thinking"), ("tool", "partial_json")):
        if text := json.text(delta.get(name)):
            yield Chunk(text=text, field=field)
