"""Every isolation fault the engine can switch on. No torch here: `--list-faults` must be quick.

A fault patches a named method of one built engine or server (its *seam*) and nothing else; without
a fault none of this code runs. Each is deterministic in its seed, given the same arrivals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from leakcheck.engine.delivery import Delivery, Mailbox
    from leakcheck.engine.engine import Engine
    from leakcheck.engine.prefix import Entry
    from leakcheck.engine.rows import Row
    from leakcheck.engine.server import Api
    from leakcheck.engine.values import Update

Layer = Literal["prefix cache", "attention", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What a fault may patch; without a server there is no `api`."""

    engine: Engine
    delivery: Delivery
    api: Api | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which isolation breaks, and how to switch it on.

    `rate` is the default share of the occasions named in `strength`; None: every occasion.
    """

    name: str
    layer: Layer
    mechanism: str
    trigger: str
    effect: str
    anomaly: str
    strength: str
    seam: str
    cases: tuple[str, ...]
    rate: float | None
    install: Callable[[Seams, float, Random], None]

    def as_row(self) -> dict[str, Any]:
        """The JSON form for `--list-faults`."""
        names = [name for name in self.__slots__ if name != "install"]
        return {name: getattr(self, name) for name in names}


def find(name: str) -> Fault:
    """The fault of this name; LookupError names those there are."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    known = ", ".join(fault.name for fault in FAULTS)
    raise LookupError(f"there is no fault {name!r}; the engine has {known}")


def patch(owner: object, method: str, replace: Callable[[Any], Callable[..., Any]]) -> None:
    """Put `replace(original)` in the place of one object's method; a missing seam is an error."""
    setattr(owner, method, replace(getattr(owner, method)))


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


def mask_broadcast(seams: Seams, _rate: float, _rng: Random) -> None:
    """The mask of the longest row serves all: a shorter row sees its padding, a neighbour's end."""
    batcher = seams.engine.batcher
    size = batcher.block_size

    def wrap_pad(original: Callable[..., None]) -> Callable[..., None]:
        def pad(table: npt.NDArray[np.int64], rows: list[Row]) -> None:
            original(table, rows)
            longest = max(range(len(rows)), key=lambda index: rows[index].end)
            for index, row in enumerate(rows):
                if row.sequence.request.id != rows[longest].sequence.request.id:
                    own = -(-row.end // size)
                    table[index, own:] = table[longest, own:]

        return pad

    def wrap_mask(original: Callable[..., Any]) -> Callable[..., Any]:
        def mask(rows: list[Row], positions: npt.NDArray[np.int64], keys: int) -> Any:
            visible = original(rows, positions, keys)
            longest = max(rows, key=lambda row: row.end)
            for index, row in enumerate(rows):
                if row.sequence.request.id != longest.sequence.request.id:
                    visible[index, :, :, -(-row.end // size) * size : longest.end] = True
            return visible

        return mask

    patch(batcher, "pad", wrap_pad)
    patch(batcher, "mask", wrap_mask)


def response_swap(seams: Seams, rate: float, rng: Random) -> None:
    """Now and then two answers in flight, neither begun, change their clients."""
    delivery = seams.delivery
    wired: dict[str, str] = {}
    begun: set[str] = set()

    def wrap_open(original: Callable[[str, Mailbox], None]) -> Callable[[str, Mailbox], None]:
        def open_mailbox(request_id: str, mailbox: Mailbox) -> None:
            original(request_id, mailbox)
            boxes = delivery.mailboxes
            others = [
                other
                for other, box in boxes.items()
                if other not in {request_id, *begun, *wired} and box.choices == mailbox.choices
            ]
            if others and rng.random() < rate:
                other = rng.choice(others)
                boxes[request_id], boxes[other] = boxes[other], boxes[request_id]
                wired.update({request_id: other, other: request_id})

        return open_mailbox

    def wrap_route(original: Callable[..., Mailbox | None]) -> Callable[..., Mailbox | None]:
        def route(update: Update) -> Mailbox | None:
            begun.add(update.id)
            return original(update)

        return route

    def wrap_close(original: Callable[[str], str]) -> Callable[[str], str]:
        def close(request_id: str) -> str:
            answered_by = wired.pop(request_id, request_id)
            begun.discard(answered_by)
            return original(answered_by)

        return close

    patch(delivery, "open", wrap_open)
    patch(delivery, "route", wrap_route)
    patch(delivery, "close", wrap_close)


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
        anomaly="foreign-passphrase or foreign-answer",
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
        name="mask-broadcast",
        layer="attention",
        mechanism=(
            "One attention mask, built from the longest row of the batch, serves every row, and the"
            " unused end of a shorter row's block table still names the longest row's blocks. So"
            " the shorter row attends to the last blocks of its neighbour in every layer."
        ),
        trigger="two requests in one batch whose lengths differ by at least a block",
        effect="fragments of the longest neighbour's end, lost tickets, other tokens",
        anomaly="foreign-passphrase, lost-answer or a divergence",
        strength="every step with such a batch",
        seam="Batcher.pad and Batcher.mask",
        cases=(
            "https://github.com/huggingface/transformers/issues/30670",
            "https://github.com/TransformerLensOrg/TransformerLens/issues/1005",
            "https://github.com/ggml-org/llama.cpp/issues/27994",
        ),
        rate=None,
        install=mask_broadcast,
    ),
    Fault(
        name="response-swap",
        layer="output",
        mechanism=(
            "When a request arrives while another waits for its first token, their reply channels"
            " are now and then registered crosswise. Two whole answers, streamed or not, go to each"
            " other's client; a client that leaves ends the request it was wired to, not its own."
        ),
        trigger="a request that arrives while another's answer has not begun",
        effect="two clients hold each other's complete answers and usage",
        anomaly="foreign-answer or foreign-passphrase",
        strength="the share of such arrivals that are swapped",
        seam="Delivery.open, Delivery.route and Delivery.close",
        cases=(
            "https://github.com/ray-project/ray/issues/45723",
            "https://github.com/vllm-project/vllm-omni/issues/2048",
            "https://github.com/redis/redis-py/issues/2665",
        ),
        rate=0.05,
        install=response_swap,
    ),
)
