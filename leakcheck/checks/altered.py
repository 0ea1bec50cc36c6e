"""Another's passphrase in pieces or in another form, and another's words: weak signs, weighed.

No such sign is proof by itself, so each is ranked against phantoms, which were drawn as the planted
one was and never sent (`evidence.phantom_bets`, `evidence.directed_bets`). Tiers:

- `fragment`: two adjacent words of a passphrase, or four letters on each side of where they meet;
- `encoded`: the same in another form (reversed, NATO, base64, hex, ..: see `match.altered`);
- `alternatives`: a word of it, or a beginning of one, among the likely tokens not sampled;
- `topic`: five consecutive words of the filler of another request (`_topics`).

Exact whatever the target does: a planted passphrase is uniform over the phrases of words that no
other payload of its window holds, and so are its phantoms, by rejection. Where the answers of those
who were not given it do not depend on which it is, its place among its phantoms is random. Where
answers show nothing that any phrase could show, no phantom shows either, and none is drawn.

A passphrase that shows as a whole is proof. As it is, it is the business of `foreign_passphrase`:
no finding is made of such a pair here, but it counts. In another form it is a leak (`_wholes`).

A part that none of its phantoms shares is an open suspicion (`evidence["open"]` of its finding): it
proves nothing, and nothing is clean beside it. None is opened by an answer hotter than `_HOTTEST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from leakcheck import evidence
from leakcheck.checks import _topics, _wholes, excerpt, when, where_found, who
from leakcheck.checks import _weighing as weighing
from leakcheck.checks._weighing import ALTERNATIVES, ENCODED, FRAGMENT, TOPIC, Hit
from leakcheck.history import History
from leakcheck.match import altered
from leakcheck.records import CheckResult, Finding, Look

CHECK = "altered"
WEIGHTS = {ENCODED: 0.35, FRAGMENT: 0.35, ALTERNATIVES: 0.15, TOPIC: 0.15}
"""How the e-values of the tiers are weighed; a tier that looked at nothing has 1."""
TITLE = "Altered forms"
_HOTTEST = 1.0
"""Hotter answers are words in any order, and two of some phrase come together by chance: what that
left open kept 2 of 4 runs of parameter-twins on healthy targets from being clean. It is evidence.
"""
LEAST_E_VALUE = 10.0
"""Alternatives make findings from this e-value of all windows together on: any model has words in
mind, and single ones say nothing. They stay notes: one passphrase in a hundred is in the top
hundredth of its phantoms for no reason, and which of them leaked nobody can tell.
"""
_COLUMNS = (
    "tier",
    "windows",
    "planted",
    "planted that showed",
    "phantoms",
    "phantoms that showed",
    "share of phantoms",
)
_NOT_LOOKED_AT = {
    ALTERNATIVES: "the target gave no alternatives of a token, or none was asked for",
    TOPIC: "the texts of this traffic are not drawn independently of each other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an answer shows what: as a row of `history.matches`."""

    recipient: str
    source: str
    owner: str
    field: str
    start: int
    end: int
    variant: str
    observation: int
    reads: str = ""


def check(history: History) -> CheckResult:
    """One look a tier and window, and a note for each pair of source and recipient that shows in a
    tier. Works on the history of a scenario, or on that of any of its windows alone.
    """
    looks: list[Look] = []
    hits: list[Hit] = []
    entire: list[_wholes.Whole] = []
    verbatim = _verbatim(history)
    for window in weighing.windows(history):
        seen, shown = weighing.weigh(window)
        whole = _wholes.wholes(window)
        entire += whole
        looks += [_counted(look, shown, whole, verbatim) for look in seen]
        hits += shown
    thought = [look.e_values for look in looks if look.tier == ALTERNATIVES]
    if evidence.merge(thought) < LEAST_E_VALUE:
        hits = [hit for hit in hits if hit.tier != ALTERNATIVES]
    leaks = {_pair(whole): whole for whole in reversed(entire) if _pair(whole) not in verbatim}
    pairs: dict[tuple[str, str, str], Finding] = {}
    for hit in hits:
        key = (hit.tier, *_pair(hit))
        if key not in pairs and key[1:] not in verbatim | leaks.keys():
            pairs[key] = _finding(history, hit)
    rows = [_row(tier, [look for look in looks if look.tier == tier]) for tier in WEIGHTS]
    return CheckResult(
        check=CHECK,
        findings=(*(_leak(history, whole) for whole in leaks.values()), *pairs.values()),
        notes=(_measured(rows),),
        tables={TITLE: (_COLUMNS, *rows)},
        looks=tuple(looks),
    )


