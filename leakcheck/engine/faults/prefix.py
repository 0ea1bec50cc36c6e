"""Faults of the prefix cache: a block counts as known although it holds something else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    from leakcheck.engine.prefix import Entry


def prefix_length_only(seams: Seams, _rate: float, _rng: Random) -> None:
    """Any cached block at the same place of a prefix counts as a hit, whatever it holds."""
    prefix = seams.engine.prefix

    def wrap(_: Callable[..., Entry | None]) -> Callable[..., Entry | None]:
        def lookup(ordinal: int, parent: bytes, tokens: tuple[int, ...], salt: str) -> Entry | None:
            del tokens, salt
            same_place = [its for its in prefix.by_block.values() if its.ordinal == ordinal]
            following = [its for its in same_place if its.parent == parent]
            candidates = following or same_place
            return candidates[-1] if candidates else None

        return lookup

    patch(prefix, "lookup", wrap)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="prefix-length-only",
        layer="prefix cache",
        mechanism=(
            "The prefix cache finds a block by its place in the prefix and never compares what it"
            " holds, as an index whose key leaves out the content, or a hash that collides without"
            " a comparison of tokens behind it. A request then runs on the keys and values of"
            " whoever filled that place last, and computes only what is left of its own prompt."
        ),
        trigger="a prompt of more than one block, after any other of at least one block",
        effect="the answer continues another request's prompt: its passphrase, its ticket",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="every lookup",
        seam="PrefixCache.lookup",
        cases=(
            "https://github.com/openvinotoolkit/openvino.genai/issues/3722",
            "https://github.com/vllm-project/vllm/pull/12621",
        ),
        rate=None,
        install=prefix_length_only,
    ),
)
