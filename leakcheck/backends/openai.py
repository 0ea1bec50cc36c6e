"""The OpenAI API, chat and completions, streamed or not: what nearly every target speaks.

One aiohttp session with a connector of size one per lane, no cookies, no redirects, no retries.
What makes an outcome:

- a whole answer: a JSON reply with choices; a stream that ended with `[DONE]` or in which every
  choice had its finish_reason;
- Refused: no connection, redirects, 4xx (408 and 499 excepted: those may have been generated), and
  503 with Retry-After;
- Broken: other 5xx, a cut connection or stream, JSON that is invalid or no answer, bytes that are
  not UTF-8 (the text is kept, with U+FFFD for them), more than `max_reply_bytes`.

Proxies of the environment are used (HTTPS_PROXY, NO_PROXY, ...).
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import os
import ssl
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import aiohttp
import orjson
from yarl import URL

from leakcheck import __version__
from leakcheck.backends import Broken, Refused
from leakcheck.backends import _probe as probing
from leakcheck.backends._answers import Answer, error_text
from leakcheck.backends._probe import Page
from leakcheck.backends._sse import Events
from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Request, Target
from leakcheck.redact import headers, one_line

_IDLE_S = 1.5
"""Below the keep-alive time of common servers (gunicorn 2 s, uvicorn 5 s): a lane that was idle
longer connects anew, and does not send into a connection that is just being closed."""
_CONNECT_S = 10.0
_AFTER_DONE_S = 1.0
_ERROR_BYTES = 65_536
_MAYBE_GENERATED = frozenset({408, 499})


def connect(target: Target) -> OpenAI:
    """A backend for one lane; call it inside a running event loop.

    Raises UsageError for a base URL that is none, an environment variable that is not set, and a
    certificate file that cannot be read.
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
        return await probing.probe(target, base_url(target), backend.models, backend)
    finally:
        await backend.close()


class OpenAI:
    """One lane's connection."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self._base = base_url(target)
        self.place = f"{self._base.scheme}://{self._base.authority}"
        path = "chat/completions" if target.api == "chat" else "completions"
        self._url = self._base.joinpath(path).with_query(self._base.query)
        context: ssl.SSLContext | bool = True
        if target.ca_file is not None:
            context = _certificates(target.ca_file)
        self._session = aiohttp.ClientSession(
            headers=_headers(target),
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=_IDLE_S, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(_CONNECT_S, target.timeout_s / 2)
            ),
            trust_env=bool(urllib.request.getproxies()),
            skip_auto_headers=("Content-Type",),
        )

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        content = orjson.dumps(body(self._target, request))
        with self._explained():
            async with self._session.post(
                self._url, data=content, headers=_own_headers(request), allow_redirects=False
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - the one status of an answer
                    text = await self._error_body(response)
                    if text:
                        yield Chunk(text=text, field="error")
                    raise _refusal(response, text)
                streamed = _streams(response, asked=request.stream)
                pieces = self._events(response) if streamed else self._whole(response)
                async with aclosing(pieces) as chunks:
                    async for chunk in chunks:
                        yield chunk

    async def models(self, base: URL) -> Page:
        """GET /models below a base URL. Raises Refused and Broken."""
        url = base.joinpath("models").with_query(base.query)
        with self._explained():
            async with self._session.get(url, allow_redirects=False) as response:
                text = (await self._bounded(response)).decode("utf-8", "replace")
                return Page(status=response.status, content_type=response.content_type, text=text)

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Chunk, None]:
        """The chunks of a stream, as they arrive."""
        events, answer, size, altered = Events(), Answer(), 0, False
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as patience:
                async for piece in response.content.iter_any():
                    size += len(piece)
                    self._check_size(size)
                    for data in events.feed(piece):
                        altered = altered or not _is_utf8(data)
                        for chunk in _event(answer, data):
                            yield chunk
                    if answer.done and patience.when() is None:
                        # The connection is used again only when it is read to its end.
                        patience.reschedule(loop.time() + _AFTER_DONE_S)
                for data in events.finish():
                    altered = altered or not _is_utf8(data)
                    for chunk in _event(answer, data):
                        yield chunk
        except (TimeoutError, aiohttp.ClientError):
            if not answer.done:
                raise
        _require_whole(answer, altered=altered)

    async def _whole(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Chunk, None]:
        """The chunks of a reply that is one JSON document."""
        raw = await self._bounded(response)
        answer = Answer()
        for chunk in answer.read(raw):
            yield chunk
        if not answer.begun:
            raise Broken("the target sent a reply without choices")
        if not _is_utf8(raw):
            raise Broken(_NOT_UTF8)

    async def _bounded(self, response: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            self._check_size(size)
            pieces.append(piece)
        return b"".join(pieces)

    async def _error_body(self, response: aiohttp.ClientResponse) -> str:
        """The text of an error reply, as much as is of use; a cut one as far as it came."""
        raw = b""
        try:
            async with asyncio.timeout(_CONNECT_S):
                async for piece in response.content.iter_any():
                    raw += piece
                    if len(raw) >= _ERROR_BYTES:
                        break
        except (TimeoutError, aiohttp.ClientError):
            pass
        return raw[:_ERROR_BYTES].decode("utf-8", "replace")

    def _check_size(self, size: int) -> None:
        if size > self._target.max_reply_bytes:
            raise Broken(
                f"the reply is longer than {self._target.max_reply_bytes} bytes: "
                "reading was stopped"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one sentence, of our own words, what aiohttp raises."""
        try:
            yield
        except aiohttp.ClientConnectorDNSError:
            raise Refused(f"the name {self._base.host} does not resolve") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            cause = getattr(error, "certificate_error", None)
            reason = getattr(cause, "verify_message", "") or "the TLS handshake failed"
            raise Refused(f"no connection to {self.place}: {one_line(reason)}") from None
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            reason = os.strerror(number) if number else type(error.os_error).__name__
            raise Refused(f"no connection to {self.place}: {reason}") from None
        except aiohttp.ConnectionTimeoutError:
            raise Refused(f"no connection to {self.place} in time") from None
        except aiohttp.ClientHttpProxyError as error:
            raise Refused(
                f"the proxy gives no connection to {self.place} ({error.status})"
            ) from None
        except aiohttp.ClientResponseError:
            raise Broken(f"{self.place} sent something that is not HTTP") from None
        except aiohttp.ClientError:
            raise Broken("the connection was cut before the answer was complete") from None


