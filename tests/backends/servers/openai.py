"""OpenAI's chat, completions and responses, as their reference says."""

from backends.servers.pieces import token, words
from backends.servers.wire import Asked, bearer, dumped, sse

STREAM = "text/event-stream"
CACHED = {"cached_tokens": 3}
USED = {"prompt_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": CACHED}
USED_BY_RESPONSES = {"input_tokens": 7, "output_tokens": 4, "input_tokens_details": CACHED}


def asked(seen):
    body = seen.body
    if seen.path == "/v1/chat/completions":
        prompt, logprobs = body["messages"][-1]["content"], body.get("top_logprobs")
    elif seen.path == "/v1/completions":
        prompt, logprobs = body["prompt"], body.get("logprobs")
    elif seen.path == "/v1/responses":
        given, logprobs = body["input"], body.get("top_logprobs")
        prompt = given if isinstance(given, str) else _text(given[-1]["content"])
    else:
        return None
    return Asked(
        prompt=prompt,
        responses="input" in body,
        stream=body.get("stream", False),
        completion="prompt" in body,
        key=bearer(seen.headers),
        max_tokens=body.get("max_output_tokens", body.get("max_tokens")),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        seed=body.get("seed"),
        stop=body.get("stop"),
        top_logprobs=logprobs,
        token_ids=body.get("return_token_ids", False),
    )


def _text(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def page(seen):
    if seen.path == "/v1/models":
        return 200, {"object": "list", "data": [{"id": "m", "object": "model"}]}
    return 404, error("not found")


def error(message):
    return {"error": {"message": message, "type": "server_error", "code": None}}


def event(document):
    return document if isinstance(document, bytes) else sse(document, document.get("type"))


def _logprobs(parts, asked):
    if asked.top_logprobs is None:
        return None
    tokens = [token(piece, number) for number, piece in enumerate(parts)]
    if not asked.completion:
        return {"content": tokens}
    return {
        "tokens": [each["token"] for each in tokens],
        "token_logprobs": [each["logprob"] for each in tokens],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in tokens
        ],
    }


def _choice(text, asked, finish, name, first=0):
    choice = {"index": 0, "finish_reason": finish}
    if text:
        choice["logprobs"] = _logprobs(words(text), asked)
        if asked.token_ids:
            choice["token_ids"] = list(range(first, first + len(words(text))))
    if asked.completion:
        return choice | {"text": text}
    return choice | {name: {"role": "assistant", "content": text}}


def whole(text, asked):
    if asked.responses:
        return dumped(_response(text, "completed", asked))
    choice = _choice(text, asked, "stop", "message")
    return dumped({"id": "c1", "choices": [choice], "usage": USED, "model": "m", "created": 1})


def pieces(text, asked):
    if asked.responses:
        return [event(each) for each in _events(text, asked)]
    found = [_choice(piece, asked, None, "delta", n) for n, piece in enumerate(words(text))]
    found.append(_choice("", asked, "stop", "delta"))
    base = {"id": "c1", "model": "m", "created": 1, "object": "chat.completion.chunk"}
    events = [base | {"choices": [choice]} for choice in found]
    events.append(base | {"choices": [], "usage": USED})
    return [*[sse(each) for each in events], b"data: [DONE]\n\n"]


def _response(text, status, asked):
    content = {"type": "output_text", "text": text, "annotations": []}
    if asked.top_logprobs is not None:
        content["logprobs"] = [token(piece, n) for n, piece in enumerate(words(text))]
    message = {"type": "message", "id": "m1", "role": "assistant", "status": status}
    done = status == "completed"
    return {
        "id": "r1",
        "object": "response",
        "status": status,
        "output": [message | {"content": [content]}] if done else [],
        "usage": USED_BY_RESPONSES if done else None,
        "error": None,
    }


def _events(text, asked):
    place = {"item_id": "m1", "output_index": 0, "content_index": 0}
    yield {"type": "response.created", "response": _response("", "in_progress", asked)}
    for number, piece in enumerate(words(text)):
        delta = {"type": "response.output_text.delta", "delta": piece} | place
        if asked.top_logprobs is not None:
            delta["logprobs"] = [token(piece, number)]
        yield delta
    yield {"type": "response.output_text.done", "text": text} | place
    yield {"type": "response.completed", "response": _response(text, "completed", asked)}
