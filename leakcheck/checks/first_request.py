"""Answers follow their own temperature, not that of the request which came first.

A server that takes the parameters of its first request for those of all looks like one that
ignores temperature: everything is hot, or everything greedy. Only the cause tells them apart. So
`traffic.first_request` begins every window with a request that is hot or greedy by the toss of a
coin, and what is sent after it is always the same. If nobody's parameters reach another's answer,
what follows cannot depend on the coin; that is tested exactly, over all ways in which the coins
could have fallen.

Where the parameters are those of the first request *after the start*, the coin decides nothing
except in a window that begins a lifetime of the target. `wants_restarts` says when it takes that:
as soon as answers do not follow their own temperature. Windows that began a lifetime are then the
only ones that count. Where there are none, nobody is accused of what happened at the start, and
nothing is clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from leakcheck.checks import _replay, excerpt, who
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding, Request
from leakcheck.traffic.first_request import FIRST, GREEDY, HOT

CHECK = "first_request"
TITLE = "Answers by what was sent first"
COLUMNS = ("answers", "sent first", "windows", "answers that differ", "p")
ALPHA = 0.001
LEAST_DIFFERENCE = 0.5
"""Of the copies of a payload, how many more must differ behind a hot first request."""
RESTARTS = frozenset({"restarted", "restart-unseen"})
_LEAST_OF_EACH = 2
"""Windows with either first request."""
_EXACT = 16
"""Up to so many windows all falls of the coins are tried, else a sample of them."""
_SAMPLE = 100_000
_ALIKE = 0.25
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One window: its first request, and the answered copies of the greedy and the hot payload.

    `began`: it began a lifetime of the target.
    """

    window: int
    first: Request
    copies: dict[str, tuple[tuple[Request, str], ...]]
    began: bool

    @property
    def hot(self) -> bool:
        """Whether the first request was."""
        return self.first.sampling.temperature > 0

    def differ(self, cell: str) -> float | None:
        """0.0 where all copies were answered alike, 1.0 where no two were; None with fewer."""
        texts = [text for _, text in self.copies[cell]]
        return None if len(texts) < 2 else (len(set(texts)) - 1) / (len(texts) - 1)  # noqa: PLR2004 - a pair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effect:
    """The copies of one cell, behind a hot and behind a greedy first request: a share a window."""

    cell: str
    behind_hot: tuple[float, ...]
    behind_greedy: tuple[float, ...]
    p: float

    @property
    def size(self) -> float:
        """How much more copies differ behind a hot first request; 0.0 where either is missing."""
        if min(len(self.behind_hot), len(self.behind_greedy)) < _LEAST_OF_EACH:
            return 0.0
        return fmean(self.behind_hot) - fmean(self.behind_greedy)


def check(
    history: History, *, alpha: float = ALPHA, least_difference: float = LEAST_DIFFERENCE
) -> CheckResult:
    """Test whether answers depend on the temperature of the request that came first; greedy and hot
    answers share `alpha`. `least_difference` is a share of the copies of a payload.
    """
    windows = seen(history)
    began = [each for each in windows if each.began]
    used = began or windows
    effects = [_effect(cell, used) for cell in (GREEDY, HOT)]
    findings, accused = [], False
    for effect in effects:
        confirmed = effect.p <= alpha / len(effects) and effect.size >= least_difference
        accused = accused or confirmed
        if confirmed:
            findings.append(_finding(history, effect, used, restarted=bool(began)))
    notes, untested = ([], []) if accused else _doubts(windows, began, alpha / len(effects))
    return CheckResult(
        check=CHECK,
        findings=tuple(findings),
        notes=tuple(notes),
        tables={TITLE: (COLUMNS, *_rows(effects))},
        untested=tuple(untested),
    )


def wants_restarts(history: History) -> bool:
    """Whether a further window tells more at the beginning of a lifetime of the target: where
    answers did not follow their own temperature so far, be it in one window.
    """
    return any(_greedy_differ(each) or _hot_alike(each) for each in seen(history))


