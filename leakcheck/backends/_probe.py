"""Find out whether a target can be used at all, and which fields of a request it refuses.

What it says it has, one tiny request, and one with everything that some requests have, before
anything is planned: whatever is wrong is said in one sentence, with what would be right. A field
that a refusal names is left out, and the target asked again; where a refusal names none, each is
asked for alone. A backend brings a `Dialect` and how its protocol tells the models.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from yarl import URL

from leakcheck.backends import Backend, Broken, Refused, Turns
from leakcheck.backends._http import Page
from leakcheck.errors import LeakcheckError, TargetError, UsageError
from leakcheck.records import Message, Request, Sampling, Target
from leakcheck.redact import one_line, redact, secrets

_OK = 200
_NOT_FOUND, _BUSY = 404, 429
_NO_ENTRY = frozenset({401, 403})
_BROKEN = 500
_REFUSALS = frozenset({400, 403, 422, 501})
_PAUSES_S = (1.0, 2.0)
_LONGEST_WAIT_S = 10.0
_SHOWN = 10
_NAME = "probe"
_TEMPERATURE = "temperature"
_USUAL_HOTTEST = 1.0
"""The highest temperature where 2 is refused: Anthropic's."""
_VALUES: dict[str, Any] = {
    "top_p": 0.9,
    "seed": 1,
    "stop": ("\n\n\n\n",),
    "top_logprobs": 2,
    "logit_bias": ((0, 0.0),),
    "allowed_token_ids": tuple(range(300, 310)),
    "return_token_ids": True,
}
"""What some requests have, as fields of `Sampling`, with harmless values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A protocol, for sentences and for questions. `key_env` is the usual variable of its API key.

    `always` are the fields of its bodies that every request has, as far as one can do without.
    `some` are those that some requests have: fields of `Sampling`, `cache_salt` and `conversation`,
    each with its names in a body. `also` are further fields that it has words for.
    """

    protocol: str
    key_env: str
    always: tuple[str, ...] = ()
    some: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    also: frozenset[str] = frozenset()

    def says(self, name: str) -> bool:
        """Whether a request with this field is sent with it."""
        return name in self.some or name in self.also or name == _TEMPERATURE


class Visit:
    """A target while it is met: whoever asks it something waits for a turn here."""

    def __init__(
        self, target: Target, dialect: Dialect, connect: Callable[[Target], Backend], turns: Turns
    ) -> None:
        """Call it inside a running event loop. Raises UsageError as `connect`."""
        self.target, self.dialect = target, dialect
        self._connect, self._turns = connect, turns
        self._backend: Any = connect(target)

    @property
    def http(self) -> Any:
        """The connection of a backend that speaks HTTP."""
        return self._backend.http

    @property
    def address(self) -> str:
        """Where the target is, for sentences."""
        http = getattr(self._backend, "http", None)
        return self.target.base_url if http is None else str(http.base)

    async def get(self, url: URL) -> Page:
        """Fetch a page. Raises Refused, Broken and TimeoutError; TargetError without a turn."""
        await self._turn()
        async with asyncio.timeout(self.target.timeout_s):
            page: Page = await self.http.get(url)
            return page

    async def learn(self, target: Target) -> None:
        """Speak to the target so from now on."""
        await self._backend.close()
        self.target, self._backend = target, self._connect(target)

    async def ask(self, request: Request) -> None:
        """Have a request answered; a busy target is asked twice more. Raises Refused, Broken and
        TimeoutError; TargetError without a turn.
        """
        for wait_s in (*_PAUSES_S, None):
            await self._turn()
            try:
                async with asyncio.timeout(self.target.timeout_s):
                    async for _ in self._backend.stream(request):
                        pass
            except Refused as refused:
                busy = refused.status in {_BUSY, 503}
                hint_s = refused.retry_after_s
                if busy and hint_s is not None:
                    self._turns.refused(hint_s)
                if wait_s is None or not busy or (hint_s or 0) > _LONGEST_WAIT_S:
                    raise
                await asyncio.sleep(wait_s if hint_s is None else hint_s)
            else:
                return

    async def refusal(self, request: Request) -> Refused | Broken | None:
        """Why a request is refused; None where it is answered, and where what came says nothing of
        its fields: the target was busy, slow or gone. Raises Refused for a long pause.
        """
        try:
            await self.ask(request)
        except (Refused, Broken) as refused:
            if isinstance(refused, Refused) and self._turns.left_s > _LONGEST_WAIT_S:
                raise
            return refused if refused.status in {*_REFUSALS, _BROKEN} else None
        except (TimeoutError, TargetError):
            return None
        return None

    async def close(self) -> None:
        """Close its connection."""
        await self._backend.close()

    async def _turn(self) -> None:
        if not await self._turns.take():
            raise TargetError(
                f"the target at {self.address} was asked {len(self._turns.sent_s)} times whether "
                "it can be used, and no more may be sent"
            )


