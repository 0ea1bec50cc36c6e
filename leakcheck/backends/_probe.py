"""Find out whether a base URL is an OpenAI API that takes our key and knows the model, and which
fields of a request it refuses.

One look at /models and two tiny requests, before anything is planned: whatever is wrong is said in
one sentence, with what would be right. A field that a refusal names is left out, and the target
asked again; where a refusal names none, each optional field is asked for alone.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from contextlib import suppress
from dataclasses import replace
from typing import Any

from yarl import URL

from leakcheck.backends import Broken, Refused
from leakcheck.backends._http import Page
from leakcheck.errors import LeakcheckError, TargetError, UsageError
from leakcheck.records import Chunk, Message, Request, Sampling, Target
from leakcheck.redact import one_line, redact, secrets

_OK = 200
_NOT_FOUND = 404
_NOT_ALLOWED = 405
_NO_ENTRY = frozenset({401, 403})
_BROKEN = 500
_REFUSALS = frozenset({400, 403, 422, 501})
_PAUSES_S = (1.0, 2.0)
_LONGEST_WAIT_S = 10.0
_SHOWN = 10
_NAME = "probe"
_TINY = Sampling(max_tokens=1)
_ALWAYS = ("max_tokens", "temperature", "stream_options")
_SAMPLING: dict[str, tuple[Any, tuple[str, ...]]] = {
    "top_p": (0.9, ("top_p",)),
    "seed": (1, ("seed",)),
    "stop": (("\n\n\n\n",), ("stop",)),
    "top_logprobs": (2, ("logprobs", "top_logprobs")),
    "logit_bias": (((0, 0.0),), ("logit_bias",)),
}
"""What the traffic sends: field of `Sampling`, a harmless value, names in the body."""
_TALK = ("metadata", "user")

Get = Callable[[URL], Awaitable[Page]]
Ask = Callable[[Target, Request], AsyncIterator[Chunk]]
"""Sends a request as this target is to be spoken to."""


async def meet(target: Target, base: URL, get: Get, ask: Ask) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and the ids of the models offered; none where it does not
    tell and yet answers.

    `get` fetches `/models` of a base URL. Raises TargetError for a target that is dead or broken,
    UsageError for what the user can put right: URL, key, model.
    """
    try:
        async with asyncio.timeout(target.timeout_s):
            ids = await _models(target, base, get)
        target = await _tiny_request(target, base, ask, ids)
        target = await _whole_request(target, ask)
    except TimeoutError:
        error: LeakcheckError = TargetError(
            f"the target at {base} does not answer within {target.timeout_s:g} s"
        )
    except Refused as refused:
        error = _refused(target, base, refused)
    except Broken as broken:
        error = TargetError(f"the target at {base} is broken: {broken.message}")
    except LeakcheckError as found:
        error = found
    else:
        keys = secrets(target)
        return target, tuple(redact(one_line(name), keys) for name in ids)
    raise type(error)(redact(str(error), secrets(target))) from None


def _ids(page: Page) -> tuple[str, ...] | None:
    """The model ids, where this is OpenAI's list of models."""
    try:
        return tuple(item["id"] for item in page.document["data"] if isinstance(item["id"], str))
    except (KeyError, TypeError):
        return None


async def _models(target: Target, base: URL, get: Get) -> tuple[str, ...]:
    page = await get(base)
    if page.status in _NO_ENTRY:
        raise _no_entry(target, base, page.status, page.words)
    ids = _ids(page)
    if page.status == _OK and ids is not None:
        return ids
    if not base.path.endswith("/v1"):
        # The root of a server answers with a page, a 404 or JSON of its own: is the API below it?
        longer = base.joinpath("v1")
        below = await get(longer)
        if _ids(below) is not None or below.status in _NO_ENTRY:
            raise UsageError(f"there is no OpenAI API at {base}, but one at {longer}: name that")
    if page.status in {_NOT_FOUND, _NOT_ALLOWED}:
        return ()  # some targets offer no list; the tiny request will tell
    if page.status != _OK:
        raise TargetError(f"the target at {base} answers with status {page.status}: {page.words}")
    what = "a web page" if page.content_type == "text/html" else "something else"
    raise TargetError(
        f"there is no OpenAI API at {base}: /models is {what}, not a list of models ({page.words})"
    )


async def _tiny_request(target: Target, base: URL, ask: Ask, ids: tuple[str, ...]) -> Target:
    """The target with what it refuses of the fields that every request has."""
    try:
        return await agreed(target, tiny(), ask, _ALWAYS)
    except Refused as refused:
        if ids and target.model not in ids and refused.status not in {*_NO_ENTRY, 429, None}:
            raise _wrong_model(target, ids) from None
        if refused.status == _NOT_FOUND and not ids:
            raise UsageError(
                f"the target at {base} answers 404 to a request for model {target.model!r}: "
                f"the base URL or the model is wrong ({refused.message})"
            ) from None
        raise


