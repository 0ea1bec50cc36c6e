"""JSON of a target, read with lenience: what has another type than it should is passed over.

Only a document that cannot be part of an answer at all raises Broken, after its text was kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import orjson

from leakcheck.backends import Broken, Refused
from leakcheck.backends._http import error_text
from leakcheck.records import Chunk, TokenLogprob, Usage
from leakcheck.redact import one_line

_LARGEST_COUNT = 2**53


def read(
    raw: bytes,
    chunks: Callable[[dict[str, Any]], Iterator[Chunk]],
    refusal: Callable[[dict[str, Any]], Refused | None] = lambda _: None,
) -> Iterator[Chunk]:
    """`chunks` of the object that `raw` is. What is no object, and one that says `error`, becomes a
    chunk of field `error`, and then Broken, or the Refused that `refusal` makes of it.
    """
    document = yield from decoded(raw)
    if document.get("error"):
        yield from failed(document, refusal(document))
    yield from chunks(document)


def decoded(raw: bytes) -> Generator[Chunk, None, dict[str, Any]]:
    """The object that `raw` is; of what is none the text as a chunk of field `error`, Broken."""
    text = raw.decode("utf-8", "replace")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        yield Chunk(text=text, field="error")
        raise Broken(f"the target sent invalid JSON: {one_line(text, limit=80)!r}") from None
    if not isinstance(document, dict):
        yield Chunk(text=text, field="error")
        raise Broken(f"the target sent JSON that is no answer: {one_line(text, limit=80)}")
    return document


def failed(document: dict[str, Any], refused: Refused | None = None) -> Iterator[Chunk]:
    """What an object that reports an error says, then Broken, or what is given in its place."""
    words = error_text(document)
    yield Chunk(text=words, field="error")
    raise refused or Broken(f"the target reported an error: {one_line(words)}")


def table(value: object) -> dict[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}


def array(value: object) -> list[Any]:
    """A list, or an empty one."""
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """A text, or an empty one."""
    return value if isinstance(value, str) else ""


def shown(value: object) -> str:
    """A text as it is, anything else as JSON; nothing as an empty text."""
    if value is None or value == {}:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def count(value: object) -> int | None:
    """A number of things."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _LARGEST_COUNT else None


def is_negative(value: object) -> bool:
    """Whether it stands where a count should and is below 0."""
    return isinstance(value, int) and value < 0


def number(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def usage(prompt: object, completion: object, cached: object = None) -> Usage | None:
    """What was used; None where nothing of it is a number of things."""
    found = Usage(
        prompt_tokens=count(prompt),
        completion_tokens=count(completion),
        cached_tokens=count(cached),
        negative=any(map(is_negative, (prompt, completion, cached))),
    )
    return None if found == Usage() else found


def logprobs(
    tokens: object, *, word: str = "token", top: str = "top_logprobs"
) -> tuple[TokenLogprob, ...]:
    """A list of objects with a `word`, `logprob` and alternatives in `top`, as records.

    Empty as soon as one of them has no finite number: a hole would shift all that follow.
    """
    found = [_logprob(table(each), word, array(table(each).get(top))) for each in array(tokens)]
    whole = tuple(each for each in found if each is not None)
    return whole if len(whole) == len(found) else ()


def ids(value: object) -> tuple[int, ...]:
    """A list of token ids; empty as soon as one of them is none, as for `logprobs`."""
    found = [count(each) for each in array(value)]
    whole = tuple(each for each in found if each is not None)
    return whole if len(whole) == len(found) else ()


def _logprob(each: dict[str, Any], word: str, tops: Iterable[object]) -> TokenLogprob | None:
    token, logprob = each.get(word), number(each.get("logprob"))
    if not isinstance(token, str) or logprob is None:
        return None
    pairs = [(table(top).get(word), number(table(top).get("logprob"))) for top in tops]
    best = [
        (other, value) for other, value in pairs if isinstance(other, str) and value is not None
    ]
    return TokenLogprob(
        token=token, logprob=logprob, top=tuple(sorted(best, key=lambda pair: -pair[1]))
    )
