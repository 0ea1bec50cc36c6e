"""One server in this process, spoken to as uvicorn would: real endpoints, no sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random

from leakcheck.engine import faults
from leakcheck.engine.server import Api


class Client:
    """One address; `leave()` of a sent request hangs up."""

    def __init__(self, api, address="127.0.0.1"):
        self.api = api
        self.address = address

    async def post(self, body, *, headers=None, gone=None):
        """(status, headers, body) of a chat; `gone` is an event that hangs up when set."""
        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
            "http_version": "1.1", "scheme": "http", "root_path": "", "raw_path": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": (self.address, 5000), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        incoming = [{"type": "http.request", "body": json.dumps(body).encode()}]
        sent = []

        async def receive():
            if incoming:
                return incoming.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await self.api.app(scope, receive, send)
        head = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], head, b"".join(its.get("body", b"") for its in sent[1:])

    async def ask(self, text, *, system=None, headers=None, gone=None, max_tokens=8, **fields):
        """The answer's text; (status, text) where it is not 200."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        body = {"model": "tiny", "messages": messages, "max_tokens": max_tokens}
        body |= {"ignore_eos": True, **fields}
        status, _, raw = await self.post(body, headers=headers, gone=gone)
        return said(raw) if status == 200 else (status, raw.decode())


def said(raw):
    """The text of an answer, whole or streamed."""
    if raw.startswith(b"{"):
        return json.loads(raw)["choices"][0]["message"]["content"]
    lines = [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        for choice in chunk.get("choices", ())
    )


@contextlib.asynccontextmanager
async def running(engine, tokenizer, fault=None, *, rate=1.0, seed=0):
    """A started server, with a fault or without."""
    api = Api(engine, tokenizer, model="tiny")
    if fault:
        seams = faults.Seams(engine=engine, delivery=api.delivery, api=api)
        faults.find(fault).install(seams, rate, Random(seed))
    async with api.lifespan(api.app):
        yield api


def play(engine, tokenizer, scenario, fault=None, *, rate=1.0):
    """The result of the coroutine function `scenario(api)` on a started server."""

    async def body():
        async with running(engine, tokenizer, fault, rate=rate) as api:
            return await asyncio.wait_for(scenario(api), timeout=20)

    return asyncio.run(body())
