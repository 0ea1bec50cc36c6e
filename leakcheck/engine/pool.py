"""Who holds which physical block: reference counts, a free list, and an LRU of cached blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class BlockPool:
    """A bounded pool of block numbers `0..num_blocks-1`; the contents live in `cache.KVStore`.

    A block is *used* (at least one reference), *cached* (no reference, but the prefix cache knows
    its content: it may be shared again, or evicted, oldest first) or *free*. A released block is
    not cleared: its next holder writes a position before it reads it.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        """All blocks are free; `on_evict` hears of every cached block given up."""
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self.evictions = 0
        self._on_evict = on_evict
        self._free = list(range(num_blocks - 1, -1, -1))
        self._known: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()

    def allocate(self) -> int | None:
        """A block with one reference, or None when every block is used."""
        if not self._free and not self.evict():
            return None
        block = self._free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a used or cached block."""
        self._idle.pop(block, None)
        self.references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; without any the block becomes cached or free."""
        if self.references[block] < 1:
            raise RuntimeError(f"block {block} is released more often than it is held")
        self.references[block] -= 1
        if self.references[block]:
            return
        if block in self._known:
            self._idle[block] = None
        else:
            self.reclaim(block)

    def reclaim(self, block: int) -> None:
        """A block that nobody holds and the prefix cache does not know may be handed out again."""
        self._free.append(block)

    def keep(self, block: int) -> None:
        """The prefix cache knows this block's content from now on."""
        self._known.add(block)

    def evict(self) -> bool:
        """Make the least recently used cached block free; False when there is none."""
        if not self._idle:
            return False
        block, _ = self._idle.popitem(last=False)
        self.forget(block)
        self.reclaim(block)
        self.evictions += 1
        return True

    def forget(self, block: int) -> None:
        """The prefix cache does not know this block's content from now on."""
        self._known.discard(block)
        self._on_evict(block)

    def writable(self, block: int) -> bool:
        """Whether its one holder may write into it: nobody else reads it or may come to."""
        return self.references[block] == 1 and block not in self._known

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """The blocks that hold nothing of interest; the last one is handed out next."""
        return tuple(self._free)

    @property
    def cached_blocks(self) -> tuple[int, ...]:
        """The blocks without a reference that can still be shared; the first is evicted next."""
        return tuple(self._idle)

    @property
    def free_count(self) -> int:
        """Blocks that hold nothing of interest."""
        return len(self._free)

    @property
    def cached_count(self) -> int:
        """Blocks without a reference whose content can still be shared."""
        return len(self._idle)

    @property
    def used_count(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - len(self._free) - len(self._idle)
