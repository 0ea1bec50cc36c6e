"""A small HTTP server that speaks the protocol of a dialect, and misbehaves when it is asked to.

A dialect is a module of this folder: `asked` (what a request asks for, or None for another page),
`page` (the reply to any other path), `whole`, `pieces` (an answer as one body, and as the events of
a stream), `error` (a body that says one) and `STREAM` (the type of its streams). Prompts that begin
with `!name` say how the answer is to go wrong; anything else is repeated word for word. With
`leaking` each answer has that of the request before it behind it, which is what a real bug does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, field

RETRY_AFTER_S = 7
BAD_BYTE = "¿"


@dataclass(kw_only=True)
class Asked:
    """What a request asks for, whatever the dialect calls it."""

    prompt: str
    stream: bool
    completion: bool = False
    responses: bool = False
    key: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    top_logprobs: int | None = None
    token_ids: bool = False


@dataclass(kw_only=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict
    connection: int


@dataclass
class Server:
    """One server in a thread of its own; `with` starts and stops it."""

    dialect: object
    leaking: bool = False
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    _connections: int = 0
    _last: str = ""

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(20)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    async def _serve(self, ready):
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        tasks = set()

        def connected(reader, writer):
            task = asyncio.ensure_future(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._over.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader, writer):
        number = self._connections = self._connections + 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                pairs = (line.partition(":") for line in head[1:] if line)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                data = await reader.readexactly(int(headers.get("content-length", "0")))
                seen = Seen(
                    method=method,
                    path=path,
                    headers=headers,
                    body=json.loads(data) if data else {},
                    connection=number,
                )
                self.seen.append(seen)
                await self._answer(Reply(reader, writer), seen)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed.append(number)
            writer.close()

    async def _answer(self, reply, seen):
        asked = self.dialect.asked(seen)
        if asked is None:
            return await reply.whole(*self.dialect.page(seen))
        name, _, rest = asked.prompt.strip().partition(" ")
        if name.startswith("!"):
            return await getattr(self, f"_{name[1:].replace('-', '_')}")(reply, asked, rest)
        text = asked.prompt
        if self.leaking:
            text, self._last = f"{text} {self._last}", text
        return await self._say(reply, asked, text)

    async def _say(self, reply, asked, text, **extra):
        if not asked.stream:
            return await reply.whole(200, self.dialect.whole(text, asked), **extra)
        await reply.begin(self.dialect.STREAM, **extra)
        for piece in self.dialect.pieces(text, asked):
            await reply.piece(piece)
        return await reply.end()

    async def _asked(self, reply, asked, _):
        await self._say(reply, asked, json.dumps(vars(asked) | {"prompt": ""}))

    async def _header(self, reply, asked, rest):
        """`!header NAME VALUE`: an answer that comes with this header."""
        name, _, value = rest.partition(" ")
        await self._say(reply, asked, "alpha beta", **{name: value})

    async def _half(self, reply, asked):
        await reply.begin(self.dialect.STREAM)
        pieces = self.dialect.pieces("alpha beta gamma delta", asked)
        for piece in pieces[: len(pieces) // 2]:
            await reply.piece(piece)

    async def _cut(self, reply, asked, _):
        if asked.stream:
            await self._half(reply, asked)
        else:
            body = self.dialect.whole("alpha beta", asked)
            reply.writer.write(reply.head(200, "application/json", len(body)) + body[:-9])
        raise ConnectionError

    async def _unfinished(self, reply, asked, _):
        await self._half(reply, asked)
        await reply.end()

    async def _status(self, reply, asked, rest):
        status = int(rest)
        words = f"status {status} for {asked.key}"
        extra = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
        extra["X-Request-Id"] = f"req-{status}"
        await reply.whole(status, self.dialect.error(words), **extra)

    async def _error_inside(self, reply, asked, _):
        await self._half(reply, asked)
        error = self.dialect.error(f"out of blocks, {asked.key}")
        await reply.piece(self.dialect.event(error))
        await reply.end()

    async def _long(self, reply, asked, _):
        await self._say(reply, asked, "and so on " * 3_000)

    async def _no_text(self, reply, asked, _):
        raw = [
            piece.replace(BAD_BYTE.encode(), b"\xfc")
            for piece in (
                self.dialect.pieces(f"a gr{BAD_BYTE}n z", asked)
                if asked.stream
                else [self.dialect.whole(f"a gr{BAD_BYTE}n z", asked)]
            )
        ]
        if not asked.stream:
            return await reply.whole(200, raw[0])
        await reply.begin(self.dialect.STREAM)
        for piece in raw:
            await reply.piece(piece)
        return await reply.end()

    async def _hang(self, reply, asked, _):
        """Begin, and wait until the other side closes."""
        await self._half(reply, asked)
        await reply.reader.read(1)
        raise ConnectionError


@dataclass
class Reply:
    """The socket that one answer is written to."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def head(self, status, kind, length, **extra):
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {length}"]
        lines += [f"{name}: {value}" for name, value in extra.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    async def whole(self, status, body, kind="application/json", **extra):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.writer.write(self.head(status, kind, len(body), **extra) + body)
        await self.writer.drain()

    async def begin(self, kind, **extra):
        lines = ["HTTP/1.1 200 X", f"content-type: {kind}", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in extra.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        await self.writer.drain()

    async def piece(self, data):
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def end(self):
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


def dumped(document):
    return json.dumps(document, ensure_ascii=False).encode()


def sse(document, name=None):
    event = f"event: {name}\n".encode() if name else b""
    return event + b"data: " + dumped(document) + b"\n\n"


def bearer(headers):
    with contextlib.suppress(KeyError):
        return headers["authorization"].removeprefix("Bearer ")
    return None
