"""What the engine's blocks are doing at this moment: `GET /debug/pool`.

To be read on the engine's own thread, between two steps. Token ids, texts and salts stay out of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakcheck.engine.latency import Percentiles
from leakcheck.engine.values import Stats

if TYPE_CHECKING:  # who reads a snapshot over HTTP needs no torch
    from leakcheck.engine.engine import Engine
    from leakcheck.engine.sequence import Sequence

FORMAT = "leakcheck-pool-1"
"""Names this layout; a reader that meets another says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """One live choice; `table` names its physical blocks in order of positions."""

    id: str
    state: str
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    cached_tokens: int
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlock:
    """A block with the live choices in whose tables it stands; `hash` of its prefix, in hex."""

    block: int
    references: int
    holders: tuple[str, ...] = ()
    hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """Requests with their block tables, blocks with their holders, and what does not add up.

    `leaked` blocks have references that no live table explains, `dangling` ones stand in more
    tables than they have references (freed while somebody still reads them), `lost` ones are
    neither held nor cached nor free: nobody will ever get them again. `held_positions` are those
    of the blocks in live tables, `filled_positions` hold keys and values.
    """

    format: str
    model: str
    block_size: int
    blocks: int
    used: int
    cached: int
    free: int
    requests: tuple[LiveRequest, ...]
    shared: tuple[HeldBlock, ...]
    leaked: tuple[HeldBlock, ...]
    dangling: tuple[HeldBlock, ...]
    lost: tuple[int, ...]
    held_positions: int
    filled_positions: int
    stats: Stats
    latencies: dict[str, Percentiles]


def snapshot(engine: Engine, *, model: str, latencies: dict[str, Percentiles]) -> PoolState:
    """The state of the engine's pool now; `model` is its public name."""
    pool = engine.pool
    sequences = [
        one for family in engine.live.values() for one in family if one.finish_reason is None
    ]
    blocks = held_blocks(engine, sequences)
    kept = {*pool.free_blocks, *pool.cached_blocks}
    filled = filled_positions(sequences, engine.options.block_size)
    return PoolState(
        format=FORMAT,
        model=model,
        block_size=engine.options.block_size,
        blocks=pool.num_blocks,
        used=pool.used_count,
        cached=pool.cached_count,
        free=pool.free_count,
        requests=tuple(live_request(one, engine) for one in sequences),
        shared=tuple(its for its in blocks if len(its.holders) > 1),
        leaked=tuple(its for its in blocks if its.references > len(its.holders)),
        dangling=tuple(its for its in blocks if its.references < len(its.holders)),
        lost=tuple(
            its.block
            for its in blocks
            if not its.references and not its.holders and its.block not in kept
        ),
        held_positions=len(filled) * engine.options.block_size,
        filled_positions=sum(filled.values()),
        stats=engine.stats(),
        latencies=latencies,
    )


def label(sequence: Sequence) -> str:
    """The engine's name of one choice: the request's id, `/1` and so on for further choices."""
    return f"{sequence.request.id}/{sequence.index}" if sequence.index else sequence.request.id


def live_request(sequence: Sequence, engine: Engine) -> LiveRequest:
    """One live choice as it stands."""
    return LiveRequest(
        id=label(sequence),
        state="running" if sequence in engine.scheduler.running else "waiting",
        prompt_tokens=len(sequence.request.prompt),
        computed_tokens=sequence.computed,
        generated_tokens=sequence.generated,
        cached_tokens=sequence.cached_tokens or 0,
        table=tuple(sequence.table),
    )


def held_blocks(engine: Engine, sequences: list[Sequence]) -> list[HeldBlock]:
    """Every block of the pool, held or not."""
    holders: dict[int, list[str]] = {}
    for sequence in sequences:
        for block in sequence.table:
            holders.setdefault(block, []).append(label(sequence))
    hashes = {block: entry.digest.hex() for block, entry in engine.prefix.by_block.items()}
    return [
        HeldBlock(
            block=block,
            references=references,
            holders=tuple(holders.get(block, ())),
            hash=hashes.get(block),
        )
        for block, references in enumerate(engine.pool.references)
    ]


def filled_positions(sequences: list[Sequence], block_size: int) -> Counter[int]:
    """How many positions of each block in a live table are filled.

    A shared block counts once, with the most that any of its holders has filled. Blocks are of one
    size and need no neighbours, so what stays empty inside them is all the fragmentation there is.
    """
    filled: Counter[int] = Counter()
    for sequence in sequences:
        for ordinal, block in enumerate(sequence.table):
            inside = min(block_size, max(0, sequence.computed - ordinal * block_size))
            filled[block] = max(filled[block], inside)
    return filled
