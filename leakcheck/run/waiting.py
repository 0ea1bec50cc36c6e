"""Wait until a target that is still starting answers: `--wait-ready`.

A cheap GET is sent, ever less often. No connection, 502, 503 and 504 are waited for, as is a server
that says that it is loading; anything else is an answer, be it that the key is wrong or the page is
not there: whether the target can be used is for the preflight to find out.
"""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from collections.abc import Callable

from leakcheck.backends import Broken, Refused
from leakcheck.backends._http import Connection
from leakcheck.errors import TargetError, UsageError
from leakcheck.records import Target
from leakcheck.redact import redact, secrets

_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _GROWS = 0.25, 5.0, 1.6
_PATIENCE_S = 10.0
"""For one GET."""
_STARTING = frozenset({425, 502, 503, 504})


def until_ready(
    target: Target, patience_s: float, say: Callable[[str], None], *, apart_s: float = 0.0
) -> None:
    """Return once the target answers, which is asked every `apart_s` seconds at most; `say` is told
    why it is waited for, whenever that changes.

    Raises TargetError where it does not within `patience_s` seconds, or where no waiting would help
    (a certificate that is not trusted); UsageError for a target that has no URL.
    """
    if urllib.parse.urlsplit(target.base_url).scheme not in {"http", "https"}:
        raise UsageError(f"--wait-ready: {target.base_url!r} is no URL; it needs no waiting")
    asyncio.run(_until_ready(target, patience_s, say, apart_s))


async def _until_ready(
    target: Target, patience_s: float, say: Callable[[str], None], apart_s: float
) -> None:
    deadline, pause_s, told = time.monotonic() + patience_s, max(_FIRST_PAUSE_S, apart_s), ""
    connection = Connection(target)
    try:
        while True:
            left_s = deadline - time.monotonic()
            why = await _not_ready(connection, min(_PATIENCE_S, max(left_s, _FIRST_PAUSE_S)))
            if why is None:
                return
            why = redact(why, secrets(target))
            if time.monotonic() + pause_s > deadline:
                raise TargetError(
                    f"the target at {target.base_url} was not ready within {patience_s:g} s: {why}"
                )
            if why != told:
                say(f"waiting for {target.base_url}, {patience_s:g} s at most: {why}")
                told = why
            await asyncio.sleep(pause_s)
            pause_s = max(apart_s, min(pause_s * _GROWS, _LONGEST_PAUSE_S))
    finally:
        await connection.close()


async def _not_ready(connection: Connection, patience_s: float) -> str | None:
    """Why the target is to be waited for; None when it answers. Raises TargetError where no waiting
    helps.
    """
    try:
        async with asyncio.timeout(patience_s):
            page = await connection.get(connection.url("models"))
    except TimeoutError:
        return "it takes the connection and does not answer"
    except Refused as refused:
        if refused.lasting:
            raise TargetError(refused.message) from None
        return refused.message
    except Broken as broken:
        return broken.message
    if page.status in _STARTING:
        return f"it answers with status {page.status} ({page.words})"
    return None
