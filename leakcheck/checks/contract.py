"""Every answer obeys its own sampling parameters and nobody else's.

A passphrase shows none of this. What each request asked for stands in the plan; what it looks like
when the target obeys is seen from the same request alone. So what a target does not support (seeds,
a bias, stop strings) is never held against it, only that it changes in company.

Two kinds of evidence make `foreign-parameters`. *Signs*: windows in which an aspect is right among
like requests and wrong among unlike ones, against windows the other way round, by the exact sign
test of `paired`; a noisy model errs both ways. *Violations* that no model makes by itself, as only
the server enforces what they break (an own stop string in the answer, max_tokens, another's bias):
in at least `violations` windows. Less is a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from leakcheck.checks import _parameters, excerpt, own_answer, paired, who
from leakcheck.checks._parameters import Cells, Sign, Told
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding

CHECK = "contract"
TITLE = "Sampling parameters: own and foreign"
COLUMNS = ("aspect", "windows", "wrong among unlike", "wrong among like", "p")
VIOLATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aspect:
    """One thing that an answer's own parameters promise. `rule`: a model cannot break it."""

    name: str
    signs: list[Sign]
    rule: bool
    unseen: str


def check(
    history: History,
    *,
    alone: str = "alone",
    plain: str = "plain",
    seeded: str = "seeded",
    mixed: str = "mixed",
    alpha: float = paired.ALPHA,
    least_difference: float = paired.LEAST_DIFFERENCE,
    violations: int = VIOLATIONS,
) -> CheckResult:
    """Compare the requests of the cell `mixed` with their twins in the others: `alone`, `plain`
    (among greedy requests), `seeded` (hot, among greedy ones). `alpha` is shared by the sign tests.
    """
    cells = Cells(alone=alone, plain=plain, seeded=seeded, mixed=mixed)
    windows = _parameters.told(history)
    pairs = paired.pairs(history, own_answer.ticket_states(history), plain, mixed)
    aspects = list(_aspects(history, windows, cells, pairs))
    level = alpha / sum(not aspect.rule for aspect in aspects)
    findings, rows, notes = [], [], [*_refused(history)]
    for aspect in aspects:
        ups, downs, first = _count(aspect.signs)
        total = len({sign.window for sign in aspect.signs})
        signs = paired.Signs(windows=total, ups=ups, downs=downs, first=None)
        rows.append(
            (aspect.name, total, ups, downs, None if aspect.rule else float(f"{signs.p:.3g}"))
        )
        if not total:
            notes.append(aspect.unseen)
        if first is not None:
            confirmed = (
                ups >= violations if aspect.rule else signs.confirmed(level, least_difference)
            )
            findings.append(_finding(history, aspect, signs, first, confirmed=confirmed))
    return CheckResult(
        check=CHECK,
        findings=tuple(findings),
        notes=tuple(notes),
        tables={TITLE: (COLUMNS, *rows)},
    )


def _aspects(
    history: History, windows: list[Told], cells: Cells, pairs: list[paired.Pair]
) -> Iterator[_Aspect]:
    def every(signs: Iterable[Iterable[Sign]]) -> list[Sign]:
        return [sign for some in signs for sign in some]

    yield _Aspect(
        name="greedy answers keep their ticket",
        signs=list(_parameters.greedy(history, pairs)),
        rule=False,
        unseen="no greedy request was answered both among like and among unlike ones",
    )
    yield _Aspect(
        name="no stop string of another",
        signs=every(_parameters.foreign_stops(window, cells) for window in windows),
        rule=False,
        unseen="no answer went beyond another's stop string alone: whether it stops was not tested",
    )
    yield _Aspect(
        name="unlike seeds, unlike answers",
        signs=every(_parameters.alike(window, cells) for window in windows),
        rule=False,
        unseen="no two hot requests were answered alone and in company: seeds were not tested",
    )
    yield _Aspect(
        name="the own seed",
        signs=every(_parameters.reproduced(window, cells) for window in windows),
        rule=False,
        unseen="this target does not give one answer to one seed, even alone: not held against it",
    )
    yield _Aspect(
        name="the own stop string",
        signs=every(_parameters.ignored_stops(window, cells) for window in windows),
        rule=True,
        unseen="no answer was ended by its own stop string alone: not held against the target",
    )
    biases = list(_parameters.foreign_biases(windows))
    yield _Aspect(name="no bias of another", signs=biases, rule=True, unseen="nobody was answered")
    yield _Aspect(
        name="the own bias",
        signs=every(_parameters.lost_biases(window, cells) for window in windows),
        rule=False,
        unseen="logit_bias showed in no answer: not held against the target",
    )
    yield _Aspect(
        name="the own max_tokens",
        signs=every(_parameters.lengths(window, cells) for window in windows),
        rule=True,
        unseen="the target does not count the tokens it writes: max_tokens was not tested",
    )


def _count(signs: list[Sign]) -> tuple[int, int, Sign | None]:
    """Windows that went up, windows that went down, and the first sign of one that went up."""
    directions: dict[int, set[int]] = {}
    for sign in signs:
        directions.setdefault(sign.window, set()).add(sign.direction)
    ups = {window for window, seen in directions.items() if 1 in seen and -1 not in seen}
    downs = sum(-1 in seen and 1 not in seen for seen in directions.values())
    first = next((s for s in signs if s.direction == 1 and s.window in ups), None)
    return len(ups), downs, first


def _refused(history: History) -> Iterator[str]:
    """That the target refuses a parameter, which is its right."""
    requests = history.requests
    for name in requests.loc[requests["outcome"] == "failed", "id"]:
        request, seen = history.by_id(name), history.answer(name)
        if seen is not None and request.sampling.logit_bias and request.replays is None:
            yield f"a request with logit_bias was refused: {seen.error}"
            return


def _finding(
    history: History, aspect: _Aspect, signs: paired.Signs, first: Sign, *, confirmed: bool
) -> Finding:
    request = history.by_id(first.recipient)
    text, mark = excerpt(_parameters.shown(history, request.id), *first.at)
    relation = history.relation(first.source, request.id) if first.source else "unknown"
    counted = f"so in {signs.ups} of {signs.windows} windows"
    if not aspect.rule:
        counted += (
            f", and the other way round in {signs.downs} (exact sign test, one-sided: "
            f"p = {signs.p:.2g})"
        )
    verdict = "" if confirmed else "; too few to accuse the target"
    return Finding(
        check=CHECK,
        anomaly="foreign-parameters",
        severity="corruption" if confirmed else "note",
        scenario=request.scenario,
        window=request.window,
        recipient=request.id,
        source=first.source,
        relation=relation,
        excerpt=text,
        mark=mark,
        explanation=f"{who(request, window=True)} {first.what}; {counted}{verdict}.",
        evidence={
            "aspect": aspect.name,
            "windows_up": signs.ups,
            "windows_down": signs.downs,
            "windows": signs.windows,
            "p": None if aspect.rule else signs.p,
        },
    )
