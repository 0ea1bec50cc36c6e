"""The engine on a thread of its own; everything reaches it through one inbox."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from leakcheck.engine.delivery import Delivery
from leakcheck.engine.engine import Engine
from leakcheck.engine.latency import Latencies
from leakcheck.engine.values import GenerateRequest, RequestError, Update

Command = Callable[[], list[Update]]
Answer = TypeVar("Answer")
READ_TIMEOUT_S = 10.0


class EngineLoop:
    """Steps the engine while it has work and sleeps when it has none.

    The event loop submits and aborts; the thread hands each step's updates back to the event loop
    in one call. If a step raises, every request in flight fails and `failed` is set.
    """

    def __init__(self, engine: Engine, delivery: Delivery) -> None:
        """From `start` on the engine belongs to the loop."""
        self.engine = engine
        self.delivery = delivery
        self.failed = False
        self.latencies = Latencies()
        self._inbox: SimpleQueue[Command | None] = SimpleQueue()
        self._events: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; call on the event loop that the updates shall come back to."""
        self._events = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End after the current step; every request in flight is aborted."""
        self.abort_all()
        self._inbox.put(None)
        self._thread.join(timeout=5)

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request; RequestError at once when it can never be served."""
        if self.failed:
            raise RequestError("the engine has stopped after an internal error", status=503)
        self.engine.check(request)
        now = time.perf_counter()

        def command() -> list[Update]:
            self.engine.submit(request)
            self.latencies.arrived(request.id, now)
            return []

        self._inbox.put(command)

    def abort(self, request_id: str) -> None:
        """End a request and free what it holds, before the next step."""

        def command() -> list[Update]:
            self.latencies.forget(request_id)
            return self.engine.abort(request_id)

        self._inbox.put(command)

    def abort_all(self) -> None:
        """End every request in flight, before the next step."""

        def command() -> list[Update]:
            return [
                u for request_id in list(self.engine.live) for u in self.engine.abort(request_id)
            ]

        self._inbox.put(command)

    def between_steps(self, change: Callable[[], object]) -> None:
        """Do something to the engine, on its own thread, before the next step."""

        def command() -> list[Update]:
            change()
            return []

        self._inbox.put(command)

    async def read(self, look: Callable[[], Answer]) -> Answer:
        """What `look` sees on the engine's thread, between two steps.

        RequestError 503 when the engine has stopped or has no moment for it within 10 s.
        """
        seen: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def give(answer: Answer | Exception) -> None:
            if seen.done():  # nobody waits for it any more
                return
            if isinstance(answer, Exception):
                seen.set_exception(answer)
            else:
                seen.set_result(answer)

        def command() -> list[Update]:
            answer: Answer | Exception
            try:
                answer = look()
            except Exception as error:  # noqa: BLE001 # a look must not stop the engine, whatever it met
                answer = error
            self._post(give, answer)
            return []

        if self.failed:
            raise RequestError("the engine has stopped after an internal error", status=503)
        self._inbox.put(command)
        try:
            return await asyncio.wait_for(seen, READ_TIMEOUT_S)
        except TimeoutError as error:
            raise RequestError(
                f"the engine had no moment to look inside within {READ_TIMEOUT_S:.0f} s", status=503
            ) from error

    def _run(self) -> None:
        try:
            while self._obey():
                if self.engine.has_work:
                    self._send(self._step())
        except Exception:
            # Whatever broke, the clients must hear of it: an answer that never ends says nothing.
            logging.getLogger(__name__).exception("the engine stopped")
            self.failed = True
            self._post(self.delivery.fail)

    def _step(self) -> list[Update]:
        begun = time.perf_counter()
        updates = self.engine.step()
        self.latencies.stepped(begun, updates, self.engine.live)
        return updates

    def _obey(self) -> bool:
        """Do what the inbox says, waiting for it when there is no work; False: stop."""
        while not self._inbox.empty() or not self.engine.has_work:
            command = self._inbox.get()
            if command is None:
                return False
            self._send(command())
        return True

    def _send(self, updates: list[Update]) -> None:
        if updates:
            self._post(self.delivery.deliver, updates)

    def _post(self, call: Callable[..., object], *arguments: object) -> None:
        if self._events is not None and not self._events.is_closed():
            self._events.call_soon_threadsafe(call, *arguments)
