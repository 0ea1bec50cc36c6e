"""The Messages API, as its documentation says."""

from backends.servers.pieces import words
from backends.servers.wire import Asked, dumped, sse

STREAM = "text/event-stream; charset=utf-8"
USED = {"input_tokens": 3, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 1}


def asked(seen):
    if seen.path != "/v1/messages" or seen.headers.get("anthropic-version") != "2023-06-01":
        return None
    body = seen.body
    assert all(message["role"] in {"user", "assistant"} for message in body["messages"])
    return Asked(
        prompt=body["messages"][-1]["content"],
        stream=body.get("stream", False),
        key=seen.headers.get("x-api-key"),
        max_tokens=body["max_tokens"],
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        stop=body.get("stop_sequences"),
    )


def page(seen):
    if seen.path == "/v1/models":
        return 200, {"data": [{"type": "model", "id": "m"}], "has_more": False}
    return 404, error("not found")


def error(message):
    return {"type": "error", "error": {"type": "api_error", "message": message}}


def event(document):
    return sse(document, document["type"])


def whole(text, _asked):
    return dumped(
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": USED | {"output_tokens": 4},
        }
    )


def pieces(text, _asked):
    start = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    block = {"type": "content_block_start", "index": 0}
    found = [
        {"type": "message_start", "message": start | {"usage": USED | {"output_tokens": 1}}},
        block | {"content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
    ]
    for piece in words(text):
        delta = {"type": "text_delta", "text": piece}
        found.append({"type": "content_block_delta", "index": 0, "delta": delta})
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    found += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]
    return [event(each) for each in found]
