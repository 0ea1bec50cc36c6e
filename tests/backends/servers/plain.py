"""The plain protocol: a function, an asynchronous one, and as a script a program that reads lines.

Started with `--leaking` (or as `leaking`) it answers with the request before behind each answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from backends.servers.pieces import token, words

USED = {"prompt_tokens": 7, "completion_tokens": 4, "cached_tokens": 3}
LAST: dict[str, str] = {}


def answer(asked):
    """Pieces for a stream, one dict else."""
    name, _, rest = asked["messages"][-1]["content"].strip().partition(" ")
    if name.startswith("!"):
        return globals()[f"_{name[1:].replace('-', '_')}"](asked, rest)
    return _said(asked["messages"][-1]["content"], asked)


def _key(asked):
    return os.environ.get(asked.get("api_key_env") or "")


def _asked(asked, _):
    names = ("max_tokens", "temperature", "top_p", "seed", "stop", "top_logprobs")
    given = {name: asked.get(name) for name in names}
    return _said(json.dumps(given | {"key": _key(asked)}), asked)


def _status(asked, status):
    wait = {"retry_after_s": 7} if status == "429" else {}
    return {"error": f"status {status} for {_key(asked)}", "status": int(status)} | wait


def _error_inside(asked, _):
    return iter([{"piece": "alpha "}, {"error": f"out of blocks, {_key(asked)}"}])


def _long(asked, _):
    return _said("and so on " * 3_000, asked)


def _no_text(asked, _):
    return _said("a gr\udcfcn z", asked)


def _hang(_asked, _):
    yield {"piece": "alpha "}
    time.sleep(60)


def _pid(asked, _):
    return _said(str(os.getpid()), asked)


async def answer_async(asked):
    if asked["messages"][-1]["content"] == "!hang":
        yield {"piece": "alpha "}
        await asyncio.sleep(60)
    given = answer(asked)
    if isinstance(given, dict):
        yield given
        return
    for piece in given if not isinstance(given, str) else [given]:
        yield piece


def leaking(asked):
    """What the one before was told is told again."""
    said, LAST["said"] = LAST.get("said", ""), asked["messages"][-1]["content"]
    return f"{LAST['said']} {said}"


def _said(text, asked):
    end = {"finish_reason": "stop", "usage": USED}
    if not asked["stream"]:
        found = {"text": text} | end
        if "top_logprobs" in asked:
            found["logprobs"] = [token(piece, n) for n, piece in enumerate(words(text))]
        return found
    return _pieces(text, asked, end)


def _pieces(text, asked, end):
    for number, piece in enumerate(words(text)):
        found = {"piece": piece}
        if "top_logprobs" in asked:
            found["logprobs"] = [token(piece, number)]
        yield found
    yield {"done": True} | end


def _main():
    function = leaking if "--leaking" in sys.argv else answer
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["messages"][-1]["content"].strip().partition(" ")[0]
        if name in {"!cut", "!unfinished"}:
            sys.stdout.write('{"piece": "alpha "}\n')
            sys.stderr.write("the engine is on fire\n")
            return
        given = function(asked)
        given = {"text": given} if isinstance(given, str) else given
        for piece in [given] if isinstance(given, dict) else given:
            raw = json.dumps(piece, ensure_ascii=False).encode("utf-8", "surrogateescape")
            sys.stdout.buffer.write(raw + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
