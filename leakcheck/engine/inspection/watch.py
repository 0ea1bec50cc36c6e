"""What each row of a running engine reads and writes, layer by layer, held against a library.

Installed last on a built engine, so that it sees what the attention of the model is given, after
whatever a fault has done to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from leakcheck.engine.cache import PagedLayer
from leakcheck.engine.engine import Engine
from leakcheck.engine.faults import patch
from leakcheck.engine.inspection.library import (
    FOREIGN_COSINE,
    OWN_COSINE,
    Library,
    Likeness,
    Sketcher,
    cosine,
    nearest,
    relative_error,
)
from leakcheck.engine.rows import Batch, Row

STRANGE_ERROR = 0.3
"""A relative error that no rounding makes."""
CLEARED = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """A head of a block that a row read and its request had not computed.

    `source` None: it is like nothing that any request computed. `beyond`: the row has no position
    there at all. `where`: `gather` (not what the batch's table points at), `rows` (the batch's
    table is not the sequence's) or `blocks` (the sequence's own table points at it).
    `positions` of the row's request; `physical` is the block in the batch's table.
    """

    layer: int
    head: int
    step: int
    request: int
    ordinal: int
    physical: int
    positions: tuple[int, int]
    own_cosine: float
    error: float
    source: Likeness | None
    beyond: bool
    cleared: bool
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """One head of one block as a row of the batch sees it: `keys`, `values` [block size, size].

    `row` is its number in the batch; `pattern` [block size] says what it may see.
    """

    layer: int
    head: int
    request: int
    ordinal: int
    row: Row
    told: int
    pattern: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    sketch: torch.Tensor

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What is told once."""
        return self.layer, self.head, self.request, self.ordinal


