"""A target that misbehaves in every way we could think of, on 127.0.0.1 and a free port.

Run as a process, it prints its port. The model's name says how it behaves (`BEHAVIOURS`); paths
other than `/v1` misbehave in the survey (`_models`). Raw sockets: no HTTP library would let us send
most of this.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field

WORDS = ("alpha ", "beta ", "gamma ", "delta ")


@dataclass
class Call:
    """One request as it came, and the socket to answer on."""

    writer: asyncio.StreamWriter
    method: str
    path: str
    headers: dict[str, str]
    body: dict
    connection: int
    reader: asyncio.StreamReader
    seen: dict = field(default_factory=dict)

    @property
    def prompt(self):
        if "messages" in self.body:
            return self.body["messages"][-1]["content"]
        return self.body.get("prompt", "")

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode() + data)
        return True

    async def begin(self):
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def raw(self, data):
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, document):
        data = document if isinstance(document, str) else json.dumps(document)
        await self.raw(f"data: {data}\n\n".encode())

    async def end(self):
        await self.event("[DONE]")
        await self.send(b"0\r\n\r\n")
        return True

    async def answer(self, *pieces, finish="stop"):
        """A whole, healthy answer in the form that was asked for."""
        if not self.body.get("stream"):
            return await self.reply(200, whole(self, "".join(pieces), finish))
        await self.begin()
        for piece in pieces:
            await self.event(delta(self, piece))
        await self.event(delta(self, "", finish))
        await self.event({"id": "t", "choices": [], "usage": USAGE})
        return await self.end()


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 3},
}


def delta(call, text, finish=None):
    choice = {"index": 0, "finish_reason": finish}
    if "messages" in call.body:
        choice["delta"] = {"content": text}
    else:
        choice["text"] = text
    return {"id": "t", "choices": [choice]}


def whole(call, text, finish="stop"):
    choice = {"index": 0, "finish_reason": finish}
    if "messages" in call.body:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    return {"id": "t", "choices": [choice], "usage": USAGE}


def error(message, kind="invalid_request_error"):
    return {"error": {"message": message, "type": kind}}


async def echo(call):
    return await call.answer(*[word + " " for word in call.prompt.split()])


async def stale(call, prompts=[]):  # noqa: B006 - it remembers: that is the fault
    """The prompt, and that of twenty requests before."""
    prompts.append(call.prompt)
    before = prompts[-21] if len(prompts) > 20 else ""
    await call.answer(*[f"{word} " for word in f"{call.prompt} {before}".split()])


async def tires(call, answered=[]):  # noqa: B006 - it remembers how much it has done
    """Echoes a hundred and twenty requests, then takes them and says nothing."""
    answered.append(1)
    return await echo(call) if len(answered) <= 120 else False


async def same(call):
    return await call.answer(*WORDS)


async def connection(call):
    return await call.answer(f"connection {call.connection}")


async def headers(call):
    return await call.answer(json.dumps(call.headers))


async def watched(call):
    """`watch` tells what became of the connections before; anything else is answered slowly, after
    as many seconds as it begins with, until the other side closes.
    """
    told = call.seen.setdefault("watched", [])
    if call.prompt == "watch":
        return await call.answer(json.dumps(told))
    fate = {"prompt": call.prompt, "connection": call.connection, "end": "written"}
    told.append(fate)
    asyncio.get_running_loop().create_task(_until_closed(call.reader, fate))
    await asyncio.sleep(float(call.prompt.split()[0]))
    return await slow(call)


async def _until_closed(reader, fate):
    try:
        fate["end"] = "closed" if await reader.read(1) == b"" else "sent more"
    except ConnectionError:
        fate["end"] = "closed"


async def slow(call):
    await call.begin()
    for _ in range(600):
        await call.event(delta(call, "slow "))
        await asyncio.sleep(0.05)
    return await call.end()


async def pause(call):
    """Answer after 0.2 s: long enough to overlap, short enough to end."""
    await asyncio.sleep(0.2)
    return await call.answer(*WORDS)


async def silent(_call):
    await asyncio.sleep(600)


async def endless(call):
    await call.begin()
    while True:
        await call.event(delta(call, "and so on "))
        await asyncio.sleep(0.0005)


async def huge(call):
    """50 MB, as one JSON reply or as one endless-looking stream."""
    block = "x" * 100_000
    if call.body.get("stream"):
        await call.begin()
        for _ in range(500):
            await call.event(delta(call, block))
        return await call.end()
    return await call.reply(200, whole(call, block * 500))


async def cut(call):
    """The connection breaks inside an event."""
    await call.begin()
    await call.event(delta(call, "alpha "))
    await call.event(delta(call, "beta "))
    await call.raw(b'data: {"id": "t", "choi')


async def cut_json(call):
    data = json.dumps(whole(call, "alpha beta")).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    await call.send(head.encode() + data[:-10])


async def unfinished(call):
    """A stream that ends politely, but before its end."""
    await call.begin()
    await call.event(delta(call, "alpha "))
    await call.send(b"0\r\n\r\n")
    return True


async def open_after_done(call):
    await call.begin()
    await call.event(delta(call, "alpha", "stop"))
    await call.event("[DONE]")
    await asyncio.sleep(600)


async def invalid(call):
    if not call.body.get("stream"):
        return await call.reply(200, b'{"choices": [{"message": SECRET}')
    await call.begin()
    await call.event(delta(call, "alpha "))
    await call.event('{"choices": [{"delta": SECRET}')
    return await call.end()


async def latin1(call):
    if not call.body.get("stream"):
        return await call.reply(
            200, json.dumps(whole(call, "gruen?")).replace("ue", "\xfc").encode("latin-1")
        )
    await call.begin()
    await call.event(delta(call, "alpha "))
    await call.raw(
        json.dumps(delta(call, "gruen"))
        .replace("ue", "\xfc")
        .join(["data: ", "\n\n"])
        .encode("latin-1")
    )
    await call.event(delta(call, "", "stop"))
    return await call.end()


async def unauthorized(call):
    return await call.reply(401, error(f"wrong key: {call.headers.get('authorization')}"))


async def parrot_key(call):
    """Says the caller's key, in pieces, in every place where a text can stand."""
    key = call.headers.get("authorization", "none")
    await call.begin()
    for field_name in ("content", "reasoning_content"):
        for piece in (key[:10], key[10:]):
            await call.event({"id": key, "choices": [{"index": 0, "delta": {field_name: piece}}]})
    await call.event(
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "x"},
                    "logprobs": {
                        "content": [
                            {
                                "token": key,
                                "logprob": -1.0,
                                "top_logprobs": [{"token": key, "logprob": -1.0}],
                            }
                        ]
                    },
                    "finish_reason": key,
                }
            ]
        }
    )
    await call.event(error(f"I know {key} and {call.headers.get('x-extra')}"))
    return await call.end()