async def _whole_request(target: Target, ask: Ask) -> Target:
    """The target with what it refuses of the fields that some requests have. What has nothing to do
    with a field, such as a target that is busy, says nothing of any.
    """
    whole = tiny(
        stream=False,
        sampling=replace(_TINY, **{name: value for name, (value, _) in _SAMPLING.items()}),
        cache_salt=_NAME,
        conversation=_NAME,
    )
    names = [name for _, sent in _SAMPLING.values() for name in sent] + ["cache_salt", *_TALK]
    with suppress(Refused, Broken, TimeoutError):
        return await agreed(target, whole, ask, names)
    # nothing was named: each alone
    for field, (value, sent) in _SAMPLING.items():
        alone = tiny(stream=False, sampling=replace(_TINY, **{field: value}))
        target = await _without(target, alone, ask, sent)
    target = await _without(target, tiny(stream=False, cache_salt=_NAME), ask, ("cache_salt",))
    return await _without(target, tiny(stream=False, conversation=_NAME), ask, _TALK)


async def _without(target: Target, request: Request, ask: Ask, names: Sequence[str]) -> Target:
    """The target, which refuses these fields if it refuses the request that has them."""
    if set(names) <= set(target.refuses):
        return target
    try:
        await _sent(target, request, ask)
    except (Refused, Broken) as refused:
        if refused.status in _REFUSALS:
            return replace(target, refuses=(*target.refuses, *names))
    except TimeoutError:
        pass
    return target


async def agreed(target: Target, request: Request, ask: Ask, names: Collection[str]) -> Target:
    """The target with all that it refuses of the fields `names`, until it answers the request.

    Raises Refused and Broken where it names none of them, TimeoutError.
    """
    while True:
        try:
            await _sent(target, request, ask)
        except (Refused, Broken) as refused:
            left = [name for name in names if name not in target.refuses]
            named = None
            if refused.status in _REFUSALS or refused.status == _BROKEN:
                named = first_named(refused.message, left)
            if named is None:
                raise
            target = replace(target, refuses=(*target.refuses, named))
        else:
            return target


def first_named(message: str, names: Iterable[str]) -> str | None:
    """Which of these fields a refusal names first; None where it names none."""
    found = [
        (place.start(), name)
        for name in names
        if (place := re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", message))
    ]
    return min(found)[1] if found else None


async def _sent(target: Target, request: Request, ask: Ask) -> None:
    """Have a request answered; a busy target is asked twice more. Raises Refused, Broken and
    TimeoutError.
    """
    for wait_s in (*_PAUSES_S, None):
        try:
            async with asyncio.timeout(target.timeout_s):
                async for _ in ask(target, request):
                    pass
        except Refused as refused:
            busy = refused.status in {429, 503}
            if wait_s is None or not busy or (refused.retry_after_s or 0) > _LONGEST_WAIT_S:
                raise
            await asyncio.sleep(wait_s if refused.retry_after_s is None else refused.retry_after_s)
        else:
            return


def tiny(**fields: Any) -> Request:
    """A request that costs next to nothing, with these fields."""
    given: dict[str, Any] = {
        "scenario": _NAME,
        "window": 0,
        "phase": 0,
        "arm": "control",
        "tenant": _NAME,
        "role": "companion",
        "ask": "free",
        "worker": 0,
        "lane": 0,
        "messages": (Message(role="user", content="Say hello."),),
        "sampling": _TINY,
    }
    return Request(id=_NAME, **(given | fields))


def _refused(target: Target, base: URL, refused: Refused) -> LeakcheckError:
    if refused.status is None:
        return TargetError(f"{refused.message}; is the target running, and the base URL right?")
    if refused.status in _NO_ENTRY:
        return _no_entry(target, base, refused.status, refused.message)
    return TargetError(
        f"the target at {base} refuses a tiny request with status {refused.status}: "
        f"{refused.message}"
    )


def _no_entry(target: Target, base: URL, status: int, words: str) -> UsageError:
    if target.api_key_env is None:
        return UsageError(
            f"the target at {base} wants an API key ({status}: {words}); "
            "name the environment variable that holds it, usually OPENAI_API_KEY"
        )
    return UsageError(
        f"the target at {base} does not accept the API key in the environment variable "
        f"{target.api_key_env} ({status}: {words}); set it to a valid one"
    )


def _wrong_model(target: Target, ids: tuple[str, ...]) -> UsageError:
    near = difflib.get_close_matches(target.model, ids, n=1, cutoff=0.0)[0]
    shown = ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" * (len(ids) > _SHOWN))
    return UsageError(
        f"the target offers no model {target.model!r}; did you mean {near!r}? Offered: {shown}"
    )
