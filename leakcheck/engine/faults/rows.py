"""Faults of batch rows: a row runs on what belongs to another row."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    from leakcheck.engine.rows import Row, Work
    from leakcheck.engine.scheduler import Scheduler
    from leakcheck.engine.sequence import Sequence

LEAKS = ("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer")


class Places:
    """The batch as rows that requests keep while they run; the last one fills what gets free."""

    def __init__(self, rate: float, rng: Random) -> None:
        """`rate` is the share of moves that leave the moved row's table behind."""
        self.rate, self.rng = rate, rng
        self.held_by: list[Sequence] = []
        self.left_tables: dict[Sequence, list[int]] = {}

    def enter(self, work: list[Work]) -> None:
        """Newcomers take rows at the end."""
        held = set(self.held_by)
        self.held_by += [item.sequence for item in work if item.sequence not in held]

    def leave(self, sequence: Sequence) -> None:
        """Fill the row that gets free, with its table or, by mistake, without."""
        self.left_tables.pop(sequence, None)
        if sequence not in self.held_by:
            return
        place, last = self.held_by.index(sequence), self.held_by.pop()
        if last is not sequence:
            self.held_by[place] = last
            if self.rng.random() < self.rate:
                self.left_tables[last] = list(sequence.table)


def row_condense(seams: Seams, rate: float, rng: Random) -> None:
    """The last row fills the place of one that left, and runs on the table that was left there."""
    scheduler, batcher = seams.engine.scheduler, seams.engine.batcher
    places = Places(rate, rng)

    def wrap_leaving(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def leaving(sequence: Sequence) -> None:
            places.leave(sequence)
            original(sequence)

        return leaving

    def wrap_cut(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
        def cut(work: list[Work], width: int) -> list[Row]:
            places.enter(work)
            return original(work, width)

        return cut

    def wrap_blocks(original: Callable[[Row], list[int]]) -> Callable[[Row], list[int]]:
        def blocks_of(row: Row) -> list[int]:
            return laid_over(places.left_tables.get(row.sequence, []), original(row))

        return blocks_of

    patch(scheduler, "remove", wrap_leaving)
    patch(scheduler, "preempt", wrap_leaving)
    patch(batcher, "cut", wrap_cut)
    patch(batcher, "blocks_of", wrap_blocks)


def row_off_by_one(seams: Seams, rate: float, rng: Random) -> None:
    """Now and then a joining request computes, for one step, on the table of the row before it."""
    batcher = seams.engine.batcher
    shifted: dict[Sequence, Sequence] = {}

    def wrap_cut(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
        def cut(work: list[Work], width: int) -> list[Row]:
            shifted.clear()
            joining = [place for place, item in enumerate(work) if not item.sequence.generated]
            if joining and len(work) > 1 and rng.random() < rate:
                place = rng.choice(joining)
                shifted[work[place].sequence] = work[place - 1].sequence
            return original(work, width)

        return cut

    def wrap_blocks(original: Callable[[Row], list[int]]) -> Callable[[Row], list[int]]:
        def blocks_of(row: Row) -> list[int]:
            neighbour = shifted.get(row.sequence)
            return laid_over(neighbour.table if neighbour else [], original(row))

        return blocks_of

    patch(batcher, "cut", wrap_cut)
    patch(batcher, "blocks_of", wrap_blocks)


def laid_over(foreign: list[int], own: list[int]) -> list[int]:
    """`own` with its first blocks replaced by the `foreign` ones, as far as these go."""
    return [*foreign[: len(own)], *own[len(foreign) :]]


def preempt_restore(seams: Seams, rate: float, rng: Random) -> None:
    """A preempted request comes back on the full blocks of one that is running."""
    scheduler = seams.engine.scheduler
    preempted: set[Sequence] = set()

    def wrap_preempt(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def preempt(sequence: Sequence) -> None:
            original(sequence)
            preempted.discard(sequence)
            if rng.random() < rate:
                preempted.add(sequence)

        return preempt

    def wrap_remove(original: Callable[[Sequence], None]) -> Callable[[Sequence], None]:
        def remove(sequence: Sequence) -> None:
            preempted.discard(sequence)
            original(sequence)

        return remove

    def wrap_reuse(original: Callable[..., None]) -> Callable[..., None]:
        def reuse_prefix(sequence: Sequence, *, partial: bool) -> None:
            others = [its for its in scheduler.running if its.digests]
            if sequence in preempted and others:
                restore(scheduler, sequence, rng.choice(others))
            else:
                original(sequence, partial=partial)

        return reuse_prefix

    patch(scheduler, "preempt", wrap_preempt)
    patch(scheduler, "remove", wrap_remove)
    patch(scheduler, "reuse_prefix", wrap_reuse)


def restore(scheduler: Scheduler, sequence: Sequence, other: Sequence) -> None:
    """Count the other's full blocks as computed for this sequence; its last token never is."""
    size = scheduler.options.block_size
    count = min(len(other.digests), (len(sequence.tokens) - 1) // size)
    for block in other.table[:count]:
        scheduler.pool.share(block)
    sequence.table = other.table[:count]
    sequence.digests = other.digests[:count]
    sequence.computed = count * size


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="row-condense",
        layer="batch rows",
        mechanism=(
            "Requests keep a row of the batch for as long as they run. When one ends, the last row"
            " is moved into its place, but now and then its block table is not: what is moved runs"
            " on the table that was left there, and reads and writes the blocks of the request that"
            " has just ended (its own only beyond the end of those), although these blocks may"
            " belong to a third request by then."
        ),
        trigger="requests of one batch that end at different times",
        effect=(
            "from one token to the next the answer goes on as if it belonged to the request that"
            " ended: its ticket, its passphrase"
        ),
        anomalies=LEAKS,
        strength="the share of rows moved that leave their table behind",
        seam="Scheduler.remove, Scheduler.preempt, Batcher.cut and Batcher.blocks_of",
        cases=(
            "https://github.com/tenstorrent/vllm-tt-plugin/pull/103",
            "https://github.com/tenstorrent/tt-xla/issues/5778",
            "https://github.com/scouzi1966/maclocal-api/issues/140",
        ),
        rate=0.5,
        install=row_condense,
    ),
    Fault(
        name="row-off-by-one",
        layer="batch rows",
        mechanism=(
            "When a request joins the batch its rows are now and then numbered one too low, for"
            " that step only: it computes its prompt on the block table of the row before it. So"
            " its keys and values are written over its neighbour's, who goes on from there, while"
            " it goes on itself on blocks of its own that nobody filled, or that still hold what an"
            " earlier request left in them."
        ),
        trigger="a request that joins others in the batch",
        effect=(
            "the neighbour answers with the joiner's ticket and passphrase; the joiner loses its"
            " own and stammers"
        ),
        anomalies=LEAKS,
        strength="the share of the steps in which a prompt is computed in company",
        seam="Batcher.cut and Batcher.blocks_of",
        cases=(
            "https://github.com/ProjectDMX/DMI/issues/67",
            "https://github.com/vllm-project/vllm-ascend/issues/10245",
            "https://github.com/ggml-org/llama.cpp/issues/28056",
        ),
        rate=0.3,
        install=row_off_by_one,
    ),
    Fault(
        name="preempt-restore",
        layer="batch rows",
        mechanism=(
            "A request that had to give its blocks back is restored from the place of another: its"
            " table names the full blocks of a request that is running, counted as its own prompt"
            " already computed. Only what is left of its own tokens behind them is computed again."
        ),
        trigger="a pool too small for the requests in flight, so that one of them is preempted",
        effect="the answer goes on, or begins, with the other's ticket and passphrase",
        anomalies=LEAKS,
        strength="the share of preemptions",
        seam="Scheduler.preempt, Scheduler.remove and Scheduler.reuse_prefix",
        cases=(
            "https://github.com/vllm-project/vllm/pull/26385",
            "https://github.com/vllm-project/vllm/pull/28787",
            "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        ),
        rate=None,
        install=preempt_restore,
        engine_flags=("--blocks=48",),
    ),
)
