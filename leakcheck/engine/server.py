"""The OpenAI-compatible HTTP face of the engine."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leakcheck.engine import metrics, render
from leakcheck.engine.answer import Answerer, Call, Stream, json_response
from leakcheck.engine.delivery import Delivery
from leakcheck.engine.engine import Engine
from leakcheck.engine.loop import EngineLoop
from leakcheck.engine.protocol import ChatBody, CompletionBody, decode, error_body
from leakcheck.engine.snapshot import PoolState, snapshot
from leakcheck.engine.text import TokenTexts
from leakcheck.engine.values import GenerateRequest, RequestError, SamplingParams

Endpoint = Callable[[Request], Awaitable[Response | Stream]]
BODY_BYTES_MAX = 8_000_000


class Api:
    """Endpoints over one engine. `app` is the ASGI application."""

    def __init__(
        self, engine: Engine, tokenizer: Any, *, model: str, api_key: str | None = None
    ) -> None:
        """`model` is its public name; with an `api_key` /v1 and /debug want it."""
        self.engine = engine
        self.tokenizer = tokenizer
        self.model = model
        self.delivery = Delivery()
        self.loop = EngineLoop(engine, self.delivery)
        self.answerer = Answerer(self.loop, self.delivery, TokenTexts(engine.text_tokenizer))
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
                Route("/debug/pool", self.guarded(self.debug_pool)),
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

    async def completions(self, request: Request) -> Response | Stream:
        """`POST /v1/completions`."""
        body = decode(await read_body(request), CompletionBody)
        self.check_model(body.model)
        if body.best_of not in {None, body.n or 1}:
            raise RequestError("best_of other than n is not supported", param="best_of")
        prompts = self.token_prompts(body.prompt)
        params = body.sampling(body.max_tokens or 16, body.alternatives())
        return await self.answer(request, body, "completion", params, prompts)

    async def chat(self, request: Request) -> Response | Stream:
        """`POST /v1/chat/completions`."""
        body = decode(await read_body(request), ChatBody)
        self.check_model(body.model)
        prompt = self.chat_prompt(self.turns(request, body))
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

    async def debug_pool(self, _: Request) -> Response:
        """`GET /debug/pool`: who holds which block, see `snapshot`; behind the key, as /v1."""

        def look() -> PoolState:
            latencies = self.loop.latencies.summary()
            return snapshot(self.engine, model=self.model, latencies=latencies)

        return json_response(msgspec.to_builtins(await self.loop.read(look)))

    # --- from a body to engine requests ----------------------------------------------------------

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint behind the API key, when there is one."""

        async def checked(request: Request) -> Response | Stream:
            given = request.headers.get("authorization", "").encode()
            if self._api_key and not hmac.compare_digest(given, f"Bearer {self._api_key}".encode()):
                raise RequestError(
                    "a valid API key is needed, as Authorization: Bearer KEY",
                    code="invalid_api_key",
                    status=401,
                )
            return await self.respond(endpoint, request)

        return checked

    async def respond(self, endpoint: Endpoint, request: Request) -> Response | Stream:
        """Answer a request that may be answered."""
        return await endpoint(request)

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
        several: list[str | int | list[int]] = [prompt] if isinstance(prompt, str) else prompt
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

    def turns(self, request: Request, body: ChatBody) -> list[dict[str, str]]:
        """The conversation that the model sees: what the request holds."""
        del request  # who asks adds nothing to it
        return [message.template_form() for message in body.messages]

    def chat_prompt(self, turns: list[dict[str, str]]) -> list[int]:
        """The conversation in the model's own template, as tokens."""
        if not self.tokenizer.chat_template:
            raise RequestError(f"{self.model!r} has no chat template; use /v1/completions")
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
    ) -> Response | Stream:
        """Submit the prompts and answer, whole or as a stream."""
        call_id = self.new_id("chatcmpl" if style == "chat" else "cmpl", request)
        requests = tuple(
            GenerateRequest(
                id=self.engine_id(call_id, number),
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
            token_ids=body.return_token_ids,
            include_usage=body.include_usage,
        )
        return await self.serve(request, body, call)

    async def serve(
        self, request: Request, body: ChatBody | CompletionBody, call: Call
    ) -> Response | Stream:
        """Have the engine answer a call."""
        return await self.answerer.answer(call, request.receive, stream=bool(body.stream))

    def new_id(self, kind: str, request: Request) -> str:
        """A name for one answer that no other has."""
        del request  # what its client calls it is nobody's name here
        return f"{kind}-{uuid.uuid4().hex}"

    def engine_id(self, call_id: str, number: int) -> str:
        """What the engine calls one prompt of an answer."""
        return f"{call_id}-{number}"


async def read_body(request: Request) -> bytes:
    """The whole body; 413 beyond 8 MB."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise RequestError(f"the body is longer than {BODY_BYTES_MAX} bytes", status=413)
    return bytes(body)


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
