"""An assistant behind LiteLLM with its response cache on, through the Responses API.

What the caller's system message says becomes `instructions`, as that API wants it; the user's
messages become `input`. LiteLLM is called as an application calls it, keeps answers in its local
cache, and speaks chat completions to the engine.

Run by the interpreter of an environment that has some release of litellm; knows nothing of
leakcheck. Ends when its standard input does.
"""

import asyncio
import functools
import importlib.metadata
import json
import sys

import aiohttp
import litellm
from aiohttp import web
from litellm.caching.caching import Cache


class Assistant:
    """One model behind one cache."""

    def __init__(self, engine, http):
        self.engine = engine
        self.http = http

    async def answered(self, body):
        """The text of an answer, from the cache or from the engine."""
        system = [each["content"] for each in body["messages"] if each["role"] == "system"]
        talk = [each for each in body["messages"] if each["role"] != "system"]
        answer = await litellm.aresponses(
            model=f"lm_studio/{body['model']}",
            api_base=self.engine,
            api_key="none",
            instructions="\n".join(system) or None,
            input=talk,
            max_output_tokens=body.get("max_tokens"),
            temperature=body.get("temperature"),
        )
        parts = [part for item in answer.output for part in getattr(item, "content", None) or ()]
        return answer.id, "".join(part.text for part in parts)

    async def chat(self, request):
        """The front that callers see: OpenAI's chat completions."""
        body = await request.json()
        target_id, text = await self.answered(body)
        made = {"id": target_id, "object": "chat.completion", "created": 0, "model": body["model"]}
        choice = {"index": 0, "finish_reason": "stop"}
        message = {"role": "assistant", "content": text}
        if not body.get("stream"):
            return web.json_response(made | {"choices": [choice | {"message": message}]})
        made["object"] = "chat.completion.chunk"
        chunk = json.dumps(made | {"choices": [choice | {"delta": message}]})
        return web.Response(
            text=f"data: {chunk}\n\ndata: [DONE]\n\n", content_type="text/event-stream"
        )

    async def models(self, _request):
        """What the engine serves."""
        async with self.http.get(f"{self.engine}/models") as answer:
            return web.json_response(await answer.json(), status=answer.status)


async def main(engine):
    """Serve until standard input ends."""
    litellm.cache = Cache(type="local")
    litellm.drop_params = True
    async with aiohttp.ClientSession() as http:
        assistant = Assistant(engine, http)
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", assistant.chat)
        app.router.add_get("/v1/models", assistant.models)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready = {
            "base_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1",
            "release": importlib.metadata.version("litellm"),
        }
        print("READY", json.dumps(ready), flush=True)  # noqa: T201 - how it says where it is
        await asyncio.get_running_loop().run_in_executor(
            None, functools.partial(sys.stdin.buffer.read)
        )
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
