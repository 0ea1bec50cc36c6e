"""A gateway that lets in one request at a time and passes its answer on, as some proxies do.

Run as a process (`python gateway.py PORT`), in front of a target on that port of this machine; it
prints its own. What is only looked at (GET) is passed on at once.
"""

import asyncio
import sys

import aiohttp
from aiohttp import web


async def _main(port):
    one = asyncio.Lock()
    session = aiohttp.ClientSession(auto_decompress=False)

    async def forward(request):
        url = f"http://127.0.0.1:{port}{request.path_qs}"
        data = await request.read()
        kind = {"Content-Type": request.headers.get("Content-Type", "text/plain")}
        async with session.request(request.method, url, data=data, headers=kind) as reply:
            kind = {"Content-Type": reply.headers.get("Content-Type", "text/plain")}
            return web.Response(status=reply.status, body=await reply.read(), headers=kind)

    async def handle(request):
        if request.method != "POST":
            return await forward(request)
        async with one:
            return await forward(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - how the port is told
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
