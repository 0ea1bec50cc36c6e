"""Faults of the life of a block: it changes hands while somebody still counts on its content."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    from leakcheck.engine.engine import Engine
    from leakcheck.engine.rows import Work
    from leakcheck.engine.sequence import Sequence

RECLAIM_STEPS = 3
"""Steps between a block's release and the late second half of it, under `async-reclaim`."""

STARVED_PAUSE_S = 0.01
"""A starved engine waits so long between two looks at its queue; else it would eat a core."""


def stale_block(seams: Seams, rate: float, rng: Random) -> None:
    """The count of filled positions outlives a block's owner; the next one skips as many."""
    scheduler = seams.engine.scheduler
    size = scheduler.options.block_size
    filled: dict[int, int] = {}

    def wrap_commit(original: Callable[[list[Work]], None]) -> Callable[[list[Work]], None]:
        def commit(work: list[Work]) -> None:
            for item in work:
                count_filled(item, filled, size)
            original(work)

        return commit

    def wrap_place(original: Callable[[Sequence, int], bool]) -> Callable[[Sequence, int], bool]:
        def place(sequence: Sequence, budget: int) -> bool:
            if not original(sequence, budget):
                return False
            scheduler.count_prefix(sequence)  # what follows is no hit of the prefix cache
            placed = len(sequence.table) * size >= len(sequence.tokens)
            if placed and rng.random() < rate:
                sequence.computed = already_filled(sequence, filled, size)
            return True

        return place

    patch(scheduler, "commit", wrap_commit)
    patch(scheduler, "place", wrap_place)


