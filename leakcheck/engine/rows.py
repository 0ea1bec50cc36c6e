"""From scheduled work to the tensors of one forward pass.

A *row* of the batch is a slice of at most `width` tokens of one sequence. A long prompt becomes
several rows, a decoding sequence one row of one token, so a batch that mixes both is hardly padded.
Rows are right-aligned: the last column holds the last token of every row, where logits are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from leakcheck.engine.sequence import Sequence

Ints = npt.NDArray[np.int64]
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
KEYS_PER_TOKEN = 64
"""Gathering this many key positions for a row costs about what one more token in it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Compute `count` tokens of a sequence from position `start`."""

    sequence: Sequence
    start: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Positions `start` to `start + count - 1` of a sequence; `last`: its logits are sampled."""

    sequence: Sequence
    start: int
    count: int
    last: bool

    @property
    def end(self) -> int:
        """How many positions exist for this row, its own tokens included."""
        return self.start + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward pass: [rows, width] tokens over [rows, blocks] tables.

    `slots` [rows * width] is where each new position is written; `mask` [rows, 1, width, keys] is
    True where a query may look.
    """

    rows: tuple[Row, ...]
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    table: torch.Tensor
    mask: torch.Tensor


class Batcher:
    """Cuts work into rows and rows into tensors."""

    def __init__(self, block_size: int, padding_block: int, device: torch.device) -> None:
        """`padding_block` is the block that nobody owns."""
        self.block_size = block_size
        self.padding_block = padding_block
        self.device = device

    def build(self, work: list[Work]) -> Batch:
        """The batch of this work."""
        width = choose_width(work)
        rows = self.cut(work, width)
        table = self.block_table(rows)
        positions = self.positions(rows, width)
        self.pad(table, rows)
        return Batch(
            rows=tuple(rows),
            input_ids=self._tensor(self.input_ids(rows, width)),
            position_ids=self._tensor(self.position_ids(rows, positions)),
            slots=self._tensor(self.slots(rows, positions).reshape(-1)),
            table=self._tensor(table),
            mask=self._tensor(self.mask(rows, positions, table.shape[1] * self.block_size)),
        )

    def cut(self, work: list[Work], width: int) -> list[Row]:
        """Rows of at most `width` tokens; the last one of a sequence's known tokens is sampled."""
        rows = []
        for item in work:
            end = item.start + item.count
            for start in range(item.start, end, width):
                count = min(width, end - start)
                last = start + count == len(item.sequence.tokens)
                rows.append(Row(sequence=item.sequence, start=start, count=count, last=last))
        return rows

    def block_table(self, rows: list[Row]) -> Ints:
        """[rows, blocks]: the physical blocks of each row's own positions, then padding."""
        counts = [-(-row.end // self.block_size) for row in rows]
        table = np.full((len(rows), max(counts)), self.padding_block, dtype=np.int64)
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            table[index, :count] = self.blocks_of(row)[:count]
        return table

    def blocks_of(self, row: Row) -> list[int]:
        """The physical blocks that a row reads and writes: its own sequence's."""
        return row.sequence.table

    def pad(self, table: Ints, rows: list[Row]) -> None:
        """What the unused end of a shorter row's table points at: the padding block."""

    def positions(self, rows: list[Row], width: int) -> Ints:
        """[rows, width]: each token's position in its sequence; -1 is padding, on the left."""
        starts = np.array([row.end - width for row in rows], dtype=np.int64)
        firsts = np.array([row.start for row in rows], dtype=np.int64)
        positions = starts[:, None] + np.arange(width)
        return np.where(positions >= firsts[:, None], positions, -1)

    def position_ids(self, rows: list[Row], positions: Ints) -> Ints:
        """[rows, width]: what the model is told about each token's position."""
        del rows  # a token's position is the same for the model and for the blocks
        return np.maximum(positions, 0)

    def input_ids(self, rows: list[Row], width: int) -> Ints:
        """[rows, width] token ids; 0 is padding."""
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for index, row in enumerate(rows):
            ids[index, width - row.count :] = row.sequence.tokens[row.start : row.end]
        return ids

    def slots(self, rows: list[Row], positions: Ints) -> Ints:
        """[rows, width]: the physical slot each new position is written to."""
        size = self.block_size
        slots = np.full(positions.shape, self.padding_block * size, dtype=np.int64)
        for index, row in enumerate(rows):
            width, table = positions.shape[1], self.blocks_of(row)
            if width == 1:
                slots[index, 0] = table[row.start // size] * size + row.start % size
                continue
            own = positions[index, width - row.count :]
            blocks = np.array(table, dtype=np.int64)[own // size]
            slots[index, width - row.count :] = blocks * size + own % size
        return slots

    def mask(self, rows: list[Row], positions: Ints, keys: int) -> npt.NDArray[np.bool_]:
        """[rows, 1, width, keys]: a query sees its own sequence up to its own position.

        A padding query sees position 0, so that its output stays finite; nobody reads it.
        """
        del rows  # a position says it all: every key up to it is in the row's own table
        visible = np.arange(keys) <= np.maximum(positions, 0)[:, :, None]
        return np.asarray(visible[:, None])

    def _tensor(self, array: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def choose_width(work: list[Work]) -> int:
    """The row width that wastes least: padding tokens against repeated gathering of keys."""
    longest = max(item.count for item in work)
    if longest == 1:
        return 1
    keys = max(item.start + item.count for item in work)

    def cost(width: int) -> float:
        return sum(-(-item.count // width) for item in work) * (width + keys / KEYS_PER_TOKEN)

    return min((width for width in WIDTHS if width < 2 * longest), key=cost)
