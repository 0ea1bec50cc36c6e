"""A model behind Ray Serve: one deployment, an OpenAI-compatible front of the embedded engine.

Ray Serve stands where it stands in the product: its proxy takes the request, finds a replica and
carries the answer back. What the deployment does is to pass the request on to the engine.

Run by the interpreter of an environment that has some release of ray[serve]; knows nothing of
leakcheck. Ends when its standard input does.
"""

import json
import logging
import os
import socket
import sys
import tempfile

import aiohttp
import ray
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from ray import serve

app = FastAPI()


@serve.deployment(max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
@serve.ingress(app)
class Model:
    """One replica."""

    def __init__(self, engine):
        self.engine = engine
        self.http = None

    def session(self):
        """The connections to the engine, made in the loop that uses them."""
        if self.http is None:
            self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self.http

    @app.get("/v1/models")
    async def models(self):
        """What the engine serves."""
        async with self.session().get(f"{self.engine}/models") as answer:
            return Response(await answer.read(), media_type="application/json")

    @app.post("/v1/chat/completions")
    async def chat(self, request: Request):
        """One request, one answer: the engine's own, byte for byte."""
        body = await request.body()
        answer = await self.session().post(
            f"{self.engine}/chat/completions",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        if not json.loads(body).get("stream"):
            async with answer:
                return Response(
                    await answer.read(), status_code=answer.status, media_type=answer.content_type
                )

        async def pieces():
            async with answer:
                async for piece in answer.content.iter_any():
                    yield piece

        return StreamingResponse(
            pieces(), status_code=answer.status, media_type=answer.content_type
        )


def main(engine):
    """Serve until standard input ends."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            logging_level=logging.WARNING,
            object_store_memory=100 * 2**20,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(Model.bind(engine))
        ready = {"base_url": f"http://127.0.0.1:{port}/v1", "release": ray.__version__}
        print("READY", json.dumps(ready), flush=True)  # noqa: T201 - how it says where it is
        sys.stdin.buffer.read()
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
