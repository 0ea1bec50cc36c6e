"""Raw servers that frame HTTP rightly or wrongly: a chat API that repeats the last message.

`served(fault)` listens on a free port of 127.0.0.1 inside the running event loop. Faults:

- `unread`: a refused request's body stays in the buffer and is read as the next request line;
- `expect`: the interim 100 is counted as a reply, so that every later one is one behind;
- `extra`: one unsolicited reply on each connection, so that every later one is one behind;
- `hangs`: after a refused request nobody is answered on that connection.

Healthy ones: none, `closes` (says `Connection: close` with a refusal and does), `abrupt` (closes
after a refusal without a word), `no-continue` (takes Expect and never sends a 100).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import asynccontextmanager

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def reply(status, document, *extra):
    data = json.dumps(document).encode()
    head = [f"HTTP/1.1 {status} X", "content-type: application/json", *extra]
    return "\r\n".join([*head, f"content-length: {len(data)}", "", ""]).encode() + data


def refusal(status, text, *extra):
    return reply(status, {"error": {"message": text}}, *extra)


def answer(body):
    text = body["messages"][-1]["content"]
    choice = {"index": 0, "finish_reason": "stop"}
    choice["message"] = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 9, "completion_tokens": 9}
    return reply(200, {"id": "x", "choices": [choice], "usage": usage})


class Served:
    """What the server saw: `keys` of the requests, `connections`, and request lines."""

    def __init__(self, fault):
        self.fault, self.connections, self.lines, self.heads = fault, 0, [], []

    async def __call__(self, reader, writer):
        self.connections += 1
        late = deque(
            [answer({"messages": [{"content": "hello"}]})] if self.fault == "extra" else []
        )
        try:
            await self._serve(reader, writer, late)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader, writer, late):
        while line := (await reader.readuntil(b"\r\n")).decode("latin-1").strip():
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            self.lines.append(line)
            self.heads.append(head)
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            if not line.startswith(("POST /", "GET /")):
                writer.write(refusal(400, f"bad request line: {line}"))
                return
            if not line.startswith("POST /v1/chat/completions"):
                if not await self._refuse(reader, writer, size):
                    return
                continue
            if "expect: 100-continue" in head and self.fault != "no-continue":
                writer.write(CONTINUE)
                if self.fault == "expect":
                    late.append(refusal(502, "no reply from upstream"))
            body = json.loads(await reader.readexactly(size))
            late.append(answer(body))
            await asyncio.sleep(0.002)
            writer.write(late.popleft())
            await writer.drain()

    async def _refuse(self, reader, writer, size):
        if self.fault not in ("unread", "abrupt"):
            await reader.readexactly(size)
        extra = ("connection: close",) if self.fault == "closes" else ()
        writer.write(refusal(404, "no such path", *extra))
        await writer.drain()
        if self.fault == "hangs":
            await asyncio.sleep(60)
        return self.fault not in ("closes", "abrupt")


@asynccontextmanager
async def served(fault=""):
    """A server, and the port it listens on."""
    server = Served(fault)
    listening = await asyncio.start_server(server, "127.0.0.1", 0, limit=1 << 20)
    async with listening:
        yield server, listening.sockets[0].getsockname()[1]
