"""Faults of attention: a row sees keys and values that are not its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from leakcheck.engine.rows import Batch, Row
    from leakcheck.engine.sequence import Sequence

    Gather = Callable[[torch.Tensor, Batch], torch.Tensor]
    Positions = npt.NDArray[np.int64]

LEAKS = ("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer")


def mask_broadcast(seams: Seams, _rate: float, _rng: Random) -> None:
    """The mask of the longest row serves all: a shorter row sees its padding, a neighbour's end."""
    batcher = seams.engine.batcher
    size = batcher.block_size

    def wrap_pad(original: Callable[..., None]) -> Callable[..., None]:
        def pad(table: npt.NDArray[np.int64], rows: list[Row]) -> None:
            original(table, rows)
            longest = max(range(len(rows)), key=lambda index: rows[index].end)
            for index, row in enumerate(rows):
                if row.sequence.request.id != rows[longest].sequence.request.id:
                    own = -(-row.end // size)
                    table[index, own:] = table[longest, own:]

        return pad

    def wrap_mask(original: Callable[..., Any]) -> Callable[..., Any]:
        def mask(rows: list[Row], positions: npt.NDArray[np.int64], keys: int) -> Any:
            visible = original(rows, positions, keys)
            longest = max(rows, key=lambda row: row.end)
            for index, row in enumerate(rows):
                if row.sequence.request.id != longest.sequence.request.id:
                    visible[index, :, :, -(-row.end // size) * size : longest.end] = True
            return visible

        return mask

    patch(batcher, "pad", wrap_pad)
    patch(batcher, "mask", wrap_mask)


def position_restart(seams: Seams, _rate: float, _rng: Random) -> None:
    """The tokens computed behind a cached prefix count, and see, positions from 0 on."""
    scheduler, batcher = seams.engine.scheduler, seams.engine.batcher
    prefixes: dict[Sequence, int] = {}

    def wrap_count(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def count_prefix(sequence: Sequence) -> None:
            original(sequence)
            prefixes[sequence] = sequence.computed

        return count_prefix

    def wrap_remove(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def remove(sequence: Sequence) -> None:
            prefixes.pop(sequence, None)
            original(sequence)

        return remove

    def wrap_ids(original: Callable[..., Positions]) -> Callable[..., Positions]:
        def position_ids(rows: list[Row], positions: Positions) -> Positions:
            return original(rows, restarted(rows, positions, prefixes))

        return position_ids

    def wrap_mask(original: Callable[..., Any]) -> Callable[..., Any]:
        def mask(rows: list[Row], positions: Positions, keys: int) -> Any:
            return original(rows, restarted(rows, positions, prefixes), keys)

        return mask

    patch(scheduler, "count_prefix", wrap_count)
    patch(scheduler, "remove", wrap_remove)
    patch(batcher, "position_ids", wrap_ids)
    patch(batcher, "mask", wrap_mask)


def restarted(rows: list[Row], positions: Positions, prefixes: dict[Sequence, int]) -> Positions:
    """Positions counted from the end of each row's cached prefix; padding stays -1."""
    told = positions.copy()
    for index, row in enumerate(rows):
        told[index, -row.count :] -= prefixes.get(row.sequence, 0)
    return told


def one_layer_bleed(seams: Seams, rate: float, rng: Random) -> None:
    """`bleed_layer` in the second layer, where a transformer looks up what it repeats."""
    bleed_layer(seams, min(1, len(seams.engine.cache.paged_layers) - 1), rate, rng)


def bleed_layer(seams: Seams, layer: int, rate: float, rng: Random) -> None:
    """In this layer alone a share of the requests attends to a neighbour's blocks.

    `layer` counts from 0. What is stored is everybody's own: only the reading goes astray.
    """
    neighbours = Neighbours(rate, rng, seams.engine.batcher.block_size)

    def wrap(original: Gather) -> Gather:
        def gather(store: torch.Tensor, batch: Batch) -> torch.Tensor:
            return original(store, neighbours.read_by(batch))

        return gather

    patch(seams.engine.cache.paged_layers[layer], "gather", wrap)


def one_head_bleed(seams: Seams, rate: float, rng: Random) -> None:
    """`bleed_head` in a key-value head drawn by the seed."""
    bleed_head(seams, rng.randrange(seams.engine.store.keys[0].shape[2]), rate, rng)


def bleed_head(seams: Seams, head: int, rate: float, rng: Random) -> None:
    """In this key-value head of every layer a share of the requests attends to a neighbour's."""
    neighbours = Neighbours(rate, rng, seams.engine.batcher.block_size)

    def wrap(original: Gather) -> Gather:
        def gather(store: torch.Tensor, batch: Batch) -> torch.Tensor:
            read, foreign = original(store, batch), neighbours.read_by(batch)
            if foreign is not batch:
                read[:, head] = original(store, foreign)[:, head]
            return read

        return gather

    for layer in seams.engine.cache.paged_layers:
        patch(layer, "gather", wrap)


class Neighbours:
    """Whose blocks each bleeding request reads: one neighbour's for as long as that one runs."""

    def __init__(self, rate: float, rng: Random, block_size: int) -> None:
        """`rate` is the share of requests that bleed."""
        self.rate, self.rng, self.block_size = rate, rng, block_size
        self.bleeds: dict[Sequence, bool] = {}
        self.chosen: dict[Sequence, Sequence] = {}
        self.latest: tuple[Batch, Batch] | None = None

    def read_by(self, batch: Batch) -> Batch:
        """The batch with the neighbours' tables, one a step; itself when nobody bleeds in it."""
        if self.latest is None or self.latest[0] is not batch:
            self.latest = batch, self.astray(batch)
        return self.latest[1]

    def astray(self, batch: Batch) -> Batch:
        """The neighbour's full blocks as far as the row sees, then the row's own."""
        self.forget_ended()
        table = batch.table.clone()
        foreign = 0
        for index, row in enumerate(batch.rows):
            neighbour = self.neighbour(row.sequence, batch)
            if neighbour is not None:
                count = min(neighbour.computed, row.end) // self.block_size
                table[index, :count] = table.new_tensor(neighbour.table[:count])
                foreign += count
        return replace(batch, table=table) if foreign else batch

    def neighbour(self, sequence: Sequence, batch: Batch) -> Sequence | None:
        """Somebody else in the batch with a full block; None when there is none, or no bleed."""
        if sequence not in self.bleeds:
            self.bleeds[sequence] = self.rng.random() < self.rate
        if self.bleeds[sequence] and sequence not in self.chosen:
            others = dict.fromkeys(
                row.sequence
                for row in batch.rows
                if row.sequence.request.id != sequence.request.id
                and row.sequence.computed >= self.block_size
            )
            if others:
                self.chosen[sequence] = self.rng.choice(list(others))
        return self.chosen.get(sequence)

    def forget_ended(self) -> None:
        """Drop those that have ended, and neighbours that have no blocks any more."""
        for sequence in [its for its in self.bleeds if its.finish_reason]:
            del self.bleeds[sequence]
            self.chosen.pop(sequence, None)
        for sequence, neighbour in list(self.chosen.items()):
            if neighbour.finish_reason or not neighbour.computed:
                del self.chosen[sequence]


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="mask-broadcast",
        layer="attention",
        mechanism=(
            "One attention mask, built from the longest row of the batch, serves every row, and the"
            " unused end of a shorter row's block table still names the longest row's blocks. So"
            " the shorter row attends to the last blocks of its neighbour in every layer."
        ),
        trigger="two requests in one batch whose lengths differ by at least a block",
        effect="fragments of the longest neighbour's end, lost tickets, other tokens",
        anomalies=LEAKS,
        strength="every step with such a batch",
        seam="Batcher.pad and Batcher.mask",
        cases=(
            "https://github.com/huggingface/transformers/issues/30670",
            "https://github.com/TransformerLensOrg/TransformerLens/issues/1005",
            "https://github.com/ggml-org/llama.cpp/issues/27994",
        ),
        rate=None,
        install=mask_broadcast,
    ),
    Fault(
        name="position-restart",
        layer="attention",
        mechanism=(
            "The tokens computed behind a cached prefix, of the prompt and of the answer, count"
            " their positions from 0 on instead of after the prefix. They are rotated by those"
            " positions, and the causal mask is made of them: of the prefix only the first tokens"
            " are seen, the rest, the ticket too, is not. Every key and value is the request's own;"
            " what is computed so goes into the prefix cache for the next request."
        ),
        trigger="a prompt that begins with at least one cached block",
        effect="no foreign content; an answer that is right cold loses its ticket warm",
        anomalies=("changed-answer", "lost-answer"),
        strength="every prefix hit",
        seam="Scheduler.count_prefix, Scheduler.remove, Batcher.position_ids and Batcher.mask",
        cases=(
            "https://github.com/unslothai/unsloth/pull/3795",
            "https://github.com/ml-explore/mlx-lm/issues/1805",
            "https://github.com/waybarrios/vllm-mlx/issues/384",
        ),
        rate=None,
        install=position_restart,
    ),
    Fault(
        name="one-layer-bleed",
        layer="attention",
        mechanism=(
            "In one layer, the second, a share of the requests attends to the full blocks of a"
            " neighbour in the batch instead of its own, as when the blocks of a layer are restored"
            " or written by a copy of their own that goes to the wrong place. Every other layer,"
            " and everything that is stored in this one, is the request's own; from the next layer"
            " on its keys and values carry what was seen."
        ),
        trigger="two requests in one batch, of at least a block each",
        effect=(
            "the neighbour's ticket and passphrase, in the layer that looks up what to repeat (the"
            " witness: the second); in its first layer lost tickets only, in the other two hardly"
            " anything, which only a look inside shows"
        ),
        anomalies=LEAKS,
        strength="the share of requests that bleed",
        seam="PagedLayer.gather of one layer",
        cases=(
            "https://github.com/LMCache/LMCache/issues/1068",
            "https://github.com/vllm-project/vllm-ascend/pull/14046",
            "https://github.com/ggml-org/llama.cpp/issues/28056",
        ),
        rate=0.25,
        install=one_layer_bleed,
    ),
    Fault(
        name="one-head-bleed",
        layer="attention",
        mechanism=(
            "One key-value head, drawn by the seed, reads the full blocks of a neighbour in every"
            " layer, for a share of the requests, as when one rank of a tensor-parallel group,"
            " which holds some of the heads, has another block table than the rest. The other heads"
            " see the request's own."
        ),
        trigger="two requests in one batch, of at least a block each",
        effect="garbled and lost tickets, and now and then the neighbour's ticket or passphrase",
        anomalies=LEAKS,
        strength="the share of requests that bleed",
        seam="PagedLayer.gather of every layer",
        cases=(
            "https://github.com/ModelEngine-Group/unified-cache-management/pull/716",
            "https://github.com/tenstorrent/tt-metal/issues/54742",
            "https://github.com/sgl-project/sglang/issues/4593",
        ),
        rate=0.5,
        install=one_head_bleed,
    ),
)
