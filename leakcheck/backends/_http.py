"""One lane's HTTP connection: what every backend that speaks HTTP has in common.

One aiohttp session with a connector of size one, no cookies, no redirects, no retries. A protocol
brings an address, a JSON body and a `Reader` of its answers; what makes an outcome is the same for
all of them:

- a whole answer: a JSON reply the reader takes for one; a stream that its reader calls `done`, or
  in which all that was begun is `finished`;
- Refused: no connection, redirects, 4xx (408, 424 and 499 excepted: those may have been generated),
  and 503 with Retry-After;
- Broken: other 5xx, a cut connection or stream, JSON that is invalid or no answer, bytes that are
  not UTF-8 (the text is kept, with U+FFFD for them), more than `max_reply_bytes`.

Proxies of the environment are used (HTTPS_PROXY, NO_PROXY, ...). Certificates are always checked.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import aiohttp
import orjson
from yarl import URL

from leakcheck import __version__
from leakcheck.backends import CUT, Broken, Refused, _headers
from leakcheck.backends._expect import patient
from leakcheck.backends._quota import quota
from leakcheck.backends._sse import Events, Lines
from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Request, Target
from leakcheck.redact import bearer, headers, one_line

_IDLE_S = 1.5
"""Below the keep-alive time of common servers (gunicorn 2 s, uvicorn 5 s): a lane that was idle
longer connects anew, and does not send into a connection that is just being closed."""
_CONNECT_S = 10.0
_AFTER_DONE_S = 1.0
_REST_S = 0.02
_NOWHERE = ("leakcheck", "no-such-path")
"""Below the base URL: refused as any wrong address is, which no third party minds."""
_ERROR_BYTES = 65_536
_MAYBE_GENERATED = frozenset({408, 424, 499})


class Reader(Protocol):
    """Reads one answer of a protocol, document by document."""

    @property
    def begun(self) -> bool:
        """Some part of an answer was seen."""
        ...

    @property
    def done(self) -> bool:
        """The target said that the stream is over."""
        ...

    @property
    def finished(self) -> bool:
        """All that was begun has come to its end."""
        ...

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one document. Raises Broken (after the chunks it could read)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The reply to a GET, or to a POST that wants no answer of a model. Names of headers are in
    lower case.
    """

    status: int
    content_type: str
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> Any:
        """The JSON of it; None where it is none."""
        try:
            return orjson.loads(self.text)
        except orjson.JSONDecodeError:
            return None

    @property
    def words(self) -> str:
        """What the target says here, on one line."""
        try:
            return one_line(error_text(orjson.loads(self.text)))
        except orjson.JSONDecodeError:
            return one_line(self.text, limit=80) or "nothing"


