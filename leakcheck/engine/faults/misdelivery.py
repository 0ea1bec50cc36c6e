"""Faults of the way out whose cause is a name or a channel that two requests share."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from leakcheck.engine.faults.fault import Seams, patch

if TYPE_CHECKING:
    from starlette.requests import Request

    from leakcheck.engine.delivery import Delivery, Mailbox
    from leakcheck.engine.values import GenerateRequest, Update

HANG_S = 2.0
"""A client that lost its place in the table of waiting clients is cut off after this time."""
OWED_MAX = 4
"""A channel that is so many replies behind is dropped."""
NAME_CHARACTERS = 128
NOBODY = ""
UNIQUE = "/"
"""Before it the name that may be shared, after it what keeps the engine's own ids apart."""


# --- a channel one reply behind ------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class Channel:
    """Replies in the order of their requests; `ended` counts finished choices of the first."""

    choices: int
    owed: deque[str] = field(default_factory=deque)
    unread: dict[str, list[Update]] = field(default_factory=dict)
    reader: Mailbox | None = None
    ended: int = 0


class Channels:
    """A pool of reply channels; the one given back last is taken first."""

    def __init__(self, delivery: Delivery) -> None:
        """No channel yet; `delivery` hands updates to their reader."""
        self.delivery = delivery
        self.idle: dict[int, list[Channel]] = {}
        self.by_reader: dict[str, Channel] = {}
        self.by_writer: dict[str, Channel] = {}

    def take(self, request_id: str, mailbox: Mailbox) -> None:
        """The request owns a channel until its client has read one reply or gone."""
        idle = self.idle.setdefault(mailbox.choices, [])
        channel = idle.pop() if idle else Channel(choices=mailbox.choices)
        channel.owed.append(request_id)
        channel.unread[request_id] = []
        channel.reader = mailbox
        self.by_reader[request_id] = self.by_writer[request_id] = channel
        self.pump(channel)

    def write(self, update: Update) -> None:
        """An update arrives in the channel of the request that made it."""
        channel = self.by_writer.get(update.id)
        if channel is not None:
            channel.unread[update.id].append(update)
            self.pump(channel)

    def pump(self, channel: Channel) -> None:
        """The reader reads on in the first reply, up to its end."""
        while channel.reader is not None and channel.owed and channel.unread[channel.owed[0]]:
            first = channel.owed[0]
            update = channel.unread[first].pop(0)
            self.delivery.put(channel.reader, update)
            channel.ended += update.finish_reason is not None
            if channel.ended == channel.choices:
                self.forget(channel, first)
                channel.reader = None

    def give_back(self, request_id: str, *, sent: bool) -> None:
        """The client has its reply or has gone; what comes later stays in the channel."""
        channel = self.by_reader.pop(request_id, None)
        if channel is None:
            return
        channel.reader = None
        if not sent and request_id in channel.unread:
            self.forget(channel, request_id)
        if len(channel.owed) < OWED_MAX:
            self.idle[channel.choices].append(channel)
        else:
            for owed in list(channel.owed):
                self.forget(channel, owed)

    def forget(self, channel: Channel, request_id: str) -> None:
        """Nothing more of this reply is in the channel."""
        if channel.owed[0] == request_id:
            channel.ended = 0
        channel.owed.remove(request_id)
        del channel.unread[request_id]
        del self.by_writer[request_id]


def off_by_one_after_abort(seams: Seams, _rate: float, _rng: Random) -> None:
    """A client that hangs up leaves its reply to the next one on its channel."""
    delivery = seams.delivery
    channels = Channels(delivery)
    sent: set[str] = set()

    def wrap_open(original: Callable[[str, Mailbox], None]) -> Callable[[str, Mailbox], None]:
        def open_mailbox(request_id: str, mailbox: Mailbox) -> None:
            original(request_id, mailbox)
            channels.take(request_id, mailbox)
            if seams.api is None:
                sent.add(request_id)

        return open_mailbox

    def wrap_submit(original: Callable[[GenerateRequest], None]) -> Callable[..., None]:
        def submit(request: GenerateRequest) -> None:
            original(request)
            sent.add(request.id)

        return submit

    def wrap_route(_: Callable[..., Mailbox | None]) -> Callable[..., None]:
        return channels.write

    def wrap_close(original: Callable[[str], str]) -> Callable[[str], str]:
        def close(request_id: str) -> str:
            original(request_id)
            channels.give_back(request_id, sent=request_id in sent)
            sent.discard(request_id)
            return NOBODY  # the request runs on, whoever has gone

        return close

    patch(delivery, "open", wrap_open)
    patch(delivery, "route", wrap_route)
    patch(delivery, "close", wrap_close)
    if seams.api is not None:
        patch(seams.api.loop, "submit", wrap_submit)


# --- names that are not unique -------------------------------------------------------------------