def _pair(found: Hit | _wholes.Whole) -> tuple[str, str]:
    return found.source.payload, found.answer.request.id


def _counted(
    look: Look,
    hits: Iterable[Hit],
    wholes: Iterable[_wholes.Whole],
    verbatim: frozenset[tuple[str, str]],
) -> Look:
    """A look that knows how many of its hits are proof, and how many an open suspicion."""
    leaks = {_pair(whole) for whole in wholes} - verbatim
    doubtful = {_pair(hit) for hit in hits if hit.tier == look.tier and _is_open(hit)}
    return replace(
        look,
        whole=len(leaks) if look.tier == ENCODED else 0,
        unshared=len(doubtful - leaks - verbatim),
    )


def _is_open(hit: Hit) -> bool:
    cool = hit.answer.request.sampling.temperature <= _HOTTEST
    return hit.tier in (FRAGMENT, ENCODED) and hit.as_well == 0 and cool


def _verbatim(history: History) -> frozenset[tuple[str, str]]:
    """Payload and recipient of each foreign passphrase that shows as a whole, as it is."""
    matches = history.planted
    foreign = matches[(matches["kind"] == "passphrase") & (matches["owner"] == "foreign")]
    return frozenset(
        (history.owners(source)[0], recipient)
        for source, recipient in zip(foreign["source"], foreign["recipient"], strict=True)
    )


# --- figures -------------------------------------------------------------------------------------


def _row(tier: str, looks: Sequence[Look]) -> tuple[Any, ...]:
    phantoms = sum(look.phantoms for look in looks)
    showed = sum(look.phantom_hits for look in looks)
    return (
        tier,
        len(looks),
        sum(look.sources for look in looks),
        sum(look.planted_hits for look in looks),
        phantoms,
        showed,
        _percent(showed, phantoms),
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2g}%" if whole else "-"


def _measured(rows: Iterable[tuple[Any, ...]]) -> str:
    """The false-positive rate of each tier, by the phantoms of this very run."""
    parts = []
    for tier, windows, planted, hits, phantoms, showed, share in rows:
        if windows:
            parts.append(
                f"{tier} {showed} of {phantoms} phantoms ({share}) and {hits} of {planted} planted"
            )
        else:
            parts.append(f"{tier} not looked at: {_NOT_LOOKED_AT.get(tier, 'nothing was sent')}")
    return f"altered forms that showed (a phantom that does is a false alarm): {'; '.join(parts)}"


# --- findings ------------------------------------------------------------------------------------


def _leak(history: History, whole: _wholes.Whole) -> Finding:
    """All of a passphrase, in another form: proved by its entropy."""
    recipient, passage, payload = whole.answer.request, whole.passage, whole.source
    place = _placed(history, whole.source, whole.answer, whole.field, passage)
    source = history.by_id(place.source)
    text, mark = excerpt(whole.answer.texts[whole.field], place.start, place.end)
    return Finding(
        check=CHECK,
        anomaly="altered-passphrase",
        severity="leak",
        scenario=recipient.scenario,
        window=recipient.window,
        recipient=recipient.id,
        source=source.id,
        relation=history.relation(source.id, recipient.id, observation=whole.answer.row),
        excerpt=text,
        mark=mark,
        explanation=(
            f"{who(recipient, window=True)} was answered with the passphrase of {who(source)}, all "
            f"{len(payload.words)} words of it in another form ({passage.form}: "
            f"{passage.reads!r}); {when(history, place)}."
        ),
        evidence=where_found(history, place)
        | {"tier": ENCODED, "form": passage.form, "whole": True, "reads": passage.reads},
    )


