"""From engine requests to one HTTP answer: whole or streamed, and freed when its client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leakcheck.engine import render
from leakcheck.engine.delivery import Delivery, Mailbox
from leakcheck.engine.loop import EngineLoop
from leakcheck.engine.protocol import error_body
from leakcheck.engine.text import TokenTexts
from leakcheck.engine.values import GenerateRequest, RequestError, Update, Usage

Outcome = TypeVar("Outcome")
STATUS_CLIENT_GONE = 499
HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request in work: the engine requests it became and where their updates arrive."""

    id: str
    style: render.Style
    model: str
    created: int
    requests: tuple[GenerateRequest, ...]
    logprobs: bool
    token_ids: bool
    include_usage: bool
    queue: asyncio.Queue[Update | None] = field(default_factory=asyncio.Queue)

    @property
    def choices(self) -> int:
        """How many choices the answer has in all."""
        return sum(request.n for request in self.requests)

    def usage(self, ended: dict[int, Usage]) -> dict[str, Any]:
        """The usage block from the usage of each choice."""
        n = self.requests[0].n
        return render.usage_block([(index // n, ended[index]) for index in sorted(ended)])

    def head(self, kind: str) -> dict[str, Any]:
        """The fields every object of this answer begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Answerer:
    """Submits calls to the engine's loop and reads their answers from the delivery."""

    def __init__(self, loop: EngineLoop, delivery: Delivery, texts: TokenTexts) -> None:
        """All three belong to one engine."""
        self.loop = loop
        self.delivery = delivery
        self.texts = texts

    async def answer(self, call: Call, receive: Receive, *, stream: bool) -> Response | Stream:
        """The response to a call. RequestError when the engine refuses one of its prompts."""
        self.submit(call)
        if stream:
            return Stream(self, call)
        answered = await self.attend(call, receive, self.collect(call))
        return answered or Response(status_code=STATUS_CLIENT_GONE)

    def submit(self, call: Call) -> None:
        """Hand every prompt to the engine; none stays when one is refused."""
        offset = 0
        try:
            for request in call.requests:
                mailbox = Mailbox(queue=call.queue, offset=offset, choices=request.n)
                self.delivery.open(request.id, mailbox)
                self.loop.submit(request)
                offset += request.n
        except BaseException:
            self.close(call)
            raise

    def close(self, call: Call) -> None:
        """The answer is complete or nobody waits for it: free whatever is still held."""
        for request in call.requests:
            self.loop.abort(self.delivery.close(request.id))

    async def attend(
        self, call: Call, receive: Receive, work: Coroutine[Any, Any, Outcome]
    ) -> Outcome | None:
        """The outcome of `work`, or None when the client went away first."""
        reader = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({reader, gone}, return_when=asyncio.FIRST_COMPLETED)
            return reader.result() if reader.done() else None
        finally:
            reader.cancel()
            gone.cancel()
            self.close(call)

    async def updates(self, call: Call) -> AsyncIterator[list[Update]]:
        """What has arrived since last time, until every choice has ended.

        RequestError 503 when an answer was cut off from this side.
        """
        open_choices = call.choices
        while open_choices:
            batch = [await call.queue.get()]
            while not call.queue.empty():
                batch.append(call.queue.get_nowait())
            ready = [update for update in batch if update is not None]
            cut = any(update.finish_reason == "abort" for update in ready)
            if cut or len(ready) < len(batch):
                raise RequestError("the engine stopped before the answer was complete", status=503)
            open_choices -= sum(update.finish_reason is not None for update in ready)
            yield ready

    async def collect(self, call: Call) -> Response:
        """The whole answer as one JSON object."""
        everything = [update async for batch in self.updates(call) for update in batch]
        choices = render.merged(everything, call.choices)
        ended = {update.index: update.usage for update in choices if update.usage}
        shown = [self.shown(render.whole_choice, call, each) for each in choices]
        kind = "chat.completion" if call.style == "chat" else "text_completion"
        return json_response({**call.head(kind), "choices": shown, "usage": call.usage(ended)})

    def shown(self, form: Callable[..., dict[str, Any]], call: Call, update: Update) -> Any:
        """An update in this form, with what the call asks for."""
        return form(call.style, update, self.texts, logprobs=call.logprobs, ids=call.token_ids)

    async def events(self, call: Call) -> AsyncIterator[bytes]:
        """The answer as server-sent events, several in one piece when they came together."""
        kind = "chat.completion.chunk" if call.style == "chat" else "text_completion"
        head = call.head(kind) | ({"usage": None} if call.include_usage else {})
        ended: dict[int, Usage] = {}
        if call.style == "chat":
            yield b"".join(event(head | first_choice(index)) for index in range(call.choices))
        async for batch in self.updates(call):
            ended.update({update.index: update.usage for update in batch if update.usage})
            yield b"".join(
                event(head | {"choices": [self.shown(render.chunk_choice, call, u)]})
                for u in batch
                if u.text or u.logprobs or u.finish_reason or (call.token_ids and u.tokens)
            )
        if call.include_usage:
            yield event(head | {"choices": [], "usage": call.usage(ended)})
        yield b"data: [DONE]\n\n"


class Stream:
    """The ASGI response of a streamed call: server-sent events."""

    def __init__(self, answerer: Answerer, call: Call) -> None:
        """The call has been submitted already."""
        self.answerer = answerer
        self.call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        del scope
        await self.answerer.attend(self.call, receive, self.send_events(send))

    async def send_events(self, send: Send) -> None:
        """Start, events, end; an error in the middle becomes the last event."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        try:
            async for piece in self.answerer.events(self.call):
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except RequestError as error:
            piece = event(error_body(str(error), kind="server_error", param=None, code=None))
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def first_choice(index: int) -> dict[str, Any]:
    """The chunk that opens a chat choice."""
    delta = {"role": "assistant", "content": ""}
    return {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def json_response(data: dict[str, Any], status: int = 200) -> Response:
    """A JSON body."""
    body = msgspec.json.encode(data)
    return Response(body, status_code=status, media_type="application/json")


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
