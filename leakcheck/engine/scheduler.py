"""Who runs in the next step, on which blocks: continuous batching with preemption."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from leakcheck.engine.cache import KVStore
from leakcheck.engine.pool import BlockPool
from leakcheck.engine.prefix import ROOT, PrefixCache
from leakcheck.engine.rows import Work
from leakcheck.engine.sequence import Sequence
from leakcheck.engine.values import EngineOptions

by_order = attrgetter("order")


class Scheduler:
    """First come, first served; sequences join and leave at every step.

    When blocks run out the latest arrival gives its blocks back and waits; it is computed again
    later, from its prompt and what it had generated.
    """

    def __init__(
        self, options: EngineOptions, pool: BlockPool, prefix: PrefixCache, store: KVStore
    ) -> None:
        """All parts belong to one engine."""
        self.options = options
        self.pool = pool
        self.prefix = prefix
        self.store = store
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        insort(self.waiting, sequence, key=by_order)

    def schedule(self) -> list[Work]:
        """The work of the next step, at most `step_tokens` tokens; blocks are reserved for it."""
        work: dict[Sequence, Work] = {}
        budget = self.options.step_tokens
        # Decoding first: a long prompt must not stall those who are already speaking.
        for sequence in sorted(self.running, key=lambda its: (its.remaining > 1, its.order)):
            count = min(sequence.remaining, budget)
            if sequence not in self.running or not count:
                continue
            if self.reserve(sequence, sequence.computed + count, work):
                work[sequence] = Work(sequence=sequence, start=sequence.computed, count=count)
                budget -= count
        self.admit(work, budget)
        return list(work.values())

    def admit(self, work: dict[Sequence, Work], budget: int) -> None:
        """Let waiting sequences in while there are tokens, places and blocks."""
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            places = sum(1 + its.forks for its in self.running)
            if places + 1 + sequence.forks > self.options.max_running:
                return
            if not self.place(sequence, budget):
                return
            count = min(sequence.remaining, budget)
            self.count_prefix(sequence)
            del self.waiting[0]
            insort(self.running, sequence, key=by_order)
            work[sequence] = Work(sequence=sequence, start=sequence.computed, count=count)
            budget -= count

    def place(self, sequence: Sequence, budget: int) -> bool:
        """Blocks for the first chunk of a waiting sequence, without taking anybody's."""
        # Copying a partly shared block needs one block more than not sharing it.
        for partial in (True, False) if self.options.share_partial else (False,):
            self.reuse_prefix(sequence, partial=partial)
            if self.extend(sequence, sequence.computed + min(sequence.remaining, budget)):
                return True
            self.give_back(sequence)
        return False

    def reuse_prefix(self, sequence: Sequence, *, partial: bool) -> None:
        """Start the sequence's table with the cached blocks its tokens begin with."""
        salt = sequence.request.salt
        chain = self.prefix.find(sequence.tokens, salt)
        for entry in chain:
            self.pool.share(entry.block)
        sequence.table = [entry.block for entry in chain]
        sequence.digests = [entry.digest for entry in chain]
        sequence.computed = len(chain) * self.options.block_size
        head = self.prefix.find_partial(chain, sequence.tokens, salt) if partial else None
        if head is not None:
            entry, shared = head
            self.pool.share(entry.block)
            sequence.table.append(entry.block)
            sequence.computed += shared

    def count_prefix(self, sequence: Sequence) -> None:
        """Count hits once a sequence: not again when it comes back from preemption."""
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.prefix_queries_tokens += len(sequence.request.prompt)
            self.prefix_hits_tokens += sequence.computed

    def reserve(self, sequence: Sequence, end: int, work: dict[Sequence, Work]) -> bool:
        """Blocks for `end` positions, at the expense of later arrivals; False: it had to yield."""
        while not self.extend(sequence, end):
            victim = self.running[-1]
            work.pop(victim, None)
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def extend(self, sequence: Sequence, end: int) -> bool:
        """Make positions `computed` to `end - 1` writable; False when blocks run out."""
        first = sequence.computed // self.options.block_size
        if first < len(sequence.table) and not self.make_writable(sequence, first):
            return False
        while len(sequence.table) * self.options.block_size < end:
            block = self.pool.allocate()
            if block is None:
                return False
            sequence.table.append(block)
        return True

    def make_writable(self, sequence: Sequence, ordinal: int) -> bool:
        """Copy on write: replace a block others read by a copy; False when blocks run out."""
        shared = sequence.table[ordinal]
        if self.pool.writable(shared):
            return True
        copy = self.pool.allocate()
        if copy is None:
            return False
        self.store.copy(shared, copy)
        sequence.table[ordinal] = copy
        self.pool.release(shared)
        return True

    def commit(self, work: list[Work]) -> None:
        """The work was computed: its positions are filled, its full blocks become known."""
        for item in work:
            item.sequence.computed += item.count
            self.remember(item.sequence)

    def remember(self, sequence: Sequence) -> None:
        """Register the sequence's newly filled blocks with the prefix cache."""
        size = self.options.block_size
        for ordinal in range(len(sequence.digests), sequence.computed // size):
            parent = sequence.digests[-1] if sequence.digests else ROOT
            part = tuple(sequence.tokens[ordinal * size : (ordinal + 1) * size])
            block, salt = sequence.table[ordinal], sequence.request.salt
            digest, known = self.prefix.register(block, ordinal, parent, part, salt)
            if known:
                self.pool.keep(block)
            sequence.digests.append(digest)

    def fork(self, sequence: Sequence, child: Sequence) -> None:
        """Let `child` run on the same blocks as `sequence`."""
        for block in sequence.table:
            self.pool.share(block)
        child.table = list(sequence.table)
        child.digests = list(sequence.digests)
        child.computed = sequence.computed
        child.cached_tokens = sequence.cached_tokens
        insort(self.running, child, key=by_order)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks away; it waits to be computed again."""
        self.running.remove(sequence)
        self.give_back(sequence)
        self.preemptions += 1
        insort(self.waiting, sequence, key=by_order)

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended, wherever it was."""
        queue = self.running if sequence in self.running else self.waiting
        queue.remove(sequence)
        self.give_back(sequence)

    def give_back(self, sequence: Sequence) -> None:
        """Release every block, the last first: a prefix is worth more than its end."""
        for block in reversed(sequence.table):
            self.pool.release(block)
        sequence.table = []
        sequence.digests = []
        sequence.computed = 0
