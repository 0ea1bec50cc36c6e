"""Faults of the way out: an answer, or a piece of it, goes to another client."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine.faults.fault import Fault, Seams, patch
from leakcheck.engine.faults.misdelivery import (
    duplicate_request_id,
    off_by_one_after_abort,
    same_second_id,
)

if TYPE_CHECKING:
    from leakcheck.engine.delivery import Delivery, Mailbox
    from leakcheck.engine.sequence import Sequence
    from leakcheck.engine.values import Update

CROSSED_CHUNKS = 16
"""How many chunks two streams exchange before each has its own client again."""
SENTENCE_ENDS = (".", "!", "?", "\n")


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


class Crossings:
    """Pairs of answers that have each other's clients for a run of chunks."""

    def __init__(self, delivery: Delivery, rng: Random) -> None:
        """No pair yet; `rng` chooses partners among those who have a mailbox."""
        self.delivery = delivery
        self.partner: dict[str, str] = {}
        self._left: dict[str, int] = {}
        self._rng = rng

    def begin(self, one: str) -> None:
        """Cross this answer with any other that has as many choices."""
        boxes = self.delivery.mailboxes
        others = [
            other
            for other, box in boxes.items()
            if other not in {one, *self.partner} and box.choices == boxes[one].choices
        ]
        if others:
            other = self._rng.choice(others)
            self.partner.update({one: other, other: one})
            self._left.update({one: CROSSED_CHUNKS, other: CROSSED_CHUNKS})

    def end(self, one: str) -> None:
        """Both have their own clients again."""
        other = self.partner.pop(one, None)
        if other is not None:
            del self.partner[other], self._left[one], self._left[other]

    def mailbox(self, update: Update, own: Mailbox) -> Mailbox:
        """Where a chunk goes: to the partner's client while there is one."""
        other = self.partner.get(update.id)
        if other is None:
            return own
        self._left[update.id] -= 1
        if not self._left[update.id]:
            self.end(update.id)
        return self.delivery.mailboxes[other]


def stream_crosswire(seams: Seams, rate: float, rng: Random) -> None:
    """Now and then two answers exchange their clients for a run of chunks."""
    delivery = seams.delivery
    crossings = Crossings(delivery, rng)

    def wrap_route(original: Callable[..., Mailbox | None]) -> Callable[..., Mailbox | None]:
        def route(update: Update) -> Mailbox | None:
            own = original(update)
            if own is None or update.finish_reason:
                crossings.end(update.id)  # the last chunk goes home, or its client would hang
                return own
            if update.id not in crossings.partner and rng.random() < rate:
                crossings.begin(update.id)
            return crossings.mailbox(update, own)

        return route

    def wrap_close(original: Callable[[str], str]) -> Callable[[str], str]:
        def close(request_id: str) -> str:
            crossings.end(request_id)
            return original(request_id)

        return close

    patch(delivery, "route", wrap_route)
    patch(delivery, "close", wrap_close)


class PendingTexts:
    """One text buffer a row, as a detokenizer keeps it; rows are taken again, lowest first.

    A buffer that was handed out is emptied by the next token of its row. The end of an answer has
    to empty it too: `end(forget=False)` is the fault.
    """

    def __init__(self) -> None:
        """No row is in use."""
        self.pending: list[str] = []
        self.handed_out: list[bool] = []
        self.rows: dict[Sequence, int] = {}
        self._free: list[int] = []

    def row(self, sequence: Sequence) -> int:
        """The row of a sequence: a free one, as it was left, when it is new."""
        if sequence not in self.rows:
            if not self._free:
                heappush(self._free, len(self.pending))
                self.pending.append("")
                self.handed_out.append(False)
            self.rows[sequence] = heappop(self._free)
        return self.rows[sequence]

    def add(self, sequence: Sequence, fresh: str) -> str:
        """Add a token's text; returns the sentence when it is complete."""
        row = self.row(sequence)
        if self.handed_out[row]:
            self.pending[row], self.handed_out[row] = "", False
        self.pending[row] += fresh
        if not (sequence.text.stopped or fresh.endswith(SENTENCE_ENDS)):
            return ""
        self.handed_out[row] = True
        return self.pending[row]

    def rest(self, sequence: Sequence) -> str:
        """What has not been handed out when the answer ends."""
        row = self.row(sequence)
        return "" if self.handed_out[row] else self.pending[row]

    def end(self, sequence: Sequence, *, forget: bool) -> None:
        """The row is free; without `forget` its next sequence starts with what is left in it."""
        row = self.rows.pop(sequence, None)
        if row is not None:
            self.handed_out[row] = False
            if forget:
                self.pending[row] = ""
            heappush(self._free, row)


