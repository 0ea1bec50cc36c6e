"""What the engine's blocks are doing at this moment, as JSON: `GET /debug/pool`.

To be read on the engine's own thread, between two steps. Token ids, texts and salts stay out of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from leakcheck.engine.engine import Engine
from leakcheck.engine.sequence import Sequence

FORMAT = "leakcheck-pool-1"
"""Names this layout; a reader that meets another says so."""


def snapshot(engine: Engine) -> dict[str, Any]:
    """Requests with their block tables, blocks with their holders, and what does not add up.

    `leaked` blocks have references that no live table explains, `dangling` ones stand in more
    tables than they have references (freed while somebody still reads them), `lost` ones are
    neither held nor cached nor free: nobody will ever get them again.
    """
    pool = engine.pool
    sequences = [one for family in engine.live.values() for one in family if unfinished(one)]
    holders: dict[int, list[str]] = {}
    for sequence in sequences:
        for block in sequence.table:
            holders.setdefault(block, []).append(label(sequence))
    references = pool.references
    known = set(pool.free_blocks) | set(pool.cached_blocks)
    return {
        "format": FORMAT,
        "block_size": engine.options.block_size,
        "blocks": pool.num_blocks,
        "requests": [request_row(one, engine) for one in sequences],
        "shared": shared_blocks(engine, holders),
        "used": pool.used_count,
        "free": pool.free_count,
        "cached": pool.cached_count,
        "leaked": [
            {"block": block, "references": count, "tables": len(holders.get(block, ()))}
            for block, count in enumerate(references)
            if count > len(holders.get(block, ()))
        ],
        "dangling": [
            {"block": block, "references": references[block], "holders": names}
            for block, names in sorted(holders.items())
            if references[block] < len(names)
        ],
        "lost": [
            block
            for block, count in enumerate(references)
            if not count and block not in known and block not in holders
        ],
        "fragmentation": fragmentation(sequences, engine.options.block_size),
        "stats": {name: getattr(engine.stats(), name) for name in STATS},
    }


STATS = (
    "running", "waiting", "requests", "finished", "aborted", "preemptions", "evictions",
    "prefix_queries_tokens", "prefix_hits_tokens", "generated_tokens", "steps",
)  # fmt: skip


def unfinished(sequence: Sequence) -> bool:
    """Whether a choice still holds, or waits for, blocks."""
    return sequence.finish_reason is None


def label(sequence: Sequence) -> str:
    """The engine's name of one choice: the request's id, `/1` and so on for further choices."""
    return f"{sequence.request.id}/{sequence.index}" if sequence.index else sequence.request.id


def request_row(sequence: Sequence, engine: Engine) -> dict[str, Any]:
    """One live choice; counts are tokens, `table` the physical blocks in order of positions."""
    return {
        "id": label(sequence),
        "state": "running" if sequence in engine.scheduler.running else "waiting",
        "prompt_tokens": len(sequence.request.prompt),
        "computed_tokens": sequence.computed,
        "generated_tokens": sequence.generated,
        "cached_tokens": sequence.cached_tokens or 0,
        "table": list(sequence.table),
    }


def shared_blocks(engine: Engine, holders: dict[int, list[str]]) -> list[dict[str, Any]]:
    """Blocks in more than one table, with the prefix hash that lets them be shared."""
    rows = []
    for block, names in sorted(holders.items()):
        if len(names) > 1:
            entry = engine.prefix.by_block.get(block)
            rows.append(
                {
                    "block": block,
                    "references": engine.pool.references[block],
                    "hash": entry.digest.hex() if entry else None,
                    "holders": names,
                }
            )
    return rows


def fragmentation(sequences: list[Sequence], block_size: int) -> dict[str, int]:
    """Positions in blocks that live requests hold, and how many of them are filled.

    A shared block counts once, with the most that any of its holders has filled. Blocks are of one
    size and need no neighbours, so what stays empty inside them is all the fragmentation there is.
    """
    filled: Counter[int] = Counter()
    for sequence in sequences:
        for ordinal, block in enumerate(sequence.table):
            inside = min(block_size, max(0, sequence.computed - ordinal * block_size))
            filled[block] = max(filled[block], inside)
    return {
        "held_positions": len(filled) * block_size,
        "filled_positions": sum(filled.values()),
    }
