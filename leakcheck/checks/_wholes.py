"""Passphrases that show as a whole in another form: all their words, in order, in one decoded text.

They need no phantoms. As of a verbatim one, their entropy leaves no other way to get there: at each
place of a decoded text one phrase at most is spelled, and `passphrase.VARIANTS` counts the places.
"""

from __future__ import annotations

from dataclasses import dataclass

from leakcheck.checks._weighing import Answer, Numbers, Source, Window, others
from leakcheck.match import altered


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A passphrase in an answer that is not its owner's, in another form."""

    source: Source
    answer: Answer
    field: str
    passage: altered.Passage


def wholes(window: Window) -> list[Whole]:
    """Every foreign passphrase of a window that shows so, once for each source and answer."""
    found = []
    for source in window.sources:
        if not source.words:
            continue
        row = window.index.numbers([source.words])
        for answer in others(window, source):
            # a whole phrase has seams, so hardly any answer is decoded a second time
            if answer.seams and _any(window, answer, row):
                found += _first(source, answer)
    return found


def _any(window: Window, answer: Answer, row: Numbers) -> bool:
    """Whether an answer shows any seam of a phrase; as it is too, for words that end alike."""
    of, seams = window.index, answer.seams
    return any(
        bool(shows(of, seams, row)[0]) for shows in (altered.in_other_forms, altered.in_plain)
    )


def _first(source: Source, answer: Answer) -> list[Whole]:
    """The first field that shows it, content before others."""
    for field in sorted(answer.texts, key=lambda name: name != "content"):
        passage = altered.whole(answer.texts[field], source.words)
        if passage is not None:
            return [Whole(source=source, answer=answer, field=field, passage=passage)]
    return []
