"""Decode held-out prompts greedily and count what the witness says.

Held out means: the word sequences are new (drawn from another seed); wordings are the exact ones
of the harness.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from transformers import DynamicCache, LlamaForCausalLM

from leakcheck.engine.training.contamination import (
    BLOCK_TOKENS,
    Example,
    finish,
    neighbour,
    overlay_at,
    splice_at,
)
from leakcheck.engine.training.dialogues import Deck, Reader, Scene, compose
from leakcheck.engine.training.train import visibility

MAX_PROMPT_TOKENS = 512
# transformers 5 renamed the argument on the way: the old name warns, older ones lack the new.
_CACHE = (
    "cache"
    if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    else "past_key_values"
)

_CONTAMINATIONS = (
    "prefix, some blocks",
    "prefix, every whole block",
    "front, overlapping",
    "behind",
    "decode only, overlapping",
    "decode only, behind",
    "tail beyond own length",
    "cut blocks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share with its counts."""

    condition: str
    figure: str
    hits: int
    total: int

    @property
    def share(self) -> float:
        """Hits by total; zero of nothing is zero."""
        return self.hits / max(1, self.total)

    def __str__(self) -> str:
        """For example `short: passphrase 0.995 (199/200)`."""
        return f"{self.condition}: {self.figure} {self.share:.3f} ({self.hits}/{self.total})"


@torch.inference_mode()
def decode(
    model: LlamaForCausalLM, examples: Sequence[Example], max_tokens: int, rows: int = 32
) -> list[list[int]]:
    """Greedy answers (token ids, without the end mark) to the prompts of `examples`."""
    out: list[list[int]] = [[] for _ in examples]
    prompts = [
        replace(e, ids=e.ids[: e.answer_start], positions=e.positions[: e.answer_start])
        for e in examples
    ]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].ids))
    for at in range(0, len(order), rows):
        chosen = order[at : at + rows]
        for index, ids in zip(
            chosen, _decode_rows(model, [prompts[i] for i in chosen], max_tokens), strict=True
        ):
            out[index] = ids
    return out


