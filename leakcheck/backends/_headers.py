"""What the headers of a reply say beside its answer: who made it, its id, when to come again.

All of it is text of the target: bounded, on one line, printable.
"""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping

from leakcheck.redact import one_line

_REPLICA = (
    "X-Served-By",
    "X-Replica-Id",
    "X-Replica",
    "X-Instance-Id",
    "X-Backend-Server",
    "X-Pod-Name",
    "X-Upstream",
)
"""Where gateways say who answered, most telling first."""
_REPLY_ID = ("X-Request-Id", "Request-Id", "Apim-Request-Id")
"""Where a target says under which id its logs have the reply: OpenAI, Anthropic, Azure."""
_REPLICA_CHARS, _ID_CHARS = 80, 128


def replica(headers: Mapping[str, str], named: str | None) -> str | None:
    """Which replica answered, by the header of that name, else by the usual ones."""
    names = (named,) if named else _REPLICA
    return next((one_line(headers[n], limit=_REPLICA_CHARS) for n in names if headers.get(n)), None)


def reply_id(headers: Mapping[str, str]) -> str | None:
    """The id that the target gives its reply, at most 128 printable characters."""
    for name in _REPLY_ID:
        plain = one_line(headers.get(name, ""), limit=_ID_CHARS)
        if shown := "".join(each for each in plain if each.isprintable()).strip():
            return shown
    return None


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, in either of its forms (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
