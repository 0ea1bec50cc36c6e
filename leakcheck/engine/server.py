"""The OpenAI-compatible HTTP face of the engine."""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from leakcheck.engine import metrics, render
from leakcheck.engine.delivery import Delivery, Mailbox
from leakcheck.engine.engine import Engine
from leakcheck.engine.loop import EngineLoop
from leakcheck.engine.protocol import ChatBody, CompletionBody, decode, error_body
from leakcheck.engine.text import TokenTexts
from leakcheck.engine.values import GenerateRequest, RequestError, SamplingParams, Update, Usage

BODY_BYTES_MAX = 8_000_000
STATUS_CLIENT_GONE = 499


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request in work: the engine requests it became and where their updates arrive."""

    id: str
    style: render.Style
    model: str
    created: int
    requests: tuple[GenerateRequest, ...]
    logprobs: bool
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


class Api:
    """Endpoints over one engine. `app` is the ASGI application."""

    def __init__(
        self, engine: Engine, tokenizer: Any, *, model: str, api_key: str | None = None
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.model = model
        self.texts = TokenTexts(engine.text_tokenizer)
        self.delivery = Delivery()
        self.loop = EngineLoop(engine, self.delivery)
        self.registry = metrics.registry(engine.stats)
        self._api_key = api_key
        self.app = Starlette(
            routes=[
                Route("/v1/models", self.guarded(self.models)),
                Route("/v1/models/{model:path}", self.guarded(self.one_model)),
                Route("/v1/completions", self.guarded(self.completions), methods=["POST"]),
                Route("/v1/chat/completions", self.guarded(self.chat), methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
            ],
            exception_handlers={
                RequestError: on_request_error,
                HTTPException: on_http_exception,
                Exception: on_exception,
            },
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """The engine's thread lives as long as the application."""
        self.loop.start()
        yield
        self.loop.stop()

    # --- endpoints -------------------------------------------------------------------------------

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`."""
        return json_response({"object": "list", "data": [self.model_object()]})

    async def one_model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        self.check_model(request.path_params["model"])
        return json_response(self.model_object())

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        body = decode(await read_body(request), CompletionBody)
        self.check_model(body.model)
        if body.best_of not in {None, body.n or 1}:
            raise RequestError("best_of other than n is not supported", param="best_of")
        prompts = self.token_prompts(body.prompt)
        params = body.sampling(body.max_tokens or 16, body.alternatives())
        return await self.answer(request, body, "completion", params, prompts)

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = decode(await read_body(request), ChatBody)
        self.check_model(body.model)
        prompt = self.chat_prompt(body)
        room = max(1, self.engine.context_tokens - len(prompt))
        most = body.max_completion_tokens or body.max_tokens or room
        params = body.sampling(most, body.alternatives())
        return await self.answer(request, body, "chat", params, [prompt])

    async def health(self, _: Request) -> Response:
        """`GET /health`: 503 once the engine has died."""
        healthy = not self.loop.failed
        return json_response({"status": "ok" if healthy else "dead"}, 200 if healthy else 503)

    async def metrics(self, _: Request) -> Response:
        """`GET /metrics` in the Prometheus text format."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(metrics.exposition(self.registry), media_type=kind)

    # --- from a body to engine requests ----------------------------------------------------------

    def guarded(
        self, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint behind the API key, when there is one."""

        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode()
            if self._api_key and not hmac.compare_digest(given, f"Bearer {self._api_key}".encode()):
                raise RequestError(
                    "a valid API key is needed, as Authorization: Bearer KEY",
                    code="invalid_api_key",
                    status=401,
                )
            return await endpoint(request)

        return checked

    def check_model(self, name: str) -> None:
        """404 for any model but the one there is."""
        if name != self.model:
            raise RequestError(
                f"the model {name!r} does not exist; this server has {self.model!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    def model_object(self) -> dict[str, Any]:
        """The one model, as `/v1/models` lists it."""
        return {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "leakcheck",
            "max_model_len": self.engine.context_tokens,
        }

    def token_prompts(self, prompt: str | list[str | int | list[int]]) -> list[list[int]]:
        """The prompts of a completion as tokens, with the tokenizer's own special tokens."""
        several = [prompt] if isinstance(prompt, str) else prompt
        if several and all(isinstance(one, int) for one in several):
            several = [[one for one in several if isinstance(one, int)]]
        prompts = [
            list(self.tokenizer(one)["input_ids"]) if isinstance(one, str) else one
            for one in several
        ]
        lists = [one for one in prompts if not isinstance(one, int)]
        if not lists or len(lists) < len(prompts):
            raise RequestError(
                "prompt is a string, a list of strings, a list of token ids or a list of those",
                param="prompt",
            )
        return lists

    def chat_prompt(self, body: ChatBody) -> list[int]:
        """The conversation in the model's own template, as tokens."""
        if not self.tokenizer.chat_template:
            raise RequestError(f"{self.model!r} has no chat template; use /v1/completions")
        turns = [message.template_form() for message in body.messages]
        try:
            text = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            # A template is the model's own Jinja code and refuses what it likes, as it likes.
            raise RequestError(f"the chat template refuses: {error}", param="messages") from error
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    # --- from engine requests to an answer -------------------------------------------------------

    async def answer(
        self,
        request: Request,
        body: ChatBody | CompletionBody,
        style: render.Style,
        params: SamplingParams,
        prompts: list[list[int]],
    ) -> Response:
        """Submit the prompts and answer, whole or as a stream."""
        call_id = self.new_id("chatcmpl" if style == "chat" else "cmpl")
        requests = tuple(
            GenerateRequest(
                id=f"{call_id}-{number}",
                prompt=tuple(prompt),
                params=params,
                n=body.n or 1,
                salt=body.cache_salt or "",
            )
            for number, prompt in enumerate(prompts)
        )
        call = Call(
            id=call_id,
            style=style,
            model=self.model,
            created=int(time.time()),
            requests=requests,
            logprobs=params.logprobs is not None,
            include_usage=body.include_usage,
        )
        self.submit(call)
        if body.stream:
            return Stream(self, call)
        answered = await self.attend(call, request.receive, self.collect(call))
        return Response(status_code=STATUS_CLIENT_GONE) if answered is None else answered

    def new_id(self, kind: str) -> str:
        """A name for one answer that no other has."""
        return f"{kind}-{uuid.uuid4().hex}"

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
        self, call: Call, receive: Receive, work: Coroutine[Any, Any, Response | Literal[True]]
    ) -> Any:
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
        shown = [
            render.whole_choice(call.style, each, self.texts, logprobs=call.logprobs)
            for each in choices
        ]
        kind = "chat.completion" if call.style == "chat" else "text_completion"
        return json_response({**call.head(kind), "choices": shown, "usage": call.usage(ended)})

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
                event(
                    head
                    | {
                        "choices": [
                            render.chunk_choice(call.style, u, self.texts, logprobs=call.logprobs)
                        ]
                    }
                )
                for u in batch
                if u.text or u.logprobs or u.finish_reason
            )
        if call.include_usage:
            yield event(head | {"choices": [], "usage": call.usage(ended)})
        yield b"data: [DONE]\n\n"


class Stream(Response):
    """A response of server-sent events that frees everything when its client goes away."""

    def __init__(self, api: Api, call: Call) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self.api = api
        self.call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        del scope
        await self.api.attend(self.call, receive, self.send_events(send))

    async def send_events(self, send: Send) -> Literal[True]:
        """Start, events, end; an error in the middle becomes the last event."""
        await send(
            {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        )
        try:
            async for piece in self.api.events(self.call):
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except RequestError as error:
            piece = event(error_body(str(error), kind="server_error", param=None, code=None))
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


def first_choice(index: int) -> dict[str, Any]:
    """The chunk that opens a chat choice."""
    delta = {"role": "assistant", "content": ""}
    return {
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]
    }


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def json_response(data: dict[str, Any], status: int = 200) -> Response:
    """A JSON body."""
    body = msgspec.json.encode(data)
    return Response(body, status_code=status, media_type="application/json")


async def read_body(request: Request) -> bytes:
    """The whole body; 413 beyond 8 MB."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise RequestError(f"the body is longer than {BODY_BYTES_MAX} bytes", status=413)
    return bytes(body)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def on_request_error(_: Request, error: Exception) -> Response:
    """A refused request, in OpenAI's shape."""
    if not isinstance(error, RequestError):
        raise error
    kind = "server_error" if error.status >= 500 else "invalid_request_error"  # noqa: PLR2004 # HTTP's own line
    body = error_body(str(error), kind=kind, param=error.param, code=error.code)
    return json_response(body, error.status)


def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in OpenAI's shape."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{error.detail}: {request.method} {request.url.path}"
    body = error_body(message, kind="invalid_request_error", param=None, code=None)
    response = json_response(body, error.status_code)
    response.headers.update(error.headers or {})
    return response


def on_exception(_: Request, error: Exception) -> Response:
    """Our own fault: no detail goes out, uvicorn logs the traceback."""
    message = f"internal error ({type(error).__name__})"
    return json_response(error_body(message, kind="server_error", param=None, code=None), 500)
