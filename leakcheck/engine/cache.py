"""Keys and values in physical blocks, behind the transformers `Cache` interface.

A model's attention calls `cache.update(keys, values, layer)`; here that writes the new positions
into their physical slots and hands back what the step's block tables point at, so any decoder-only
model runs on blocks without a change to its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from leakcheck.engine.rows import Batch

Shape = tuple[int, int]
"""Heads and head size of one layer's keys or values."""


class KVStore:
    """Every layer's blocks: keys and values [num_blocks + 1, block_size, heads, head size].

    The one block too many, `padding_block`, takes what padding positions write; nobody's table
    points there except as padding, which the mask hides.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[Shape, Shape]],
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Zeroed blocks for layers of these (keys, values) shapes."""
        self.block_size = block_size
        self.padding_block = num_blocks
        self.keys = [
            torch.zeros(num_blocks + 1, block_size, *key, dtype=dtype, device=device)
            for key, _ in shapes
        ]
        self.values = [
            torch.zeros(num_blocks + 1, block_size, *value, dtype=dtype, device=device)
            for _, value in shapes
        ]

    def copy(self, source: int, target: int) -> None:
        """Copy one block's keys and values in every layer."""
        for tensor in (*self.keys, *self.values):
            tensor[target].copy_(tensor[source])

    @property
    def bytes_allocated(self) -> int:
        """Bytes of all keys and values, the padding block included."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


class PagedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call] # partly typed; it wants this base
    """One layer's window onto the store, for the batch of the current step."""

    is_sliding = False

    def __init__(self, stored_keys: torch.Tensor, stored_values: torch.Tensor) -> None:
        """All blocks of this layer, [blocks, block_size, heads, head size] each."""
        super().__init__()  # type: ignore[no-untyped-call] # partly typed
        self.stored_keys = stored_keys
        self.stored_values = stored_values
        self.is_initialized = True
        self.batch: Batch | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [rows, heads, width, size]; return [rows, heads, positions, size] by block table.

        Everything is written before anything is read: a prompt cut into several rows sees itself.
        """
        batch = self.batch
        if batch is None:
            raise RuntimeError("the model ran outside an engine step")
        self.write(self.stored_keys, key_states, batch)
        self.write(self.stored_values, value_states, batch)
        return self.gather(self.stored_keys, batch), self.gather(self.stored_values, batch)

    def write(self, store: torch.Tensor, states: torch.Tensor, batch: Batch) -> None:
        """Put each new position into its physical slot."""
        flat = store.view(-1, *store.shape[2:])
        flat.index_copy_(0, batch.slots, states.transpose(1, 2).reshape(-1, *store.shape[2:]))

    def gather(self, store: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What each row's block table points at, in the order of positions."""
        rows, blocks = batch.table.shape
        picked = store.index_select(0, batch.table.view(-1))
        return picked.view(rows, blocks * store.shape[1], *store.shape[2:]).transpose(1, 2)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the store is made with the engine."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Unused: the engine gives the model a ready 4D mask."""
        del query_length
        return 0, 0

    def get_seq_length(self) -> int:
        """0: rows differ in length, and the engine gives the position ids itself."""
        return 0

    def get_max_length(self) -> int:
        """-1: no limit of its own."""
        return -1

    def get_max_cache_shape(self) -> int:
        """What transformers before 5.13 calls `get_max_length`."""
        return self.get_max_length()


class PagedCache(Cache):
    """All layers of a store, as the `cache` argument of a model."""

    def __init__(self, store: KVStore) -> None:
        """One `PagedLayer` for each layer of the store."""
        pairs = zip(store.keys, store.values, strict=True)
        self.paged_layers = [PagedLayer(keys, values) for keys, values in pairs]
        super().__init__(layers=list(self.paged_layers))

    def begin(self, batch: Batch | None) -> None:
        """Point every layer at the step's slots and tables."""
        for layer in self.paged_layers:
            layer.batch = batch
