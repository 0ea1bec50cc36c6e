"""Ask a target questions that belong to no plan: few, one at a time, each counted.

A target that says that it is busy is left alone for as long as it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from yarl import URL

from leakcheck import backends
from leakcheck.backends import Backend, Broken, Refused, Turns, _headers
from leakcheck.backends._http import Connection, Page
from leakcheck.budget import spending
from leakcheck.records import Api, Chunk, Request, Target, TokenLogprob, Usage, Use
from leakcheck.redact import one_line, redact, redact_chunks, secrets

MOST = 64
"""Requests in all, repeated ones included."""
_PAGE_S = 10.0
_HANGING = 3
"""So many pages that do not answer in time, and no more are asked for."""
_ATTEMPTS = 3
_UNCLEAR_S = 1.0
"""Waited where a Retry-After is neither a number nor a date."""
_BUSY = frozenset({429, 503})
_LIMIT_HEADERS = ("ratelimit", "rate-limit", "retry-after", "quota")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came back for one request; `ok` is a whole answer."""

    ok: bool
    chunks: tuple[Chunk, ...] = ()
    status: int | None = None
    error: str = ""

    @property
    def refused(self) -> bool:
        """The target does not take such a request."""
        return not self.ok and self.status in {400, 403, 404, 405, 415, 422, 501}

    def text(self, field: str = "content") -> str:
        """What it says in one field."""
        return "".join(chunk.text for chunk in self.chunks if chunk.field == field)

    @property
    def said(self) -> str:
        """All that the model said, the reasoning first."""
        return self.text("reasoning") + self.text()

    @property
    def usage(self) -> Usage | None:
        """The last that was told."""
        told = [chunk.usage for chunk in self.chunks if chunk.usage is not None]
        return told[-1] if told else None

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of all tokens."""
        return tuple(item for chunk in self.chunks for item in chunk.logprobs)


class Asker:
    """One conversation with a target. Use it inside a running event loop; close it."""

    def __init__(
        self, target: Target, turns: Turns, *, most: int = MOST, tokens: int | None = None
    ) -> None:
        """Nothing is sent yet, and later no more than `most` requests that use so many `tokens` at
        most (None: any number). Raises UsageError as the backend does.
        """
        self.target = target
        self.used = Use()
        """The most that those sent so far have used."""
        self._tokens = tokens
        self._turns = turns
        turns.grant(most)
        self.unanswered = 0
        """So many requests in a row, the last ones, got no reply at all."""
        self.limits: dict[str, str] = {}
        """The headers of its replies that speak of limits."""
        self._hanging = 0
        self._keys = secrets(target)
        self._backends: dict[Api, Backend] = {}
        self.http: Connection | None = getattr(self._backend(target.api), "http", None)

    async def close(self) -> None:
        """Close all connections."""
        for backend in self._backends.values():
            await backend.close()

    async def page(
        self,
        method: Literal["GET", "POST"],
        url: URL,
        document: Mapping[str, Any] | None = None,
    ) -> Page | None:
        """What an address answers; None where nothing came, or nothing more is to be asked."""
        if self.http is None or self._hanging >= _HANGING:
            return None
        for _ in range(_ATTEMPTS):
            if not await self._takes(Use()):
                return None
            self.used += Use(requests=1)
            try:
                async with asyncio.timeout(min(_PAGE_S, self.target.timeout_s)):
                    if method == "GET":
                        page = await self.http.get(url)
                    else:
                        page = await self.http.post(url, document or {})
            except TimeoutError:
                self._hanging += 1
                return None
            except (Refused, Broken):
                return None
            self._note(page.headers)
            wait_s = _wait_s(page.headers.get("retry-after"))
            if page.status not in _BUSY or wait_s is None:
                return replace(page, text=redact(page.text, self._keys))
            self._turns.refused(wait_s)
        return None

    async def answer(self, request: Request, *, api: Api | None = None) -> Seen:
        """Send a request, by another API than the target's if one is named."""
        seen = Seen(ok=False, error="not asked: so many requests are enough")
        for wait_s in range(1, _ATTEMPTS + 1):
            most = spending.worst(request)
            if not await self._takes(most):
                return seen
            seen, retry_after_s = await self._answer(request, api or self.target.api)
            self.used += _used(seen) or most
            if seen.ok or seen.status not in _BUSY:
                return seen
            self._turns.refused(wait_s if retry_after_s is None else retry_after_s)
        return seen

    async def _takes(self, most: Use) -> bool:
        """Wait for a turn; False where there is none, or not the tokens for it."""
        fits = self._tokens is None or self.used.tokens + most.tokens <= self._tokens
        return fits and await self._turns.take()

    async def _answer(self, request: Request, api: Api) -> tuple[Seen, float | None]:
        backend = self._backend(api)
        chunks: list[Chunk] = []
        ok, status, error, retry_after_s = False, None, "", None
        try:
            async with asyncio.timeout(self.target.timeout_s):
                async for chunk in backend.stream(request):
                    chunks.append(chunk)  # noqa: PERF401 - kept also where the stream breaks
            ok = True
        except TimeoutError:
            error = f"no answer within {self.target.timeout_s:g} s"
        except (Refused, Broken) as refused:
            status, error = refused.status, redact(refused.message, self._keys)
            retry_after_s = refused.retry_after_s if isinstance(refused, Refused) else None
        self._note(getattr(getattr(backend, "http", None), "replied", {}))
        silent = not ok and status is None and not any(chunk.text for chunk in chunks)
        self.unanswered = self.unanswered + 1 if silent else 0
        said = redact_chunks(chunks, self._keys)
        return Seen(ok=ok, chunks=said, status=status, error=error), retry_after_s

    def _backend(self, api: Api) -> Backend:
        if api not in self._backends:
            connect = backends.load(self.target.backend)
            self._backends[api] = connect(replace(self.target, api=api))
        return self._backends[api]

    def _note(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            if any(part in name for part in _LIMIT_HEADERS):
                self.limits[name] = redact(one_line(value), self._keys)


def _used(seen: Seen) -> Use | None:
    """What it has used, where the target says all of it or has certainly generated nothing."""
    if seen.refused or (not seen.ok and seen.status in _BUSY):
        return Use(requests=1)
    prompt = None if seen.usage is None else seen.usage.prompt_tokens
    answer = None if seen.usage is None else seen.usage.completion_tokens
    if prompt is None or answer is None:
        return None
    return Use(requests=1, prompt_tokens=prompt, answer_tokens=answer)


def _wait_s(header: str | None) -> float | None:
    """How long a busy target is left alone; None where it does not say that it wants to be."""
    wait_s = _headers.retry_after_s(header)
    return _UNCLEAR_S if wait_s is None and header is not None else wait_s
