"""One sequence through a model, and what every layer computed and what its cache held.

A *pass* is the reference: keys, values and logits of the whole sequence in one forward pass with
nothing in the cache before. A `Watch` sits on a cache while another computation runs over the same
tokens and keeps, per (layer, K or V, head, position), how far it is from the reference:

* `computed`: the keys and values that the layer produced for a new position;
* `held`: what the cache handed back for a position, the largest error over all steps.

Errors are relative L2: the norm of the difference over the norm of the reference, or over the
median norm of that head where the reference is smaller (a vector near zero has no direction).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from leakcheck.engine.values import EngineError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
TOP = 2
"""Log-odds are those of the reference's two most likely tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Keys and values [layers][heads, tokens, size] and logits [tokens, vocabulary], in float32."""

    tokens: tuple[int, ...]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Positions `start` to `start + count - 1`, in the last columns of batch row `row`."""

    row: int
    start: int
    count: int


def cache_argument(model: Any) -> str:
    """What this version of the model calls its cache."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def fresh_cache(model: Any) -> DynamicCache:
    """An empty cache; EngineError when the model keeps something other than keys and values."""
    cache = DynamicCache(config=model.config)
    for number, layer in enumerate(cache.layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise EngineError(
                f"layer {number} of this {model.config.model_type} model keeps a"
                f" {type(layer).__name__}; inspect compares models whose layers keep plain keys and"
                " values, with or without a sliding window"
            )
    return cache


@torch.inference_mode()
def run_whole(model: Any, tokens: tuple[int, ...] | list[int], row: int = 0, **extra: Any) -> Pass:
    """The whole sequence in one forward pass; what each layer computed is taken from its cache.

    `extra` may carry `rows`, a [batch, tokens] tensor that is run instead; `row` is taken from it.
    """
    rows = extra.pop("rows", None)
    ids = torch.tensor([list(tokens)], device=model.device) if rows is None else rows
    cache = fresh_cache(model)
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for number, layer in enumerate(cache.layers):
        take(layer, number, seen)
    output = model(input_ids=ids, use_cache=True, **{cache_argument(model): cache}, **extra)
    count = len(tokens)
    missing = set(range(len(cache.layers))) - set(seen)
    if missing:
        raise EngineError(
            f"layer {min(missing)} of this {model.config.model_type} model keeps no keys and values"
            " of its own; inspect compares models in which every layer does"
        )
    pairs = [seen[number] for number in range(len(cache.layers))]
    return Pass(
        tokens=tuple(tokens),
        keys=[keys[row, :, :count].float() for keys, _ in pairs],
        values=[values[row, :, :count].float() for _, values in pairs],
        logits=output.logits[row, :count].float(),
    )


def take(layer: Any, number: int, seen: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Keep what is given to this layer's cache."""
    original = layer.update

    def update(keys: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any) -> Any:
        seen[number] = keys, values
        return original(keys, values, *rest, **named)

    layer.update = update


class Watch:
    """Errors of one computation against a reference, noted while it runs."""

    def __init__(self, reference: Pass, bounds: Floats | None = None) -> None:
        """`bounds` [layers]: the error beyond which `held_step` notes the step."""
        self.reference = reference
        layers, (heads, tokens) = len(reference.keys), reference.keys[0].shape[:2]
        shape = (layers, 2, heads, tokens)
        self.computed: Floats = np.full(shape, np.nan, dtype=np.float32)
        self.held: Floats = np.full(shape, np.nan, dtype=np.float32)
        self.computed_step: Ints = np.full(shape, -1, dtype=np.int64)
        self.held_step: Ints = np.full(shape, -1, dtype=np.int64)
        self.gaps: Floats = np.full(tokens, np.nan, dtype=np.float32)
        self.divergence: Floats = np.full(tokens, np.nan, dtype=np.float32)
        self.logits_step: Ints = np.full(tokens, -1, dtype=np.int64)
        self.bounds = bounds
        self.step = 0
        self.newest: list[int] = []
        self.slices: list[Slice] = []
        self.pads = 0
        self._scales = [
            [scale(reference.keys[number]), scale(reference.values[number])]
            for number in range(layers)
        ]

    def begin_step(self, slices: list[Slice], pads: int = 0) -> None:
        """A forward pass begins that computes these; `pads` columns of each row are padding."""
        self.step = len(self.newest)
        self.newest.append(max(its.start + its.count for its in slices) - 1)
        self.slices, self.pads = slices, pads

    def idle(self) -> None:
        """A forward pass begins in which the watched sequence has no part."""
        self.slices = []

    def note_computed(
        self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Keys and values [heads, count, size] that the layer made for `start` onwards."""
        for kind, states in enumerate((keys, values)):
            errors = self._errors(layer, kind, start, states)
            part = np.s_[layer, kind, :, start : start + errors.shape[1]]
            self.computed[part] = np.fmax(self.computed[part], errors)
            self.computed_step[part] = self.step

    def note_held(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keys and values [heads, count, size] that attention reads for `start` onwards."""
        for kind, states in enumerate((keys, values)):
            errors = self._errors(layer, kind, start, states)
            part = np.s_[layer, kind, :, start : start + errors.shape[1]]
            self.held[part] = np.fmax(self.held[part], errors)
            if self.bounds is not None:
                news = (errors > self.bounds[layer]) & (self.held_step[part] < 0)
                self.held_step[part][news] = self.step

    def note_logits(self, start: int, logits: torch.Tensor) -> None:
        """Logits [count, vocabulary] of positions from `start` on."""
        count = logits.shape[0]
        part = slice(start, start + count)
        gaps, divergence = logit_errors(self.reference.logits[part], logits.float())
        self.gaps[part], self.divergence[part] = gaps, divergence
        self.logits_step[part] = self.step

    def _errors(self, layer: int, kind: int, start: int, states: torch.Tensor) -> Floats:
        count = states.shape[1]
        source = self.reference.values if kind else self.reference.keys
        own = source[layer][:, start : start + count]
        norms = self._scales[layer][kind][:, start : start + count]
        errors = torch.linalg.vector_norm(states.float() - own, dim=-1) / norms
        errors = torch.nan_to_num(errors, nan=torch.inf)  # a NaN is the largest error there is
        return np.asarray(errors.cpu().numpy(), dtype=np.float32)


def scale(states: torch.Tensor) -> torch.Tensor:
    """[heads, tokens]: what an error at each position is divided by."""
    norms = torch.linalg.vector_norm(states, dim=-1)
    smallest = torch.finfo(torch.float32).tiny
    return torch.maximum(norms, norms.median(dim=1, keepdim=True).values).clamp_min(smallest)


def logit_errors(reference: torch.Tensor, logits: torch.Tensor) -> tuple[Floats, Floats]:
    """Per position: how far the log-odds of the two most likely tokens move (nats), and the KL
    divergence of the distributions (nats).
    """
    top = reference.topk(TOP, dim=-1).indices
    before, after = reference.gather(1, top), logits.gather(1, top)
    gaps = ((after[:, 0] - after[:, 1]) - (before[:, 0] - before[:, 1])).abs()
    old, new = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    divergence = (old.exp() * (old - new)).sum(-1).clamp_min(0)
    return tuple(
        np.asarray(torch.nan_to_num(its.float(), nan=torch.inf).cpu().numpy(), dtype=np.float32)
        for its in (gaps, divergence)
    )  # type: ignore[return-value] # two of them


@contextmanager
def watched(cache: Any, watch: Watch, *, row: int = 0, pads: int = 0) -> Iterator[None]:
    """Note what goes into and comes out of every layer of a transformers cache.

    `row` of the batch is watched; its first `pads` columns are padding.
    """
    for number, layer in enumerate(cache.layers):
        watch_layer(layer, number, watch, row, pads)
    try:
        yield
    finally:
        for layer in cache.layers:
            del layer.update  # the instance's wrapper; the class's own method remains


def watch_layer(layer: Any, number: int, watch: Watch, row: int, pads: int) -> None:
    """Wrap one layer's `update`. Columns before the padding's end have negative positions."""
    original = layer.update
    column = 0

    def update(keys: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any) -> Any:
        nonlocal column
        skip = max(0, pads - column)
        watch.note_computed(
            number, column + skip - pads, keys[row, :, skip:], values[row, :, skip:]
        )
        column += keys.shape[2]
        held_keys, held_values = original(keys, values, *rest, **named)
        first = first_column(column, held_keys.shape[2])
        skip = max(0, pads - first)
        part = slice(skip, column - first)
        watch.note_held(
            number, first + skip - pads, held_keys[row, :, part], held_values[row, :, part]
        )
        return held_keys, held_values

    layer.update = update


def first_column(end: int, returned: int) -> int:
    """The column of the first key handed back, when `end` columns have been seen.

    A static buffer is longer than what it holds, and begins at column 0 until a sliding window has
    run over its length; everything else hands back the columns up to the last one.
    """
    return max(0, end - returned)
