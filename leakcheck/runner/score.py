"""The running score of one call of `Runner.play`, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from leakcheck.runner.worker import Counts

_LOST_WINDOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of one call of `play`; what was observed is in the run folder.

    `windows_done` counts windows all of whose phases were played, `requests_done` requests with a
    final observation. `target_lost` is a sentence. `workers_died` are the numbers of all workers
    that have died since the runner started. `silent`: the target may be
    dead (see `pulse`), and nothing more was sent.
    """

    windows_done: int
    requests_done: int
    interrupted: bool
    target_lost: str | None
    workers_died: tuple[int, ...]
    ended: tuple[str, str] | None = None
    silent: bool = False


class Scored(Protocol):
    """A worker, as far as it is counted."""

    counts: Counts


class Game:
    """The running score of one call of `play`."""

    def __init__(
        self,
        on_progress: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Who is told how far it is, and who may want it to stop."""
        self.windows_done = 0
        self.interrupted = False
        self.enough = False
        self.silent = False
        self.target_lost: str | None = None
        self.ended: tuple[str, str] | None = None
        self._on_progress = on_progress
        self._should_stop = should_stop
        self._total = Counts()
        self._window = Counts()
        self._lost_in_a_row = 0

    @property
    def over(self) -> bool:
        """Nothing more is to be sent."""
        lost = self.target_lost is not None or self.ended is not None
        return self.interrupted or self.enough or self.silent or lost

    def must_stop(self) -> bool:
        """Ask the caller whether to stop."""
        self.interrupted = self.interrupted or self._should_stop()
        return self.interrupted

    def show(self, workers: Sequence[Scored]) -> None:
        """Tell the caller how many requests are over, the phase in progress included."""
        self._on_progress(_sum([self._total, *(each.counts for each in workers)]).over)

    def settle(self, workers: Sequence[Scored]) -> Counts:
        """Move what the workers counted into the total; return it."""
        phase = _sum([each.counts for each in workers])
        for each in workers:
            each.counts = Counts()
        self._total = _sum([self._total, phase])
        return phase

    def end_phase(self, workers: Sequence[Scored], *, ends_window: bool) -> Counts:
        """Close the accounts of a phase, and return them; of a window too, where it was the last
        one.
        """
        phase = self.settle(workers)
        self._window = _sum([self._window, phase])
        if not ends_window:
            return phase
        window, self._window = self._window, Counts()
        self.windows_done += 1
        nobody = window.unreached > 0 and window.unreached == window.over
        self._lost_in_a_row = self._lost_in_a_row + 1 if nobody else 0
        if self._lost_in_a_row >= _LOST_WINDOWS:
            self.target_lost = (
                f"the target was lost: no request of {_LOST_WINDOWS} windows in a row reached it "
                f"({window.last_error})"
            )
        self.show(workers)
        return phase

    def played(self, workers_died: tuple[int, ...]) -> Played:
        """The result."""
        return Played(
            windows_done=self.windows_done,
            requests_done=self._total.over,
            interrupted=self.interrupted,
            target_lost=self.target_lost,
            workers_died=workers_died,
            ended=self.ended,
            silent=self.silent,
        )


def _sum(counts: Iterable[Counts]) -> Counts:
    total = Counts()
    for each in counts:
        for item in fields(Counts):
            value = getattr(each, item.name)
            if item.name == "last_error":
                total.last_error = value or total.last_error
            else:
                setattr(total, item.name, getattr(total, item.name) + value)
    return total
