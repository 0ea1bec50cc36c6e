"""Find the API that a user means: the base URL, the model, and which of OpenAI's APIs answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from yarl import URL

from leakcheck.backends import Broken, Refused, Turns
from leakcheck.backends._http import Connection, Page
from leakcheck.errors import LeakcheckError, TargetError, UsageError
from leakcheck.records import Api, Target
from leakcheck.redact import one_line, redact, secrets
from leakcheck.survey import meet

UNNAMED = "*"
"""The model of a target of which none was named."""
_SHOWN = 10
_MOST = 2
"""Base URLs that are tried."""


def reach(target: Target, turns: Turns) -> tuple[Target, Any]:
    """The target with the base URL that has the list of models, `/v1` below the one named if need
    be, its only model where none was named; and that list as it came, None without one.

    Raises UsageError where the model has to be chosen, TargetError where nothing answers.
    """
    turns.grant(_MOST)
    target, listed = asyncio.run(_listed(target, turns))
    if target.model == UNNAMED:
        target = replace(target, model=_only(target, listed))
    return target, listed


async def _listed(target: Target, turns: Turns) -> tuple[Target, Any]:
    connection = Connection(target)
    try:
        bases = [connection.base]
        if not connection.base.path.endswith("/v1"):
            bases.append(connection.base.joinpath("v1"))
        if connection.base.path in {"", "/"}:  # some list models there too, and have less
            bases.reverse()
        for base in bases:
            if not await turns.take():
                break
            page = await _page(connection, base, target.timeout_s)
            if names(page.document):
                return replace(target, base_url=str(base)), page.document
        return target, None
    finally:
        await connection.close()


async def _page(connection: Connection, base: URL, timeout_s: float) -> Page:
    try:
        async with asyncio.timeout(timeout_s):
            return await connection.get(base.joinpath("models"))
    except TimeoutError:
        error = f"the target at {base} does not answer within {timeout_s:g} s"
    except Refused as refused:
        error = f"{refused.message}; is the target running, and the address right?"
    except Broken as broken:
        error = f"the target at {base} is broken: {broken.message}"
    raise TargetError(error)


def names(listed: Any) -> tuple[str, ...]:
    """The models of OpenAI's list of them; none where it is something else."""
    data = listed.get("data") if isinstance(listed, dict) else None
    items = data if isinstance(data, list) else []
    found = [item.get("id") for item in items if isinstance(item, dict)]
    return tuple(name for name in found if isinstance(name, str))


def _only(target: Target, listed: Any) -> str:
    offered = [redact(one_line(name), secrets(target)) for name in names(listed)]
    if len(offered) == 1:
        return names(listed)[0]
    if not offered:
        raise UsageError(
            f"--model is missing: {target.base_url} lists no models, so name the one that is meant"
        )
    more = f" and {len(offered) - _SHOWN} more" if len(offered) > _SHOWN else ""
    raise UsageError(
        f"--model is missing: {target.base_url} has {len(offered)} models, name one of "
        f"{', '.join(offered[:_SHOWN])}{more}"
    )


def answering(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """The target with the first API of chat, completions and responses that answers, as it is to
    be spoken to, and its models. Raises what the first one did where none does.
    """
    first: LeakcheckError | None = None
    apis: tuple[Api, ...] = ("chat", "completions", "responses")
    for api in apis if target.backend == "openai" else apis[:1]:
        try:
            return meet(replace(target, api=api), turns)
        except LeakcheckError as error:
            first = first or error
    raise first or TargetError(f"the target at {target.base_url} answers by no API")
