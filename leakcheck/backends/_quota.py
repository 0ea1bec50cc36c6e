"""What the headers of a reply say is left of a limit on requests, and when that is reset.

OpenAI says the time as `1s`, `6m0s` or `120ms`, Anthropic as a moment (RFC 3339), others in
seconds. All of it is text of the target: what is no such figure says nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime

from leakcheck.records import Quota

_LONGEST_S = 7 * 86_400.0
"""A limit that is reset later than in a week is no limit on requests: the figure is a mistake."""
_COUNT = re.compile(r"[0-9]{1,12}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_PART = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|us|µs|ns|s|m|h|d)"
_PARTS = re.compile(_PART)
_DURATION = re.compile(f"(?:{_PART})+")
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def quota(headers: Mapping[str, str], now_s: float) -> Quota | None:
    """What is left, by the first pair of headers that says both; `now_s` is the time of day, in
    seconds since 1970. None where nothing usable is said.
    """
    for left_name, reset_name, seconds in _PAIRS:
        left = headers.get(left_name, "").strip()
        reset_s = seconds(headers.get(reset_name, "").strip(), now_s)
        if _COUNT.fullmatch(left) and reset_s is not None:
            return Quota(requests=int(left), reset_s=reset_s)
    return None


def _duration_s(text: str, now_s: float) -> float | None:
    """`6m0s`, or a plain number of seconds."""
    if not _DURATION.fullmatch(text):
        return _plain_s(text, now_s)
    return _bounded(sum(float(n) * _UNITS[unit] for n, unit in _PARTS.findall(text)))


def _plain_s(text: str, _now_s: float) -> float | None:
    return _bounded(float(text)) if _SECONDS.fullmatch(text) else None


def _moment_s(text: str, now_s: float) -> float | None:
    """How long it is until a moment; 0 where that is over."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            return None
        return _bounded(max(0.0, moment.timestamp() - now_s))
    except (ValueError, OverflowError):
        return None


def _bounded(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) and 0 <= seconds <= _LONGEST_S else None


_PAIRS: tuple[tuple[str, str, Callable[[str, float], float | None]], ...] = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", _duration_s),
    (
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
        _moment_s,
    ),
    ("ratelimit-remaining", "ratelimit-reset", _plain_s),
)
