"""Which client an answer goes to. Lives on the server's event loop; no threads here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from leakcheck.engine.values import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailbox:
    """Where one HTTP request reads its updates; `offset` is added to their choice index."""

    queue: asyncio.Queue[Update | None]
    offset: int
    choices: int


class Delivery:
    """Routes updates by the id of the request that made them."""

    def __init__(self) -> None:
        """No mailbox is open."""
        self.mailboxes: dict[str, Mailbox] = {}

    def open(self, request_id: str, mailbox: Mailbox) -> None:
        """Updates of this request go to this mailbox from now on."""
        self.mailboxes[request_id] = mailbox

    def close(self, request_id: str) -> str:
        """The client of this request has gone; returns whose output nobody reads any more."""
        self.mailboxes.pop(request_id, None)
        return request_id

    def deliver(self, updates: list[Update]) -> None:
        """Put each update into the mailbox it belongs to; drop what nobody reads."""
        for update in updates:
            mailbox = self.route(update)
            if mailbox is not None:
                self.put(mailbox, update)

    def route(self, update: Update) -> Mailbox | None:
        """The mailbox of the request that made the update."""
        return self.mailboxes.get(update.id)

    def put(self, mailbox: Mailbox, update: Update) -> None:
        """Hand one update to its reader."""
        mailbox.queue.put_nowait(replace(update, index=update.index + mailbox.offset))

    def fail(self) -> None:
        """The engine has died: every reader gets None."""
        for mailbox in self.mailboxes.values():
            mailbox.queue.put_nowait(None)