def shared_name(request_id: str) -> str:
    """The part of an engine's request id that another request may have too."""
    return request_id.partition(UNIQUE)[0]


def unique(original: Callable[[str, int], str]) -> Callable[[str, int], str]:
    """Engine ids that differ even where the names of their answers do not."""

    def engine_id(call_id: str, number: int) -> str:
        return f"{original(call_id, number)}{UNIQUE}{uuid.uuid4().hex}"

    return engine_id


class Places:
    """Waiting clients by the second of their request: a later one takes an earlier one's place.

    Whichever request of a second speaks first has its answer delivered there; the others' is lost.
    """

    def __init__(self, delivery: Delivery) -> None:
        """`delivery.mailboxes` holds who waits, by place."""
        self.waiting = delivery.mailboxes
        self.own: dict[str, Mailbox] = {}
        self.speaker: dict[str, str] = {}
        self.left: set[str] = set()

    def place(self, request_id: str) -> str:
        """Where the request's client waits; answers of other shapes have places of their own."""
        return f"{shared_name(request_id)} n={self.own[request_id].choices}"

    def open(self, request_id: str, mailbox: Mailbox) -> None:
        """Take the place; who had it waits in vain and is cut off after HANG_S."""
        self.own[request_id] = mailbox
        place = self.place(request_id)
        displaced = self.waiting.get(place)
        if displaced is not None:
            asyncio.get_running_loop().call_later(HANG_S, displaced.queue.put_nowait, None)
        self.free(place)
        self.waiting[place] = mailbox

    def route(self, update: Update) -> Mailbox | None:
        """Whoever waits, for the first one to speak there."""
        if update.id not in self.own:
            return None
        place = self.place(update.id)
        if place not in self.waiting or self.speaker.setdefault(place, update.id) != update.id:
            return None
        return self.waiting[place]

    def close(self, request_id: str) -> str:
        """The client has gone, and its request ends, unless another is reading its answer."""
        if request_id not in self.own:
            return request_id
        place = self.place(request_id)
        if self.waiting.get(place) is self.own[request_id]:
            del self.waiting[place]
            self.free(place)
        elif self.speaker.get(place) == request_id:
            self.left.add(request_id)
            return NOBODY
        del self.own[request_id]
        return request_id

    def free(self, place: str) -> None:
        """Nobody speaks there any more; a speaker whose own client has gone is forgotten."""
        speaker = self.speaker.pop(place, None)
        if speaker in self.left:
            self.left.remove(speaker)
            del self.own[speaker]


def same_second_id(seams: Seams, rate: float, rng: Random) -> None:
    """A share of the answers is named by the second of its request."""
    delivery = seams.delivery
    places = Places(delivery)

    def wrap_new(original: Callable[[str, Request], str]) -> Callable[[str, Request], str]:
        def new_id(kind: str, request: Request) -> str:
            if rng.random() >= rate:
                return original(kind, request)
            return f"{kind}-{int(time.time())}"

        return new_id

    patch(delivery, "open", lambda _: places.open)
    patch(delivery, "route", lambda _: places.route)
    patch(delivery, "close", lambda _: places.close)
    if seams.api is not None:
        patch(seams.api, "new_id", wrap_new)
        patch(seams.api, "engine_id", unique)


def duplicate_request_id(seams: Seams, _rate: float, _rng: Random) -> None:
    """Two requests in flight under one client's name have their reply channels exchanged."""
    delivery = seams.delivery
    own: dict[str, Mailbox] = {}

    def wrap_new(original: Callable[[str, Request], str]) -> Callable[[str, Request], str]:
        def new_id(kind: str, request: Request) -> str:
            name = request.headers.get("x-request-id", "").replace(UNIQUE, "")[:NAME_CHARACTERS]
            return f"{kind}-{name}" if name else original(kind, request)

        return new_id

    def wrap_open(original: Callable[[str, Mailbox], None]) -> Callable[[str, Mailbox], None]:
        def open_mailbox(request_id: str, mailbox: Mailbox) -> None:
            boxes = delivery.mailboxes
            name = shared_name(request_id)
            others = [
                other
                for other, box in boxes.items()
                if shared_name(other) == name and box.choices == mailbox.choices
            ]
            own[request_id] = mailbox
            original(request_id, mailbox)
            if others:
                boxes[request_id], boxes[others[-1]] = boxes[others[-1]], boxes[request_id]

        return open_mailbox

    def wrap_close(original: Callable[[str], str]) -> Callable[[str], str]:
        def close(request_id: str) -> str:
            mailbox = own.pop(request_id, None)
            answering = [its for its, box in delivery.mailboxes.items() if box is mailbox]
            return original(answering[0] if answering else request_id)

        return close

    patch(delivery, "open", wrap_open)
    patch(delivery, "close", wrap_close)
    if seams.api is not None:
        patch(seams.api, "new_id", wrap_new)
        patch(seams.api, "engine_id", unique)