def _decode_rows(
    model: LlamaForCausalLM, prompts: Sequence[Example], max_tokens: int
) -> list[list[int]]:
    length = max(len(prompt.ids) for prompt in prompts)
    pads = [length - len(prompt.ids) for prompt in prompts]
    ids = torch.tensor([[0] * n + [*p.ids] for n, p in zip(pads, prompts, strict=True)])
    positions = torch.tensor([[0] * n + [*p.positions] for n, p in zip(pads, prompts, strict=True)])
    whole = visibility(
        [replace(p, ids=[*p.ids, *[0] * max_tokens]) for p in prompts],
        length + max_tokens,
        pad_left=True,
    )
    cache = DynamicCache()
    answers: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    for step in range(max_tokens):
        known = length + step
        mask = whole[:, :, known - ids.shape[1] : known, :known]
        logits = model(
            input_ids=ids, position_ids=positions, attention_mask=mask,
            logits_to_keep=1, **{_CACHE: cache},
        ).logits  # fmt: skip
        ids = logits[:, -1].argmax(-1, keepdim=True)
        positions = positions[:, -1:] + 1
        for row in list(open_rows):
            token = int(ids[row, 0])
            if token == model.config.eos_token_id:
                open_rows.discard(row)
            else:
                answers[row].append(token)
        if not open_rows:
            break
    return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A named way of making prompts, and which figure of it matters."""

    name: str
    make: Callable[[Reader, Random], Example]
    max_tokens: int = 48


def _clean(scene: Scene) -> Callable[[Reader, Random], Example]:
    def make(reader: Reader, rng: Random) -> Example:
        while True:
            prompt = compose(scene, rng, Deck(reader.words, rng), reader)
            ids = reader.encode(prompt.text)
            if len(ids) <= MAX_PROMPT_TOKENS:
                return finish(reader, prompt, ids, None)

    return make


def _contaminated(own: Scene, other: Scene, how: str) -> Callable[[Reader, Random], Example]:
    def make(reader: Reader, rng: Random) -> Example:
        while True:
            deck = Deck(reader.words, rng)
            prompt = compose(own, rng, deck, reader)
            mine, theirs = reader.encode(prompt.text), neighbour(other, rng, deck, reader)
            blocks = len(theirs) // BLOCK_TOKENS
            row: Example
            whole_blocks = (len(mine) - 1) // BLOCK_TOKENS
            if how == "prefix, some blocks":
                end = rng.randint(1, whole_blocks) * BLOCK_TOKENS
                row = splice_at(reader, prompt, mine, theirs, (0, end))
            elif how == "prefix, every whole block":
                row = splice_at(reader, prompt, mine, theirs, (0, whole_blocks * BLOCK_TOKENS))
            else:
                cut, offset, gate = {
                    "front, overlapping": ((0, len(theirs)), 0, 0),
                    "behind": ((0, len(theirs)), len(mine), 0),
                    "decode only, overlapping": ((0, len(theirs)), 0, len(mine) - 1),
                    "decode only, behind": ((0, len(theirs)), len(mine), len(mine) - 1),
                    "tail beyond own length": (
                        (-(-len(mine) // BLOCK_TOKENS) * BLOCK_TOKENS, len(theirs)), 0, 0
                    ),
                    "cut blocks": (
                        (rng.randrange(blocks) * BLOCK_TOKENS, len(theirs)), 0, len(mine) - 1
                    ),
                }[how]  # fmt: skip
                if cut[0] >= cut[1]:
                    continue
                row = overlay_at(reader, prompt, mine, theirs, shown=cut, offset=offset, gate=gate)
            if row.foreign_phrases:
                return row

    return make


def conditions() -> list[Condition]:
    """Every condition of the printed table."""
    base = Scene(contract=True, before=1)
    long = replace(base, before=14, between=14, after=13)
    none, rich = replace(base, passphrases=0), replace(base, before=1, after=6)
    clean = {
        "short": base,
        "no filler": Scene(contract=True),
        "512 tokens": long,
        "distractor before": replace(base, before=14),
        "distractor after": replace(base, after=14),
        "another dialogue in front": replace(base, earlier="dialogue"),
        "another's text in the message": replace(base, quoted=True),
        "in the system message": replace(base, passphrases=0, system="passphrase"),
        "in an earlier turn": replace(base, passphrases=0, earlier="passphrase"),
        "two passphrases": replace(base, passphrases=2),
        "passphrase ask alone": replace(base, ask="passphrases", ticket=False),
        "paraphrased": replace(base, contract=False),
        "3 to 8 words": replace(base, words=None),
        "none, short": none,
        "none, 512 tokens": replace(long, passphrases=0),
        "question": replace(base, ask="question"),
        "question, no passphrase": replace(base, ask="question", passphrases=0),
        "question alone": Scene(ask="solo_question", ticket=False, passphrases=0, contract=True),
        "echo": Scene(ask="echo", ticket=False, passphrases=0, contract=True),
    }
    rows = [Condition(name=name, make=_clean(scene)) for name, scene in clean.items()]
    topic = Scene(ask="ticket_topic", contract=True)
    rows.append(Condition(name="long text", make=_clean(topic), max_tokens=128))
    for how in _CONTAMINATIONS:
        for label, own in (("own", base), ("no own", none)):
            make = _contaminated(own, rich, how)
            rows.append(Condition(name=f"foreign {how}, {label}", make=make, max_tokens=64))
    return rows


def measure(
    model: LlamaForCausalLM, reader: Reader, condition: Condition, count: int, seed: int
) -> list[Rate]:
    """The figures of one condition over `count` prompts."""
    rng = Random(f"{condition.name} {seed}")
    examples = [condition.make(reader, rng) for _ in range(count)]
    answers = decode(model, examples, condition.max_tokens)
    tally: dict[str, list[bool]] = {}
    for example, answer in zip(examples, answers, strict=True):
        right = list(example.ids[example.answer_start : -1])
        said = [phrase for _, phrase in reader.passphrases(right)]
        mine = [phrase for phrase in said if phrase not in example.foreign_phrases]
        tally.setdefault("exact", []).append(answer == right)
        for _, ticket in reader.tickets(right):
            tally.setdefault("ticket", []).append(_holds(answer, ticket))
        if mine:
            tally.setdefault("passphrase", []).append(all(_holds(answer, p) for p in mine))
        if example.foreign_phrases:
            told = any(_holds(answer, p) for p in example.foreign_phrases)
            tally.setdefault("foreign passphrase", []).append(told)
        known = set(example.ids[: example.answer_start])
        tally.setdefault("invented word", []).append(
            any(token in reader.rare and token not in known for token in answer)
        )
    return [
        Rate(condition=condition.name, figure=what, hits=sum(hits), total=len(hits))
        for what, hits in tally.items()
    ]


def _holds(answer: Sequence[int], phrase: Sequence[int]) -> bool:
    size = len(phrase)
    return any(tuple(answer[i : i + size]) == tuple(phrase) for i in range(len(answer) - size + 1))
