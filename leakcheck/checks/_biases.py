"""What an answer shows of a bias, its own or another's: one unit over and over.

A bias is what makes a request say one token again and again, its logit_bias or allowed_token_ids.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from leakcheck.checks._parameters import Answer, Cells, Sign, Told, where
from leakcheck.records import Request

KINDS = ("logit_bias", "allowed_token_ids")
"""Parameters that make a request say one token over and over."""
RUN = 3
"""So many times in a row makes a token that nobody would repeat a signature of its bias."""
_OWN_RUN = 4
"""So often a biased request has to repeat its token, and nothing else, to have obeyed."""
_LETTERS = 2
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

    A bias may stay behind, so its request may lie in an earlier window: the latest is named. Nor
    is a request alone a control, for the same reason; one that ended before the bias was sent is.
    """
    units = _biased(windows, cells)
    every = [answer for window in windows for cell in window.cells.values() for answer in cell]
    for answer in every:
        if not bias(answer.request):
            yield _foreign_bias(answer, units)


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
    for unit, owners in biased.items():
        at = _says(unit, answer)
        earlier = [each for each in owners if each.seen.start_ns < answer.seen.end_ns]
        if at is not None and earlier:
            owner = max(earlier, key=lambda each: each.seen.start_ns).request
            return Sign(
                window=request.window,
                direction=1,
                recipient=request.id,
                source=owner.id,
                at=at,
                what=f"says {unit!r} over and over, to which the {bias(owner)} of {owner.id} leads",
            )
    return Sign(window=request.window, direction=0, recipient=request.id, what="")


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
