"""Every provider that LiteLLM knows, as far as its library shows (extra `leakcheck[litellm]`).

`--target` is the name of a provider (`gemini`), or the API base URL of one that the model names
(`--model openai/gpt-4o`). LiteLLM's retries, caches and fallbacks are off; each lane has an HTTP
session of its own, with one connection, for all providers that are spoken to through it. Parameters
that a provider does not have are left out. What the library makes of an answer is all that is seen:
ids and reasons that a provider left out are invented by it, and errors are known by its words.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp

from leakcheck.backends import Address, Broken, Refused, Turns
from leakcheck.backends import _probe as probing
from leakcheck.backends import openai as _openai
from leakcheck.backends._answers import Answer
from leakcheck.backends._http import base_url
from leakcheck.backends._probe import Dialect, accepted, tiny
from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Request, Target
from leakcheck.redact import environment, headers, one_line, redact, secrets

_PROVIDER = re.compile(r"[a-z][a-z0-9_]{1,40}")
_MAYBE_GENERATED = frozenset({408, 424, 499})
_CONNECT_S = 10.0
_LONGER_S = 10.0
"""The lane has its own patience; the library is to have more of it."""
_ODD = (aiohttp.ClientError, AttributeError, LookupError, TypeError, ValueError)
"""What the library lets through where a reply is not what it expects."""


def _check(text: str) -> None:
    if _PROVIDER.fullmatch(text) is None:
        base_url(Target(base_url=text, model=""))


ADDRESS = Address(
    right="a provider such as gemini, or its API base URL", check=_check, key_env=None
)


def connect(target: Target) -> LiteLLM:
    """A backend for one lane; call it inside a running event loop.

    Raises UsageError where LiteLLM is not installed, and for what it cannot do.
    """
    return LiteLLM(target)


DIALECT = Dialect(
    protocol="provider",
    key_env="the provider's own",
    always=("temperature",),
    some={**_openai.DIALECT.some, "conversation": ("user",)},
    also=frozenset({"n", "tools", "response_format"}),
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and no models.

    Raises TargetError or UsageError, one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect)


class LiteLLM:
    """One lane's session."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        if target.api != "chat":
            raise UsageError("the backend litellm speaks chat only; leave --api out")
        self._library, self._errors = _library()
        arguments(target, tiny())  # names what is not set
        self._target = target
        self._connections = 0
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_end.append(self._count)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, force_close=not target.keep_alive),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            trust_env=True,
            trace_configs=[tracing],
        )

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        answer, size, told = Answer(), 0, False
        try:
            async with aclosing(self._documents(request)) as documents:
                async for raw in documents:
                    if self._connections and not told:
                        yield Chunk(connection=self._connections)
                        told = True
                    size += len(raw)
                    if size > self._target.max_reply_bytes:
                        raise Broken(
                            f"the reply is longer than {self._target.max_reply_bytes} bytes: "
                            "reading was stopped"
                        )
                    for chunk in answer.read(raw):
                        yield chunk
        except self._errors as error:
            outcome = self._outcome(error)
            yield Chunk(text=redact(str(error), secrets(self._target)), field="error")
            raise outcome from None
        if not answer.finished:
            raise Broken("the answer ended without a finish_reason")

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()

    async def _documents(self, request: Request) -> AsyncGenerator[bytes, None]:
        """What the library makes of the reply, in OpenAI's JSON."""
        fields = arguments(self._target, request)
        reply = await self._library.acompletion(**fields, shared_session=self._session)
        if not request.stream:
            yield reply.model_dump_json(exclude_none=True).encode()
            return
        try:
            async for piece in reply:
                yield piece.model_dump_json(exclude_none=True).encode()
        finally:
            await reply.aclose()

    def _outcome(self, error: Any) -> Refused | Broken:
        """What an exception of the library says, by the status that it gives it."""
        status = getattr(error, "status_code", None)
        words = redact(one_line(str(error)), secrets(self._target)) or type(error).__name__
        reply = getattr(getattr(error, "response", None), "headers", None) or {}
        wait = reply.get("retry-after", "")
        retry_after_s = float(wait) if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", wait) else None
        refused = isinstance(status, int) and (
            (400 <= status < 500 and status not in _MAYBE_GENERATED)  # noqa: PLR2004 - refusals
            or (status == 503 and retry_after_s is not None)  # noqa: PLR2004 - come again
        )
        if refused:
            return Refused(words, status=status, retry_after_s=retry_after_s)
        return Broken(words, status=status if isinstance(status, int) else None)

    async def _count(self, *_: object) -> None:
        self._connections += 1


def arguments(target: Target, request: Request) -> dict[str, Any]:
    """What the library is called with: only what the request asks for, and nothing of its own."""
    sampling = request.sampling
    mine = next((tenant for tenant in target.tenants if tenant.name == request.key), None)
    salt = request.cache_salt or (mine and mine.cache_salt)
    user = (mine and mine.user) or (request.conversation and request.tenant)
    sent = headers(target, request.key, lambda _: {})
    if request.client_id is not None:
        sent["X-Request-Id"] = request.client_id
    key_env = target.api_key_env if mine is None else mine.api_key_env
    named = _PROVIDER.fullmatch(target.base_url) is not None
    extra = accepted(target, {"cache_salt": salt or None}) | request.extra
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "custom_llm_provider": target.base_url if named else None,
        "api_base": None if named else target.base_url,
        "api_key": None if key_env is None else environment(key_env, "the API key"),
        "extra_headers": sent or None,
        "ssl_verify": target.ca_file,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "logprobs": True if sampling.top_logprobs is not None else None,
        "top_logprobs": sampling.top_logprobs,
        "n": sampling.n,
        "tools": [{"type": "function", "function": tool} for tool in request.tools] or None,
        "response_format": request.response_format,
        "user": user,
        "extra_body": extra or None,
        "stream_options": {"include_usage": True} if request.stream else None,
    }
    return {
        "model": target.model,
        "messages": [
            {"role": message.role, "content": message.content} for message in request.messages
        ],
        "max_tokens": sampling.max_tokens,
        "stream": request.stream,
        "timeout": target.timeout_s + _LONGER_S,
        "num_retries": 0,
        "max_retries": 0,
        "caching": False,
        "drop_params": True,
        **accepted(target, fields),
    }


class _NoClients:
    """In place of the library's cache of HTTP clients, which knows nothing of lanes: what it makes
    for one call would serve the next one of another lane.
    """

    def get_cache(self, *_: object, **__: object) -> None:
        """There is none."""

    def set_cache(self, *_: object, **__: object) -> None:
        """It is not kept."""


def _library() -> tuple[Any, tuple[type[Exception], ...]]:
    """LiteLLM and what it raises; it fetches no list of prices from the network, keeps no answers
    and no clients, and writes no logs.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        library: Any = importlib.import_module("litellm")
        errors: type[Exception] = importlib.import_module("openai").OpenAIError
    except ImportError:
        raise UsageError(
            "the backend litellm needs LiteLLM, which is not installed: "
            "pip install 'leakcheck[litellm]'"
        ) from None
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL + 1)
    library.suppress_debug_info = True
    library.cache = None
    library.in_memory_llm_clients_cache = _NoClients()
    return library, (errors, *_ODD)
