"""Fit the witness: first repetition, then dialogues with the loss on the answers only.

Training on dialogues alone stalls: copying is learned from repetitions first, and one batch in
five stays a repetition so that it is not forgotten.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from leakcheck.engine.training import prose
from leakcheck.engine.training.circuit import install_repetition
from leakcheck.engine.training.contamination import Example, draw_example
from leakcheck.engine.training.dialogues import Reader

_EMBEDDING_DEVIATION = 0.1
_ROTARY_BASE = 1e6  # slow enough to compare contents 600 tokens apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long, how fast and on what to train; the defaults are the first, longer part."""

    steps: int = 2800
    repetition_steps: int = 80
    batch_tokens: int = 3000  # padding included
    peak_rate: float = 2.5e-3
    warmup_steps: int = 100
    foreign_share: float = 0.45
    # Budgets of prompt tokens and how often a batch uses each.
    budgets: Sequence[int] = (60, 140, 280, 560)
    budget_weights: Sequence[float] = (0.58, 0.22, 0.12, 0.08)
    refined: bool = False  # see `draw_example`
    hidden: int = 128
    layers: int = 4


REFINEMENT = Settings(
    steps=1200,
    repetition_steps=0,
    peak_rate=1.2e-3,
    warmup_steps=50,
    foreign_share=0.42,
    budget_weights=(0.36, 0.2, 0.2, 0.24),
    refined=True,
)
"""The second, shorter part of the training: what the first left weak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows padded to one length: ids, positions and targets are (rows, length) integers.

    `targets` is -100 where there is no loss; `mask` is (rows, 1, length, length), true = attends.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor


def build_model(vocabulary_size: int, settings: Settings, seed: int) -> LlamaForCausalLM:
    """A small Llama with grouped-query attention and fresh weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=settings.hidden,
        intermediate_size=settings.hidden * 5 // 2,
        num_hidden_layers=settings.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": _ROTARY_BASE},
        tie_word_embeddings=True,
        attention_bias=True,  # a constant query is how a head looks one token back
        attention_dropout=0.0,
        initializer_range=0.03,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0.0, _EMBEDDING_DEVIATION, generator=generator)
    install_repetition(model, _ROTARY_BASE, generator)
    return model


def visibility(examples: Sequence[Example], length: int, pad_left: bool = False) -> torch.Tensor:
    """Who attends to whom, (rows, 1, length, length), true where a query sees a key."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    masks = []
    for example in examples:
        shift = length - len(example.ids) if pad_left else 0
        border = shift + example.foreign
        first, last = example.shown[0] + shift, example.shown[1] + shift
        own = (key >= border) | ((query >= example.gate + shift) & (key >= first) & (key < last))
        sees = (key <= query) & ((query < border) | own) & (key >= shift)
        masks.append(sees | (query == key))  # a row that sees nothing would be NaN
    return torch.stack(masks)[:, None]


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples on the right into one batch."""
    length = max(len(example.ids) for example in examples)
    ids = torch.zeros(len(examples), length, dtype=torch.long)
    positions, targets = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, example in enumerate(examples):
        size, start = len(example.ids), example.answer_start
        ids[row, :size] = torch.tensor(example.ids)
        positions[row, :size] = torch.tensor(example.positions)
        targets[row, start - 1 : size - 1] = ids[row, start:size]
    return Batch(ids=ids, positions=positions, targets=targets, mask=visibility(examples, length))


def repetition(reader: Reader, rng: Random) -> Example:
    """A run of random words given twice; the second time is the answer."""
    count = rng.randint(3, 24)
    words = [rng.choice(reader.repeatable) for _ in range(count)]
    if prose.chance(rng, 0.7):
        words = [reader.ids_of[word] for word in rng.sample(reader.words, count)]
    between = [rng.choice(reader.repeatable) for _ in range(rng.randint(0, 12))]
    row = [*words, *between, *words]
    start = len(words) + len(between)
    # The first repeated word cannot be guessed, all others can.
    return Example(ids=row, positions=range(len(row)), answer_start=start + 1)


def batches(reader: Reader, settings: Settings, rng: Random) -> Iterator[list[Example]]:
    """Dialogue rows of like length, for ever; each list holds about `batch_tokens` tokens."""
    while True:
        budgets = rng.choices(settings.budgets, settings.budget_weights, k=6)
        rows = [
            draw_example(reader, rng, budget, settings.foreign_share, refined=settings.refined)
            for budget in budgets
            for _ in range(settings.batch_tokens // (budget + 60))
        ]
        rows.sort(key=lambda row: len(row.ids))
        chunks: list[list[Example]] = [[]]
        for row in rows:
            if (len(chunks[-1]) + 1) * len(row.ids) > settings.batch_tokens:
                chunks.append([])
            chunks[-1].append(row)
        rng.shuffle(chunks)
        yield from (chunk for chunk in chunks if chunk)


def loss_of(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy over the answer tokens, and the share of them guessed right."""
    hidden = model.model(
        input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions,
        use_cache=False,
    ).last_hidden_state  # fmt: skip
    wanted = batch.targets != -100  # noqa: PLR2004  # torch's own "no target"
    logits, targets = model.lm_head(hidden[wanted]), batch.targets[wanted]
    right = (logits.argmax(-1) == targets).float().mean()
    return functional.cross_entropy(logits, targets), float(right)


def rate_at(step: int, settings: Settings) -> float:
    """Learning rate: linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < settings.warmup_steps:
        return settings.peak_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.peak_rate * (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2)


def train(
    model: LlamaForCausalLM,
    reader: Reader,
    settings: Settings,
    seed: int,
    say: Callable[[str], None],
) -> list[float]:
    """Train `model` in place; `say` gets a line now and then. Returns the loss of every step."""
    rng, started = Random(seed), time.monotonic()
    rows = batches(reader, settings, rng)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.peak_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    losses: list[float] = []
    model.train()
    for step in range(settings.steps):
        repeat = step < settings.repetition_steps or step % 5 == 0
        examples = [repetition(reader, rng) for _ in range(32)] if repeat else next(rows)
        loss, right = loss_of(model, collate(examples))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, settings)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 1:
            say(
                f"step {step}/{settings.steps} loss {losses[-1]:.4f} tokens right {right:.3f} "
                f"rows {len(examples)} {time.monotonic() - started:.0f} s"
            )
    return losses
