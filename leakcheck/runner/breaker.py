"""When a run stops because its target does not bear it."""

from __future__ import annotations

from collections import Counter, deque

_LEAST, _LAST = 20, 40
"""Attempts before the breaker judges, and how many of the last ones it looks at."""
REFUSALS = 8
"""So many rounds of refusals in a row, each waited out, end a run: there is no quota left."""


class Breaker:
    """The share of errors among the last attempts; refusals that are obeyed are not counted."""

    def __init__(self, most: float | None) -> None:
        """`most`: the share above which it opens; None for never."""
        self._most = most
        self._errors: deque[str] = deque(maxlen=_LAST)

    def count(self, error: str) -> str | None:
        """Take in an attempt that is over (`error` is empty for an answer). Returns why the run is
        to end, None to go on.
        """
        self._errors.append(error)
        seen, failed = len(self._errors), [each for each in self._errors if each]
        if self._most is None or seen < _LEAST or len(failed) <= self._most * seen:
            return None
        worst, _ = Counter(each.partition(":")[0] for each in failed).most_common(1)[0]
        return (
            f"{len(failed)} of the last {seen} attempts failed, more than {100 * self._most:g} % "
            f"(--max-errors); most often: {worst}"
        )
