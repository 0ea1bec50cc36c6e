"""Training examples: clean ones, and what a broken KV cache would let the model see.

An example is a row of token ids with their position ids and with who sees whom. `[foreign][own]`
lie behind each other in memory; own tokens from index `gate` on also attend to
`foreign[shown]`, whatever the position ids say, as they would if a server's mask or block table
were wrong. Own tokens before `gate`, and all foreign tokens, see only their own side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from leakcheck.engine.training import prose
from leakcheck.engine.training.dialogues import (
    Deck,
    Phrase,
    Prompt,
    Reader,
    Scene,
    compose,
    draw_scene,
)
from leakcheck.engine.training.vocabulary import END

BLOCK_TOKENS = 16
MAX_POSITIONS = 700
_KEPT_TOKENS = 5  # a prefix hit never covers the whole prompt
_GAPPED_FROM = 0.7  # of the unit interval that decides about an example


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row: prompt and answer with everything the model may attend to.

    `ids` and `positions` hold `foreign` foreign tokens first, then the own prompt, then the
    answer from index `answer_start` on. Indices `shown` and `gate` count from the row's start.
    """

    ids: Sequence[int]
    positions: Sequence[int]
    answer_start: int
    foreign: int = 0
    shown: tuple[int, int] = (0, 0)
    gate: int = 0
    foreign_phrases: Sequence[Phrase] = ()


