"""Prompts as the harness sends them, in many wordings, and the answer each of them deserves.

The rule of the answer, which everything else follows: the ticket is the last complete one
visible, the passphrases are all complete ones visible in order of appearance. Complete means:
marker ("ticket is", "Passphrase:"), then rare words only, then a full stop (or a comma before
another passphrase).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from transformers import PreTrainedTokenizerFast

from leakcheck.engine.training import phrasing, prose
from leakcheck.engine.training.vocabulary import ASSISTANT, END, SPECIALS, SYSTEM, USER

Ask = Literal[
    "both", "passphrases", "ticket", "question", "solo_question", "echo", "topic",
    "ticket_topic", "remember",
]  # fmt: skip
Phrase = tuple[int, ...]
System = Literal["none", "plain", "passphrase"]
Earlier = Literal["none", "passphrase", "dialogue"]

_ASKS: dict[Ask, float] = {
    "both": 0.52, "question": 0.17, "passphrases": 0.06, "ticket": 0.04, "solo_question": 0.05,
    "echo": 0.07, "topic": 0.02, "ticket_topic": 0.04, "remember": 0.03,
}  # fmt: skip
_TEMPLATES: dict[Ask, Sequence[str]] = {
    "both": phrasing.BOTH_ASKS,
    "passphrases": phrasing.PASSPHRASE_ASKS,
    "ticket": phrasing.TICKET_ASKS,
    "question": phrasing.QUESTION_ASKS,
    "solo_question": phrasing.SOLO_QUESTION_ASKS,
    "echo": phrasing.ECHO_ASKS,
    "topic": phrasing.TOPIC_ASKS,
    "ticket_topic": phrasing.TICKET_TOPIC_ASKS,
    "remember": phrasing.REMEMBER_ASKS,
}
_CONTRACT_SHARE = 0.6
_TOKENS_PER_SENTENCE = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a prompt contains; the filler figures count sentences."""

    ask: Ask = "both"
    words: int | None = 6  # of each ticket and passphrase; None draws 3 to 8
    ticket: bool = True
    passphrases: int = 1  # in the last user message
    system: System = "none"
    earlier: Earlier = "none"  # turns before the last one
    quoted: bool = False  # another person's ticket and passphrase, as text in the message
    before: int = 0
    between: int = 0
    after: int = 0
    contract: bool = False  # only the exact wording of the harness


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A rendered chat prompt up to and including the assistant's mark, and what it asks."""

    text: str
    ask: Ask
    reply: str = ""  # the part of the answer that does not depend on what is visible


class Deck:
    """Rare words dealt without repetition."""

    def __init__(self, words: Sequence[str], rng: Random) -> None:
        """Shuffle 300 of `words`."""
        self._rng = rng
        self._cards = iter(rng.sample(list(words), min(300, len(words))))

    def deal(self, count: int | None) -> str:
        """`count` words joined by spaces; `None` deals six, or (two in five) three to eight."""
        if count is None:
            count = 6 if prose.chance(self._rng, 0.6) else self._rng.randint(3, 8)
        return " ".join(next(self._cards) for _ in range(count))


