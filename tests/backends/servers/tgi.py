"""Text Generation Inference's router, as its source says."""

from backends.servers.pieces import token, words
from backends.servers.wire import Asked, bearer, dumped, sse

STREAM = "text/event-stream"
MARK = "<|user|>"


def asked(seen):
    if seen.path not in {"/generate", "/generate_stream"}:
        return None
    chosen = seen.body["parameters"]
    temperature = chosen.get("temperature")
    assert temperature is None or temperature > 0, "`temperature` must be strictly positive"
    assert chosen["details"]
    return Asked(
        prompt=seen.body["inputs"].rpartition(MARK)[2],
        stream=seen.path == "/generate_stream",
        completion=True,
        key=bearer(seen.headers),
        max_tokens=chosen.get("max_new_tokens"),
        temperature=temperature if chosen.get("do_sample") else 0.0,
        top_p=chosen.get("top_p"),
        seed=chosen.get("seed"),
        stop=chosen.get("stop"),
        top_logprobs=chosen.get("top_n_tokens"),
    )


def page(seen):
    if seen.path == "/info":
        return 200, {"model_id": "m", "max_total_tokens": 2048, "version": "3.3.6"}
    if seen.path == "/chat_tokenize":
        texts = [f"<|{each['role']}|>{each['content']}" for each in seen.body["messages"]]
        return 200, {"tokenize_response": [], "templated_text": "".join(texts)}
    return 404, error("not found")


def error(message):
    return {"error": message, "error_type": "generation"}


def event(document):
    return sse(document)


def _token(piece, number, asked):
    found = token(piece, number, "text", "top") | {"id": number, "special": False}
    tops = found.pop("top")
    return found, tops if asked.top_logprobs else []


END = {"id": 2, "text": "</s>", "logprob": -0.1, "special": True}


def whole(text, asked):
    pairs = [_token(piece, number, asked) for number, piece in enumerate(words(text))]
    details = {
        "finish_reason": "eos_token",
        "generated_tokens": 4,
        "seed": None,
        "prefill": [],
        "tokens": [each for each, _ in pairs],
    }
    if asked.top_logprobs:
        details["top_tokens"] = [tops for _, tops in pairs]
    return dumped({"generated_text": text, "details": details})


def pieces(text, asked):
    found = []
    for number, piece in enumerate(words(text)):
        each, tops = _token(piece, number, asked)
        one = {"index": number + 1, "token": each, "generated_text": None, "details": None}
        found.append(one | ({"top_tokens": tops} if tops else {}))
    details = {"finish_reason": "eos_token", "generated_tokens": 4, "seed": None, "input_length": 7}
    last = {"index": 99, "token": END, "generated_text": text, "details": details}
    return [event(each) for each in [*found, last]]
