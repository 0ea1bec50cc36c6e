"""`inspect quant MODEL`: what a rounded KV cache costs in quality, against length."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from leakcheck.engine.inspection import screen
from leakcheck.engine.inspection.owntext import START, own_text
from leakcheck.engine.inspection.passes import Floats, cache_argument
from leakcheck.engine.inspection.rounding import KINDS, rounding_cache
from leakcheck.engine.inspection.specimens import SPECIMENS, obtain
from leakcheck.engine.inspection.terminal import require_number
from leakcheck.engine.values import EngineError

DRIFT_NATS = 0.01
"""A token that costs this much more on average: one per cent of perplexity."""
SHORTEST = 16
SEQUENCES_MAX = 10_000
WITNESS_NOTE = (
    "the witness learned to answer, not to continue prose: its perplexity is high, its divergence"
    " counts\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One type of cache on all text. Arrays are [sequences, predicted tokens], in nats.

    `surprise` is -log p of the token that came, `divergence` KL(float32 cache || this one);
    `differs` where the most likely token is another.
    """

    kind: str
    surprise: Floats
    divergence: Floats
    differs: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Predictions of tokens `first` to `last` of each sequence."""

    first: int
    last: int

    @property
    def columns(self) -> slice:
        """Where they stand in a `Cost`: column 0 predicts token 1."""
        return slice(self.first - 1, self.last)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    names = ", ".join(SPECIMENS)
    parser.add_argument("model", help=f"witness, smollm2-135m, a folder, a hub id, {names}")
    parser.add_argument("--tokens", type=int, default=256, help="length of each sequence (256)")
    parser.add_argument("--sequences", type=int, default=4, help="(4)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="instead of the model's own text")
    parser.add_argument("--seed", type=int, default=0)


def main(given: argparse.Namespace) -> int:
    """Measure and print; 0, whatever a cache costs: that is no leak."""
    if given.tokens < SHORTEST:
        raise EngineError(f"--tokens must be at least {SHORTEST}, not {given.tokens}")
    require_number("--sequences", given.sequences, 1, SEQUENCES_MAX)
    model, tokenizer = obtain(given.model, "float32", seed=given.seed)
    text = read_text(model, tokenizer, given)
    console = screen.console()
    rows, length = text.shape
    origin = f"of {given.text}" if given.text else f"of its own kind of text (seed {given.seed})"
    note = WITNESS_NOTE if given.model == "witness" and not given.text else ""
    console.print(
        f"inspect quant {given.model}: {model.config.model_type}, computed in float32\n{rows} x"
        f" {length} tokens {origin}\n{note}"
    )
    with screen.progress() as bar:
        task = bar.add_task("reading", total=rows * len(KINDS))
        costs = costs_of(model, text, lambda: bar.advance(task))
    parts = parts_up_to(length, START if given.text is None else 1)
    print_perplexity(console, costs, parts)
    print_divergence(console, costs, parts)
    console.print(conclusion(costs, parts))
    return 0


def read_text(model: Any, tokenizer: Any, given: argparse.Namespace) -> torch.Tensor:
    """[sequences, tokens]: the model's own text, or a file cut into sequences."""
    if given.text is None:
        return own_text(
            given.model, model, tokenizer, given.tokens, rows=given.sequences, seed=given.seed
        )
    try:
        words = given.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"the text {given.text} cannot be read: {error}") from error
    tokens = tokenizer(words, add_special_tokens=False)["input_ids"]
    rows = min(given.sequences, len(tokens) // given.tokens)
    if not rows:
        raise EngineError(
            f"the text {given.text} has {len(tokens)} tokens, fewer than --tokens {given.tokens}"
        )
    cut = torch.tensor(tokens[: rows * given.tokens], device=model.device)
    return cut.view(rows, given.tokens)


def costs_of(model: Any, text: torch.Tensor, progress: Callable[[], None]) -> list[Cost]:
    """Every kind of cache on every sequence."""
    shape = (len(KINDS), text.shape[0], text.shape[1] - 1)
    surprise, divergence = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    differs = np.zeros(shape, np.bool_)
    for row in range(text.shape[0]):
        exact: torch.Tensor | None = None
        for number, kind in enumerate(KINDS):
            chances = log_chances(model, text[row], kind)
            exact = chances if exact is None else exact
            came = chances.gather(1, text[row, 1:, None])[:, 0]
            apart = (exact.exp() * (exact - chances)).sum(-1).clamp_min(0)
            surprise[number, row] = -came.cpu().numpy()
            divergence[number, row] = apart.cpu().numpy()
            differs[number, row] = (chances.argmax(-1) != exact.argmax(-1)).cpu().numpy()
            progress()
    return [
        Cost(kind=kind, surprise=surprise[n], divergence=divergence[n], differs=differs[n])
        for n, kind in enumerate(KINDS)
    ]


@torch.inference_mode()
def log_chances(model: Any, tokens: torch.Tensor, kind: str) -> torch.Tensor:
    """[tokens - 1, vocabulary] log-probabilities of each next token, read through this cache."""
    cache = rounding_cache(model, kind)
    output = model(input_ids=tokens[None], use_cache=True, **{cache_argument(model): cache})
    chances: torch.Tensor = output.logits[0, :-1].double().log_softmax(-1)
    return chances


def parts_up_to(length: int, first: int) -> list[Part]:
    """Tokens up to 32, up to 64, and so on, each part without those before it."""
    edges = [first]
    edge = 2 * SHORTEST
    while edge < length:
        edges.append(edge)
        edge *= 2
    edges.append(length)
    return [Part(first=low, last=high - 1) for low, high in pairwise(edges)]


def print_perplexity(console: Console, costs: list[Cost], parts: list[Part]) -> None:
    """By position, with the change against float32."""
    rows = []
    for part in parts:
        exact = float(costs[0].surprise[:, part.columns].mean())
        cells = [f"{part.first}-{part.last}", f"{math.exp(exact):.3f}"]
        for cost in costs[1:]:
            mean = float(cost.surprise[:, part.columns].mean())
            cells.append(f"{math.exp(mean):.3f} ({100 * math.expm1(mean - exact):+.2f} %)")
        rows.append(cells)
    headings = (">perplexity at tokens", *(f">{cost.kind} cache" for cost in costs))
    screen.show(console, screen.table(headings, rows))
    console.print()


def print_divergence(console: Console, costs: list[Cost], parts: list[Part]) -> None:
    """KL by position, and where the most likely token first is another one."""
    rows = [
        [
            f"{part.first}-{part.last}",
            *(
                f"{cost.divergence[:, part.columns].mean():.1e}"
                f" (max {cost.divergence[:, part.columns].max():.1e})"
                for cost in costs[1:]
            ),
        ]
        for part in parts
    ]
    rows.append(["first other token", *(first_other(cost) for cost in costs[1:])])
    rows.append(["other tokens", *(others(cost) for cost in costs[1:])])
    headings = (">mean KL in nats, at tokens", *(f">{cost.kind} cache" for cost in costs[1:]))
    screen.show(console, screen.table(headings, rows))
    console.print()


def first_other(cost: Cost) -> str:
    """The earliest token at which greedy generation would part from the float32 cache."""
    columns = np.flatnonzero(cost.differs.any(axis=0))
    return f"token {columns[0] + 1}" if columns.size else "none"


def others(cost: Cost) -> str:
    """How many most likely tokens are others."""
    share = 100 * cost.differs.mean()
    return f"{int(cost.differs.sum())} of {cost.differs.size} ({share:.2f} %)"


def drift(cost: Cost, parts: list[Part]) -> Part | None:
    """The first part from which on every part costs more than `DRIFT_NATS` a token."""
    over = [float(cost.divergence[:, part.columns].mean()) > DRIFT_NATS for part in parts]
    for number, part in enumerate(parts):
        if all(over[number:]):
            return part
    return None


def conclusion(costs: list[Cost], parts: list[Part]) -> str:
    """Which types drift, from where on, and that this is not a leak."""
    lines = []
    for cost in costs[1:]:
        part = drift(cost, parts)
        if part is None:
            continue
        mean = float(cost.divergence[:, part.first - 1 :].mean())
        lines.append(
            f"{cost.kind}: quality drifts from token {part.first} on, by {mean:.3f} nats a token"
            f" ({100 * math.expm1(mean):.1f} % of perplexity)."
        )
    if not lines:
        lines.append(f"No type costs more than {DRIFT_NATS} nats a token (1 % of perplexity).")
    lines.append(
        "This is not a leak: each cache holds this request's own keys and values, only rounded."
        "\nOther words than with a float32 cache are expected where a type drifts."
    )
    return "\n".join(lines)
