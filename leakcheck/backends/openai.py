"""The OpenAI API, chat and completions, streamed or not: what nearly every target speaks.

What makes an outcome is said in `_http`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from yarl import URL

from leakcheck.backends import _probe as probing
from leakcheck.backends._answers import Answer
from leakcheck.backends._http import Connection, Page
from leakcheck.records import Chunk, Request, Target


def connect(target: Target) -> OpenAI:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as
    `Connection`.
    """
    return OpenAI(target)


def probe(target: Target) -> tuple[str, ...]:
    """Find out whether the target can be used at all: GET /models and one tiny request.

    Returns the ids of the models it offers; none where it does not tell. Raises TargetError for a
    target that is dead or broken, UsageError for a wrong URL, key or model: one sentence each.
    """
    return asyncio.run(_probe(target))


async def _probe(target: Target) -> tuple[str, ...]:
    backend = connect(target)
    try:
        return await probing.probe(target, backend.http.base, backend.models, backend)
    finally:
        await backend.close()


class OpenAI:
    """One lane's connection."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self.http = Connection(target)
        path = "chat/completions" if target.api == "chat" else "completions"
        self._url = self.http.url(path)

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        return self.http.stream(request, self._url, body(self._target, request), Answer())

    async def models(self, base: URL) -> Page:
        """GET /models below a base URL. Raises Refused and Broken."""
        return await self.http.get(base.joinpath("models").with_query(base.query))

    async def close(self) -> None:
        """Close the connection."""
        await self.http.close()


# --- what is sent --------------------------------------------------------------------------------


def body(target: Target, request: Request) -> dict[str, Any]:
    """The JSON of one request. Completions get the messages joined by blank lines as prompt.

    Some servers refuse fields that they do not know, so nothing is sent that the request does not
    ask for. A conversation belongs to somebody: with it, and only then, the tenant is sent as user.
    """
    sampling = request.sampling
    fields: dict[str, Any] = {"model": target.model}
    if target.api == "chat":
        fields["messages"] = [
            {"role": message.role, "content": message.content} for message in request.messages
        ]
    else:
        fields["prompt"] = "\n\n".join(message.content for message in request.messages)
    fields |= {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    optional: dict[str, Any] = {
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "cache_salt": request.cache_salt,
    }
    if request.conversation is not None:
        optional["metadata"] = {"conversation_id": request.conversation}
        optional["user"] = request.tenant
    fields |= {name: value for name, value in optional.items() if value is not None}
    if sampling.top_logprobs is not None and target.api == "chat":
        fields |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    elif sampling.top_logprobs is not None:
        fields["logprobs"] = sampling.top_logprobs
    fields["stream"] = request.stream
    if request.stream:
        fields["stream_options"] = {"include_usage": True}
    return fields
