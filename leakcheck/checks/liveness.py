"""The target serves at the end what it served at the start.

State that leaks without content, such as cache blocks that never come back, shows as requests that
hang, break or find nobody there, late in a run whose windows all have the same load. Only what the
target owes counts: a refusal (429, 503 with a time to come back, any other 4xx), a planned abort,
a request that was never sent and one whose worker died are left out. So a rate limit is no lost
capacity, nor is a target that is slow from the start, or slow to warm up.

Two things together make `lost-capacity`. Windows in which less than half was answered are more
frequent in the last part of the run than in the first (Fisher's exact test, one-sided, the window
as the unit). And at the very end nobody is served: nobody was answered in most of the last windows,
or the last request, with nothing else in flight, was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from leakcheck import evidence
from leakcheck.checks import who
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding, Observation

CHECK = "liveness"
TITLE = "Answered at the start and at the end"
COLUMNS = ("part of the run", "windows", "less than half answered", "nobody answered")
ALPHA = 0.001
LEAST_WINDOWS = 7
"""Fewer on each side can never be told from chance at 0.001: 1 / (14 choose 7) is 0.0003."""
_TIMED_OUT = 408


@dataclass(slots=True, kw_only=True)
class _Window:
    """What the target owed in one window: ids of requests, in the order of the plan."""

    number: int
    start_ns: int
    answered: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def weak(self) -> bool:
        """Less than half was answered."""
        return len(self.answered) < len(self.lost)


def check(history: History, *, part: float = 0.25, alpha: float = ALPHA) -> CheckResult:
    """Compare the first `part` of the windows with the last, at least LEAST_WINDOWS of each."""
    windows = _windows(history)
    size = max(int(part * len(windows)), LEAST_WINDOWS)
    if len(windows) < 2 * size:
        note = (
            f"{len(windows)} windows are too few to see whether capacity was lost: "
            f"{2 * LEAST_WINDOWS} are needed"
        )
        return CheckResult(check=CHECK, notes=(note,))
    first, last = windows[:size], windows[-size:]
    counts = [(sum(w.weak for w in its), sum(not w.answered for w in its)) for its in (first, last)]
    p = evidence.fisher_one_sided(counts[1][0], size, counts[0][0], size)
    dead = 2 * counts[1][1] > size or _last_alone_was_lost(history, windows)
    rows = tuple((name, size, *each) for name, each in zip(("first", "last"), counts, strict=True))
    findings = (_finding(history, last, counts, p),) if p <= alpha and dead else ()
    return CheckResult(check=CHECK, findings=findings, tables={TITLE: (COLUMNS, *rows)})


def _windows(history: History) -> list[_Window]:
    """Windows in which the target owed anything, in the order in which they began."""
    requests, seen = history.requests, history.observations
    starts = seen.groupby("request_id")["start_ns"].min()
    here = set(seen.loc[seen["observed"], "request_id"])
    windows: dict[int, _Window] = {}
    rows: list[Any] = list(
        requests[requests["replays"].isna() & requests["id"].isin(here)].itertuples()
    )
    for row in rows:
        answer = history.answer(row.id)
        if answer is None or not _owed(answer):
            continue
        start = int(starts[row.id])
        window = windows.setdefault(
            int(row.window), _Window(number=int(row.window), start_ns=start)
        )
        window.start_ns = min(window.start_ns, start)
        (window.answered if row.outcome == "ok" else window.lost).append(str(row.id))
    ordered = sorted(windows.values(), key=lambda window: window.start_ns)
    interrupted = any(event.kind == "interrupted" for event in history.events)
    return ordered[:-1] if interrupted else ordered


def _owed(answer: Observation) -> bool:
    """Whether an answer was owed: not to what the target refused, nor to what was hung up on."""
    if answer.outcome == "aborted" or answer.retry_after_s is not None:
        return False
    refused = answer.status is not None and 400 <= answer.status < 500  # noqa: PLR2004 - any 4xx
    return not refused or answer.status == _TIMED_OUT


def _last_alone_was_lost(history: History, windows: Sequence[_Window]) -> bool:
    """Whether the request that was sent last had the target for itself and was not answered."""
    last = windows[-1]
    seen = history.observations
    mine = seen[seen["request_id"].isin([*last.answered, *last.lost])]
    final = str(mine.sort_values("start_ns")["request_id"].iloc[-1])
    overlaps = history.overlaps
    together = overlaps.loc[overlaps["request_id"] == final, "with_any"].any()
    return final in last.lost and not together


def _finding(
    history: History, last: Sequence[_Window], counts: list[tuple[int, int]], p: float
) -> Finding:
    window = next(each for each in last if each.weak)
    lost = [history.answer(name) for each in last for name in each.lost]
    error, times = Counter(a.error or "no reason given" for a in lost if a is not None).most_common(
        1
    )[0]
    request, size = history.by_id(window.lost[0]), len(last)
    return Finding(
        check=CHECK,
        anomaly="lost-capacity",
        severity="error",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        excerpt=error,
        explanation=(
            f"the target lost capacity: less than half was answered in {counts[1][0]} of the last "
            f"{size} windows and nobody in {counts[1][1]}, under the load of which the first "
            f"{size} windows failed in {counts[0][0]} (Fisher's exact test, one-sided: "
            f"p = {p:.2g}); first {who(request, window=True)}, most often ({times} times): {error}"
        ),
        evidence={
            "windows": size,
            "weak_first": counts[0][0],
            "weak_last": counts[1][0],
            "empty_last": counts[1][1],
            "p": p,
        },
    )