def seen(history: History) -> list[Seen]:
    """The windows of `traffic.first_request` whose first request was answered at once."""
    requests = history.requests
    mine = requests[requests["replays"].isna() & (requests["outcome"] == "ok")]
    found = []
    for number, rows in mine.groupby("window"):
        by_cell = {str(cell): list(ids) for cell, ids in rows.groupby("cell")["id"]}
        if FIRST not in by_cell:
            continue
        first = history.by_id(by_cell[FIRST][0])
        copies = {
            cell: tuple((history.by_id(i), history.text(i)) for i in by_cell.get(cell, ()))
            for cell in (GREEDY, HOT)
        }
        began = _began(history, first)
        found.append(Seen(window=int(str(number)), first=first, copies=copies, began=began))
    return found


def _began(history: History, first: Request) -> bool:
    """Whether the target was restarted after everything before this request, and it came first."""
    restarts = [
        event.at_ns
        for event in history.events
        if event.kind in RESTARTS and event.detail.startswith(f"{first.scenario}:")
    ]
    starts = history.observations["start_ns"]
    answer = history.answer(first.id)
    if answer is None:
        return False
    before = int(starts[starts < answer.start_ns].max()) if (starts < answer.start_ns).any() else 0
    return any(before < at < answer.start_ns for at in restarts)


# --- the test ------------------------------------------------------------------------------------


def _effect(cell: str, windows: Sequence[Seen]) -> _Effect:
    told = [(each.hot, share) for each in windows if (share := each.differ(cell)) is not None]
    return _Effect(
        cell=cell,
        behind_hot=tuple(share for hot, share in told if hot),
        behind_greedy=tuple(share for hot, share in told if not hot),
        p=p_value([hot for hot, _ in told], [share for _, share in told]),
    )


