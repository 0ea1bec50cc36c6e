"""Find out whether a target can be used at all: what it says it is, and one tiny request.

Whatever is wrong is said in one sentence, with what would be right. A backend brings how its
protocol tells the models, and what a wrong address looks like.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from leakcheck.backends import Backend, Broken, Refused
from leakcheck.backends._http import Page
from leakcheck.errors import LeakcheckError, TargetError, UsageError
from leakcheck.records import Message, Request, Sampling, Target
from leakcheck.redact import one_line, redact, secrets

_OK = 200
_NOT_FOUND = 404
_NO_ENTRY = frozenset({401, 403})
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a target is and what should be there, for sentences: `Ollama` at a base URL. `key_env`
    is the usual variable of its API key.
    """

    protocol: str
    address: str
    key_env: str


async def usable(
    target: Target, place: Place, backend: Backend, names: Callable[[], Awaitable[tuple[str, ...]]]
) -> tuple[str, ...]:
    """The models that `names` finds, after the target has answered a tiny request.

    Raises TargetError for a target that is dead or broken, UsageError for what the user can put
    right: address, key, model.
    """
    ids: tuple[str, ...] = ()
    try:
        async with asyncio.timeout(target.timeout_s):
            ids = await names()
            async for _ in backend.stream(tiny_request()):
                pass
    except TimeoutError:
        error: LeakcheckError = TargetError(
            f"the target at {place.address} does not answer within {target.timeout_s:g} s"
        )
    except Refused as refused:
        error = _refused(target, place, refused, ids)
    except Broken as broken:
        error = TargetError(f"the target at {place.address} is broken: {broken.message}")
    except LeakcheckError as found:
        error = found
    else:
        keys = secrets(target)
        return tuple(redact(one_line(name), keys) for name in ids)
    raise type(error)(redact(str(error), secrets(target))) from None


def tiny_request() -> Request:
    """One short answer to one short question, which nobody owns."""
    return Request(
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


def require(page: Page, found: bool, target: Target, place: Place) -> None:
    """Raise unless a page is what this protocol has there: `found` says whether it is."""
    if page.status in _NO_ENTRY:
        raise _no_entry(target, place, page.status, page.words)
    if page.status >= 500:  # noqa: PLR2004 - its own fault
        raise TargetError(
            f"the target at {place.address} answers with status {page.status}: {page.words}"
        )
    if not found or page.status != _OK:
        raise UsageError(
            f"there is no {place.protocol} at {place.address} (status {page.status}: "
            f"{page.words}); name the address of one, or another --backend"
        )


def _refused(
    target: Target, place: Place, refused: Refused, ids: tuple[str, ...]
) -> LeakcheckError:
    if refused.status is None:
        return TargetError(f"{refused.message}; is the target running, and its address right?")
    if refused.status in _NO_ENTRY:
        return _no_entry(target, place, refused.status, refused.message)
    if ids and target.model not in ids and refused.status in {400, _NOT_FOUND}:
        near = difflib.get_close_matches(target.model, ids, n=1, cutoff=0.0)[0]
        more = f" and {len(ids) - _SHOWN} more" * (len(ids) > _SHOWN)
        return UsageError(
            f"the target offers no model {target.model!r}; did you mean {near!r}? "
            f"Offered: {', '.join(ids[:_SHOWN])}{more}"
        )
    if refused.status == _NOT_FOUND:
        return UsageError(
            f"the target at {place.address} answers 404 to a request for model "
            f"{target.model!r}: the address or the model is wrong ({refused.message})"
        )
    return TargetError(
        f"the target at {place.address} refuses a tiny request with status {refused.status}: "
        f"{refused.message}"
    )


def _no_entry(target: Target, place: Place, status: int, words: str) -> UsageError:
    if target.api_key_env is None:
        return UsageError(
            f"the target at {place.address} wants an API key ({status}: {words}); name the "
            f"environment variable that holds it with --api-key-env, usually {place.key_env}"
        )
    return UsageError(
        f"the target at {place.address} does not accept the API key in the environment variable "
        f"{target.api_key_env} ({status}: {words}); set it to a valid one"
    )
