"""Text Generation Inference's own API: /generate and /generate_stream.

Where the target is spoken to as a chat, /chat_tokenize applies its template first, which costs a
request of its own on the same connection. Temperature 0 is greedy decoding: it must not be sent. A
stream that is refused has status 200 and says so in its first event. The length of a prompt is told
in streams only, and cached tokens nowhere. What makes an outcome is said in `_http`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from leakcheck.backends import Address, Broken, Refused, Turns
from leakcheck.backends import _json as json
from leakcheck.backends import _probe as probing
from leakcheck.backends._http import Connection
from leakcheck.backends._probe import Dialect, Visit, accepted, require
from leakcheck.records import Chunk, Request, Target
from leakcheck.redact import one_line

ADDRESS = Address(right="http://127.0.0.1:8080", key_env="HF_TOKEN")
_REASONS = {"eos_token": "stop", "stop_sequence": "stop"}
_REFUSALS = {"overloaded": 429, "validation": 422, "template_error": 422}
"""Errors in front of a stream, which was certainly not begun, and the status that /generate has."""


def connect(target: Target) -> TGI:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as
    `Connection`.
    """
    return TGI(target)


DIALECT = Dialect(
    protocol="Text Generation Inference",
    key_env="HF_TOKEN",
    some={
        "top_p": ("top_p",),
        "seed": ("seed",),
        "stop": ("stop",),
        "top_logprobs": ("top_n_tokens",),
    },
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and the model that the server has.

    Raises TargetError for a target that is dead or broken, UsageError for a wrong URL, key or
    model: one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect, _models)


async def _models(visit: Visit) -> tuple[str, ...]:
    page = await visit.get(visit.http.url("info"))
    found = json.text(json.table(page.document).get("model_id"))
    require(page, bool(found), visit)
    return (found,)


class TGI:
    """One lane's connection."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self.http = Connection(target)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        document = {
            "inputs": await self._prompt(request),
            "parameters": parameters(self._target, request),
        }
        url = self.http.url("generate_stream" if request.stream else "generate")
        async with aclosing(self.http.stream(request, url, document, Answer())) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _prompt(self, request: Request) -> str:
        if self._target.api != "chat":
            return "\n\n".join(message.content for message in request.messages)
        messages = [
            {"role": message.role, "content": message.content} for message in request.messages
        ]
        chat = {"model": self._target.model, "messages": messages}
        reply = json.table(await self.http.ask(request, self.http.url("chat_tokenize"), chat))
        if not (prompt := json.text(reply.get("templated_text"))):
            raise Broken("the target sent no text when it was asked to apply its chat template")
        return prompt

    async def close(self) -> None:
        """Close the connection."""
        await self.http.close()


def parameters(target: Target, request: Request) -> dict[str, Any]:
    """How to generate: only what the request asks for."""
    sampling = request.sampling
    hot = sampling.temperature > 0
    fields: dict[str, Any] = {
        "temperature": sampling.temperature if hot else None,
        "top_p": sampling.top_p if hot else None,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "top_n_tokens": sampling.top_logprobs,
    }
    return {
        "max_new_tokens": sampling.max_tokens,
        "do_sample": hot,
        "details": True,
        "return_full_text": False,
        **accepted(target, fields),
        **request.extra,
    }


class Answer:
    """One answer in the making: feed it every JSON document of the reply, in order.

    The pieces of a stream are its tokens, special ones left out. Its last event repeats the whole:
    where that is another text, it is kept as that of a further answer.
    """

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._said = ""
        self.begun = False
        """A part of an answer was seen."""
        self.done = False
        """The whole text was told."""

    @property
    def finished(self) -> bool:
        """The whole text was told."""
        return self.done

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one document. Raises Broken (after the chunks it could read), and Refused
        for an error in front of a stream.
        """
        return json.read(raw, self._chunks, self._refusal)

    def _refusal(self, document: dict[str, Any]) -> Refused | None:
        status = _REFUSALS.get(json.text(document.get("error_type")))
        if self.begun or status is None:
            return None
        return Refused(one_line(json.text(document.get("error"))), status=status)

    def _chunks(self, document: dict[str, Any]) -> Iterator[Chunk]:
        token, details = json.table(document.get("token")), json.table(document.get("details"))
        whole = document.get("generated_text")
        if token:
            yield from self._token(token, document.get("top_tokens"))
        elif isinstance(whole, str):
            self.begun = True
            if (logprobs := _all(details)) or whole:
                yield Chunk(text=whole, logprobs=logprobs)
            self._said = whole
        if not isinstance(whole, str):
            return
        self.done = True
        if whole != self._said:
            yield Chunk(text=whole, field="content[1]")
        reason = json.text(details.get("finish_reason"))
        usage = json.usage(details.get("input_length"), details.get("generated_tokens"))
        yield Chunk(finish_reason=_REASONS.get(reason, reason) or None, usage=usage)

    def _token(self, token: dict[str, Any], tops: object) -> Iterator[Chunk]:
        self.begun = True
        text = "" if token.get("special") is True else json.text(token.get("text"))
        self._said += text
        logprobs = json.logprobs([{**token, "top_tokens": tops}], word="text", top="top_tokens")
        if text or logprobs:
            yield Chunk(text=text, logprobs=logprobs)


def _all(details: dict[str, Any]) -> Any:
    """The tokens of a whole reply with their alternatives, which stand in a list beside them."""
    tokens, tops = json.array(details.get("tokens")), json.array(details.get("top_tokens"))
    tops = [*tops, *[[]] * (len(tokens) - len(tops))]
    both = [
        {**json.table(token), "top_tokens": top} for token, top in zip(tokens, tops, strict=False)
    ]
    return json.logprobs(both, word="text", top="top_tokens")