async def busy_once(call):
    if call.seen.setdefault(call.prompt, 0) == 0:
        call.seen[call.prompt] += 1
        return await call.reply(429, error("slow down"), retry_after="0")
    return await call.answer(*WORDS)


async def busy(call):
    return await call.reply(429, error("slow down"), retry_after="0")


async def overloaded(call):
    return await call.reply(503, error("come again"), retry_after="0")


async def broken(call):
    return await call.reply(500, error("the engine\nhas crashed", "server_error"))


async def refuses(call):
    return await call.reply(400, error("this prompt is not allowed"))


async def stream_error(call):
    await call.begin()
    await call.event(delta(call, "alpha "))
    await call.event(error("out of blocks"))
    return await call.end()


async def moved(call):
    return await call.reply(308, b"", location="https://elsewhere.example/v1/chat/completions")


async def page(call):
    return await call.reply(200, b"<!doctype html><title>Welcome</title>", kind="text/html")


async def not_http(call):
    await call.send(b"SSH-2.0-OpenSSH_9.9\r\n")


async def hangs_up(_call):
    return False


async def exits(_call):
    raise SystemExit(0)


BEHAVIOURS = {
    name.replace("_", "-"): behaviour
    for name, behaviour in list(globals().items())
    if asyncio.iscoroutinefunction(behaviour)
}
MODELS = {"object": "list", "data": [{"id": name, "object": "model"} for name in BEHAVIOURS]}


async def _models(call):
    folder = call.path.split("/")[1]
    behaviours = {"html": page, "locked": unauthorized, "broken": broken, "silent": silent}
    if folder in behaviours:
        return await behaviours[folder](call)
    if folder == "invalid":
        return await call.reply(200, b"{not JSON")
    if folder == "v1":
        told = call.headers.get("authorization")
        extra = [{"id": f"told {told}", "object": "model"}] if told else []
        return await call.reply(200, MODELS | {"data": MODELS["data"] + extra})
    return await call.reply(404, {"detail": "Not Found"})


async def _dispatch(call):
    if call.path.endswith("/models"):
        return await _models(call)
    folder, _, rest = call.path.removeprefix("/").partition("/")
    if folder == "unlisted":
        folder, _, rest = rest.partition("/")
    if folder != "v1" or rest not in {"chat/completions", "completions"}:
        return await call.reply(404, {"detail": "Not Found"})
    model = call.body.get("model")
    if model not in BEHAVIOURS:
        return await call.reply(404, error(f"The model `{model}` does not exist."))
    return await BEHAVIOURS[model](call)


async def _serve(reader, writer, number, seen):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            data = await reader.readexactly(int(headers.get("content-length", "0")))
            body = json.loads(data) if data else {}
            call = Call(writer, method, path, headers, body, number, reader, seen)
            if not await _dispatch(call):
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _main():
    numbers = itertools.count()
    seen: dict = {}
    server = await asyncio.start_server(
        lambda reader, writer: _serve(reader, writer, next(numbers), seen), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - how the port is told
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
