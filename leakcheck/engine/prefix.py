"""The prefix cache: which block already holds the keys and values of these tokens."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b

ROOT = b""
"""The parent digest of a first block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One full block whose content is known: block number `ordinal` of its prefix."""

    block: int
    ordinal: int
    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]
    salt: str


class PrefixCache:
    """An index of full blocks by a hash chain over parent, tokens and salt.

    A hit counts only after the tokens, the parent and the salt were compared themselves. The last
    token of a prompt is never a hit: its logits are needed.
    """

    def __init__(self, block_size: int, *, enabled: bool = True) -> None:
        """Empty; when not `enabled` it stays so and finds nothing."""
        self.block_size = block_size
        self.enabled = enabled
        self.entries: dict[bytes, Entry] = {}
        self.by_block: dict[int, Entry] = {}
        self.children: dict[bytes, list[Entry]] = {}

    def find(self, tokens: list[int], salt: str) -> list[Entry]:
        """The longest chain of known blocks that `tokens` begin with, first block first."""
        chain: list[Entry] = []
        if not self.enabled:
            return chain
        size, parent = self.block_size, ROOT
        for ordinal in range((len(tokens) - 1) // size):
            part = tuple(tokens[ordinal * size : (ordinal + 1) * size])
            entry = self.lookup(ordinal, parent, part, salt)
            if entry is None:
                break
            chain.append(entry)
            parent = entry.digest
        return chain

    def find_partial(
        self, chain: list[Entry], tokens: list[int], salt: str
    ) -> tuple[Entry, int] | None:
        """The known block after `chain` that shares most tokens with the rest, and how many.

        None when no block shares any; the last of `tokens` is never counted.
        """
        parent = chain[-1].digest if chain else ROOT
        rest = tokens[len(chain) * self.block_size : -1]
        candidates = [entry for entry in self.children.get(parent, ()) if entry.salt == salt]
        best = max(candidates, key=lambda entry: common(entry.tokens, rest), default=None)
        shared = common(best.tokens, rest) if best else 0
        return (best, shared) if best and shared else None

    def lookup(
        self, ordinal: int, parent: bytes, tokens: tuple[int, ...], salt: str
    ) -> Entry | None:
        """The entry that holds exactly this block after exactly this parent, or None."""
        del ordinal  # the parent's digest says it already
        entry = self.entries.get(self.digest(parent, tokens, salt))
        return entry if entry and self.matches(entry, parent, tokens, salt) else None

    def digest(self, parent: bytes, tokens: tuple[int, ...], salt: str) -> bytes:
        """16 bytes that name this block's content with everything before it."""
        hashed = blake2b(array("q", tokens).tobytes(), digest_size=16)
        hashed.update(len(parent).to_bytes() + parent + salt.encode())
        return hashed.digest()

    def matches(self, entry: Entry, parent: bytes, tokens: tuple[int, ...], salt: str) -> bool:
        """Whether the entry is what was looked for, whatever its hash says."""
        return entry.tokens == tokens and entry.parent == parent and entry.salt == salt

    def register(
        self, block: int, ordinal: int, parent: bytes, tokens: tuple[int, ...], salt: str
    ) -> tuple[bytes, bool]:
        """The digest of a block just filled, and whether this block is now the one known for it.

        The first block with some content stays the known one; a later twin stays private.
        """
        digest = self.digest(parent, tokens, salt)
        if not self.enabled or digest in self.entries:
            return digest, False
        entry = Entry(
            block=block, ordinal=ordinal, digest=digest, parent=parent, tokens=tokens, salt=salt
        )
        self.entries[digest] = self.by_block[block] = entry
        self.children.setdefault(parent, []).append(entry)
        return digest, True

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        entry = self.by_block.pop(block)
        del self.entries[entry.digest]
        siblings = self.children[entry.parent]
        siblings.remove(entry)
        if not siblings:
            del self.children[entry.parent]


def common(left: tuple[int, ...], right: list[int]) -> int:
    """How many tokens two sequences share from their start."""
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return index
    return min(len(left), len(right))