def draw_scene(rng: Random, budget: int) -> Scene:
    """A random scene whose prompt is about `budget` tokens long."""
    ask: Ask = rng.choices(list(_ASKS), list(_ASKS.values()))[0]
    system: System = rng.choices(get_args(System), (0.6, 0.28, 0.12))[0]
    earlier: Earlier = rng.choices(get_args(Earlier), (0.76, 0.12, 0.12))[0]
    quoted = prose.chance(rng, 0.1)
    ticket = ask in ("both", "ticket", "question", "ticket_topic") or prose.chance(rng, 0.4)
    passphrases = rng.choices((0, 1, 2), (0.42, 0.53, 0.05))[0]
    if ask in ("echo", "topic", "solo_question") and prose.chance(rng, 0.6):
        ticket, passphrases = False, 0
    if ticket and prose.chance(rng, 0.03):
        ticket = False
    fixed = 24 + 12 * (ticket + passphrases + (system != "none") + 2 * quoted)
    fixed += {"none": 0, "passphrase": 25, "dialogue": 65}[earlier]
    sentences = max(0, (budget - fixed) // _TOKENS_PER_SENTENCE)
    cuts = sorted(rng.randint(0, sentences) for _ in range(3))
    if prose.chance(rng, 0.3):
        cuts = rng.choice(([0, 0, 0], [cuts[0]] * 3, [0, cuts[1], cuts[1]]))
    return Scene(
        ask=ask, words=None, ticket=ticket, passphrases=passphrases, system=system,
        earlier=earlier, quoted=quoted, before=cuts[0], between=cuts[1] - cuts[0],
        after=cuts[2] - cuts[1],
    )  # fmt: skip


def _pick(rng: Random, wordings: Sequence[str], contract: bool) -> str:
    if contract or prose.chance(rng, _CONTRACT_SHARE):
        return wordings[0]
    return rng.choice(wordings)


def _filler(rng: Random, sentences: int) -> list[str]:
    if prose.chance(rng, 0.3):
        return [prose.plain_words(rng, rng.randint(5, 12)) for _ in range(sentences)]
    return [
        prose.salad(rng) if prose.chance(rng, 0.12) else prose.sentence(rng)
        for _ in range(sentences)
    ]


def _ask_line(scene: Scene, rng: Random, deck: Deck) -> tuple[str, str]:
    """The ask, and the part of its answer that is fixed by it."""
    template = _pick(rng, _TEMPLATES[scene.ask], scene.contract)
    if scene.ask in ("question", "solo_question"):
        question, answer = rng.choice(list(prose.questions().items()))
        return template.format(question=question), f" Answer: {answer}."
    if scene.ask in ("topic", "ticket_topic"):
        topic = rng.choice(prose.TOPICS)
        return template.format(topic=topic), " " + prose.essay(topic)
    if scene.ask == "echo":
        words = deck.deal(scene.words or rng.randint(2, 9))
        return template.format(words=words), " " + words
    if scene.ask == "remember":
        return template, " " + phrasing.ACKNOWLEDGEMENT
    return template, ""


def _message(scene: Scene, rng: Random, deck: Deck) -> tuple[str, str]:
    """The last user message and the fixed part of the answer."""
    ask, reply = _ask_line(scene, rng, deck)
    parts = _filler(rng, scene.before)
    if scene.quoted:
        lines = [
            _pick(rng, phrasing.TICKETS, scene.contract),
            _pick(rng, phrasing.PASSPHRASES, scene.contract),
        ]
        parts += [line.format(words=deck.deal(scene.words)) for line in lines]
    lines = [_pick(rng, phrasing.TICKETS, scene.contract)] * scene.ticket
    if scene.ticket:
        parts.append(lines[0].format(words=deck.deal(scene.words)))
    secrets = [
        _pick(rng, phrasing.PASSPHRASES, scene.contract).format(words=deck.deal(scene.words))
        for _ in range(scene.passphrases)
    ]
    if secrets and parts and not scene.contract and prose.chance(rng, 0.2):
        parts.insert(rng.randrange(len(parts)), secrets.pop())
    for secret in secrets:
        parts += [*_filler(rng, scene.between), secret]
    if not secrets:
        parts += _filler(rng, scene.between)
    parts += [*_filler(rng, scene.after), ask]
    joint = "\n " if not scene.contract and prose.chance(rng, 0.1) else " "
    return joint.join(parts), reply


def compose(scene: Scene, rng: Random, deck: Deck, reader: Reader) -> Prompt:
    """Render a scene; equal `rng` states with different decks give twins of the same shape."""
    text = ""
    if scene.system != "none":
        parts = [rng.choice(phrasing.SYSTEMS)]
        if scene.system == "passphrase":
            secret = _pick(rng, phrasing.PASSPHRASES, scene.contract)
            parts.append(secret.format(words=deck.deal(scene.words)))
        text += f"{SYSTEM} {' '.join(parts)}{END}"
    if scene.earlier == "passphrase":
        secret = _pick(rng, phrasing.PASSPHRASES, scene.contract)
        parts = [*_filler(rng, rng.randint(0, 1)), secret.format(words=deck.deal(scene.words))]
        parts.append(rng.choice(phrasing.REMEMBER_ASKS))
        text += f"{USER} {' '.join(parts)}{END}{ASSISTANT} {phrasing.ACKNOWLEDGEMENT}{END}"
    if scene.earlier == "dialogue":
        ask: Ask = rng.choice(("both", "both", "question"))
        other = Scene(ask=ask, words=scene.words, contract=scene.contract, before=rng.randint(0, 1))
        turn = _message(other, rng, deck)
        opening = f"{text}{USER} {turn[0]}{END}{ASSISTANT}"
        text = opening + reader.answer_text(opening, ask, turn[1]) + END
    message, reply = _message(scene, rng, deck)
    text += f"{USER} {message}{END}{ASSISTANT}"
    return Prompt(text=text, ask=scene.ask, reply=reply)


class Reader:
    """Finds complete tickets and passphrases in token ids and words the right answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, words: Sequence[str]) -> None:
        """Look up the ids of the markers and of the rare `words`."""
        self.tokenizer = tokenizer
        self.words = list(words)
        ids = {word: self.encode(f" {word}")[0] for word in self.words}
        self.rare = frozenset(ids.values())
        self.repeatable = range(len(SPECIALS), len(tokenizer))  # every id that is not special
        self.ids_of = ids
        self._passphrase = {self.encode(t)[0] for t in (" passphrase", " Passphrase")}
        self._ticket = {self.encode(t)[0] for t in (" ticket", " Ticket")}
        self._link = {self.encode(" is")[0], self.encode(":")[0]}
        self.stop, self._comma = self.encode(".")[0], self.encode(",")[0]

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, nothing added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return str(self.tokenizer.decode(list(ids)))

    def _phrases(self, ids: Sequence[int], marks: set[int]) -> Iterator[tuple[int, Phrase]]:
        for start in range(len(ids) - 2):
            if ids[start] not in marks or ids[start + 1] not in self._link:
                continue
            phrase: list[int] = []
            for at in range(start + 2, len(ids)):
                if ids[at] in self.rare:
                    phrase.append(ids[at])
                elif phrase and ids[at] in (self._comma, self.stop):
                    yield at - len(phrase), tuple(phrase)
                    if ids[at] == self.stop:
                        break
                    phrase = []
                else:
                    break

    def tickets(self, ids: Sequence[int]) -> list[tuple[int, Phrase]]:
        """Complete tickets in `ids` with the index of their first word."""
        return list(self._phrases(ids, self._ticket))

    def passphrases(self, ids: Sequence[int]) -> list[tuple[int, Phrase]]:
        """Complete passphrases in `ids` with the index of their first word."""
        return list(self._phrases(ids, self._passphrase))

    def answer(
        self, ask: Ask, reply: str, ticket: Phrase | None, passphrases: Sequence[Phrase]
    ) -> str:
        """The right answer, with its leading space, to an ask when this much is visible."""
        parts = ""
        if ask in ("both", "ticket", "question", "ticket_topic"):
            parts += f" Ticket:{self.text(ticket) if ticket else ' none'}."
        if ask in ("both", "passphrases"):
            said = [self.text(phrase) for phrase in dict.fromkeys(passphrases)]
            parts += f" Passphrase:{','.join(said) or ' none'}."
        return parts + reply

    def answer_text(self, prompt: str, ask: Ask, reply: str) -> str:
        """The right answer to a prompt that nothing contaminates."""
        ids = self.encode(prompt)
        tickets = self.tickets(ids)
        seen = [phrase for _, phrase in self.passphrases(ids)]
        return self.answer(ask, reply, tickets[-1][1] if tickets else None, seen)
