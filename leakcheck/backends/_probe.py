"""Find out whether a base URL is an OpenAI API that takes our key and knows the model.

One look at /models and one tiny request, before anything is planned: whatever is wrong is said in
one sentence, with what would be right.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable

from yarl import URL

from leakcheck.backends import Backend, Broken, Refused
from leakcheck.backends._http import Page
from leakcheck.errors import LeakcheckError, TargetError, UsageError
from leakcheck.records import Message, Request, Sampling, Target
from leakcheck.redact import one_line, redact, secrets

_OK = 200
_NOT_FOUND = 404
_NOT_ALLOWED = 405
_NO_ENTRY = frozenset({401, 403})
_SHOWN = 10


Get = Callable[[URL], Awaitable[Page]]


async def probe(target: Target, base: URL, get: Get, backend: Backend) -> tuple[str, ...]:
    """The ids of the models offered; none where the target does not tell and yet answers.

    `get` fetches `/models` of a base URL. Raises TargetError for a target that is dead or broken,
    UsageError for what the user can put right: URL, key, model.
    """
    try:
        async with asyncio.timeout(target.timeout_s):
            ids = await _models(target, base, get)
            await _tiny_request(target, base, backend, ids)
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
        return tuple(redact(one_line(name), keys) for name in ids)
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


async def _tiny_request(target: Target, base: URL, backend: Backend, ids: tuple[str, ...]) -> None:
    request = Request(
        id="probe",
        scenario="probe",
        window=0,
        phase=0,
        arm="control",
        tenant="probe",
        role="companion",
        ask="free",
        worker=0,
        lane=0,
        messages=(Message(role="user", content="Say hello."),),
        sampling=Sampling(max_tokens=1),
    )
    try:
        async for _ in backend.stream(request):
            pass
    except Refused as refused:
        if ids and target.model not in ids and refused.status not in {*_NO_ENTRY, 429, None}:
            raise _wrong_model(target, ids) from None
        if refused.status == _NOT_FOUND and not ids:
            raise UsageError(
                f"the target at {base} answers 404 to a request for model {target.model!r}: "
                f"the base URL or the model is wrong ({refused.message})"
            ) from None
        raise


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
