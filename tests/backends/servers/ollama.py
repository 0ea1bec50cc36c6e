"""Ollama's API, as its OpenAPI document says."""

from backends.servers.pieces import token, words
from backends.servers.wire import Asked, bearer, dumped

STREAM = "application/x-ndjson"
END = {"done": True, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 4}


def asked(seen):
    body = seen.body
    if seen.path == "/api/chat":
        prompt = body["messages"][-1]["content"]
    elif seen.path == "/api/generate" and body["raw"]:
        prompt = body["prompt"]
    else:
        return None
    options = body["options"]
    return Asked(
        prompt=prompt,
        completion="prompt" in body,
        stream=body.get("stream", True),
        key=bearer(seen.headers),
        max_tokens=options.get("num_predict"),
        temperature=options.get("temperature"),
        top_p=options.get("top_p"),
        seed=options.get("seed"),
        stop=options.get("stop"),
        top_logprobs=body.get("top_logprobs") if body.get("logprobs") else None,
    )


def page(seen):
    if seen.path == "/api/tags":
        return 200, {"models": [{"name": "m", "model": "m", "size": 1}]}
    return 404, error("404 page not found")


def error(message):
    return {"error": message}


def event(document):
    return dumped(document) + b"\n"


def _said(text, asked, number=0):
    said = {"model": "m", "message": {"role": "assistant", "content": text}}
    if asked.completion:
        said = {"model": "m", "response": text}
    if asked.top_logprobs is not None and text:
        said["logprobs"] = [token(piece, number) for piece in words(text)]
    return said


def whole(text, asked):
    return dumped(_said(text, asked) | END)


def pieces(text, asked):
    found = [_said(piece, asked, n) | {"done": False} for n, piece in enumerate(words(text))]
    return [event(each) for each in [*found, _said("", asked) | END]]