def p_value(coins: Sequence[bool], shares: Sequence[float]) -> float:
    """The chance that fair coins split these shares as far as they did, or further: by the mean of
    those under heads less that of the others. Exact up to 16 windows, else from 100,000 falls.
    """
    count = len(coins)
    if not count:
        return 1.0
    values = np.array(shares, float)
    observed = float(_split(np.array([coins], bool), values)[0])
    if not np.isfinite(observed):
        return 1.0
    if count <= _EXACT:
        falls = (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1
        return float(np.mean(_split(falls, values) >= observed - _ROUNDING))
    falls = np.random.default_rng(0).random((_SAMPLE, count)) < 0.5  # noqa: PLR2004 - fair
    further = int(np.sum(_split(falls, values) >= observed - _ROUNDING))
    return (1 + further) / (1 + _SAMPLE)


def _split(falls: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each fall of the coins the difference of the means; -inf with too few on a side."""
    heads = falls.sum(axis=1)
    tails = falls.shape[1] - heads
    under = falls @ values
    enough = (heads >= _LEAST_OF_EACH) & (tails >= _LEAST_OF_EACH)
    means = under / np.maximum(heads, 1) - (values.sum() - under) / np.maximum(tails, 1)
    return np.where(enough, means, -np.inf)


# --- what it says --------------------------------------------------------------------------------


def _greedy_differ(window: Seen) -> bool:
    return bool(window.differ(GREEDY))


def _hot_alike(window: Seen) -> bool:
    share = window.differ(HOT)
    return share is not None and share <= _ALIKE


def _doubts(
    windows: Sequence[Seen], began: Sequence[Seen], alpha: float
) -> tuple[list[str], list[str]]:
    """Notes, and what was not tested, where nobody is accused."""
    random = sum(map(_greedy_differ, windows))
    alike = sum(map(_hot_alike, windows))
    total = len(windows)
    if not total:
        return ["no first request was answered: nothing was compared"], []
    looks = []
    if 2 * random > total:
        looks.append(f"greedy requests are answered at random (in {random} of {total} windows)")
    if 2 * alike > total:
        looks.append(f"hot requests are answered greedily (in {alike} of {total} windows)")
    if not looks:
        return [], []
    what = " and ".join(looks)
    if not began:
        tell = (
            f"{what}: the target ignores temperature, or lets that of somebody else's request "
            "serve it, such as that of the first one after its start; --restart COMMAND would "
            "tell, as leakcheck then chooses what comes first"
        )
        return [], [tell]
    if 2.0 ** -len(began) > alpha:
        few = (
            f"{what}, and {len(began)} lifetimes of the target are too few to tell whether that "
            "depends on what came first (--windows sends more)"
        )
        return [], [few]
    ignored = (
        f"{what}, whatever came first after the start in {len(began)} lifetimes: the target "
        "ignores temperature, which is nobody else's doing"
    )
    return [ignored], []


def _finding(
    history: History, effect: _Effect, windows: Sequence[Seen], *, restarted: bool
) -> Finding:
    shows = _clearest(effect, windows)
    recipient, text = shows.copies[effect.cell][-1]
    greedy = effect.cell == GREEDY
    first = "the first request after the start" if restarted else "the request sent before them"
    unit = "lifetimes of the target" if restarted else "windows"
    lives = [[_first(windows, hot=hot), *_both(shows)] for hot in (True, False)]
    replay = _replay.script(history.provenance, lives)
    again = "" if replay is None else " replay.sh, in the run folder, shows it again."
    return Finding(
        check=CHECK,
        anomaly="foreign-parameters",
        severity="corruption",
        scenario=recipient.scenario,
        window=recipient.window,
        recipient=recipient.id,
        source=shows.first.id,
        relation=history.relation(shows.first.id, recipient.id),
        excerpt=excerpt(text, 0, 0)[0],
        explanation=(
            f"answers follow the temperature of {first}, not their own: {who(recipient)} is "
            f"{'greedy' if greedy else 'hot'} and was answered "
            f"{'at random' if greedy else 'as if it were greedy'} behind {shows.first.id}, which "
            f"is {'hot' if greedy else 'greedy'}; copies of one {effect.cell} request differed in "
            f"{_times(effect.behind_hot)} {unit} that began with a hot request and in "
            f"{_times(effect.behind_greedy)} that began with a greedy one (which, by the toss of a "
            f"coin; exact randomisation test: p = {effect.p:.2g}).{again}"
        ),
        evidence={
            "aspect": f"{effect.cell} answers",
            "mechanism": f"answers follow the temperature of {first}, not their own",
            "behind_hot": list(effect.behind_hot),
            "behind_greedy": list(effect.behind_greedy),
            "p": effect.p,
            "restarted": restarted,
            "replay": replay,
        },
    )


def _clearest(effect: _Effect, windows: Sequence[Seen]) -> Seen:
    """A window that shows it: greedy copies that differ, or hot ones that are alike."""
    greedy = effect.cell == GREEDY
    mine = [w for w in windows if w.hot == greedy and w.differ(effect.cell) is not None]
    return max(mine, key=lambda w: (w.differ(effect.cell) or 0.0) * (1 if greedy else -1))


def _first(windows: Sequence[Seen], *, hot: bool) -> Request:
    return next(each.first for each in windows if each.hot == hot)


def _both(window: Seen) -> list[Request]:
    return [request for cell in (GREEDY, HOT) for request, _ in window.copies[cell]]


def _times(shares: Sequence[float]) -> str:
    return f"{sum(share > _ALIKE for share in shares)} of {len(shares)}"


def _rows(effects: Sequence[_Effect]) -> list[tuple[object, ...]]:
    return [
        (effect.cell, name, len(shares), _mean(shares), float(f"{effect.p:.3g}"))
        for effect in effects
        for name, shares in (("hot", effect.behind_hot), ("greedy", effect.behind_greedy))
    ]


def _mean(shares: Sequence[float]) -> float | None:
    return round(fmean(shares), 3) if shares else None
