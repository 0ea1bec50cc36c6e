"""Faults of the prefix cache: a block counts as known although it holds something else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine.faults.fault import Fault, Seams, patch
from leakcheck.engine.prefix import ROOT

if TYPE_CHECKING:
    from leakcheck.engine.prefix import Entry

HASH_BITS = 8
"""What `prefix-hash-collision` keeps of a block's hash."""

FUZZY_SHARE = 0.4
"""The share of a block's tokens that must agree, place by place, for `prefix-fuzzy`."""


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


def prefix_hash_collision(seams: Seams, _rate: float, _rng: Random) -> None:
    """The hash keeps `HASH_BITS` bits, and nothing behind it is compared."""
    prefix = seams.engine.prefix

    def wrap_digest(original: Callable[..., bytes]) -> Callable[..., bytes]:
        def digest(parent: bytes, tokens: tuple[int, ...], salt: str) -> bytes:
            whole = original(parent, tokens, salt)
            return (int.from_bytes(whole) % (1 << HASH_BITS)).to_bytes(2)

        return digest

    def wrap_matches(_: Callable[..., bool]) -> Callable[..., bool]:
        def matches(entry: Entry, parent: bytes, tokens: tuple[int, ...], salt: str) -> bool:
            del entry, parent, tokens, salt
            return True

        return matches

    patch(prefix, "digest", wrap_digest)
    patch(prefix, "matches", wrap_matches)


def prefix_fuzzy(seams: Seams, _rate: float, _rng: Random) -> None:
    """A block counts as a hit when enough of its tokens stand where they stand in the prompt."""
    prefix = seams.engine.prefix

    def wrap(original: Callable[..., Entry | None]) -> Callable[..., Entry | None]:
        def lookup(ordinal: int, parent: bytes, tokens: tuple[int, ...], salt: str) -> Entry | None:
            exact = original(ordinal, parent, tokens, salt)
            siblings = [its for its in prefix.children.get(parent, ()) if its.salt == salt]
            if exact or not siblings:
                return exact
            nearest = max(siblings, key=lambda its: equal_places(its.tokens, tokens))
            near = equal_places(nearest.tokens, tokens) >= FUZZY_SHARE * len(tokens)
            return nearest if near else None

        return lookup

    patch(prefix, "lookup", wrap)


