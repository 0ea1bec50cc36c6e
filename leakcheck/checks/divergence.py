"""The same greedy request alone and in company: where the answers part, and how narrow it was.

A difference is not a leak. Kernels round differently in batches of another size, and where two
tokens are nearly as likely, that decides; so what is reported is the *reference gap* at the first
difference, by how much the answer given alone preferred its token to the one given in company:

    gap = log p_alone(token alone) - log p_alone(token in company)        in nats

A 16-bit model parts at gaps of 0.125 or 0.25; gaps above 1 deserve a look. Where the other token
is not among the alternatives that the target named, the gap is at least that of the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from leakcheck.checks import excerpt, who
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding, Observation, Request, TokenLogprob

CHECK = "divergence"
TITLE = "Divergence from the same request alone"
COLUMNS = (
    "company",
    "compared",
    "diverged",
    "median gap (nats)",
    "largest gap (nats)",
    "largest logprob difference before (nats)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One answer in company against the answer alone.

    `at` is the index of the first differing token (of the first differing character where the
    target gave no log-probabilities), None when the answers agree as far as both go. `gap` in nats;
    `censored`: it is at least that. `drift` is the largest difference of the log-probabilities of
    equal tokens before.
    """

    request: Request
    at: int | None
    unit: str = "token"
    char: int = 0
    gap: float | None = None
    censored: bool = False
    drift: float | None = None


def check(history: History) -> CheckResult:
    """Notes and a table, never more: a bare difference accuses nobody."""
    comparisons = list(_comparisons(history))
    diverged = [c for c in comparisons if c.at is not None]
    cells = list(dict.fromkeys(c.request.cell for c in comparisons))
    rows = [_row(cell, [c for c in comparisons if c.request.cell == cell]) for cell in cells]
    return CheckResult(
        check=CHECK,
        findings=tuple(
            _finding(history, c) for c in sorted(diverged, key=lambda c: -(c.gap or 0.0))
        ),
        notes=_notes(comparisons, diverged),
        tables={TITLE: (COLUMNS, *rows)} if rows else {},
    )


def _comparisons(history: History) -> Iterator[Comparison]:
    requests = history.requests
    twins = requests[requests["twin"].notna() & requests["replays"].isna()]
    for request_id in twins.loc[twins["outcome"] == "ok", "id"]:
        request = history.by_id(request_id)
        alone, mixed = history.answer(request.twin or ""), history.answer(request.id)
        if alone is not None and mixed is not None and alone.outcome == "ok":
            yield _compare(request, alone, mixed)


def _compare(request: Request, alone: Observation, mixed: Observation) -> Comparison:
    reference, other = _tokens(alone), _tokens(mixed)
    if not (reference and other):
        left, right = _content(alone), _content(mixed)
        at = _first_difference(left, right, alone, mixed)
        return Comparison(request=request, at=at, unit="character", char=at or 0)
    at = _first_difference([t.token for t in reference], [t.token for t in other], alone, mixed)
    together = min(len(reference), len(other)) if at is None else at
    drift = max(
        (
            abs(a.logprob - b.logprob)
            for a, b in zip(reference[:together], other[:together], strict=True)
        ),
        default=None,
    )
    if at is None:
        return Comparison(request=request, at=None, drift=drift)
    char = sum(len(t.token) for t in other[:at])
    if at >= min(len(reference), len(other)):  # one had ended: the token that ends is not named
        return Comparison(request=request, at=at, char=char, drift=drift)
    gap, censored = _gap(reference[at], other[at].token)
    return Comparison(request=request, at=at, char=char, gap=gap, censored=censored, drift=drift)


def _first_difference(left: Any, right: Any, alone: Observation, mixed: Observation) -> int | None:
    """Index of the first difference of two sequences over what both have.

    Where one is the beginning of the other, it has to have ended by its own choice (`stop`):
    a cut or cancelled answer does not differ.
    """
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return at
    shorter, longer = (alone, mixed) if len(left) <= len(right) else (mixed, alone)
    if len(left) == len(right) or shorter.finish_reason != "stop" or longer.finish_reason is None:
        return None
    return min(len(left), len(right))


def _gap(reference: TokenLogprob, other: str) -> tuple[float | None, bool]:
    named: dict[str, float] = {}
    for token, logprob in reference.top:  # different tokens can look the same: parts of a character
        named[token] = max(logprob, named.get(token, logprob))
    if other in named:
        return reference.logprob - named[other], False
    if not named:
        return None, False
    return reference.logprob - min(logprob for _, logprob in reference.top), True


def _tokens(observation: Observation) -> list[TokenLogprob]:
    return [t for c in observation.chunks if c.field == "content" for t in c.logprobs]


def _content(observation: Observation) -> str:
    return "".join(c.text for c in observation.chunks if c.field == "content")


def _row(cell: str, comparisons: list[Comparison]) -> tuple[Any, ...]:
    gaps = [c.gap for c in comparisons if c.gap is not None]
    drifts = [c.drift for c in comparisons if c.drift is not None]
    diverged = sum(c.at is not None for c in comparisons)
    return (
        cell,
        len(comparisons),
        diverged,
        round(median(gaps), 4) if gaps else None,
        round(max(gaps), 4) if gaps else None,
        round(max(drifts), 6) if drifts else None,
    )


def _notes(comparisons: list[Comparison], diverged: list[Comparison]) -> tuple[str, ...]:
    if not comparisons:
        return ("no request was answered both alone and in company: nothing was compared",)
    text = f"{len(diverged)} of {len(comparisons)} answers in company differ from the one alone"
    unmeasured = sum(c.unit == "character" for c in comparisons)
    if unmeasured:
        text += f"; {unmeasured} were compared as text, without log-probabilities"
    return (text,)


def _finding(history: History, comparison: Comparison) -> Finding:
    request, at = comparison.request, comparison.at
    least = "at least " if comparison.censored else ""
    gap = (
        "how narrow that was is not known"
        if comparison.gap is None
        else f"alone it preferred its own token by {least}{comparison.gap:.3g} nats"
    )
    text, mark = excerpt(history.text(request.id), comparison.char, comparison.char)
    return Finding(
        check=CHECK,
        anomaly="divergence",
        severity="note",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        excerpt=text,
        mark=mark,
        explanation=(
            f"{who(request, window=True)} in {request.cell or 'other'} company is answered "
            f"otherwise than {request.twin} alone, from {comparison.unit} {at} on; {gap}."
        ),
        evidence={
            "twin": request.twin,
            "cell": request.cell,
            "at": at,
            "gap_nats": comparison.gap,
            "censored": comparison.censored,
            "largest_logprob_difference_nats": comparison.drift,
        },
    )
