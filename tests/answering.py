"""A small HTTP server of one function on 127.0.0.1, for tests that ask a target what it can do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, str, dict[str, Any]], tuple[Any, ...]]
"""From method, path and JSON body to status and a JSON document, or a text (a web page); headers
may follow.
"""


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The base URL of a server that answers so, and every body that was sent to it."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Silence."""

        def _reply(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            body = json.loads(raw) if raw else {}
            if raw:
                bodies.append(body)
            status, document, *more = answer(self.command, self.path, body)
            kind = "text/html" if isinstance(document, str) else "application/json"
            data = document.encode() if isinstance(document, str) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            for name, text in (more[0] if more else {}).items():
                self.send_header(name, text)
            if status == 429 and "retry-after" not in (more[0] if more else {}):
                self.send_header("retry-after", "0")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _reply  # noqa: N815 - the names http.server wants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said(text: str, **extra: Any) -> dict[str, Any]:
    """A whole chat answer."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "x",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    } | extra


def refused(message: str) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    return {"error": {"message": message, "type": "invalid_request_error"}}


MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "somebody"}]}


def only_chat(check: Callable[[dict[str, Any]], tuple[int, Any] | None]) -> Answer:
    """A target with a list of one model and chats alone; `check` may answer for it."""

    def answer(method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, MODELS
        if (method, path) != ("POST", "/v1/chat/completions"):
            return 404, refused("Not Found")
        if "messages" not in body:
            return 400, refused("messages is missing")
        return check(body) or (200, said(body["messages"][-1]["content"]))

    return answer