def _finding(history: History, hit: Hit) -> Finding:
    recipient, place = hit.answer.request, _place(history, hit)
    source = history.by_id(place.source)
    text, mark = excerpt(hit.answer.texts.get(place.field, ""), place.start, place.end)
    what, form = _what(hit, place, who(source))
    return Finding(
        check=CHECK,
        anomaly="foreign-topic" if hit.tier == TOPIC else "altered-passphrase",
        severity="note",
        scenario=recipient.scenario,
        window=recipient.window,
        recipient=recipient.id,
        source=source.id,
        relation=history.relation(source.id, recipient.id, observation=hit.answer.row),
        excerpt=text,
        mark=mark,
        explanation=(
            f"{who(recipient, window=True)} was answered with {what}; {hit.as_well} of "
            f"{hit.phantoms} phantoms show as well; {when(history, place)}."
        ),
        evidence=where_found(history, place)
        | {
            "tier": hit.tier,
            "form": form,
            "phantoms": hit.phantoms,
            "phantoms_as_well": hit.as_well,
        }
        | ({"reads": place.reads} if place.reads else {})
        | ({"open": True} if _is_open(hit) else {}),
    )


def _what(hit: Hit, place: _Place, source: str) -> tuple[str, str]:
    """What was shown, in words, and its form."""
    if hit.tier == TOPIC:
        return f"a run of words of {source}", place.variant
    if hit.tier == ALTERNATIVES:
        likely = f"a token that begins a word of the passphrase of {source}"
        return f"{likely} among the likeliest ({place.reads!r})", place.variant
    border = "letters from both sides of a border of its words"
    what = f"a part of the passphrase of {source} ({place.variant}: {place.reads!r}, {border})"
    return what, place.variant


def _place(history: History, hit: Hit) -> _Place:
    """The first field that shows it, content before others."""
    find = {
        TOPIC: _topic_in,
        ALTERNATIVES: _token_in,
    }.get(hit.tier, partial(_part_in, plain=hit.tier == FRAGMENT))
    fields = sorted(hit.answer.texts, key=lambda name: name != "content")
    found = next(
        ((name, at) for name in fields if (at := find(hit, hit.answer.texts[name])) is not None),
        ("content", altered.Passage(form=hit.tier, start=0, end=0, reads=hit.token or "")),
    )
    return _placed(history, hit.source, hit.answer, *found)


def _placed(
    history: History,
    source: weighing.Source,
    answer: weighing.Answer,
    field: str,
    passage: altered.Passage,
) -> _Place:
    return _Place(
        recipient=answer.request.id,
        source=_nearest(history, source, answer),
        owner="foreign",
        field=field,
        start=passage.start,
        end=passage.end,
        variant=passage.form,
        observation=answer.row,
        reads=passage.reads,
    )


def _part_in(hit: Hit, text: str, *, plain: bool) -> altered.Passage | None:
    return altered.passage(text, hit.source.words, hit.answer.own, plain=plain)


def _topic_in(hit: Hit, text: str) -> altered.Passage | None:
    span = _topics.passage(text, hit.source.filler, within=hit.answer.topics)
    if span is None:
        return None
    return altered.Passage(form="its words", start=span[0], end=span[1], reads=text[slice(*span)])


def _token_in(hit: Hit, text: str) -> None:
    """Nowhere: it was not said."""


def _nearest(history: History, source: weighing.Source, answer: weighing.Answer) -> str:
    """Of all requests that carry the payload, the likeliest to have leaked into this answer."""
    order = {"concurrent": 0, "sequential": 1, "unknown": 2}

    def distance(owner: str) -> tuple[int, bool, float]:
        timing = history.timing(owner, answer.request.id, observation=answer.row)
        lasted = timing.seconds or 0.0
        close = -lasted if timing.relation == "concurrent" else lasted
        return order[timing.relation], timing.source is None, close

    return min(source.owners, key=distance)
