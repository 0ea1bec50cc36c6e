"""Every answer obeys its own sampling parameters and nobody else's.

A passphrase shows none of this. What each request asked for stands in the plan; what it looks like
when the target obeys is seen from the same request alone. So what a target does not support (seeds,
a bias, stop strings) is never held against it, only that it changes with the company.

Two kinds of evidence make `foreign-parameters`.

*Signs*: windows in which an aspect is right among like requests and wrong among unlike ones,
against windows the other way round, by the exact sign test of `paired`; a noisy model errs both
ways. Both are in company of the same size. Where a request is seen right only alone it is a note:
replicas that are not alike, some of which serve the overflow, do that too.

*Violations* that no model makes by itself, as only the server enforces what they break: in at least
`violations` windows, in more than an honest server that slips in 1 % of windows explains (binomial
tail), and only if no answer alone breaks the same rule. Answers that are cut count where the length
is another's max_tokens, and must also be more than chance hits among all that are cut; so must
those that repeat the token of another's bias, among all that go round in circles. Less is a note.

Twins of one prompt that differ in one parameter add to these aspects, no tests of their own: an
answer that breaks the own parameter and is word for word the twin's, while requests that no twin
came before obeyed. That is what a cache of answers does whose key leaves the parameter out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from leakcheck import evidence
from leakcheck.checks import _biases, _parameters, _twins, excerpt, own_answer, paired, who
from leakcheck.checks._parameters import Cells, Sign, Told
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding

CHECK = "contract"
TITLE = "Sampling parameters: own and foreign"
COLUMNS = ("aspect", "windows", "wrong", "the other way round", "p")
VIOLATIONS = 3
_OWN = frozenset({"the own stop string", "the own seed", "the own bias"})
_BIASES = frozenset({"no bias of another", "the own bias"})
_UNTESTED = {
    "everything": "no sampling parameter was tested: stop strings, seeds and logit_bias were each "
    "refused or without effect, even alone",
    "biases": "no bias was tested: logit_bias and allowed_token_ids were each refused or without "
    "effect, even alone",
}
_SLIPS = 0.01
"""Of the windows: in so many an honest server may break a rule by some accident of its own."""
_OF_TWINS = {
    "no stop string of another": _twins.foreign_stops,
    "the own stop string": _twins.ignored_stops,
    "the own max_tokens": _twins.longer,
    "no max_tokens of another": _twins.cut,
}
"""What twins of one prompt add to an aspect."""
_BY_CHANCE = 0.15
"""At most this share of arbitrary lengths is some max_tokens in the company by accident."""
_SAME_BY_CHANCE = 0.05
"""At most in this share of windows a model that goes round in circles does so, among its dozens of
answers, over the token of a bias of this window or the one before: two of 700."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aspect:
    """One thing that an answer's own parameters promise.

    `rule`: a model cannot break it. `broken_alone`: this target does so with nobody beside it.
    `by_chance`: the share of signs that go up for no reason, of a rule with signs either way;
    `otherwise` says of the others what they are.
    """

    name: str
    signs: list[Sign]
    unseen: str
    rule: bool = False
    broken_alone: bool = False
    by_chance: float | None = None
    otherwise: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The windows of an aspect, and the first sign that went up. `alone`: seen right only alone.
    `p` is that of the test which must reject: of two that must both, the larger.
    """

    signs: paired.Signs
    first: Sign | None
    alone: bool
    p: float


def check(
    history: History,
    *,
    alone: str = "alone",
    plain: str = "plain",
    seeded: str = "seeded",
    mixed: str = "mixed",
    twins: str = "twins",
    together: str = "twins, together",
    alpha: float = paired.ALPHA,
    least_difference: float = paired.LEAST_DIFFERENCE,
    violations: int = VIOLATIONS,
    about: Literal["everything", "biases"] = "everything",
) -> CheckResult:
    """Compare the requests of the cell `mixed` with their twins in the others: `alone`, `plain`
    (among greedy requests), `seeded` (hot, among greedy ones). Pairs of one prompt are in `twins`,
    one after the other, and in `together`. `alpha` is shared by the sign tests.
    `about`: which aspects the traffic is made for.
    """
    cells = Cells(
        alone=alone, plain=plain, seeded=seeded, mixed=mixed, twins=twins, together=together
    )
    windows = _parameters.told(history)
    pairs = paired.pairs(history, own_answer.ticket_states(history), plain, mixed)
    aspects = [
        _with_twins(aspect, windows, cells)
        for aspect in _aspects(history, windows, cells, pairs)
        if about == "everything" or aspect.name in _BIASES
    ]
    level = alpha / sum(not aspect.rule for aspect in aspects)
    findings, rows, notes = [], [], [*_refused(history)]
    honoured = {aspect.name for aspect in aspects if aspect.signs} & _OWN
    for aspect in aspects:
        counted = _counted(aspect)
        its, p = counted.signs, counted.p
        rows.append((aspect.name, its.windows, its.ups, its.downs, float(f"{p:.3g}")))
        if not its.windows:
            notes.append(aspect.unseen)
        if counted.first is None:
            continue
        confirmed = (
            not aspect.broken_alone and its.ups >= violations and p <= alpha
            if aspect.rule
            else not counted.alone and its.confirmed(level, least_difference)
        )
        findings.append(_finding(history, aspect, counted, confirmed=confirmed))
    return CheckResult(
        check=CHECK,
        findings=tuple(findings),
        notes=tuple(notes),
        tables={TITLE: (COLUMNS, *rows)},
        untested=() if honoured or not windows else (_UNTESTED[about],),
    )


def _aspects(
    history: History, windows: list[Told], cells: Cells, pairs: list[paired.Pair]
) -> Iterator[_Aspect]:
    def every(signs: Iterable[Iterable[Sign]]) -> list[Sign]:
        return [sign for some in signs for sign in some]

    yield _Aspect(
        name="greedy answers keep their ticket",
        signs=list(_parameters.greedy(history, pairs)),
        unseen="no greedy request was answered both among like and among unlike ones",
    )
    yield _Aspect(
        name="no stop string of another",
        signs=every(_parameters.foreign_stops(window, cells) for window in windows),
        unseen="no answer went beyond another's stop string alone: whether it stops was not tested",
    )
    yield _Aspect(
        name="unlike seeds, unlike answers",
        signs=every(_parameters.alike(window, cells) for window in windows),
        unseen="no two hot requests were answered alone and in company: seeds were not tested",
    )
    yield _Aspect(
        name="the own seed",
        signs=every(_parameters.reproduced(window, cells) for window in windows),
        unseen="no seed led to one answer twice, even alone: not held against the target",
    )
    yield _Aspect(
        name="the own stop string",
        signs=every(_parameters.ignored_stops(window, cells) for window in windows),
        rule=True,
        broken_alone=_parameters.stops_ignored_alone(windows, cells),
        unseen="no answer was ended by its own stop string alone: not held against the target",
    )
    yield from _of_biases(windows, cells)
    unseen = "the target does not count the tokens it writes: max_tokens was not tested"
    yield _Aspect(
        name="the own max_tokens",
        signs=every(_parameters.longer(window, cells) for window in windows),
        rule=True,
        broken_alone=_parameters.longer_alone(windows, cells),
        unseen=unseen,
    )
    yield _Aspect(
        name="no max_tokens of another",
        signs=every(_parameters.cut(window, cells) for window in windows),
        rule=True,
        by_chance=_BY_CHANCE,
        otherwise="at lengths that nobody's max_tokens explain",
        unseen=unseen,
    )


def _of_biases(windows: list[Told], cells: Cells) -> Iterator[_Aspect]:
    yield _Aspect(
        name="no bias of another",
        signs=list(_biases.foreign_biases(windows, cells)),
        rule=True,
        by_chance=_SAME_BY_CHANCE,
        otherwise="over what no bias leads to",
        unseen="nobody was answered",
    )
    yield _Aspect(
        name="the own bias",
        signs=[sign for window in windows for sign in _biases.lost_biases(window, cells)],
        unseen="a bias showed in no answer: not held against the target",
    )


def _with_twins(aspect: _Aspect, windows: list[Told], cells: Cells) -> _Aspect:
    more = _OF_TWINS.get(aspect.name)
    return aspect if more is None else replace(aspect, signs=[*aspect.signs, *more(windows, cells)])


def _counted(aspect: _Aspect) -> _Counted:
    """The signs in company of the same size; where none of them went up, those against alone."""
    like = [sign for sign in aspect.signs if not sign.alone]
    alone = [sign for sign in aspect.signs if sign.alone]
    signs, first = _count(like)
    seen_alone = alone and first is None and (not like or _count(alone)[1] is not None)
    if seen_alone:
        signs, first = _count(alone)
    p = evidence.at_least(signs.ups, signs.windows, _SLIPS) if aspect.rule else signs.p
    if aspect.by_chance is not None:
        p = max(p, evidence.at_least(signs.ups, signs.ups + signs.downs, aspect.by_chance))
    return _Counted(signs=signs, first=first, alone=bool(seen_alone), p=p)


def _count(signs: list[Sign]) -> tuple[paired.Signs, Sign | None]:
    """Windows that went up and that went down, and the first sign of one that went up."""
    directions: dict[int, set[int]] = {}
    for sign in signs:
        directions.setdefault(sign.window, set()).add(sign.direction)
    ups = {window for window, seen in directions.items() if 1 in seen and -1 not in seen}
    downs = sum(-1 in seen and 1 not in seen for seen in directions.values())
    first = next((s for s in signs if s.direction == 1 and s.window in ups), None)
    counted = paired.Signs(
        windows=len(directions), pairs=len(signs), ups=len(ups), downs=downs, first=None
    )
    return counted, first


def _refused(history: History) -> Iterator[str]:
    """That the target refuses a parameter in every request that has it, which is its right."""
    requests = history.requests[history.requests["replays"].isna()]
    outcomes = dict(zip(requests["id"], requests["outcome"], strict=True))
    for parameter in ("logit_bias", "allowed_token_ids", "seed", "stop"):
        having = [
            name
            for name in outcomes
            if getattr(history.by_id(name).sampling, parameter) not in (None, ())
        ]
        refusals = [history.answer(name) for name in having if outcomes[name] == "failed"]
        if having and len(refusals) == len(having) and refusals[0] is not None:
            yield f"every request with {parameter} was refused: {refusals[0].error}"


def _finding(history: History, aspect: _Aspect, counted: _Counted, *, confirmed: bool) -> Finding:
    signs, first = counted.signs, counted.first
    assert first is not None  # noqa: S101 - the caller has looked
    request = history.by_id(first.recipient)
    text, mark = excerpt(_parameters.shown(history, request.id), *first.at)
    relation = history.relation(first.source, request.id) if first.source else "unknown"
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
        explanation=(
            f"{who(request, window=True)} {first.what}; {_figures(aspect, counted)}"
            f"{'' if confirmed else _doubt(aspect, counted)}."
        ),
        evidence={
            "aspect": aspect.name,
            "windows_up": signs.ups,
            "windows_down": signs.downs,
            "windows": signs.windows,
            "p": counted.p,
            "alone": counted.alone,
        },
    )


def _figures(aspect: _Aspect, counted: _Counted) -> str:
    signs = counted.signs
    text = f"so in {signs.ups} of {signs.windows} windows"
    if aspect.by_chance is not None:
        return (
            f"{text}, and in {signs.downs} {aspect.otherwise} (binomial "
            f"tests against {aspect.by_chance:.0%} by chance and {_SLIPS:.0%} of windows: "
            f"p = {counted.p:.2g})"
        )
    if aspect.rule:
        return f"{text} (binomial test against {_SLIPS:.0%} of windows: p = {counted.p:.2g})"
    return (
        f"{text}, and the other way round in {signs.downs} (exact sign test, one-sided: "
        f"p = {signs.p:.2g})"
    )


def _doubt(aspect: _Aspect, counted: _Counted) -> str:
    """Why that is only a note."""
    if counted.alone:
        return "; answers differ in company, and replicas that are not alike do this too"
    if aspect.broken_alone:
        return "; but others do so alone, so the target does not enforce it"
    return "; too few to accuse the target"
