"""An endpoint of which nothing is known but URL, model and key, and that makes testing it hard.

Behind it sits an honest model that says its ticket, and its passphrase when asked. Run as a process
(`python hostile_endpoint.py JSON`), it prints its port; JSON says what stands in the way: `Manner`.
Every time in it is multiplied by `scale`, so that a minute can pass in a second. `GET /seen` tells
what arrived and when.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiohttp import web

_TICKET = re.compile(r"My ticket is ([^.]*)\.")
_SECRET = re.compile(r"My passphrase is ([^.]*)\.")
_REPEAT = re.compile(r"Repeat exactly: (.*)$", re.DOTALL)
_RECORD = re.compile(r"TICKET=([^\n=]*)(?:\nPASSPHRASE=([^\n=]*))?")


@dataclass(frozen=True, kw_only=True)
class Manner:
    """What stands in the way; times in seconds before they are scaled, shares of requests."""

    scale: float = 1.0
    seed: int = 0
    latency_s: tuple[float, float] = (0.0, 0.0)
    per_minute: int = 0
    burst: int = 60
    says_when: bool = True
    announces: str = ""
    asks_to_wait_s: float | None = None
    random_429: float = 0.0
    every_second_429: bool = False
    random_500: float = 0.0
    fails_after: int = 0
    busy_after: int = 0
    models: bool = False
    usage: bool = False
    hidden: str = ""
    preamble: str = ""
    collapses: bool = False
    truncates_words: int = 0
    refuses: float = 0.0
    caches: bool = False
    content_type: str = ""
    chatter: bool = False
    swaps: float = 0.0
    tells_key: tuple[str, ...] = ()


@dataclass
class Seen:
    """What arrived: one entry a POST, and how often the list of models was asked for."""

    times_s: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    pages: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    in_flight: int = 0
    most_in_flight: int = 0


class Endpoint:
    """The state of one endpoint."""

    def __init__(self, manner):
        self.manner = manner
        self.random = random.Random(manner.seed)
        self.seen = Seen()
        self.cache = {}
        self.last = {}
        self.level, self.filled_s = float(manner.burst), time.monotonic()

    # --- what an honest model says ---------------------------------------------------------------

    def words(self, body):
        """The prompt as it reaches the model, which is not what was sent."""
        text = body.get("prompt") or "\n".join(m["content"] for m in body.get("messages", []))
        if self.manner.collapses:
            text = " ".join(text.split())
        if self.manner.truncates_words:
            text = " ".join(text.split()[-self.manner.truncates_words :])
        return f"{self.manner.hidden} {self.manner.preamble} {text}"

    def say(self, prompt):
        asked = _REPEAT.search(prompt)
        if asked and self.random.random() >= self.manner.refuses:
            return asked[1]
        record = _RECORD.findall(prompt)
        ticket, secret = _TICKET.findall(prompt), _SECRET.findall(prompt)
        own = [ticket[-1] if ticket else "", secret[-1] if secret else ""]
        if record and not ticket:
            own = list(record[0])
        wants = "passphrase you can see" in prompt or bool(record or asked)
        if wants and (asked or self.random.random() < self.manner.refuses):
            return f"{own[0]}. I cannot reveal passphrases."
        said = " ".join(own) if wants else f"{own[0]}. It is a fine day."
        if self.manner.chatter:
            return f"Sure! Here is what you asked for: {said} Let me know if there is more."
        return said

    # --- what stands in the way ------------------------------------------------------------------

    def refusal(self):
        """A refusal with its status and headers, if this request gets one."""
        its = self.manner
        if its.per_minute:
            now = time.monotonic()
            gained = (now - self.filled_s) * its.per_minute / (60 * its.scale)
            self.level, self.filled_s = min(its.burst, self.level + gained), now
            if self.level < 1:
                wait_s = (1 - self.level) * 60 * its.scale / its.per_minute
                return self.busy(wait_s)
            self.level -= 1
        sent = len(self.seen.times_s)
        busy = 0 < its.busy_after < sent or (its.every_second_429 and sent % 2)
        if busy or self.random.random() < its.random_429:
            return self.busy(its.scale)
        broken = 0 < its.fails_after < sent
        if broken or self.random.random() < its.random_500:
            return web.json_response({"error": {"message": "internal error"}}, status=500)
        return None

    def left(self):
        """Headers that say what is left and when all of it is there again, as some APIs do."""
        its = self.manner
        left = str(max(0, int(self.level)))
        full_s = (its.burst - self.level) * 60 * its.scale / max(1, its.per_minute)
        if its.announces == "openai":
            names = ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
            return dict(zip(names, (left, f"{full_s * 1000:.3f}ms"), strict=True))
        if its.announces == "anthropic":
            names = ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset")
            moment = datetime.fromtimestamp(time.time() + full_s, UTC).isoformat()
            return dict(zip(names, (left, moment), strict=True))
        if its.announces == "always empty":
            return {"ratelimit-remaining": "0", "ratelimit-reset": f"{60 * its.scale:.4f}"}
        return {}

    def busy(self, wait_s):
        wait_s = wait_s if self.manner.asks_to_wait_s is None else self.manner.asks_to_wait_s
        headers = {"Retry-After": f"{wait_s:.4f}"} if self.manner.says_when else {}
        return web.json_response(
            {"error": {"message": "too many requests"}}, status=429, headers=headers
        )

    async def answer(self, request):
        body = await request.json()
        seen = self.seen
        seen.times_s.append(time.monotonic())
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            reply = self.told_key(request) or self.refusal() or await self.whole(request, body)
        finally:
            seen.in_flight -= 1
        seen.statuses.append(reply.status)
        return reply

    async def whole(self, request, body):
        its = self.manner
        prompt = self.words(body)
        text = self.say(prompt)
        if its.caches:
            text = self.cache.setdefault(json.dumps(body, sort_keys=True), text)
        mine = object()
        self.last[mine] = text
        await asyncio.sleep(self.random.uniform(*its.latency_s) * its.scale)
        others = [each for key, each in self.last.items() if key is not mine]
        if others and self.random.random() < its.swaps:
            text = self.random.choice(others)
        while len(self.last) > 16:
            self.last.pop(next(iter(self.last)))
        if "answer" in its.tells_key:
            text += f" {request.headers.get('Authorization', '')}"
        prompt_tokens = len(prompt.split()) * 2
        words = text.split(" ")[
            : int(body.get("max_tokens") or body.get("max_completion_tokens") or 64)
        ]
        self.seen.prompt_tokens += prompt_tokens
        self.seen.answer_tokens += len(words)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(words)}
        return await self.sent(request, body, words, usage if its.usage else None)

    async def sent(self, request, body, words, usage):
        chat, text = "messages" in body, " ".join(words)
        key = request.headers.get("Authorization", "")
        extra = {"X-Seen-Key": key, "X-Request-Id": key}
        headers = extra if "header" in self.manner.tells_key else {}
        headers = {**headers, **self.left()}
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": "stop"}
            choice |= (
                {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            )
            document = {"id": "x", "choices": [choice]} | ({"usage": usage} if usage else {})
            kind = self.manner.content_type or "application/json"
            return web.Response(
                text=json.dumps(document), headers={**headers, "Content-Type": kind}
            )
        reply = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await reply.prepare(request)
        size = 3 if "split" in self.manner.tells_key else max(1, len(text))
        for at in range(0, len(text), size):
            await reply.write(_event(chat, text[at : at + size], None))
        await reply.write(_event(chat, "", "stop", usage))
        await reply.write(b"data: [DONE]\n\n")
        await reply.write_eof()
        return reply

    def told_key(self, request):
        """Ways to give a key back that are no answers; tried in turn, now and then."""
        key = request.headers.get("Authorization", "")
        ways = [way for way in ("error", "redirect", "refusal") if way in self.manner.tells_key]
        if not ways or len(self.seen.times_s) < 30 or self.random.random() > 0.2:
            return None
        way = self.random.choice(ways)
        coded = base64.b64encode(key.encode()).decode()
        if way == "error":
            return web.json_response({"error": {"message": f"bad {key} {coded}"}}, status=500)
        if way == "redirect":
            return web.Response(status=307, headers={"Location": f"http://127.0.0.1/{key}"})
        return web.json_response({"error": {"message": f"key {key} may not"}}, status=400)

    async def models(self, _request):
        self.seen.pages += 1
        if not self.manner.models:
            return web.json_response({"error": {"message": "no such page"}}, status=404)
        return web.json_response({"data": [{"id": "m"}]})

    async def told(self, _request):
        return web.json_response(self.seen.__dict__)


def _event(chat, text, finish, usage=None):
    choice = {"index": 0, "finish_reason": finish}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    document = {"id": "x", "choices": [choice]} | ({"usage": usage} if usage else {})
    return f"data: {json.dumps(document)}\n\n".encode()


async def _main(manner):
    endpoint = Endpoint(manner)
    app = web.Application()
    app.router.add_get("/v1/models", endpoint.models)
    app.router.add_get("/seen", endpoint.told)
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    app.router.add_post("/v1/completions", endpoint.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - how the port is told
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(Manner(**json.loads(sys.argv[1]))))
