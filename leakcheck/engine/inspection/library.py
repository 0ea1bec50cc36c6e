"""Whose keys and values these are: fingerprints of blocks, and where else the same ones stand.

A fingerprint of one head of one block is 16 numbers: 8 random projections of its keys and 8 of its
values, in float32, of the positions that a row can see, less the mean of that head over all
requests (keys share a large constant part, which would make strangers look alike).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

PROJECTIONS = 8
OWN_COSINE = 0.9
"""Below this a block is not what its request computed."""
FOREIGN_COSINE = 0.99
"""Above this it is what another request computed."""
TINY = 1e-12


@dataclass(slots=True, kw_only=True)
class Library:
    """Every request's keys and values: per layer [requests, positions, heads, size], in float32.

    `filled` [layers, requests, positions] says what has been computed so far.
    """

    names: tuple[str, ...]
    block_size: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    filled: torch.Tensor

    def copy(self) -> Library:
        """The same content, to be written on."""
        return Library(
            names=self.names,
            block_size=self.block_size,
            keys=[one.clone() for one in self.keys],
            values=[one.clone() for one in self.values],
            filled=self.filled.clone(),
        )

    def blocks(
        self, layer: int, requests: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values [requests, count, block_size, heads, size]; filled [.., block_size]."""
        shape = (len(requests), count, self.block_size)
        end = count * self.block_size
        pair = [one[layer][requests, :end] for one in (self.keys, self.values)]
        keys, values = (one.view(*shape, *one.shape[2:]) for one in pair)
        return keys, values, self.filled[layer][requests, :end].view(shape)


def empty_library(
    names: tuple[str, ...],
    positions: int,
    block_size: int,
    stores: list[tuple[torch.Tensor, torch.Tensor]],
) -> Library:
    """Room for `positions` of each request, shaped as each layer's (keys, values) stores."""
    room = (len(names), -(-positions // block_size) * block_size)
    return Library(
        names=names,
        block_size=block_size,
        keys=[torch.zeros(*room, *keys.shape[2:]) for keys, _ in stores],
        values=[torch.zeros(*room, *values.shape[2:]) for _, values in stores],
        filled=torch.zeros(len(stores), *room, dtype=torch.bool),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketcher:
    """Makes fingerprints. Per layer, of keys and of values: mean, spread, random projections."""

    centres: list[tuple[torch.Tensor, torch.Tensor]]
    scales: list[tuple[float, float]]
    projections: list[tuple[torch.Tensor, torch.Tensor]]

    def sketch(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """[..., heads, 16] of keys and values [..., block_size, heads, size]."""
        parts = []
        for side, content in enumerate((keys, values)):
            scaled = (content - self.centres[layer][side]) / self.scales[layer][side]
            shown = (scaled * visible[..., None, None]).transpose(-3, -2).flatten(-2)
            parts.append(shown @ self.projections[layer][side])
        return torch.cat(parts, dim=-1)


def sketcher(solo: Library, seed: int) -> Sketcher:
    """Fingerprints for a model whose healthy keys and values these are."""
    numbers = torch.Generator().manual_seed(seed)
    centres, scales, projections = [], [], []
    for layer, pair in enumerate(zip(solo.keys, solo.values, strict=True)):
        seen = [one[solo.filled[layer]] for one in pair]
        means = [one.mean(dim=0) for one in seen]
        spread = [
            float((one - mean).pow(2).mean().sqrt()) + TINY
            for one, mean in zip(seen, means, strict=True)
        ]
        shapes = [(solo.block_size * one.shape[-1], PROJECTIONS) for one in pair]
        randoms = [torch.randn(shape, generator=numbers) for shape in shapes]
        centres.append((means[0], means[1]))
        scales.append((spread[0], spread[1]))
        projections.append((randoms[0], randoms[1]))
    return Sketcher(centres=centres, scales=scales, projections=projections)


def cosine(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Along the last dimension; 0 where one of the two is nothing."""
    product: torch.Tensor = (left * right).sum(dim=-1)
    lengths: torch.Tensor = left.norm(dim=-1) * right.norm(dim=-1)
    return product / lengths.clamp_min(TINY)


def relative_error(seen: torch.Tensor, own: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The L2 norm of the difference over that of `own`, over these dimensions."""
    lost: torch.Tensor = (seen - own).pow(2).sum(dim=dims).sqrt()
    return lost / own.pow(2).sum(dim=dims).sqrt().clamp_min(TINY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """The block that a fingerprint is nearest to: of which request, number `ordinal` of it."""

    request: int
    ordinal: int
    cosine: float


def nearest(sketched: torch.Tensor, candidates: torch.Tensor, valid: torch.Tensor) -> Likeness:
    """Of `candidates` [requests, blocks, 16] the one most like `sketched` [16]."""
    scores = cosine(candidates, sketched).masked_fill(~valid, -1.0)
    request, ordinal = divmod(int(scores.argmax()), scores.shape[1])
    return Likeness(request=request, ordinal=ordinal, cosine=float(scores[request, ordinal]))