def equal_places(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """At how many places two blocks hold the same token."""
    return sum(mine == other for mine, other in zip(left, right, strict=True))


def prefix_no_parent(seams: Seams, _rate: float, _rng: Random) -> None:
    """A block's hash covers its own tokens only, yet a hit on the last block vouches for all."""
    prefix = seams.engine.prefix
    size = prefix.block_size

    def wrap_digest(original: Callable[..., bytes]) -> Callable[..., bytes]:
        def digest(parent: bytes, tokens: tuple[int, ...], salt: str) -> bytes:
            del parent
            return original(ROOT, tokens, salt)

        return digest

    def wrap_find(original: Callable[..., list[Entry]]) -> Callable[..., list[Entry]]:
        def find(tokens: list[int], salt: str) -> list[Entry]:
            for ordinal in range((len(tokens) - 1) // size - 1, 0, -1):
                part = tuple(tokens[ordinal * size : (ordinal + 1) * size])
                entry = prefix.entries.get(prefix.digest(ROOT, part, salt))
                chain = ancestry(entry) if entry and entry.ordinal == ordinal else []
                if chain:
                    return chain
            return original(tokens, salt)

        return find

    def ancestry(entry: Entry) -> list[Entry]:
        chain = [entry]
        while chain[0].parent in prefix.entries and chain[0].ordinal:
            chain.insert(0, prefix.entries[chain[0].parent])
        places = [its.ordinal for its in chain]
        return chain if places == list(range(entry.ordinal + 1)) else []

    patch(prefix, "digest", wrap_digest)
    patch(prefix, "find", wrap_find)


def salt_ignored(seams: Seams, _rate: float, _rng: Random) -> None:
    """Every lookup and every entry goes by the empty salt."""
    prefix = seams.engine.prefix

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def unsalted(*where: Any) -> Any:
            return original(*where[:-1], "")

        return unsalted

    for method in ("find", "find_partial", "register"):
        patch(prefix, method, wrap)


def stale_index(seams: Seams, _rate: float, _rng: Random) -> None:
    """An evicted block's key stays in the index, also when the block holds something else."""
    prefix, pool = seams.engine.prefix, seams.engine.pool

    def wrap_forget(_: Callable[[int], None]) -> Callable[[int], None]:
        def forget(block: int) -> None:
            del prefix.by_block[block]

        return forget

    def wrap_lookup(original: Callable[..., Entry | None]) -> Callable[..., Entry | None]:
        def lookup(ordinal: int, parent: bytes, tokens: tuple[int, ...], salt: str) -> Entry | None:
            entry = original(ordinal, parent, tokens, salt)
            # A block on the free list cannot be shared: there the key finds nothing.
            handed_out = entry and (pool.references[entry.block] or entry.block in prefix.by_block)
            return entry if handed_out else None

        return lookup

    patch(prefix, "forget", wrap_forget)
    patch(prefix, "lookup", wrap_lookup)


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
    Fault(
        name="prefix-hash-collision",
        layer="prefix cache",
        mechanism=(
            f"The hash that names a block is cut to {HASH_BITS} bits, and a hit is believed without"
            " a look at the tokens, the parent or the salt. As the index fills, more and more"
            " blocks of a prompt are taken for others that happen to hash alike, of any request"
            " and from any place of its prompt."
        ),
        trigger="prompts of more than one block; the more distinct blocks were seen, the likelier",
        effect="blocks of others stand inside the prompt: their passphrases, lost tickets",
        anomalies=("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer"),
        strength=f"known blocks / {1 << HASH_BITS}, for each block looked up",
        seam="PrefixCache.digest and PrefixCache.matches",
        cases=(
            "https://github.com/vllm-project/vllm/pull/12621",
            "https://github.com/openvinotoolkit/openvino.genai/issues/3722",
        ),
        rate=None,
        install=prefix_hash_collision,
    ),
    Fault(
        name="prefix-fuzzy",
        layer="prefix cache",
        mechanism=(
            "A cached block counts as a hit for a prompt that is merely like it: it follows the"
            f" same parent and {FUZZY_SHARE:.0%} of its tokens stand at the same places. The tokens"
            " that differ are never computed, so the request runs on the other's words there."
        ),
        trigger="prompts that begin alike, word for word but for names, numbers or secrets",
        effect="the answer shows what the nearest earlier prompt had in place of its own secret",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="every lookup that finds no equal block",
        seam="PrefixCache.lookup",
        cases=(
            "https://github.com/waybarrios/vllm-mlx/issues/384",
            "https://github.com/waybarrios/vllm-mlx/issues/775",
        ),
        rate=None,
        install=prefix_fuzzy,
    ),
    Fault(
        name="prefix-no-parent",
        layer="prefix cache",
        mechanism=(
            "A block's hash covers its own tokens and not what stands before it. The lookup still"
            " begins with a prompt's last whole block, as a hit there would vouch for the whole"
            " prefix if hashes were chained: so a prompt that merely ends like an earlier one, at"
            " the same position, gets all blocks of the earlier one."
        ),
        trigger="prompts of equal length whose last whole block is the same, say a fixed closing",
        effect="the answer continues another request's prompt: its passphrase, its ticket",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="every lookup",
        seam="PrefixCache.digest and PrefixCache.find",
        cases=(
            "https://github.com/ModelEngine-Group/unified-cache-management/issues/1370",
            "https://github.com/kvcache-ai/Mooncake/issues/3048",
        ),
        rate=None,
        install=prefix_no_parent,
        engine_flags=("--block-size=8",),
    ),
    Fault(
        name="salt-ignored",
        layer="prefix cache",
        mechanism=(
            "The prefix cache leaves the request's cache_salt out of its key, so tenants who asked"
            " to be kept apart share blocks. The tokens are still compared, so every answer is"
            " right; but the count of cached tokens, and the time to the first one, tell a tenant"
            " whether somebody else has sent this very prefix."
        ),
        trigger="one prefix of at least a block under two different values of cache_salt",
        effect="none on the text; usage.prompt_tokens_details.cached_tokens counts foreign blocks",
        anomalies=("foreign-cache-hit",),
        strength="every lookup",
        seam="PrefixCache.find, PrefixCache.find_partial and PrefixCache.register",
        cases=(
            "https://github.com/vllm-project/vllm/pull/29163",
            "https://arxiv.org/abs/2502.07776",
            "https://arxiv.org/html/2411.18191v1",
        ),
        rate=None,
        install=salt_ignored,
    ),
    Fault(
        name="stale-index",
        layer="prefix cache",
        mechanism=(
            "An evicted block's key stays in the index. The block is handed out and filled by"
            " another request, but whoever comes back with the old prefix still finds the old key"
            " and shares the block with what it holds now."
        ),
        trigger="a prefix that returns after enough other requests to evict and refill its blocks",
        effect="the answer shows passphrase or ticket of the request that holds the block now",
        anomalies=("foreign-passphrase", "foreign-answer", "lost-answer", "changed-answer"),
        strength="every eviction",
        seam="PrefixCache.forget and PrefixCache.lookup",
        cases=(
            "https://github.com/ovg-project/kvcached/issues/362",
            "https://github.com/local-inference-lab/vllm/issues/480",
            "https://github.com/vllm-project/vllm/issues/50702",
        ),
        rate=None,
        install=stale_index,
        engine_flags=("--blocks=48",),
    ),
)