def detokenizer_state(seams: Seams, rate: float, rng: Random) -> None:
    """Text goes out by sentences, and the buffer of an ended answer stays on its row."""
    engine = seams.engine
    texts = PendingTexts()

    def wrap_new(original: Callable[..., Sequence]) -> Callable[..., Sequence]:
        def new_sequence(*arguments: Any) -> Sequence:
            sequence = original(*arguments)

            def wrap_feed(feed: Callable[[int], str]) -> Callable[[int], str]:
                return lambda token: texts.add(sequence, feed(token))

            def wrap_finish(finish: Callable[[], str]) -> Callable[[], str]:
                return lambda: texts.rest(sequence) + finish()

            patch(sequence.text, "feed", wrap_feed)
            patch(sequence.text, "finish", wrap_finish)
            return sequence

        return new_sequence

    def wrap_ended(original: Callable[..., Update]) -> Callable[..., Update]:
        def ended(sequence: Sequence, reason: str, *text: str) -> Update:
            texts.end(sequence, forget=reason != "abort" and rng.random() >= rate)
            return original(sequence, reason, *text)

        return ended

    patch(engine, "new_sequence", wrap_new)
    patch(engine, "ended", wrap_ended)


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
    Fault(
        name="stream-crosswire",
        layer="output",
        mechanism=(
            "Chunks are written through a shared table of streams, and now and then two entries of"
            f" it are exchanged for a run of {CROSSED_CHUNKS} chunks: each client reads a stretch"
            " of the other's answer in the middle of its own. The last chunk always goes home, so"
            " nobody waits for ever."
        ),
        trigger="two answers in the making at the same time",
        effect="a stretch of another's answer, often its ticket or passphrase, inside one's own",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="the share of chunks at which such a run begins",
        seam="Delivery.route and Delivery.close",
        cases=(
            "https://github.com/KolosalAI/Kolosal/issues/55",
            "https://github.com/inferencerlabs/inferencer-feedback/issues/127",
            "https://github.com/KoljaB/RealtimeTTS/issues/230",
        ),
        rate=0.01,
        install=stream_crosswire,
    ),
    Fault(
        name="off-by-one-after-abort",
        layer="output",
        mechanism=(
            "Replies come back through pooled channels, first in, first out. A client that hangs"
            " up gives its channel back with the reply still to come: the request runs on and its"
            " reply waits there. The next request on that channel reads it as its own, leaves its"
            " own to the one after, and so on; a channel four replies behind is dropped."
        ),
        trigger="a client that aborts, then any request",
        effect="whole answers, one behind: each client holds that of the one before",
        anomalies=("foreign-answer", "foreign-passphrase"),
        strength="every abort",
        seam="Delivery.open, Delivery.route, Delivery.close and EngineLoop.submit",
        cases=(
            "https://github.com/redis/redis-py/issues/2624",
            "https://github.com/redis/redis-py/issues/2665",
            "https://openai.com/index/march-20-chatgpt-outage/",
            "https://github.com/projectdiscovery/nuclei/pull/7671",
        ),
        rate=None,
        install=off_by_one_after_abort,
    ),
    Fault(
        name="same-second-id",
        layer="output",
        mechanism=(
            "A part of the answers is named by the second in which their requests came, and the"
            " table of waiting clients is keyed by that name: the last request of a second takes"
            " the place of those before it. Its client gets the answer of whichever request of"
            " that second speaks first; the others hang until their connection is cut."
        ),
        trigger="two requests of the same kind in the same second",
        effect="one whole answer at the wrong client; the other clients hang, then get a 503",
        anomalies=("foreign-answer", "foreign-passphrase"),
        strength="the share of requests that are named like this",
        seam="Api.new_id, Api.engine_id, Delivery.open, Delivery.route and Delivery.close",
        cases=(
            "https://github.com/vllm-project/vllm-omni/issues/2048",
            "https://github.com/vllm-project/vllm-omni/issues/2061",
        ),
        rate=0.25,
        install=same_second_id,
    ),
    Fault(
        name="duplicate-request-id",
        layer="output",
        mechanism=(
            "The X-Request-Id header of the client names its request inside the server, and the"
            " waiting clients are found by that name. While two requests of one name are in"
            " flight, each answer goes to the client of the other."
        ),
        trigger="two requests in flight with the same X-Request-Id",
        effect="two clients hold each other's answers",
        anomalies=("foreign-answer", "foreign-passphrase"),
        strength="every such pair",
        seam="Api.new_id, Api.engine_id, Delivery.open and Delivery.close",
        cases=(
            "https://github.com/ray-project/ray/issues/45723",
            "https://github.com/vllm-project/vllm/issues/10583",
            "https://github.com/huggingface/transformers/pull/48918",
        ),
        rate=None,
        install=duplicate_request_id,
    ),
    Fault(
        name="detokenizer-state",
        layer="output",
        mechanism=(
            "The detokenizer keeps the text of a row until a sentence is complete, and empties"
            " what it has handed out when the next token of that row comes. An answer that ends"
            " now and then leaves its last sentence there, and an aborted one always leaves what"
            " it held: the next answer on that row begins with it."
        ),
        trigger="a row that is used again: any traffic; most of all after aborts",
        effect="an answer begins with the last sentence of another, often its passphrase",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="the share of ended answers that leave their text; aborted ones always do",
        seam="Engine.new_sequence (TextStream.feed and finish) and Engine.ended",
        cases=(
            "https://github.com/QwenLM/qwen-code/issues/3521",
            "https://github.com/waybarrios/vllm-mlx/issues/652",
        ),
        rate=0.3,
        install=detokenizer_state,
    ),
)
