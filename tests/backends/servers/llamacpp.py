"""llama.cpp's own server, as it answers: field by field what version b10000 or so sends."""

from backends.servers.pieces import token, words
from backends.servers.wire import Asked, bearer, dumped, sse

STREAM = "text/event-stream"
MARK = "<|user|>"


def asked(seen):
    if seen.path != "/completion":
        return None
    body = seen.body
    return Asked(
        prompt=body["prompt"].rpartition(MARK)[2],
        stream=body.get("stream", False),
        completion=True,
        key=bearer(seen.headers),
        max_tokens=body.get("n_predict"),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        seed=body.get("seed"),
        stop=body.get("stop"),
        top_logprobs=body.get("n_probs"),
        token_ids=body.get("return_tokens", False),
    )


def page(seen):
    if seen.path == "/props":
        return 200, {"default_generation_settings": {}, "total_slots": 4, "model_alias": "m"}
    if seen.path == "/apply-template":
        texts = [f"<|{each['role']}|>{each['content']}" for each in seen.body["messages"]]
        return 200, {"prompt": "".join(texts)}
    return 404, error("File Not Found")


def error(message):
    return {"error": {"code": 500, "message": message, "type": "server_error"}}


def event(document):
    return sse(document)


def _piece(text, asked, number):
    tokens = [number] if asked.token_ids else []
    found = {"index": 0, "content": text, "tokens": tokens, "stop": False, "id_slot": -1}
    if asked.top_logprobs:
        found["completion_probabilities"] = [token(text, number)]
    return found


def _end(text, tokens=()):
    return {
        "index": 0,
        "content": text,
        "tokens": list(tokens),
        "id_slot": 3,
        "stop": True,
        "model": "m",
        "tokens_predicted": 4,
        "tokens_evaluated": 7,
        "stop_type": "eos",
        "stopping_word": "",
        "truncated": False,
        "tokens_cached": 10,
        "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 4},
    }


def whole(text, asked):
    found = _end(text, range(len(words(text))) if asked.token_ids else ())
    if asked.top_logprobs:
        pieces = enumerate(words(text))
        found["completion_probabilities"] = [token(piece, n) for n, piece in pieces]
    return dumped(found)


def pieces(text, asked):
    found = [_piece(piece, asked, number) for number, piece in enumerate(words(text))]
    return [event(each) for each in [*found, _end("")]]