# --- what is sent --------------------------------------------------------------------------------


def base_url(target: Target) -> URL:
    """The base URL, checked. Raises UsageError for what is no http(s) URL or holds credentials."""
    try:
        url = URL(target.base_url)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise UsageError(
            f"the base URL {one_line(target.base_url)!r} is no URL like http://host:8000/v1"
        )
    if url.user or url.password:
        raise UsageError(
            f"the base URL of {url.host} holds credentials; put them into an environment variable "
            "and name that"
        )
    return url.with_path(url.path.rstrip("/"), keep_query=True) if url.path != "/" else url


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


def _own_headers(request: Request) -> dict[str, str] | None:
    """What one request adds to the headers of its lane."""
    return None if request.client_id is None else {"X-Request-Id": request.client_id}


def _headers(target: Target) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "identity",
        "User-Agent": f"leakcheck/{__version__}",
        **headers(target),
    }


def _certificates(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "not a PEM file"
        raise UsageError(f"the certificate file {path} cannot be used: {reason}") from None


# --- what comes back -----------------------------------------------------------------------------

_NOT_UTF8 = "the answer holds bytes that are not UTF-8; they are kept as U+FFFD"


def _streams(response: aiohttp.ClientResponse, *, asked: bool) -> bool:
    if response.content_type == "text/event-stream":
        return True
    return asked and response.content_type not in {"application/json", "text/html"}


def _event(answer: Answer, data: bytes) -> Iterator[Chunk]:
    if data.strip() == b"[DONE]":
        answer.done = True
    else:
        yield from answer.read(data)


def _require_whole(answer: Answer, *, altered: bool) -> None:
    if not answer.begun:
        raise Broken("the stream ended without an answer")
    if not answer.done and not answer.finished:
        raise Broken("the stream was cut in the middle: no finish_reason and no [DONE]")
    if altered:
        raise Broken(_NOT_UTF8)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refusal(response: aiohttp.ClientResponse, text: str) -> Refused | Broken:
    status = response.status
    try:
        words = one_line(error_text(orjson.loads(text)))
    except orjson.JSONDecodeError:
        words = one_line(text) or one_line(response.reason or "") or "no reason given"
    retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
    if 300 <= status < 400:  # noqa: PLR2004 - the redirects
        place = one_line(response.headers.get("Location", "nowhere"))
        return Refused(f"redirected to {place}; name that base URL instead", status=status)
    if status == 503 and retry_after_s is not None:  # noqa: PLR2004 - overloaded, come again
        return Refused(words, status=status, retry_after_s=retry_after_s)
    if 400 <= status < 500 and status not in _MAYBE_GENERATED:  # noqa: PLR2004 - refused
        return Refused(words, status=status, retry_after_s=retry_after_s)
    return Broken(f"the target answered with status {status}: {words}", status=status)


def _retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, in either of its forms (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
