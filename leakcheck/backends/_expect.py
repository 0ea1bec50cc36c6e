"""`Expect: 100-continue` as a patient client sends it: the body waits for the 100, not for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

CONTINUE_S = 1.0
"""So long a body waits; some servers never send a 100, and RFC 9110, 10.1.1 wants nobody to wait
for one indefinitely."""


def patient(*values: Any, **fields: Any) -> aiohttp.ClientResponse:
    """The ordinary response of aiohttp, whose request waits for a 100 as long as that and then goes
    on; aiohttp itself would wait for ever. To be given to a session as its `response_class`.
    """
    if (awaited := fields.get("continue100")) is not None:
        awaited.get_loop().call_later(CONTINUE_S, _go_on, awaited)
    return aiohttp.ClientResponse(*values, **fields)


def _go_on(awaited: asyncio.Future[bool]) -> None:
    if not awaited.done():
        awaited.set_result(True)
