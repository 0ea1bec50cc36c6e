"""Ollama's own API: /api/chat, and /api/generate without a template for completions.

Its streams are lines of JSON. It tells no cached tokens. Logprobs are asked for where the request
wants them, and read where the version has them (0.12.11 and later). What makes an outcome is said
in `_http`.
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

ADDRESS = Address(right="http://127.0.0.1:11434", key_env="OLLAMA_API_KEY")
_LOGPROBS = frozenset({"logprobs", "top_logprobs"})


def connect(target: Target) -> Ollama:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as
    `Connection`.
    """
    return Ollama(target)


DIALECT = Dialect(
    protocol="Ollama",
    key_env="OLLAMA_API_KEY",
    always=("temperature",),
    some={
        "top_p": ("top_p",),
        "seed": ("seed",),
        "stop": ("stop",),
        "top_logprobs": ("logprobs", "top_logprobs"),
    },
    also=frozenset({"tools"}),
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and the models that were pulled.

    Raises TargetError for a target that is dead or broken, UsageError for a wrong URL, key or
    model: one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect, _models)


async def _models(visit: Visit) -> tuple[str, ...]:
    page = await visit.get(below(visit.http, "tags"))
    listed = json.table(page.document).get("models")
    require(page, isinstance(listed, list), visit)
    return tuple(
        name for each in json.array(listed) if (name := json.text(json.table(each).get("name")))
    )


def below(http: Connection, path: str) -> URL:
    """An address of the API: below a base URL with or without its `/api`."""
    api = () if http.base.path.rstrip("/").endswith("/api") else ("api",)
    return http.url(*api, path)


class Ollama:
    """One lane's connection."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self.http = Connection(target)

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        url = below(self.http, "generate" if self._target.api == "completions" else "chat")
        return self.http.stream(request, url, body(self._target, request), Answer())

    async def close(self) -> None:
        """Close the connection."""
        await self.http.close()


def body(target: Target, request: Request) -> dict[str, Any]:
    """The JSON of one request: only what it asks for, and what the API knows."""
    sampling = request.sampling
    options: dict[str, Any] = {
        "num_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    fields: dict[str, Any] = {"model": target.model}
    if target.api == "completions":
        text = "\n\n".join(message.content for message in request.messages)
        fields |= {"prompt": text, "raw": True}
    else:
        fields["messages"] = [
            {"role": message.role, "content": message.content} for message in request.messages
        ]
    if request.tools and target.api == "chat":
        fields["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
    if sampling.top_logprobs is not None and not _LOGPROBS & set(target.refuses):
        fields |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    fields["options"] = accepted(target, options)
    return fields | {"stream": request.stream} | request.extra


class Answer:
    """One answer in the making: feed it every JSON document of the reply, in order."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.begun = False
        """A part of an answer was seen."""
        self.done = False
        """The target said so."""

    @property
    def finished(self) -> bool:
        """The target said that it is done."""
        return self.done

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one document. Raises Broken (after the chunks it could read)."""
        return json.read(raw, self._chunks)

    def _chunks(self, document: dict[str, Any]) -> Iterator[Chunk]:
        message = json.table(document.get("message"))
        self.begun = self.begun or "message" in document or "response" in document
        self.done = self.done or (self.begun and document.get("done") is True)
        texts = [
            ("reasoning", json.text(message.get("thinking"))),
            ("reasoning", json.text(document.get("thinking"))),
            ("content", json.text(message.get("content"))),
            ("content", json.text(document.get("response"))),
        ]
        for call in json.array(message.get("tool_calls")):
            function = json.table(json.table(call).get("function"))
            texts += [
                ("tool", json.text(function.get("name"))),
                ("tool", json.shown(function.get("arguments"))),
            ]
        logprobs = json.logprobs(document.get("logprobs"))
        for field, text in texts:
            if text:
                yield Chunk(text=text, field=field, logprobs=logprobs)
                logprobs = ()
        reason = json.text(document.get("done_reason")) or None
        usage = json.usage(document.get("prompt_eval_count"), document.get("eval_count"))
        if logprobs or reason or usage:
            yield Chunk(logprobs=logprobs, finish_reason=reason, usage=usage)
