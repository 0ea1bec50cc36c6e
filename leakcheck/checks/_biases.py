"""What an answer shows of a bias, its own or another's: one unit over and over.

A bias is what makes a request say one token again and again, its logit_bias or allowed_token_ids.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakcheck.checks._parameters import Answer, Cells, Sign, Told, where
from leakcheck.records import Request

KINDS = ("logit_bias", "allowed_token_ids")
"""Parameters that make a request say one token over and over."""
RUN = 3
"""So many times in a row makes a token that nobody would repeat a signature of its bias."""
_OWN_RUN = 4
"""So often a biased request has to repeat its token, and nothing else, to have obeyed."""
_LETTERS = 2
_STAYS = 1
"""So many windows later a bias that stayed behind is still taken for the reason."""
_BY_ITSELF = re.compile(rf"(?<!\w)(\w{{2,40}}?)(?:\s*\1){{{RUN - 1},}}")
_LOOKED_AT = 4_096
"""Characters of an answer: circles begin soon, and a hostile answer is long."""
_PERIOD = re.compile(rf"(.{{1,40}}?)\1{{{_OWN_RUN - 1},}}", re.DOTALL)


def bias(request: Request) -> str:
    """The parameter that makes it say one token over and over; empty without any."""
    return next((kind for kind in KINDS if getattr(request.sampling, kind)), "")


def said_over_and_over(text: str) -> str | None:
    """The unit that an answer repeats and says nothing else, as `run` looks for it; else None.

    Only one with two letters at least: rulers, dots and zeros come in rows without any bias.
    """
    words = text.split()
    unit = ""
    if len(words) >= _OWN_RUN and len(set(words[:-1])) == 1 and words[0].startswith(words[-1]):
        unit = words[0]
    elif len(words) == 1 and (whole := _PERIOD.fullmatch(words[0])):
        unit = whole[1]
    return unit if sum(letter.isalpha() for letter in unit) >= _LETTERS else None


def run(unit: str, text: str) -> tuple[int, int] | None:
    """Where `text` says this unit at least RUN times in a row: character offsets."""
    if text.count(unit) < RUN:  # most texts: the pattern costs a hundred times as much
        return None
    found = re.search(rf"(?<!\w){re.escape(unit)}(?:\s*{re.escape(unit)}){{{RUN - 1},}}", text)
    return None if found is None else found.span()


def foreign_biases(windows: Sequence[Told], cells: Cells) -> Iterator[Sign]:
    """Answers that say over and over what the bias of another makes that one say.

    A bias may stay behind, so its request may lie in the window before: the latest is named. Nor
    is a request alone a control, for the same reason; one that ended before the bias was sent is.

    A weak model goes round in circles by itself, and then over some token that a bias had led to
    long before: no sign. Over what no bias has led to it is one the other way, of a window without
    others.
    """
    units = _biased(windows, cells)
    for window in windows:
        every = [answer for cell in window.cells.values() for answer in cell]
        signs = [_foreign_bias(each, units) for each in every if not bias(each.request)]
        shows = any(sign.direction == 1 for sign in signs)
        yield from (
            replace(each, direction=max(each.direction, 0)) if shows else each for each in signs
        )


def _biased(windows: Sequence[Told], cells: Cells) -> dict[str, list[Answer]]:
    """Units that a bias makes answers repeat, and those answers. None of a kind of bias unless half
    of the answers with it alone do so; without units that come of several tokens, and without those
    that somebody repeated before: a weak model that goes round in circles by itself.
    """
    every = [answer for window in windows for cell in window.cells.values() for answer in cell]
    having = {kind: [each for each in every if bias(each.request) == kind] for kind in KINDS}
    obeyed = [biased for biased in having.values() if _obeyed(biased, cells)]
    units: dict[str, list[Answer]] = {}
    for answer in itertools.chain(*obeyed):
        if unit := said_over_and_over(answer.text):
            units.setdefault(unit, []).append(answer)
    others = [answer for answer in every if not bias(answer.request)]
    return {
        unit: owners
        for unit, owners in units.items()
        if len({_tokens(owner.request) for owner in owners}) == 1
        and not any(_before(other, owners) and _says(unit, other) for other in others)
    }


def _obeyed(biased: Sequence[Answer], cells: Cells) -> bool:
    """Whether half at least of these answers, of those alone where there are any, say one unit."""
    alone = [answer for answer in biased if answer.request.cell == cells.alone] or biased
    return 2 * sum(said_over_and_over(each.text) is not None for each in alone) >= len(alone)


def _tokens(request: Request) -> tuple[int, ...]:
    """The tokens that its bias leads to."""
    biased = tuple(token for token, _ in request.sampling.logit_bias)
    return biased or request.sampling.allowed_token_ids


def _before(answer: Answer, owners: Sequence[Answer]) -> bool:
    """Whether an answer was over before any of these requests was sent."""
    return answer.seen.end_ns <= min(owner.seen.start_ns for owner in owners)


def _says(unit: str, answer: Answer) -> tuple[int, int] | None:
    """Where an answer repeats a unit that its prompt does not."""
    asked = any(run(unit, message.content) for message in answer.request.messages)
    return None if asked else run(unit, answer.text)


def _foreign_bias(answer: Answer, biased: dict[str, list[Answer]]) -> Sign:
    request = answer.request
    said = [(unit, at) for unit in biased if (at := _says(unit, answer)) is not None]
    for unit, at in said:
        late = [
            each.request
            for each in sorted(biased[unit], key=lambda each: each.seen.start_ns)
            if each.seen.start_ns < answer.seen.end_ns
            and request.window - each.request.window <= _STAYS
        ]
        if late:
            owner = late[-1]
            return Sign(
                window=request.window,
                direction=1,
                recipient=request.id,
                source=owner.id,
                at=at,
                what=f"says {unit!r} over and over, to which the {bias(owner)} of {owner.id} leads",
            )
    circles = not said and _goes_in_circles(answer)
    return Sign(
        window=request.window, direction=-1 if circles else 0, recipient=request.id, what=""
    )


def _goes_in_circles(answer: Answer) -> bool:
    """Whether an answer repeats some unit of two letters that its prompt does not."""
    units = dict.fromkeys(found[1] for found in _BY_ITSELF.finditer(answer.text[:_LOOKED_AT]))
    asked = [message.content for message in answer.request.messages]
    return any(
        sum(letter.isalpha() for letter in unit) >= _LETTERS
        and not any(run(unit, text) for text in asked)
        for unit in units
    )


def lost_biases(window: Told, cells: Cells) -> Iterator[Sign]:
    """A bias that shows among as many greedy requests, or alone, and not in mixed company (1), or
    the other way round (-1).
    """
    for answer in window.of(cells.mixed):
        if not bias(answer.request):
            continue
        for cell in (cells.seeded, cells.alone):
            for reference in window.twins(cell, answer.request):
                unit = said_over_and_over(reference.text) or said_over_and_over(answer.text)
                if unit is None:
                    continue
                shows = [run(unit, each.text) is not None for each in (reference, answer)]
                alone = cell == cells.alone
                yield Sign(
                    window=window.window,
                    direction=shows[0] - shows[1],
                    recipient=answer.request.id,
                    alone=alone,
                    what=(
                        f"does not say {unit!r}, to which its own {bias(answer.request)} leads it "
                        f"{where(alone=alone)} as {reference.request.id}"
                    ),
                )