def finish(reader: Reader, prompt: Prompt, ids: Sequence[int], rng: Random | None) -> Example:
    """A clean row for a prompt given as `ids`; with `rng`, gaps are put between positions.

    Gaps make short rows teach long distances at no cost: a row of 100 tokens may span 600.
    """
    tickets = reader.tickets(ids)
    seen = [phrase for _, phrase in reader.passphrases(ids)]
    answer = reader.answer(prompt.ask, prompt.reply, tickets[-1][1] if tickets else None, seen)
    row = [*ids, *reader.encode(answer + END)]
    positions = list(range(len(row)))
    if rng is not None:
        spare = max(0, MAX_POSITIONS - 60 - len(row))
        for _ in range(rng.randint(1, 4)):
            at, gap = rng.randrange(len(ids)), rng.randint(0, spare // 4)
            positions[at:] = [position + gap for position in positions[at:]]
    return Example(ids=row, positions=positions, answer_start=len(ids))


def splice_at(
    reader: Reader,
    prompt: Prompt,
    own: Sequence[int],
    other: Sequence[int],
    cut: tuple[int, int],
) -> Example:
    """Own prompt with the tokens in `cut` replaced by the other's at the same positions."""
    start, end = cut[0], min(cut[1], len(other))
    ids = [*own[:start], *other[start:end], *own[end:]]
    row = finish(reader, prompt, ids, None)
    mine = {phrase for _, phrase in reader.passphrases(own)}
    said = {phrase for _, phrase in reader.passphrases(ids)}
    theirs = [phrase for _, phrase in reader.passphrases(other) if phrase in said - mine]
    return replace(row, foreign_phrases=theirs)


def splice(
    reader: Reader, prompt: Prompt, own: Sequence[int], other: Sequence[int], rng: Random
) -> Example:
    """A random stretch replaced, but for the last tokens: usually the first ones, as after a
    prefix hit that compared too little (and then often every whole block there is); sometimes
    blocks further on.
    """
    limit = min(len(own) - _KEPT_TOKENS, len(other))
    end = rng.randint(1, max(1, limit))
    start = 0 if prose.chance(rng, 0.75) else rng.randrange(end)
    if prose.chance(rng, 0.4):
        start, end = 0, limit
    if end >= BLOCK_TOKENS and prose.chance(rng, 0.8):
        end -= end % BLOCK_TOKENS
        start -= start % BLOCK_TOKENS
    return splice_at(reader, prompt, own, other, (start, end))


def overlay_at(
    reader: Reader,
    prompt: Prompt,
    own: Sequence[int],
    other: Sequence[int],
    *,
    shown: tuple[int, int],
    offset: int,
    gate: int,
) -> Example:
    """Own prompt beside another's dialogue, of which `shown` becomes visible at own token `gate`.

    The other's positions are moved by `offset`. Passphrases are told in order of position.
    """
    first, last = shown
    theirs = reader.passphrases(other[first:last])
    seen = [(first + at + offset, phrase) for at, phrase in theirs] + reader.passphrases(own)
    tickets = reader.tickets(own) or reader.tickets(other[first:last])
    ticket = tickets[-1][1] if tickets else None
    answer = reader.answer(prompt.ask, prompt.reply, ticket, [p for _, p in sorted(seen)])
    tail = [*own, *reader.encode(answer + END)]
    return Example(
        ids=[*other, *tail],
        positions=[*(max(0, at + offset) for at in range(len(other))), *range(len(tail))],
        answer_start=len(other) + len(own),
        foreign=len(other),
        shown=shown,
        gate=len(other) + gate,
        foreign_phrases=[phrase for _, phrase in theirs],
    )


def overlay(
    reader: Reader, prompt: Prompt, own: Sequence[int], other: Sequence[int], rng: Random
) -> Example:
    """A random (cut of a) foreign dialogue at overlapping or later positions."""
    blocks = -(-len(other) // BLOCK_TOKENS)
    first, last = 0, len(other)
    beyond = -(-len(own) // BLOCK_TOKENS) * BLOCK_TOKENS
    if beyond < last and prose.chance(rng, 0.4):
        first = beyond  # a mask as long as the neighbour, over its block table
    elif prose.chance(rng, 0.4):
        first = rng.randrange(blocks) * BLOCK_TOKENS
    if prose.chance(rng, 0.3):
        last = rng.randint(first + 1, last)
    offset = rng.choice(
        (0, 0, 0, 0, len(own) - first, len(own) + rng.randint(0, 40), rng.randint(0, 300))
    )
    gate = rng.choice((0, 0, rng.randrange(len(own)), len(own) - 1, len(own) - 1, len(own) + 4))
    return overlay_at(reader, prompt, own, other, shown=(first, last), offset=offset, gate=gate)


def neighbour(scene: Scene, rng: Random, deck: Deck, reader: Reader) -> list[int]:
    """Another request's tokens: its prompt and, usually, its answer."""
    other = compose(scene, rng, deck, reader)
    answer = reader.answer_text(other.text, other.ask, other.reply)
    return reader.encode(other.text + (answer + END if prose.chance(rng, 0.8) else ""))


Contaminate = Callable[[Reader, Prompt, Sequence[int], Sequence[int], Random], Example]


def draw_example(
    reader: Reader,
    rng: Random,
    budget: int,
    foreign_share: float,
    *,
    refined: bool = False,
) -> Example:
    """A random example of about `budget` tokens; `foreign_share` of them are contaminated.

    A `refined` draw asks more closed questions, shows two passphrases more often, and rejects most
    contaminated examples in which nobody else's passphrase is visible.
    """
    deck, kind = Deck(reader.words, rng), rng.random()
    if kind >= foreign_share:
        scene = draw_scene(rng, budget)
        if refined and prose.chance(rng, 0.25):
            scene = replace(scene, ask="question" if scene.ticket else "solo_question")
        if refined and prose.chance(rng, 0.1):
            scene = replace(scene, passphrases=2)
        prompt = compose(scene, rng, deck, reader)
        gapped = kind > _GAPPED_FROM
        return finish(reader, prompt, reader.encode(prompt.text), rng if gapped else None)
    make: Contaminate = splice if kind < 0.5 * foreign_share else overlay
    row = _contaminated(reader, rng, deck, budget, make)
    if refined and not row.foreign_phrases and prose.chance(rng, 0.8):
        return draw_example(reader, rng, budget, 1.0, refined=True)
    return row


def _contaminated(
    reader: Reader, rng: Random, deck: Deck, budget: int, make: Contaminate
) -> Example:
    size = budget if make is splice else budget // 2
    scene = draw_scene(rng, size)
    if scene.ask in ("echo", "topic", "remember", "solo_question"):
        scene = replace(scene, ask="both", ticket=True)
    shape = rng.getrandbits(32)
    prompt = compose(scene, Random(shape), deck, reader)
    if prose.chance(rng, 0.4):
        other = neighbour(scene, Random(shape), deck, reader)
    else:
        other = neighbour(draw_scene(rng, size), rng, deck, reader)
    return make(reader, prompt, reader.encode(prompt.text), other, rng)
