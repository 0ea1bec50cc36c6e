"""docs/quality.md: the results as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from quality.values import Result, percent

TITLES = {
    1: "A whole passphrase is never found by chance: the bound by counting",
    2: "An honest target with noisy numerics is not accused",
    3: "Calling any difference a leak accuses it",
    4: "Windows until a leak in 1 % of windows is detected",
    5: "Answers of one window are not independent",
    6: "Weaker signs are ranked against phantoms, whatever scores them",
    7: "Looking after every window costs nothing",
    8: "A certificate is seldom given to a target that leaks",
    9: "Reduction to the smallest traffic that leaks",
    10: "A probe that runs for ever",
    11: "Rare and gross, against frequent and small",
    12: "Inside a model: the layer and the block",
}
HEADER = "| | claim | expected | measured | standard error | n | holds |"
_RULE = "| --- | --- | --- | --- | --- | --- | --- |"
COMMAND = "make quality"
_INTRODUCTION = (
    "Every figure goes through leakcheck's own functions, not through copies of them; a short form "
    "of the same simulations is part of `make test`. *n* counts simulated runs unless the claim "
    "says otherwise. A limit counts as kept unless it is missed by more than three standard errors "
    "(in claim 2: by anything at all), an expected value unless it is missed by that and by what "
    "its own source leaves open. Figures marked *end to end* were played against the embedded "
    "engine, over HTTP."
)


def render(results: Sequence[Result], *, seed: int, done: bool = True) -> str:
    """The page. `done` False: it was stopped, and says so."""
    lines = ["# What the statistics promise, and what simulation says", "", _INTRODUCTION, ""]
    lines += [f"Made by `{COMMAND}` (seed {seed}).", ""]
    if not done:
        lines += ["**Stopped before its end: what is missing was not played.**", ""]
    missed = [each.number for each in results if each.holds is False]
    lines += [_summary(results, missed), ""]
    for number, title in TITLES.items():
        rows = [each for each in results if claim_of(each) == number]
        lines += [f"## {number}. {title}", ""]
        if not rows:
            lines += ["Not played.", ""]
            continue
        lines += [HEADER, _RULE, *(_row(each) for each in rows), ""]
        notes = [f"{each.number}: {each.note}" for each in rows if each.note]
        lines += [line for note in notes for line in (note, "")]
    return "\n".join(lines).rstrip() + "\n"


def claim_of(result: Result) -> int:
    """The number of its claim, without its part."""
    return int(result.number.rstrip("abcdefghijklmnopqrstuvwxyz"))


def dump(results: Sequence[Result]) -> bytes:
    """The results as JSON."""
    raw = msgspec.json.encode(results, enc_hook=lambda number: number.item())  # of numpy
    return msgspec.json.format(raw, indent=1)


def load(raw: bytes) -> list[Result]:
    """The results of `dump`."""
    return msgspec.json.decode(raw, type=list[Result])


def line(result: Result) -> str:
    """A result on one line of a terminal."""
    return (
        f"{result.number:>4}  {_holds(result):8} {_figure(result, result.measured)} "
        f"(SE {_error(result)}, n {result.trials}; "
        f"{result.expected})  {result.claim}"
    )


def _summary(results: Sequence[Result], missed: Sequence[str]) -> str:
    tried = [each for each in results if each.holds is not None]
    text = f"{len(tried) - len(missed)} of {len(tried)} figures hold"
    return f"{text}; not: {', '.join(missed)}." if missed else f"{text}."


def _row(result: Result) -> str:
    cells = (
        result.number,
        result.claim,
        result.expected,
        _figure(result, result.measured),
        _error(result),
        f"{result.trials:,}" if result.trials else "-",
        _holds(result),
    )
    return f"| {' | '.join(cells)} |"


def _error(result: Result) -> str:
    known = result.standard_error is not None and math.isfinite(result.standard_error)
    return _figure(result, result.standard_error) if known else "-"


def _figure(result: Result, value: float | None) -> str:
    if value is None:
        return "-"
    if result.unit == "%":
        return percent(value)
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number if math.isfinite(value) else 'never'} {result.unit}".rstrip()


def _holds(result: Result) -> str:
    return {True: "yes", False: "**no**", None: "not built"}[result.holds]