class Watch:
    """Fills `library` with what is written; with a `sketcher` also judges what is read.

    `written` [layers, keys or values, requests, positions] is the relative error of what was
    written against `solo`, `read` [layers] the largest of reads that are their own.
    """

    def __init__(
        self, engine: Engine, library: Library, sketcher: Sketcher | None, salts: dict[str, str]
    ) -> None:
        """Wraps every layer of the engine's cache, and the mask."""
        self.engine = engine
        self.library = library
        self.solo = library.copy()
        self.sketcher = sketcher
        self.salts = salts
        self.numbers = {name: number for number, name in enumerate(library.names)}
        layers, requests, positions = library.filled.shape
        self.written = torch.full((layers, 2, requests, positions), -1.0)
        self.read = torch.zeros(layers)
        self.contacts: dict[tuple[int, int, int, int], Contact] = {}
        self.extra_keys = self.missing_keys = 0
        self.crossings: dict[tuple[int, int], set[int]] = {}
        self.writers: dict[int, int] = {}
        self.visible: torch.Tensor = torch.zeros(0)
        self.chosen: list[int] = []
        self.met = torch.zeros(requests, dtype=torch.bool)
        self.requests: torch.Tensor = torch.zeros(0)
        patch(engine, "model_mask", self.masking)
        for number, layer in enumerate(engine.cache.paged_layers):
            patch(layer, "update", partial(self.updating, layer=number))

    # --- once a step -----------------------------------------------------------------------------

    def masking(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """See what the model will see."""

        def model_mask(visible: torch.Tensor) -> torch.Tensor:
            mask = original(visible)
            self.begin(mask if mask.dtype == torch.bool else mask == 0)
            return mask

        return model_mask

    def begin(self, mask: torch.Tensor) -> None:
        """Whose rows these are, what they may see, and whose blocks they are about to use."""
        batch = self.engine.cache.paged_layers[0].batch
        if batch is None:
            raise RuntimeError("a mask was made outside a step")
        names = [row.sequence.request.id for row in batch.rows]
        self.chosen = [index for index, name in enumerate(names) if name in self.numbers]
        self.requests = torch.tensor([self.numbers[names[index]] for index in self.chosen])
        self.met[self.requests] = True
        seen = mask[:, 0].cpu()
        self.note_mask(batch, seen)
        size = self.library.block_size
        count = min(batch.table.shape[1], self.library.filled.shape[2] // size)
        self.visible = seen.any(dim=1)[self.chosen, : count * size].view(-1, count, size)
        self.note_salts(batch)

    def note_mask(self, batch: Batch, seen: torch.Tensor) -> None:
        """Count keys that a query sees and should not, or should see and does not."""
        width, keys = seen.shape[1:]
        for index, row in enumerate(batch.rows):
            positions = torch.arange(row.end - width, row.end)[:, None]
            right = torch.arange(keys) <= positions
            real = (positions >= row.start)[:, 0]
            self.extra_keys += int((seen[index] & ~right)[real].sum())
            self.missing_keys += int((right & ~seen[index])[real].sum())

    def note_salts(self, batch: Batch) -> None:
        """Who reads a block that a request with another salt wrote: no fingerprint tells that."""
        size, padding = self.library.block_size, self.engine.store.padding_block
        written = (batch.slots.view(len(batch.rows), -1) // size).cpu()
        for index, request in zip(self.chosen, self.requests.tolist(), strict=True):
            for block in set(written[index].tolist()) - {padding}:
                self.writers[block] = request
        for index, request, seen in zip(
            self.chosen, self.requests.tolist(), self.visible.any(dim=2), strict=True
        ):
            table = batch.table[index, : len(seen)].cpu()
            for block in table[seen].tolist():
                writer = self.writers.get(block, request)
                if self.salts[self.name(writer)] != self.salts[self.name(request)]:
                    self.crossings.setdefault((request, writer), set()).add(block)

    def name(self, request: int) -> str:
        """The request's id."""
        return self.library.names[request]

    # --- once a layer ----------------------------------------------------------------------------

    def updating(self, original: Callable[..., Any], layer: int) -> Callable[..., Any]:
        """See what a layer writes, and what it is given to attend to."""

        def update(keys: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any) -> Any:
            read = original(keys, values, *rest, **named)
            paged = self.engine.cache.paged_layers[layer]
            if paged.batch is not None and self.chosen:
                self.note_written(layer, paged.batch, keys, values)
                if self.sketcher is not None:
                    self.judge(layer, paged, *read)
            return read

        return update

    def note_written(
        self, layer: int, batch: Batch, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put what was computed into the library, with how far it is from what it was alone."""
        for index, request in zip(self.chosen, self.requests.tolist(), strict=True):
            row = batch.rows[index]
            room = slice(row.start, min(row.end, self.library.filled.shape[2]))
            count = room.stop - room.start
            if count < 1:
                continue
            known = self.solo.filled[layer, request, room]
            sides = ((keys, self.library.keys, self.solo.keys),
                     (values, self.library.values, self.solo.values))  # fmt: skip
            for side, (states, filling, solo) in enumerate(sides):
                width = states.shape[2]
                new = states[index, :, width - row.count : width - row.count + count]
                new = new.transpose(0, 1).float().cpu()
                filling[layer][request, room] = new
                error = relative_error(new, solo[layer][request, room], (1, 2))
                worst = self.written[layer, side, request, room]
                torch.maximum(worst, torch.where(known, error, worst), out=worst)
            self.library.filled[layer, request, room] = True

    def judge(
        self, layer: int, paged: PagedLayer, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Hold what every row reads against what its request computed."""
        batch, visible = paged.batch, self.visible
        if batch is None or self.sketcher is None:
            return
        count = visible.shape[1]
        read = [self.as_blocks(one[self.chosen], count) for one in (keys, values)]
        *own, filled = self.library.blocks(layer, self.requests, count)
        ends = torch.tensor([batch.rows[index].end for index in self.chosen])
        positions = torch.arange(count * self.library.block_size).view(1, count, -1)
        mine = visible & filled & (positions < ends[:, None, None])
        sketched = self.sketcher.sketch(layer, read[0], read[1], visible)
        alike = cosine(sketched, self.sketcher.sketch(layer, own[0], own[1], mine))
        error = torch.maximum(
            *(
                relative_error(seen * visible[..., None, None], its * mine[..., None, None], (2, 4))
                for seen, its in zip(read, own, strict=True)
            )
        )
        looked = visible.any(dim=2)[..., None].expand_as(alike)
        strange = looked & ((alike < OWN_COSINE) | (error > STRANGE_ERROR))
        fine = error[looked & ~strange]
        if len(fine):
            self.read[layer] = max(float(self.read[layer]), float(fine.max()))
        for number, ordinal, head in strange.nonzero().tolist():
            index = self.chosen[number]
            glimpse = Glimpse(
                layer=layer,
                head=head,
                request=int(self.requests[number]),
                ordinal=ordinal,
                row=batch.rows[index],
                told=int(batch.table[index, ordinal]),
                pattern=visible[number, ordinal],
                keys=read[0][number, ordinal, :, head],
                values=read[1][number, ordinal, :, head],
                sketch=sketched[number, ordinal, head],
            )
            at = number, ordinal, head
            self.note_contact(
                paged,
                glimpse,
                own_cosine=float(alike[at]),
                error=float(error[at]),
                beyond=not bool(mine[number, ordinal].any()),
            )

    def as_blocks(self, states: torch.Tensor, count: int) -> torch.Tensor:
        """[rows, heads, positions, size] as [rows, blocks, block size, heads, size], float32."""
        rows, heads, _, size = states.shape
        block = self.library.block_size
        kept = states[:, :, : count * block].transpose(1, 2).float().cpu()
        return kept.reshape(rows, count, block, heads, size)

    def note_contact(
        self, paged: PagedLayer, its: Glimpse, *, own_cosine: float, error: float, beyond: bool
    ) -> None:
        """Keep the first contact of each head and block, and rather one whose source is known."""
        known = self.contacts.get(its.key)
        if known is not None and known.source is not None:
            return
        source = self.source(its)
        if known is not None and source is None:
            return
        size = self.library.block_size
        seen = its.pattern.nonzero()[:, 0]
        contents = (its.keys[its.pattern], its.values[its.pattern])
        self.contacts[its.key] = Contact(
            layer=its.layer,
            head=its.head,
            step=self.engine.steps + 1,
            request=its.request,
            ordinal=its.ordinal,
            physical=its.told,
            positions=(its.ordinal * size + int(seen[0]), its.ordinal * size + int(seen[-1])),
            own_cosine=own_cosine,
            error=error,
            source=source,
            beyond=beyond,
            cleared=all(float(one.abs().max()) < CLEARED for one in contents),
            where=where(paged, its),
        )

    def source(self, its: Glimpse) -> Likeness | None:
        """The block, of any request so far, that this one is; None when it is none of them."""
        if self.sketcher is None:
            return None
        everyone = torch.arange(len(self.library.names))
        count = self.library.filled.shape[2] // self.library.block_size
        keys, values, filled = self.library.blocks(its.layer, everyone, count)
        whole = (filled | ~its.pattern).all(dim=2) & self.met[:, None]
        whole[its.request, its.ordinal] = False
        pattern = its.pattern.expand(*whole.shape, -1)
        candidates = self.sketcher.sketch(its.layer, keys, values, pattern)
        found = nearest(its.sketch, candidates[:, :, its.head], whole)
        return found if found.cosine > FOREIGN_COSINE else None


def where(paged: PagedLayer, its: Glimpse) -> str:
    """Which part of the engine pointed there: `gather`, `rows` or `blocks`."""
    stored = paged.stored_keys[its.told, :, its.head].float().cpu()
    if not torch.equal(stored[its.pattern], its.keys[its.pattern]):
        return "gather"
    table = its.row.sequence.table
    return "blocks" if table[its.ordinal : its.ordinal + 1] == [its.told] else "rows"
