"""Faults of attention: a row sees keys and values that are not its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from leakcheck.engine.rows import Row


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
        anomalies=("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer"),
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
)