Names = Callable[[Visit], Awaitable[tuple[str, ...]]]
"""How a protocol tells the models that a target offers; empty where it does not."""


async def _no_names(_: Visit) -> tuple[str, ...]:
    return ()


def meet(
    target: Target,
    turns: Turns,
    dialect: Dialect,
    connect: Callable[[Target], Backend],
    names: Names = _no_names,
) -> tuple[Target, tuple[str, ...]]:
    """The target with what it refuses, and the models that it offers.

    Raises TargetError for a target that is dead or broken, UsageError for what the user can put
    right: address, key, model.
    """
    return asyncio.run(_meet(target, turns, dialect, connect, names))


async def _meet(
    target: Target,
    turns: Turns,
    dialect: Dialect,
    connect: Callable[[Target], Backend],
    names: Names,
) -> tuple[Target, tuple[str, ...]]:
    visit = Visit(target, dialect, connect, turns)
    ids: tuple[str, ...] = ()
    try:
        ids = await names(visit)
        await _tiny_request(visit)
        await _whole_request(visit)
    except TimeoutError:
        error: LeakcheckError = TargetError(
            f"the target at {visit.address} does not answer within {target.timeout_s:g} s"
        )
    except Refused as refused:
        error = _refused(visit, refused, ids)
    except Broken as broken:
        error = TargetError(f"the target at {visit.address} is broken: {broken.message}")
    except LeakcheckError as found:
        error = found
    else:
        keys = secrets(target)
        return visit.target, tuple(redact(one_line(name), keys) for name in ids)
    finally:
        await visit.close()
    raise type(error)(redact(str(error), secrets(target))) from None


async def _tiny_request(visit: Visit) -> None:
    """Learn what is refused of the fields that every request has."""
    while True:
        try:
            await visit.ask(tiny())
        except (Refused, Broken) as refused:
            named = None
            if refused.status in {*_REFUSALS, _BROKEN}:
                named = first_named(refused.message, _left(visit, visit.dialect.always))
            if named is None:
                raise
            await visit.learn(_without(visit.target, named))
        else:
            return


async def _whole_request(visit: Visit) -> None:
    """Learn what is refused of the fields that some requests have, and the highest temperature."""
    names = [name for sent in visit.dialect.some.values() for name in sent]
    while (refused := await visit.refusal(_with(visit, *visit.dialect.some))) is not None:
        hot = [_TEMPERATURE] if visit.target.hottest > _USUAL_HOTTEST else []
        named = first_named(refused.message, [*_left(visit, names), *hot])
        if named == _TEMPERATURE:
            await visit.learn(replace(visit.target, hottest=_USUAL_HOTTEST))
        elif named is not None:
            await visit.learn(_without(visit.target, named))
        elif refused.status in _REFUSALS:
            await _each_alone(visit)
            return
        else:
            return


