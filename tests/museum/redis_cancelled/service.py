"""A chat service that keeps its sessions in redis, as the product of March 2023 did.

One pool of asyncio connections for all users; redis stands some milliseconds away; the engine is
behind it. A user who closes the tab is noticed, and the handler is cancelled wherever it is. The
only redis command of a turn is a script: add this message to the session, return the session.

Run by the interpreter of an environment that has some release of redis-py; knows nothing of
leakcheck. Ends when its standard input does.
"""

import asyncio
import contextlib
import functools
import json
import sys
import uuid

import aiohttp
import redis
from aiohttp import web
from redis.asyncio import Redis

APPEND_AND_READ = """
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], 600)
return redis.call('LRANGE', KEYS[1], 0, -1)
"""


async def later(reader, writer, delay_s):
    """Pass bytes on `delay_s` after they came, in order."""
    loop = asyncio.get_running_loop()
    last = loop.time()
    while data := await reader.read(65536):
        last = loop.time() + delay_s
        loop.call_at(last, writer.write, data)
    loop.call_at(max(last, loop.time()), writer.close)


async def far_away(port, delay_s):
    """The port at which the server at `port` seems to be in another zone, `delay_s` each way."""

    async def connected(reader, writer):
        to_redis = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                later(reader, to_redis[1], delay_s), later(to_redis[0], writer, delay_s)
            )

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


class Chat:
    """The product: sessions in redis, answers from the engine."""

    def __init__(self, sessions, engine, http):
        self.append_and_read = sessions.register_script(APPEND_AND_READ)
        self.engine = engine
        self.http = http

    async def turn(self, request):
        """One message of a user: kept, put to the engine with what was said before, answered."""
        body = await request.json()
        session = f"session:{uuid.uuid4()}"
        kept = await self.append_and_read(keys=[session], args=[json.dumps(body["messages"])])
        body["messages"] = [message for turn in kept for message in json.loads(turn)]
        async with self.http.post(f"{self.engine}/chat/completions", json=body) as answer:
            if not body.get("stream"):
                text = await answer.read()
                return web.Response(
                    body=text, status=answer.status, content_type=answer.content_type
                )
            stream = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
            )
            await stream.prepare(request)
            async for piece in answer.content.iter_any():
                await stream.write(piece)
            await stream.write_eof()
            return stream

    async def models(self, _request):
        """What the engine serves."""
        async with self.http.get(f"{self.engine}/models") as answer:
            return web.json_response(await answer.json(), status=answer.status)


async def main(engine, redis_port, delay_s):
    """Serve until standard input ends."""
    relay, port = await far_away(int(redis_port), float(delay_s))
    connector = aiohttp.TCPConnector(limit=0)
    async with relay, aiohttp.ClientSession(connector=connector) as http:
        sessions = Redis(host="127.0.0.1", port=port)
        chat = Chat(sessions, engine, http)
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", chat.turn)
        app.router.add_get("/v1/models", chat.models)
        # as aiohttp did by itself until 3.7, and other servers do: who leaves is not worked for
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = runner.addresses[0]
        ready = {"base_url": f"http://127.0.0.1:{address[1]}/v1", "release": redis.__version__}
        print("READY", json.dumps(ready), flush=True)  # noqa: T201 - how it says where it is
        await asyncio.get_running_loop().run_in_executor(
            None, functools.partial(sys.stdin.buffer.read)
        )
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