class Connection:
    """One lane's connection."""

    def __init__(
        self,
        target: Target,
        *,
        authorize: Callable[[str], dict[str, str]] = bearer,
        common: Mapping[str, str] | None = None,
    ) -> None:
        """Call it inside a running event loop. `authorize` makes the headers of an API key, and
        `common` ones belong to the protocol.

        Raises UsageError for a base URL that is none, an environment variable that is not set, and
        a certificate file that cannot be read.
        """
        self._target = target
        self.base = base_url(target)
        self.place = f"{self.base.scheme}://{self.base.authority}"
        context: ssl.SSLContext | bool = True
        if target.ca_file is not None:
            context = _certificates(target.ca_file)
        names = (None, *(tenant.name for tenant in target.tenants))
        self._credentials = {name: headers(target, name, authorize) for name in names}
        self._connections = 0
        self.replied: dict[str, str] = {}
        """The headers of the last answer, names in lower case."""
        self._streamed_s = -math.inf
        self._session = aiohttp.ClientSession(
            headers={**_COMMON, **(common or {})},
            connector=aiohttp.TCPConnector(
                limit=1,
                ssl=context,
                **({"keepalive_timeout": _IDLE_S} if target.keep_alive else {"force_close": True}),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(_CONNECT_S, target.timeout_s / 2)
            ),
            trust_env=bool(urllib.request.getproxies()),
            skip_auto_headers=("Content-Type",),
            trace_configs=[self._counting()],
            response_class=patient,  # type: ignore[arg-type]  # aiohttp only calls it
        )

    def url(self, *path: str) -> URL:
        """An address below the base URL, with its query."""
        return self.base.joinpath(*path).with_query(self.base.query)

    async def stream(
        self, request: Request, url: URL, document: Mapping[str, Any], reader: Reader
    ) -> AsyncGenerator[Chunk, None]:
        """Send one request, and yield its answer as it arrives. Raises Refused and Broken.

        As `Request.sent` says: a misdirected one goes to a path that is none.
        """
        if request.sent == "misdirected":
            url = self.url(*_NOWHERE)
        await self._rested()
        with self._explained():
            async with self._session.post(
                url,
                data=orjson.dumps(document),
                headers=self._own_headers(request),
                allow_redirects=False,
                expect100=request.sent == "expect",
            ) as response:
                self.replied = {name.lower(): text for name, text in response.headers.items()}
                yield Chunk(
                    connection=self._connections,
                    replica=_headers.replica(response.headers, self._target.replica_header),
                    reply_id=_headers.reply_id(response.headers),
                    quota=quota(response.headers, time.time()),
                )
                if response.status != 200:  # noqa: PLR2004 - the one status of an answer
                    text = await self._error_body(response)
                    if text:
                        yield Chunk(text=text, field="error")
                    raise _refusal(response, text)
                streamed = _streams(response, asked=request.stream)
                pieces = self._pieces(response, reader) if streamed else self._all(response, reader)
                async with aclosing(pieces) as chunks:
                    async for chunk in chunks:
                        yield chunk
                if streamed:
                    self._streamed_s = time.monotonic()

    async def get(self, url: URL) -> Page:
        """Fetch a page with our credentials. Raises Refused and Broken."""
        return await self._page("GET", url)

    async def post(self, url: URL, document: Mapping[str, Any]) -> Page:
        """Ask something that is no request of a plan. Raises Refused and Broken."""
        return await self._page("POST", url, data=orjson.dumps(document))

    async def ask(self, request: Request, url: URL, document: Mapping[str, Any]) -> Any:
        """Ask what a request needs before it can be sent, as whoever it is sent for: the JSON of
        the reply, None where it is none. Raises Refused and Broken as `stream`.
        """
        await self._rested()
        with self._explained():
            async with self._session.post(
                url,
                data=orjson.dumps(document),
                headers=self._own_headers(request),
                allow_redirects=False,
            ) as response:
                if response.status != 200:  # noqa: PLR2004 - the one status of an answer
                    raise _refusal(response, await self._error_body(response))
                text = (await self._bounded(response)).decode("utf-8", "replace")
                page = Page(status=200, content_type=response.content_type, text=text)
                return page.document

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def _rested(self) -> None:
        """Wait a moment after a stream: llama.cpp promises to keep its connection open and closes
        it a millisecond later, and a request must not go into one that is just being closed.
        """
        left_s = self._streamed_s + _REST_S - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def _page(self, method: str, url: URL, **fields: Any) -> Page:
        with self._explained():
            async with self._session.request(
                method, url, headers=self._credentials[None], allow_redirects=False, **fields
            ) as response:
                text = (await self._bounded(response)).decode("utf-8", "replace")
                return Page(
                    status=response.status,
                    content_type=response.content_type,
                    text=text,
                    headers={name.lower(): value for name, value in response.headers.items()},
                )

    def _counting(self) -> aiohttp.TraceConfig:
        async def count(_session: object, _context: SimpleNamespace, _facts: object) -> None:
            self._connections += 1

        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_end.append(count)
        return tracing

    def _own_headers(self, request: Request) -> dict[str, str]:
        """Whose request it is, and what it adds to the headers of its lane."""
        found = dict(self._credentials[request.key])
        if request.client_id is not None:
            found["X-Request-Id"] = request.client_id
        return found

    async def _pieces(
        self, response: aiohttp.ClientResponse, reader: Reader
    ) -> AsyncGenerator[Chunk, None]:
        """The chunks of a stream, as they arrive."""
        events: Events | Lines = Lines() if response.content_type in _LINES_OF_JSON else Events()
        size, altered = 0, False
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as patience:
                async for piece in response.content.iter_any():
                    size += len(piece)
                    self._check_size(size)
                    for data in events.feed(piece):
                        altered = altered or not is_utf8(data)
                        for chunk in reader.read(data):
                            yield chunk
                    if reader.done and patience.when() is None:
                        # The connection is used again only when it is read to its end.
                        patience.reschedule(loop.time() + _AFTER_DONE_S)
                for data in events.finish():
                    altered = altered or not is_utf8(data)
                    for chunk in reader.read(data):
                        yield chunk
        except (TimeoutError, aiohttp.ClientError):
            if not reader.done:
                raise
        _require_whole(reader, altered=altered)

    async def _all(
        self, response: aiohttp.ClientResponse, reader: Reader
    ) -> AsyncGenerator[Chunk, None]:
        """The chunks of a reply that is one JSON document."""
        raw = await self._bounded(response)
        for chunk in reader.read(raw):
            yield chunk
        if not reader.begun:
            raise Broken("the target sent a reply without an answer")
        if not is_utf8(raw):
            raise Broken(NOT_UTF8)

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
            raise Refused(f"the name {self.base.host} does not resolve") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            cause = getattr(error, "certificate_error", None)
            reason = getattr(cause, "verify_message", "") or "the TLS handshake failed"
            raise Refused(
                f"no connection to {self.place}: {one_line(reason)}", lasting=True
            ) from None
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
            raise Broken(CUT) from None


