"""Where attention goes: the weights of every layer and head, and how they shift.

Only eager attention shows its weights. They are taken from the output of each attention module and
put back on positions, whatever the cache's layout; what falls on padding or on blocks beyond the
sequence is counted as `outside`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from leakcheck.engine.inspection.bounds import FACTOR, QUANTILE, rounding_noise
from leakcheck.engine.inspection.passes import Floats, Slice, Watch, run_whole

NOTHING = 1e-7
"""A weight below this is what a mask leaves."""
SOMETHING = 1e-3
"""A weight above this is a key that was looked at."""
MOST_SHARES = 8
"""Rows that a short history is cut into; a long one is cut into blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Attention on positions `first` to `last`, as fractions of one query's total."""

    first: int
    last: int
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How the attention of one query in one layer moved; `heads` are query heads beyond the bound.

    `head` is the most shifted one, the one that `shares` and `outside` (on no position of the
    sequence) are about; `hidden` are the positions it looked at and now does not see at all.
    """

    layer: int
    heads: tuple[int, ...]
    head: int
    query: int
    distance: float
    shares: tuple[Share, ...]
    outside: float
    hidden: tuple[int, ...]


class Weights:
    """Attention weights [layers][heads, queries, keys] by position; NaN: not seen."""

    def __init__(self, layers: int, tokens: int) -> None:
        """Nothing seen yet."""
        self.layers: list[Floats | None] = [None] * layers
        self.tokens = tokens

    def note(self, layer: int, weights: torch.Tensor, slices: list[Slice], pads: int) -> None:
        """Weights [rows, heads, width, columns] of one forward pass."""
        array = weights.detach().float().cpu().numpy()
        if self.layers[layer] is None:
            shape = (array.shape[1], self.tokens, self.tokens)
            self.layers[layer] = np.full(shape, np.nan, dtype=np.float32)
        kept = self.layers[layer]
        assert kept is not None  # noqa: S101 # made just above
        for its in slices:
            end = its.start + its.count
            first = max(0, end + pads - array.shape[3]) - pads
            skip = max(0, -first)
            own = array[its.row, :, -its.count :, skip : end - first]
            rows = slice(its.start, its.start + its.count)
            kept[:, rows, :] = 0
            kept[:, rows, first + skip : end] = own

    def distances(self, other: Weights) -> list[Floats]:
        """By layer: total variation distance [heads, queries] between two sets of weights."""
        pairs = zip(self.layers, other.layers, strict=True)
        return [
            np.abs(mine - its).sum(-1) / 2
            for mine, its in pairs
            if mine is not None and its is not None
        ]


@contextmanager
def weights_of(model: Any, weights: Weights, watch: Watch | None = None) -> Iterator[None]:
    """Note the weights of every attention module; without a `watch`, of one whole pass in row 0."""
    whole = [Slice(row=0, start=0, count=weights.tokens)]

    def look(module: Any, _inputs: Any, output: Any) -> None:
        seen = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        slices = whole if watch is None else watch.slices
        if isinstance(seen, torch.Tensor) and seen.ndim == 4 and slices:  # noqa: PLR2004 # b, h, q, k
            weights.note(number_of(module), seen, slices, watch.pads if watch else 0)

    hooks = [
        module.register_forward_hook(look)
        for module in model.modules()
        if "Attention" in type(module).__name__ and isinstance(number_of(module), int)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def number_of(module: Any) -> Any:
    """The layer that an attention module belongs to, by either name that models have for it."""
    return getattr(module, "layer_idx", getattr(module, "layer_id", None))


def whole_weights(model: Any, tokens: tuple[int, ...]) -> Weights:
    """The weights of a reference pass; the model must compute attention eagerly."""
    weights = Weights(model.config.get_text_config().num_hidden_layers, len(tokens))
    with weights_of(model, weights):
        run_whole(model, tokens)
    return weights


def weight_bounds(
    model: Any, reference: Weights, tokens: tuple[int, ...], seed: int
) -> list[float]:
    """By layer: the distance that rounding alone can make, as `bounds` measures it."""
    with rounding_noise(model, seed):
        noisy = whole_weights(model, tokens)
    return [
        FACTOR * float(np.quantile(distance, QUANTILE)) for distance in reference.distances(noisy)
    ]


def shift(
    reference: Weights, seen: Weights, bounds: list[float], *, layer: int, since: int, block: int
) -> Shift | None:
    """How a layer's attention moved for queries from `since` on; None within the bounds."""
    distance = np.nan_to_num(reference.distances(seen)[layer][:, since:])
    over = distance > bounds[layer]
    if not over.any():
        return None
    query = since + int(np.argmax(over.any(axis=0)))
    heads = np.flatnonzero(over[:, query - since])
    head = int(np.argmax(distance[:, query - since]))
    before, after = (
        np.asarray(its.layers[layer][head, query])  # type: ignore[index] # both were seen
        for its in (reference, seen)
    )
    length = query + 1
    bin_size = min(block, -(-length // MOST_SHARES))
    shares = tuple(
        Share(
            first=first,
            last=min(first + bin_size, length) - 1,
            before=float(before[first : first + bin_size].sum()),
            after=float(after[first : first + bin_size].sum()),
        )
        for first in range(0, length, bin_size)
    )
    return Shift(
        layer=layer, heads=tuple(heads.tolist()), head=head, query=query,
        distance=float(distance[head, query - since]), shares=shares,
        outside=max(0.0, 1 - float(after.sum())),
        hidden=tuple(np.flatnonzero((after < NOTHING) & (before > SOMETHING)).tolist()),
    )  # fmt: skip
