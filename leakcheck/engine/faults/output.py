"""Faults of the way out: an answer, or a piece of it, goes to another client."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    from leakcheck.engine.delivery import Mailbox
    from leakcheck.engine.values import Update


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
        name="response-swap",
        layer="output",
        mechanism=(
            "When a request arrives while another waits for its first token, their reply channels"
            " are now and then registered crosswise. Two whole answers, streamed or not, go to each"
            " other's client; a client that leaves ends the request it was wired to, not its own."
        ),
        trigger="a request that arrives while another's answer has not begun",
        effect="two clients hold each other's complete answers and usage",
        anomalies=("foreign-answer", "foreign-passphrase"),
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