# --- what is sent --------------------------------------------------------------------------------

_COMMON = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "User-Agent": f"leakcheck/{__version__}",
}


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


def _certificates(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "not a PEM file"
        raise UsageError(f"the certificate file {path} cannot be used: {reason}") from None


# --- what comes back -----------------------------------------------------------------------------

_LINES_OF_JSON = frozenset({"application/x-ndjson", "application/jsonl", "application/ndjson"})


def error_text(document: object) -> str:
    """What an error reply says, in whichever of the usual shapes (OpenAI, FastAPI, plain)."""
    for key in ("error", "message", "detail"):
        if not isinstance(document, dict):
            break
        if document.get(key):
            document = document[key]
    return document if isinstance(document, str) else orjson.dumps(document).decode()


NOT_UTF8 = "the answer holds bytes that are not UTF-8; they are kept as U+FFFD"


def _streams(response: aiohttp.ClientResponse, *, asked: bool) -> bool:
    if response.content_type == "text/event-stream":
        return True
    if response.content_type in _LINES_OF_JSON:
        return True
    return asked and response.content_type not in {"application/json", "text/html"}


def _require_whole(reader: Reader, *, altered: bool) -> None:
    if not reader.begun:
        raise Broken("the stream ended without an answer")
    if not reader.done and not reader.finished:
        raise Broken("the stream was cut in the middle: no finish_reason and no [DONE]")
    if altered:
        raise Broken(NOT_UTF8)


def is_utf8(raw: bytes) -> bool:
    """Whether bytes are text."""
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
    retry_after_s = _headers.retry_after_s(response.headers.get("Retry-After"))
    if 300 <= status < 400:  # noqa: PLR2004 - the redirects
        place = one_line(response.headers.get("Location", "nowhere"))
        return Refused(f"redirected to {place}; name that base URL instead", status=status)
    if status == 503 and retry_after_s is not None:  # noqa: PLR2004 - overloaded, come again
        return Refused(words, status=status, retry_after_s=retry_after_s)
    if 400 <= status < 500 and status not in _MAYBE_GENERATED:  # noqa: PLR2004 - refused
        return Refused(words, status=status, retry_after_s=retry_after_s)
    return Broken(f"the target answered with status {status}: {words}", status=status)
