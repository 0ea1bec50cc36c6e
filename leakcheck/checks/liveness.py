"""The target serves at the end what it served at the start.

State that leaks without content, such as cache blocks that never come back, shows as requests that
hang, break or find nobody there, late in a run whose windows all have the same load. Only what the
target owes counts: a refusal (429, 503 with a time to come back, any other 4xx), a planned abort,
a request that was never sent and one whose worker died are left out. So a rate limit is no lost
capacity, nor is a target that is slow from the start, or slow to warm up.

Two things together make `lost-capacity`. Windows in which less than half was answered come later
than the others (rank test, one-sided, the window as the unit; it does not matter when it began).
And at the very end nobody is served: nobody was answered in most of the last windows, or the last
request, with nothing else in flight, was not.

Outages come in blocks too, and one that passes looks like that while it lasts. So the finding is an
error only as long as nothing that the run sent later, in whatever scenario, was served; else it is
a note. Where nothing comes later the run sends `probe`s before it ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leakcheck import evidence
from leakcheck.checks import alone, who
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding, Observation, Request

CHECK = "liveness"
TITLE = "Answered at the start and at the end"
COLUMNS = ("part of the run", "windows", "less than half answered", "nobody answered")
ALPHA = 0.001
PROBE = "probe"
"""The cell of a request that was sent to find out whether a target came back."""
KNOCK = "knock"
"""The cell of a request that was sent to find out whether a target is gone."""
PROBES = 3
FIRST_PROBE_WINDOW = 1_000_000
"""As other replays, probes have windows of their own, from this number up."""
_TIMED_OUT = 408


@dataclass(slots=True, kw_only=True)
class _Window:
    """What the target owed in one window: ids of requests, in the order of the plan."""

    number: int
    start_ns: int
    last_ns: int
    answered: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def weak(self) -> bool:
        """Less than half was answered."""
        return len(self.answered) < len(self.lost)


def check(history: History, *, part: float = 0.25, alpha: float = ALPHA) -> CheckResult:
    """Compare when windows went wrong; the end of the run is the last `part` of its windows."""
    windows = _windows(history)
    if not windows:
        return CheckResult(check=CHECK, notes=("no window in which the target owed an answer",))
    size = max(1, math.ceil(part * len(windows)))
    end = windows[-size:]
    weak = [place for place, window in enumerate(windows) if window.weak]
    p = evidence.later(weak, [place for place, w in enumerate(windows) if not w.weak])
    dead = 2 * sum(not w.answered for w in end) > size or _last_alone_was_lost(history, windows)
    findings = (_finding(history, windows, size, p),) if p <= alpha and dead else ()
    rows = ((name, *_counts(its)) for name, its in (("start", windows[:size]), ("end", end)))
    return CheckResult(
        check=CHECK,
        findings=tuple(_weighed(history, windows, each) for each in findings),
        tables={TITLE: (COLUMNS, *rows)},
    )


def probe(history: History) -> Request | None:
    """What to send, alone, before `lost-capacity` stands; to be asked again after it was sent.

    A replay of the first request that the scenario in question served. None where nothing is
    accused, any more, or enough probes were sent. `history` is that of the whole run.
    """
    sent = int((history.requests["cell"] == PROBE).sum())
    for name in reversed(history.scenarios()):
        part = history.scenario(name)
        options = [c.options for c in part.plans[0].scenario.checks if c.name == CHECK]
        accused = any(f.severity == "error" for o in options for f in check(part, **o).findings)
        if sent < PROBES and accused:
            served = next(each for window in _windows(part) for each in window.answered)
            return _replay(history, served, PROBE)
    return None


def knock(history: History) -> Request:
    """What to send, alone, to a target that seems to be gone: a replay of the first request of the
    whole run that was served, or of its first where none was.
    """
    requests = history.requests
    served = requests.loc[(requests["outcome"] == "ok") & requests["replays"].isna(), "id"]
    return _replay(history, str((served if len(served) else requests["id"]).iloc[0]), KNOCK)


def _replay(history: History, request_id: str, cell: str) -> Request:
    """That request once more, alone."""
    requests = history.requests
    number = int((requests["cell"] == cell).sum()) + 1
    window = max(FIRST_PROBE_WINDOW, int(requests["window"].max()) + 1)
    return alone(history.by_id(request_id), name=f"{cell}-{number}", window=window, cell=cell)


def _weighed(history: History, windows: Sequence[_Window], finding: Finding) -> Finding:
    """The finding; a note if anything was served that was sent after the last weak window."""
    gone_ns = max(window.last_ns for window in windows if window.weak)
    back = history.served_after(gone_ns)
    if back is None:
        return finding
    after_s = (back.start_ns - gone_ns) / 1e9
    return replace(
        finding,
        severity="note",
        explanation=(
            f"for a while the target served nobody, and it came back: {back.request_id}, sent "
            f"{after_s:.1f} s after the last request of that stretch, was served. Else one would "
            f"say: {finding.explanation}"
        ),
        evidence={**finding.evidence, "came_back": back.request_id},
    )


def _counts(windows: Sequence[_Window]) -> tuple[int, int, int]:
    """Windows, those with less than half answered, those with nobody answered."""
    return len(windows), sum(w.weak for w in windows), sum(not w.answered for w in windows)


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
            int(row.window), _Window(number=int(row.window), start_ns=start, last_ns=start)
        )
        window.start_ns = min(window.start_ns, start)
        window.last_ns = max(window.last_ns, start)
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


def _finding(history: History, windows: Sequence[_Window], size: int, p: float) -> Finding:
    _, weak, empty = _counts(windows[-size:])
    last = max(place for place, window in enumerate(windows) if window.weak)
    good = max((n for n, each in enumerate(windows[:last]) if not each.weak), default=-1)
    window = windows[good + 1]
    lost = [history.answer(name) for each in windows[-size:] for name in each.lost]
    errors = Counter(answer.error or "no reason given" for answer in lost if answer is not None)
    error, times = errors.most_common(1)[0]
    request = history.by_id(window.lost[0])
    before = sum(not each.weak for each in windows)
    return Finding(
        check=CHECK,
        anomaly="lost-capacity",
        severity="error",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        excerpt=error,
        explanation=(
            f"the target lost capacity: of the last {size} windows {weak} were answered by less "
            f"than half and {empty} not at all, while {before} of all {len(windows)} windows, "
            f"under the same load, were served (rank test, one-sided: p = {p:.2g}); first "
            f"{who(request, window=True)}, most often ({times} times): {error}"
        ),
        evidence={
            "windows": len(windows),
            "served": before,
            "end": size,
            "weak_at_end": weak,
            "empty_at_end": empty,
            "p": p,
        },
    )
