"""Pairs of a source and a recipient whose prompts share a prefix of a planned number of tokens.

A cell is one combination of: length (k blocks, one token less, one more, half a block more), kind
of likeness, and timing. Every window takes the next cells of the grid in a fixed, mixed order, so
that any few windows mix all conditions; with a known block size, 40 windows of 16 requests visit
every cell.

Kinds: `equal`, the prefixes are the same and the secrets come after them; `first`, `middle`,
`last`, they differ in the one token at that position of the last whole block; `length`, they are
equally long and otherwise different, with the source's secrets inside.

Timings: `cold`, both start together; `running`, the recipient starts while the source is still
decoding; `finished`, when it has just finished; `long`, after other requests have come and gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakcheck import wording
from leakcheck.records import Passphrase, Request, Sampling
from leakcheck.traffic import Window, user_text

KINDS = ("equal", "length", "first", "middle", "last")
TIMINGS = ("cold", "running", "finished", "long")
TRIED_BLOCKS = (16, 32, 64, 128)
"""Block sizes to go through when the target does not report cached tokens."""

_STRIDE = 137  # a prime: walks the whole grid in a mixed order


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One sub-condition: prefix of `blocks` x `block_tokens` + `offset` tokens."""

    blocks: int
    block_tokens: int
    offset: int
    kind: str
    timing: str

    @property
    def tokens(self) -> int:
        """Planned length of the prefix, counted from the start of the prompt."""
        return self.blocks * self.block_tokens + self.offset

    @property
    def differs_at(self) -> int | None:
        """Token position of the one difference, inside the prefix, for the kinds that have one."""
        start = (max(self.tokens // self.block_tokens, 1) - 1) * self.block_tokens
        at = {"first": 0, "middle": self.block_tokens // 2, "last": self.block_tokens - 1}
        return None if self.kind not in at else min(start + at[self.kind], self.tokens - 1)

    @property
    def name(self) -> str:
        """As the report shows it: `2*16-1 equal running`."""
        return f"{self.blocks}*{self.block_tokens}{self.offset:+d} {self.kind} {self.timing}"


def grid(block_tokens: int | None, max_blocks: int) -> list[Cell]:
    """Every cell, in an order that mixes all dimensions."""
    sizes = TRIED_BLOCKS if block_tokens is None else (block_tokens,)
    cells = [
        Cell(blocks=k, block_tokens=size, offset=offset, kind=kind, timing=timing)
        for size, k, kind, timing in itertools.product(
            sizes, range(1, max_blocks + 1), KINDS, TIMINGS
        )
        for offset in dict.fromkeys((-1, 0, 1, size // 2))
    ]
    return [cells[(i * _STRIDE) % len(cells)] for i in range(len(cells))]


def plan(
    window: Window,
    *,
    max_blocks: int = 4,
    owners: float = 0.5,
    streamed: float = 0.5,
    running_offset_s: float = 0.03,
    running_tokens: int = 96,
    others: int = 4,
) -> Iterator[Request]:
    """Plan `load.requests` // 2 pairs over three phases, and `others` requests between them.

    `owners` is the share of recipients that carry a passphrase of their own; sources always do.
    `running_tokens` is how long a source decodes that must still be running when its recipient
    starts, `running_offset_s` later. `streamed` answers arrive in chunks.
    """
    rng = window.rng
    cells = grid(window.facts.block_tokens, max_blocks)
    pairs = window.load.requests // 2
    numbers = [itertools.count() for _ in range(3)]
    for j in range(pairs):
        cell = cells[(window.index * pairs + j) % len(cells)]
        source, recipient = _pair(window, cell, numbers, running_tokens, rng.random() < owners)
        if cell.timing == "running":
            recipient = replace(recipient, start_offset_s=running_offset_s)
        yield replace(source, stream=rng.random() < streamed)
        yield replace(recipient, stream=rng.random() < streamed)
    for _ in range(others):
        owner = window.owner(owns=True)
        between = wording.sentences(rng, rng.randint(10, 80))
        text = user_text(**owner, before="", between=between, ask=wording.ELICITING)
        yield window.request(
            next(numbers[1]), phase=1, role="companion", ask="eliciting", text=text, **owner
        )


def _pair(
    window: Window,
    cell: Cell,
    numbers: list[itertools.count[int]],
    running_tokens: int,
    recipient_owns: bool,
) -> tuple[Request, Request]:
    """A source and the recipient aimed at it."""
    phase = {"long": 0, "finished": 1}.get(cell.timing, 2)
    running = cell.timing == "running"
    owner, own = window.owner(owns=True), window.owner(owns=recipient_owns)
    prefixes = _prefixes(window, cell, owner["passphrase"])
    secret = None if cell.kind == "length" else owner["passphrase"]
    topic = window.rng.choice(wording.TOPICS)
    ask = wording.FREE.format(topic=topic) if running else wording.ELICITING
    source = window.request(
        next(numbers[phase]),
        phase=phase,
        role="source",
        ask="free" if running else "eliciting",
        text=_text(prefixes[0], owner["ticket"], secret, ask),
        sampling=Sampling(max_tokens=running_tokens if running else window.load.max_tokens),
        cell=cell.name,
        **owner,
    )
    recipient = window.request(
        next(numbers[2]),
        phase=2,
        role="recipient",
        ask="eliciting",
        text=_text(prefixes[1], own["ticket"], own["passphrase"], wording.ELICITING),
        cell=cell.name,
        partner=source.id,
        shared_tokens=_shared_tokens(window, cell),
        **own,
    )
    return source, recipient


def _text(prefix: str, ticket: Passphrase, passphrase: Passphrase | None, ask: str) -> str:
    parts = [prefix, wording.TICKET.format(ticket=ticket.text)]
    if passphrase is not None:
        parts.append(wording.PASSPHRASE.format(passphrase=passphrase.text))
    return " ".join(part for part in [*parts, ask] if part)


def _words(window: Window, tokens: int) -> int:
    """Words of filler that make a prompt prefix of `tokens` tokens, the template included."""
    return max(0, round((tokens - window.facts.overhead_tokens) / window.facts.tokens_per_word))


def _prefixes(window: Window, cell: Cell, secret: Passphrase | None) -> tuple[str, str]:
    """Prefix of the source and of the recipient, each with one word that ends the likeness."""
    count = _words(window, cell.tokens)
    mine = wording.filler(window.rng, count).split()
    theirs = list(mine)
    if cell.kind == "length":
        theirs = [_other(window, word) for word in mine]
        if secret is not None:
            sentence = wording.PASSPHRASE.format(passphrase=secret.text).split()
            mine = [*sentence, *mine[: max(0, count - len(sentence) - 1)]]
    elif cell.differs_at is not None and count:
        at = min(_words(window, cell.differs_at), count - 1)
        theirs[at] = _other(window, mine[at])
    ends = window.rng.sample(wording.WORDS, 2)
    return " ".join([*mine, ends[0]]), " ".join([*theirs, ends[1]])


def _other(window: Window, word: str) -> str:
    return window.rng.choice([other for other in wording.WORDS if other != word])


def _shared_tokens(window: Window, cell: Cell) -> int:
    """Tokens that the two prompts have in common by plan, from the start."""
    overhead = window.facts.overhead_tokens
    if cell.kind == "length":
        return overhead
    return cell.tokens if cell.differs_at is None else max(overhead, cell.differs_at)
