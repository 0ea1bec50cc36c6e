"""Faults of the HTTP layer: what one connection carries from a request to the next.

They stand in front of the application, where a gateway or a hand-written server would: uvicorn
itself frames requests rightly. A connection is told by the address of its client.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, MutableMapping
from random import Random
from typing import Any

from leakcheck.engine.faults.fault import Fault, Seams, patch

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/completions"})
BAD_GATEWAY = b'{"error": {"message": "bad gateway: no reply from upstream"}}'


async def whole(receive: Receive) -> bytes:
    """The body of a request to its end, or as far as it came."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and bool(message.get("more_body"))
    return body


def instead(body: bytes, receive: Receive) -> Receive:
    """Hand out this body first; what comes after it is the client's own."""
    pending = [body]

    async def replayed() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replayed


def is_post(scope: MutableMapping[str, Any]) -> bool:
    """Whether it is a request with a body; else it is looked at only."""
    return bool(scope["type"] == "http" and scope["method"] == "POST")


def unread_body(seams: Seams, _rate: float, _rng: Random) -> None:
    """What a refused request left unread is read as the body of the next one."""

    def wrap(original: App) -> App:
        left: dict[Any, bytes] = {}

        async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            client = scope.get("client")
            if not is_post(scope) or (scope["path"] in ENDPOINTS and client not in left):
                await original(scope, receive, send)
                return
            own = await whole(receive)
            first = left.get(client, own)
            if scope["path"] in ENDPOINTS or client not in left:
                left[client] = own
            await original(scope, instead(first, receive), send)

        return app

    patch(seams.api, "app", wrap)


def expect_off_by_one(seams: Seams, _rate: float, _rng: Random) -> None:
    """An interim reply is taken for the reply, so that each reply goes to the next request."""

    def wrap(original: App) -> App:
        owed: defaultdict[Any, deque[list[Message]]] = defaultdict(deque)

        async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            waits = is_post(scope) and any(name == b"expect" for name, _ in scope["headers"])
            queue = owed[scope.get("client")] if is_post(scope) else deque()
            if not waits and not queue:
                await original(scope, receive, send)
                return
            reply: list[Message] = []

            async def keep(message: Message) -> None:
                reply.append(message)

            await original(scope, receive, keep)
            queue.append(reply)
            for message in bad_gateway() if waits else queue.popleft():
                await send(message)

        return app

    patch(seams.api, "app", wrap)


def bad_gateway() -> list[Message]:
    """The whole reply of a gateway that has lost its request."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BAD_GATEWAY)).encode()),
    ]
    return [
        {"type": "http.response.start", "status": 502, "headers": headers},
        {"type": "http.response.body", "body": BAD_GATEWAY, "more_body": False},
    ]


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="unread-body",
        layer="output",
        mechanism=(
            "A request with a wrong address is refused before its body is read, and the connection"
            " is kept. The body stays in the read buffer: the next request on that connection is"
            " read from there and answered as the refused one would have been, its own body stays"
            " for the one after, and so on."
        ),
        trigger="a request that is refused early, then any on the same connection",
        effect="whole answers to the request before, with its secret",
        anomalies=("foreign-answer", "foreign-passphrase"),
        strength="every refused request with a body",
        seam="Api.app",
        cases=("https://github.com/JustVugg/colibri/pull/610",),
        rate=None,
        install=unread_body,
    ),
    Fault(
        name="expect-off-by-one",
        layer="output",
        mechanism=(
            "A gateway takes the interim 100 (Continue) of its engine for the reply: the client"
            " that sent Expect gets a 502, and the true reply, when it comes, waits on the"
            " connection. The next request there reads it as its own and leaves its own to the one"
            " after."
        ),
        trigger="Expect: 100-continue, then any request on the same connection",
        effect="whole answers, one behind: each request is given that of the one before",
        anomalies=("foreign-answer", "foreign-passphrase"),
        strength="every such request",
        seam="Api.app",
        cases=("https://github.com/projectdiscovery/nuclei/pull/7671",),
        rate=None,
        install=expect_off_by_one,
    ),
)