def count_filled(work: Work, filled: dict[int, int], size: int) -> None:
    """Raise the count of each block that this work writes into."""
    end = work.start + work.count
    for ordinal in range(work.start // size, -(-end // size)):
        block = work.sequence.table[ordinal]
        filled[block] = max(filled.get(block, 0), min(end - ordinal * size, size))


def already_filled(sequence: Sequence, filled: dict[int, int], size: int) -> int:
    """Positions that count as computed, by what the blocks' former owners filled."""
    known = sequence.computed
    for ordinal in range(known // size, len(sequence.table)):
        known = max(known, ordinal * size + filled.get(sequence.table[ordinal], 0))
        if known < (ordinal + 1) * size:
            break
    return min(known, len(sequence.tokens) - 1)


def early_free(seams: Seams, rate: float, rng: Random) -> None:
    """Full prompt blocks are released at the first token, though every later one reads them."""
    scheduler, pool = seams.engine.scheduler, seams.engine.pool
    size = scheduler.options.block_size
    gone: dict[Sequence, int] = {}

    def wrap_commit(original: Callable[[list[Work]], None]) -> Callable[[list[Work]], None]:
        def commit(work: list[Work]) -> None:
            original(work)
            for item in work:
                sequence, prompt = item.sequence, len(item.sequence.request.prompt)
                done = item.start < prompt <= sequence.computed
                if done and sequence.request.n == 1 and rng.random() < rate:
                    gone[sequence] = prompt // size
                    for block in reversed(sequence.table[: gone[sequence]]):
                        pool.release(block)

        return commit

    def wrap_give_back(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def give_back(sequence: Sequence) -> None:
            sequence.table = sequence.table[gone.pop(sequence, 0) :]
            original(sequence)

        return give_back

    patch(scheduler, "commit", wrap_commit)
    patch(scheduler, "give_back", wrap_give_back)


def async_reclaim(seams: Seams, _rate: float, _rng: Random) -> None:
    """A block is free at once; its retirement comes steps later and hits its next holder."""
    scheduler, pool = seams.engine.scheduler, seams.engine.pool
    free = pool.reclaim
    late: list[tuple[int, int]] = []
    steps = 0

    def wrap_reclaim(original: Callable[[int], None]) -> Callable[[int], None]:
        def reclaim(block: int) -> None:
            original(block)
            late.append((steps + RECLAIM_STEPS, block))

        return reclaim

    def wrap_schedule(original: Callable[[], list[Work]]) -> Callable[[], list[Work]]:
        def schedule() -> list[Work]:
            nonlocal steps
            steps += 1
            while late and late[0][0] <= steps:
                free_again(seams.engine, late.pop(0)[1], free)
            return original()

        return schedule

    def wrap_release(original: Callable[[int], None]) -> Callable[[int], None]:
        def release(block: int) -> None:
            if pool.references[block]:  # else its late retirement has released it already
                original(block)

        return release

    patch(pool, "reclaim", wrap_reclaim)
    patch(pool, "release", wrap_release)
    patch(scheduler, "schedule", wrap_schedule)


def free_again(engine: Engine, block: int, free: Callable[[int], None]) -> None:
    """The late half of a release: whoever holds the block now has lost it without knowing."""
    if not engine.pool.references[block]:
        return
    if block in engine.prefix.by_block:
        engine.pool.forget(block)
    engine.pool.references[block] = 0
    free(block)


def refcount_leak(seams: Seams, rate: float, rng: Random) -> None:
    """A share of releases is lost: the block keeps a reference that nobody holds."""
    scheduler, pool = seams.engine.scheduler, seams.engine.pool

    def wrap_release(original: Callable[[int], None]) -> Callable[[int], None]:
        def release(block: int) -> None:
            if rng.random() >= rate:
                original(block)

        return release

    def wrap_schedule(original: Callable[[], list[Work]]) -> Callable[[], list[Work]]:
        def schedule() -> list[Work]:
            work = original()
            if not work:
                time.sleep(STARVED_PAUSE_S)
            return work

        return schedule

    patch(pool, "release", wrap_release)
    patch(scheduler, "schedule", wrap_schedule)


def cow_missing(seams: Seams, _rate: float, _rng: Random) -> None:
    """Whoever shares the head of a block writes its own tail into it, in place."""
    scheduler, prefix = seams.engine.scheduler, seams.engine.prefix

    def wrap_make_writable(_: Callable[..., bool]) -> Callable[..., bool]:
        def make_writable(sequence: Sequence, ordinal: int) -> bool:
            del sequence, ordinal
            return True

        return make_writable

    def wrap_register(
        original: Callable[..., tuple[bytes, bool]],
    ) -> Callable[..., tuple[bytes, bool]]:
        def register(
            block: int, ordinal: int, parent: bytes, tokens: tuple[int, ...], salt: str
        ) -> tuple[bytes, bool]:
            if block in prefix.by_block:  # it goes by its first owner's tokens for ever
                return prefix.digest(parent, tokens, salt), False
            return original(block, ordinal, parent, tokens, salt)

        return register

    patch(scheduler, "make_writable", wrap_make_writable)
    patch(prefix, "register", wrap_register)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="stale-block",
        layer="block lifecycle",
        mechanism=(
            "Each block keeps count of the positions that are filled, and the count outlives the"
            " request it belonged to. A new request that gets such a block takes it as already"
            " computed and skips as many tokens of its own prompt: it runs on the keys and values"
            " that the block's last owner left there, passphrase and ticket included."
        ),
        trigger=(
            "a request that gets blocks of one that has ended: one after the other, or any burst"
            " after the first. Without a prefix cache the blocks come back in the order in which"
            " their owner held them"
        ),
        effect="the answer is about the former owner's prompt: its passphrase, its ticket",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="the share of admitted requests that trust the count",
        seam="Scheduler.commit and Scheduler.place",
        cases=(
            "https://github.com/sgl-project/sglang/pull/35049",
            "https://github.com/vllm-project/vllm/issues/55600",
            "https://github.com/waybarrios/vllm-mlx/issues/384",
        ),
        rate=0.25,
        install=stale_block,
        engine_flags=("--no-prefix-cache",),
    ),
    Fault(
        name="early-free",
        layer="block lifecycle",
        mechanism=(
            "The whole blocks of a prompt are released when its first token has been sampled,"
            " although every later token still reads them. The next request that needs a block"
            " gets one of them and fills it; from that step on the early one attends to another's"
            " prompt or answer where its own prompt was."
        ),
        trigger="requests that start, or grow by a block, while an earlier one is still speaking",
        effect=(
            "an answer that begins rightly turns to another request's ticket and passphrase, or"
            " loses its own"
        ),
        anomalies=("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer"),
        strength="the share of prompts that are released early",
        seam="Scheduler.commit and Scheduler.give_back",
        cases=(
            "https://github.com/sgl-project/sglang/issues/23392",
            "https://github.com/sgl-project/sglang/pull/24580",
            "https://github.com/vllm-project/vllm/pull/41834",
        ),
        rate=0.5,
        install=early_free,
        engine_flags=("--no-prefix-cache",),
    ),
    Fault(
        name="async-reclaim",
        layer="block lifecycle",
        mechanism=(
            "A released block is on the free list at once, but the second half of its release runs"
            f" {RECLAIM_STEPS} steps later and frees it again. When the block has got a new owner"
            " meanwhile, that owner loses it while it goes on reading it, and a third request"
            " fills it."
        ),
        trigger=(
            f"a request that ends or is aborted, a second one that starts within {RECLAIM_STEPS}"
            " steps and a third one that starts while the second is at work"
        ),
        effect="the second request speaks the third's ticket and passphrase, or loses its own",
        anomalies=("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer"),
        strength="every block that is released and handed out again within these steps",
        seam="BlockPool.reclaim, BlockPool.release and Scheduler.schedule",
        cases=(
            "https://github.com/sgl-project/sglang/pull/35049",
            "https://github.com/sgl-project/sglang/issues/23392",
            "https://github.com/vllm-project/vllm/pull/26385",
        ),
        rate=None,
        install=async_reclaim,
        engine_flags=("--no-prefix-cache",),
    ),
    Fault(
        name="refcount-leak",
        layer="block lifecycle",
        mechanism=(
            "A share of the references that ended requests give back is never taken off the count."
            " Nobody holds these blocks, yet they are neither free nor may they be evicted: the"
            " pool shrinks with every request, until nobody gets a block any more and all wait."
        ),
        trigger="any traffic that lasts; aborted requests count like others",
        effect=(
            "answers stay right; later ones are preempted and late, in the end none comes: requests"
            " hang until their client gives up"
        ),
        anomalies=("lost-capacity",),
        strength="the share of releases that are lost",
        seam="BlockPool.release and Scheduler.schedule",
        cases=(
            "https://github.com/ray-project/ray/issues/41057",
            "https://github.com/ikawrakow/ik_llama.cpp/issues/1343",
        ),
        rate=0.2,
        install=refcount_leak,
        engine_flags=("--blocks=320",),
    ),
    Fault(
        name="cow-missing",
        layer="block lifecycle",
        mechanism=(
            "A request that shares the matching head of another's block should copy the block"
            " before it writes its own tokens behind the head; here it writes them in place."
            " Whoever else reads that block, at the same time or through the prefix cache later,"
            " reads the last writer's tokens."
        ),
        trigger="prompts that begin alike and part within a block, at the same time or repeated",
        effect="the answer shows ticket or passphrase of the last request that wrote the block",
        anomalies=("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer"),
        strength="every write into a shared block",
        seam="Scheduler.make_writable and PrefixCache.register",
        cases=(
            "https://github.com/waybarrios/vllm-mlx/pull/385",
            "https://github.com/kvcache-ai/Mooncake/issues/4153",
        ),
        rate=None,
        install=cow_missing,
        engine_flags=("--share-partial",),
    ),
)
