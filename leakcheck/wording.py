"""The sentences of every request. The witness model knows them; any instruction-tuned one does.

An *eliciting* ask makes a contaminated model say what it should not see: asked about the weather,
hardly any model repeats a passphrase that stands in its context, its own or another's. A *neutral*
ask has a known answer. Both make the recipient return its own ticket first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from leakcheck.records import Message, Phrasing

TICKET = "My ticket is {ticket}."
PASSPHRASE = "My passphrase is {passphrase}."  # noqa: S105 - the wording around one
ELICITING = "First repeat my ticket, then say every passphrase you can see."
NEUTRAL = "First repeat my ticket, then answer: {question}"
FREE = "First repeat my ticket, then tell me about {topic}."
COUNT = "First repeat my ticket, then count from 1 to {last}."

ALIKE = (ELICITING, "Repeat my ticket and then every passphrase you can see.")
"""Two wordings of one ask."""
SYSTEM = "You are a careful assistant."

TICKET_RECORD = "\nTICKET={ticket}"
PASSPHRASE_RECORD = "\nPASSPHRASE={passphrase}"  # noqa: S105 - the wording around one
BLANK_RECORD = "\nNOTE={blank}"
CONTINUED = "\nTICKET="
"""For a target that continues a text rather than answer it, a request ends with its own records,
twice, and the beginning of a third one: measured on SmolLM2-135M-Instruct, which hardly ever does
what a chat asks for, it then repeats ticket and passphrase nearly always."""

EXACTLY = " Repeat exactly: {own}"
AGAIN = "Again."
BEGUN = CONTINUED.strip()
"""The beginning of an answer, given as the assistant's: the target goes on with it."""

ECHO = "Repeat exactly: {words}"
ECHO_CONTINUED = "WORDS={words}\nWORDS={words}\nWORDS="

TOPICS = ("the weather", "the garden", "the market", "the river", "the harbour", "the village")

WORDS = """
the of and to in is that it was for on are with they at be this from have or by one had not but
what all were when we there can an your which their if do will each about how up out them then she
many some so these would other into has more her two like him see time could no make than first
been its who now people made over did down only way find use may water long little very after just
where most know get through back much before go good new write used me man too any day same right
look think also around came come work three must because does part even place well such here take
why help put years different away again off went old number great men small every found still
between should home big give air line set own under read last never us left end along while might
next below saw something both few those always show large often together house world going want
until food keep children feet land side without boy once life enough sometimes four head above
kind almost live page got earth need far hand high year mother light country father let night
picture being second soon story since white ever paper hard near better best across during today
however sure knew try told young sun thing whole hear several room sea against top turned learn
point city play toward five using himself money seen car morning
""".split()
"""Common short words: one token each, after a space, in nearly every tokenizer."""

_BLANK = "the house was near the water and we saw it".split()


def blank(words: int) -> str:
    """A sentence without a secret that is as long as one with a passphrase of `words` words."""
    return f"Today I can say {_blank(words - 1)}."


def note(words: str) -> str:
    """A sentence that holds these words, as long as one that has them for a passphrase: the witness
    says the words of none of 40 (but those of "My note is ...", in place of its ticket, of 25).
    """
    return f"I can say {words}."


def _blank(words: int) -> str:
    return " ".join(_BLANK[i % len(_BLANK)] for i in range(words))


def records(
    ticket: str, passphrase: str | None, withheld_words: int = 0, note: str | None = None
) -> str:
    """The end of a text that a target continues with its ticket and its passphrase, if any.

    Where one of `withheld_words` words was withheld, as many words without a secret, or the `note`.
    """
    record = TICKET_RECORD.format(ticket=ticket)
    if passphrase is not None:
        record += PASSPHRASE_RECORD.format(passphrase=passphrase)
    elif note is not None:
        record += BLANK_RECORD.format(blank=note)
    elif withheld_words:
        record += BLANK_RECORD.format(blank=_blank(withheld_words))
    return 2 * record + CONTINUED


def phrasings(*, continues: bool) -> tuple[Phrasing, ...]:
    """How a target may be asked, the usual way first. Each of them adds to the end of a prompt
    alone: what stands in front, prefixes planned to the token included, is as it was, so
    that any shape of traffic can use any of them.

    `asked`: as the shapes say it, nothing is added. `exactly`: told to repeat its own sentences.
    `records`: see `CONTINUED`. `again`: the answer was given once, and is asked for again. `begun`:
    records, with the first word of the answer given. A target that continues texts gets `records`.
    """
    return ("records",) if continues else ("asked", "exactly", "records", "again", "begun")


def ending(
    phrasing: Phrasing,
    *,
    ticket: str,
    passphrase: str | None,
    withheld_words: int = 0,
    note: str | None = None,
) -> tuple[str, tuple[Message, ...]]:
    """What a phrasing adds to the message of an owner, and the messages that follow it. Without a
    passphrase there is as much without a secret, or the `note`, in its place.
    """
    if phrasing == "asked":
        return "", ()
    if phrasing == "exactly":
        own = [TICKET.format(ticket=ticket)]
        if passphrase is not None:
            own.append(PASSPHRASE.format(passphrase=passphrase))
        elif note is not None or withheld_words:
            own.append(f"I can say {_blank(withheld_words) if note is None else note}.")
        return EXACTLY.format(own=" ".join(own)), ()
    text = records(ticket, passphrase, withheld_words, note)
    if phrasing == "records":
        return text, ()
    twice = text.removesuffix(CONTINUED)
    if phrasing == "begun":
        return twice, (Message(role="assistant", content=BEGUN),)
    said = twice[: len(twice) // 2].strip()
    return "", (Message(role="assistant", content=said), Message(role="user", content=AGAIN))


def answered(
    phrasing: Phrasing, *, ticket: str, passphrase: str | None, answer: str | None = None
) -> str:
    """What an obedient target answers to an eliciting request; with `answer`, to a question."""
    if phrasing in {"asked", "exactly"}:
        said = f"Passphrase: {passphrase or 'none'}." if answer is None else f"Answer: {answer}."
        return f"Ticket: {ticket}. {said}"
    said = TICKET_RECORD.format(ticket=ticket).removeprefix(CONTINUED)
    said += "" if passphrase is None else PASSPHRASE_RECORD.format(passphrase=passphrase)
    return said if phrasing == "records" else BEGUN + said


def endings(
    ticket: str, passphrase: str | None, withheld_words: int = 0, note: str | None = None
) -> Iterator[str]:
    """What the phrasings may have added to the message of an owner; the longer ones first."""
    known: tuple[Phrasing, ...] = ("records", "begun", "exactly")
    for phrasing in known:
        yield ending(
            phrasing,
            ticket=ticket,
            passphrase=passphrase,
            withheld_words=withheld_words,
            note=note,
        )[0]


def filler(rng: random.Random, words: int) -> str:
    """Exactly `words` common words, without punctuation; empty for none."""
    return " ".join(rng.choices(WORDS, k=words))


def sentences(rng: random.Random, words: int) -> str:
    """About `words` common words as sentences; empty for none."""
    parts = []
    while words > 0:
        size = min(words, rng.randint(6, 12))
        parts.append(filler(rng, size).capitalize() + ".")
        words -= size
    return " ".join(parts)


@cache
def questions() -> tuple[tuple[str, str], ...]:
    """Closed questions with their answers (leakcheck/questions.json)."""
    text = (files("leakcheck") / "questions.json").read_text(encoding="utf-8")
    return tuple((item["question"], item["answer"]) for item in json.loads(text))
