"""llama.cpp's own API: /completion, after /apply-template where the target is spoken to as a chat.

A template costs a request of its own, on the same connection. A conversation is sent to one slot
throughout; any other request leaves the choice to the server. `cache_prompt` is on, as it is by
default. What makes an outcome is said in `_http`.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from leakcheck.backends import Address, Broken, Turns
from leakcheck.backends import _json as json
from leakcheck.backends import _probe as probing
from leakcheck.backends._http import Connection
from leakcheck.backends._probe import Dialect, Visit, accepted, require
from leakcheck.records import Chunk, Request, Target

ADDRESS = Address(right="http://127.0.0.1:8080", key_env="LLAMA_API_KEY")
_REASONS = {"eos": "stop", "word": "stop", "limit": "length"}


def connect(target: Target) -> LlamaCpp:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as
    `Connection`.
    """
    return LlamaCpp(target)


DIALECT = Dialect(
    protocol="llama.cpp server",
    key_env="LLAMA_API_KEY",
    always=("temperature",),
    some={
        "top_p": ("top_p",),
        "seed": ("seed",),
        "stop": ("stop",),
        "top_logprobs": ("n_probs",),
        "logit_bias": ("logit_bias",),
        "return_token_ids": ("return_tokens",),
    },
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and the model that the server has.

    Raises TargetError for a target that is dead or broken, UsageError for a wrong URL, key or
    model: one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect, _models)


async def _models(visit: Visit) -> tuple[str, ...]:
    page = await visit.get(visit.http.url("props"))
    props = json.table(page.document)
    require(page, "default_generation_settings" in props, visit)
    found = json.text(props.get("model_alias")) or json.text(props.get("model_path"))
    return (found,) if found else ()


class LlamaCpp:
    """One lane's connection."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self.http = Connection(target)
        self._slots: int | None = None

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        document = body(self._target, request)
        document["prompt"] = await self._prompt(request)
        if request.conversation is not None and (slots := await self._count_slots()):
            document["id_slot"] = zlib.crc32(request.conversation.encode()) % slots
        url = self.http.url("completion")
        async with aclosing(self.http.stream(request, url, document, Answer())) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _prompt(self, request: Request) -> str:
        if self._target.api != "chat":
            return "\n\n".join(message.content for message in request.messages)
        messages = [
            {"role": message.role, "content": message.content} for message in request.messages
        ]
        url = self.http.url("apply-template")
        reply = json.table(await self.http.ask(request, url, {"messages": messages}))
        if not (prompt := json.text(reply.get("prompt"))):
            raise Broken("the target sent no prompt when it was asked to apply its chat template")
        return prompt

    async def _count_slots(self) -> int:
        """Asked once a lane; 0 where the server does not tell."""
        if self._slots is None:
            page = await self.http.get(self.http.url("props"))
            self._slots = json.count(json.table(page.document).get("total_slots")) or 0
        return self._slots

    async def close(self) -> None:
        """Close the connection."""
        await self.http.close()


def body(target: Target, request: Request) -> dict[str, Any]:
    """The JSON of one request without its prompt: only what it asks for."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "n_probs": sampling.top_logprobs,
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias] or None,
        "ignore_eos": sampling.ignore_eos or None,
        "return_tokens": sampling.return_token_ids or None,
    }
    return {
        "model": target.model,
        "n_predict": sampling.max_tokens,
        "cache_prompt": True,
        "stream": request.stream,
        **accepted(target, fields),
        **request.extra,
    }


class Answer:
    """One answer in the making: feed it every JSON document of the reply, in order."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.begun = False
        """A part of an answer was seen."""
        self.done = False
        """The target said that it has stopped."""

    @property
    def finished(self) -> bool:
        """The target said that it has stopped."""
        return self.done

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one document. Raises Broken (after the chunks it could read)."""
        return json.read(raw, self._chunks)

    def _chunks(self, document: dict[str, Any]) -> Iterator[Chunk]:
        self.begun = self.begun or "content" in document
        text = json.text(document.get("content"))
        logprobs = json.logprobs(document.get("completion_probabilities"))
        ids = json.ids(document.get("tokens"))
        if text or logprobs or ids:
            yield Chunk(text=text, logprobs=logprobs, token_ids=ids)
        if document.get("stop") is not True:
            return
        self.done = self.begun
        reason = json.text(document.get("stop_type"))
        cached = json.table(document.get("timings")).get("cache_n")
        usage = json.usage(
            document.get("tokens_evaluated"), document.get("tokens_predicted"), cached
        )
        yield Chunk(finish_reason=_REASONS.get(reason, reason) or None, usage=usage)