async def _each_alone(visit: Visit) -> None:
    for one, sent in visit.dialect.some.items():
        if not _left(visit, sent):
            continue
        refused = await visit.refusal(_with(visit, one, hot=False))
        if refused is not None and refused.status in _REFUSALS:
            await visit.learn(_without(visit.target, *sent))
    if visit.target.hottest > _USUAL_HOTTEST:
        refused = await visit.refusal(_with(visit))
        if refused is not None and refused.status in _REFUSALS:
            await visit.learn(replace(visit.target, hottest=_USUAL_HOTTEST))


def _left(visit: Visit, names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in visit.target.refuses]


def _without(target: Target, *names: str) -> Target:
    return replace(target, refuses=(*target.refuses, *names))


def _with(visit: Visit, *fields: str, hot: bool = True) -> Request:
    """A tiny request with these fields, at the highest temperature or none."""
    values = {name: value for name, value in _VALUES.items() if name in fields}
    return tiny(
        stream=False,
        sampling=Sampling(max_tokens=1, temperature=visit.target.hottest if hot else 0.0, **values),
        **{name: _NAME for name in ("cache_salt", "conversation") if name in fields},
    )


def first_named(message: str, names: Iterable[str]) -> str | None:
    """Which of these fields a refusal names first; None where it names none."""
    found = [
        (place.start(), name)
        for name in names
        if (place := re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", message))
    ]
    return min(found)[1] if found else None


def tiny(**fields: Any) -> Request:
    """A request that costs next to nothing and that nobody owns, with these fields."""
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
        "sampling": Sampling(max_tokens=1),
    }
    return Request(id=_NAME, **(given | fields))


def accepted(target: Target, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What there is of these fields of a body and is not refused."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and name not in target.refuses
    }


# --- sentences -----------------------------------------------------------------------------------


def require(page: Page, found: bool, visit: Visit) -> None:
    """Raise unless a page is what this protocol has there: `found` says whether it is."""
    if page.status in _NO_ENTRY:
        raise no_entry(visit, page.status, page.words)
    if page.status >= _BROKEN:
        raise TargetError(
            f"the target at {visit.address} answers with status {page.status}: {page.words}"
        )
    if not found or page.status != _OK:
        raise UsageError(
            f"there is no {visit.dialect.protocol} at {visit.address} (status {page.status}: "
            f"{page.words}); name the address of one, or another --backend"
        )


def _refused(visit: Visit, refused: Refused, ids: tuple[str, ...]) -> LeakcheckError:
    if refused.status is None:
        return TargetError(f"{refused.message}; is the target running, and its address right?")
    if refused.status in _NO_ENTRY:
        return no_entry(visit, refused.status, refused.message)
    if ids and visit.target.model not in ids and refused.status != _BUSY:
        return _wrong_model(visit.target, ids)
    if refused.status == _NOT_FOUND and not ids:
        return UsageError(
            f"the target at {visit.address} answers 404 to a request for model "
            f"{visit.target.model!r}: the address or the model is wrong ({refused.message})"
        )
    return TargetError(
        f"the target at {visit.address} refuses a tiny request with status {refused.status}: "
        f"{refused.message}"
    )


def no_entry(visit: Visit, status: int, words: str) -> UsageError:
    """What to say where the key is missing or wrong."""
    if visit.target.api_key_env is None:
        return UsageError(
            f"the target at {visit.address} wants an API key ({status}: {words}); name the "
            f"environment variable that holds it with --api-key-env, usually "
            f"{visit.dialect.key_env}"
        )
    return UsageError(
        f"the target at {visit.address} does not accept the API key in the environment variable "
        f"{visit.target.api_key_env} ({status}: {words}); set it to a valid one"
    )


def _wrong_model(target: Target, ids: tuple[str, ...]) -> UsageError:
    offered = [one_line(name) for name in ids]
    near = difflib.get_close_matches(target.model, offered, n=1, cutoff=0.0)[0]
    more = f" and {len(ids) - _SHOWN} more" * (len(ids) > _SHOWN)
    return UsageError(
        f"the target offers no model {target.model!r}; did you mean {near!r}? "
        f"Offered: {', '.join(offered[:_SHOWN])}{more}"
    )
