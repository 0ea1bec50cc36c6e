"""A run read back: who owned what, what ran together, and what was seen where.

Tables are pandas frames, made when they are first asked for and to be read only:

`requests`: one row a planned request: id scenario window phase start_offset_s arm tenant role ask
worker lane cell partner shared_tokens twin replays has_passphrase has_ticket outcome. `outcome` is
the final one: `ok`, `failed`, `aborted` (hung up on, as planned), `rejected` (a misdirected one
that was refused, as planned), `unknown`, or `unsent`.

`observations`: one row an attempt: request_id scenario attempt outcome worker lane start_ns
first_chunk_ns end_ns content finish_reason prompt_tokens completion_tokens cached_tokens impossible
status error observed. Of `impossible` usage (records.Usage) the cached tokens are left out. An
attempt that was journalled and never came back is `unknown`, lasts until the end of the run and has
`observed` False: its passphrase may be inside the target.

`overlaps`: one row a request that was sent: request_id scenario peak with_any. `peak` is the
largest number of requests in flight at one time during it, itself included; `with_any` says
whether there was another. Attempts that were refused, and those whose end was not seen, do not
count as company: nobody knows that they ran.

`matches`: the fields of records.Match, and the recipient's scenario and window, and `observation`,
the row of `observations` that shows it.

`windows`: one row a window: scenario window arm replay requests answered peak overlapping alone
trial. `overlapping`: at least two answered requests ran at the same time. `alone`: the plan sends
its requests one at a time, each in a phase of its own. A `trial` is a window of either kind, of the
planted arm and no replay, that had a passphrase in the target: one that was sent, and not only
refused, before a request with another payload was answered. (Of requests sent one at a time, the
one answered then began after the other was over: what can leak is what that one left behind.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from leakcheck import runfolder
from leakcheck.history import boundaries, scan, settled
from leakcheck.history.tables import Run, Timing
from leakcheck.records import (
    Boundary,
    Gauges,
    Observation,
    Plan,
    Provenance,
    Relation,
    Request,
    RunEvent,
)

ANSWER_FIELDS = re.compile(r"(content|reasoning|tool)(\[\d+\])?")
"""Fields of an answer that the model itself wrote; `records.Chunk` says what there is."""


class History:
    """One run, or one scenario of it. The tables are described at the top of this module."""

    def __init__(
        self, run: Run, only: str | None = None, windows: frozenset[int] | None = None
    ) -> None:
        """Of the whole run, or of the scenario named `only`, or of some `windows` of that."""
        self._run = run
        self._only = only
        self._windows = windows

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each scenario."""
        return tuple(p for p in self._run.plans if self._only in (None, p.scenario.name))

    @property
    def provenance(self) -> Provenance:
        """Who ran what, when, against what."""
        return self._run.provenance

    @property
    def events(self) -> tuple[RunEvent, ...]:
        """What befell the run, in order."""
        return self._run.events

    @property
    def budget(self) -> int:
        """How many windows were planned, those left out of a scenario that settled included."""
        return sum(self._run.budgets[name] for name in self.scenarios())

    @property
    def gauges(self) -> tuple[Gauges, ...]:
        """What the target said of itself while the run lasted, in order."""
        return self._run.gauges

    @property
    def torn(self) -> tuple[str, ...]:
        """Half-written last lines that were left out, as sentences."""
        return self._run.torn

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a planned request."""
        return self._of(self._run.requests)

    @cached_property
    def observations(self) -> pd.DataFrame:
        """One row an attempt; the index is that of the whole run."""
        return self._of(self._run.observations)

    @cached_property
    def overlaps(self) -> pd.DataFrame:
        """One row a request that was sent."""
        return self._of(self._run.overlaps)

    @cached_property
    def matches(self) -> pd.DataFrame:
        """One row a passphrase, ticket, withheld or phantom in an answer."""
        return self._of(self._run.matches)

    @cached_property
    def planted(self) -> pd.DataFrame:
        """`matches` without phantoms, for who does not need them: drawing all takes seconds."""
        return self._of(self._run.planted)

    @cached_property
    def shown(self) -> pd.DataFrame:
        """`planted` in whole answers alone: in content, reasoning or tool calls of the attempt that
        was answered. A refusal that quotes the prompt shows nothing of what the model would say.
        """
        rows = [r for r in self._run.deciding.values() if self._run.seen[r].outcome == "ok"]
        matches = self.planted
        said = [bool(ANSWER_FIELDS.fullmatch(field)) for field in matches["field"]]
        return matches[np.array(said, bool) & matches["observation"].isin(rows)]

    @cached_property
    def windows(self) -> pd.DataFrame:
        """One row a window."""
        return self._of(self._run.windows)

    @property
    def scanned(self) -> scan.Scanned:
        """How much was searched for how much, over the whole run."""
        return self._run.scanned

    @property
    def phantoms(self) -> int:
        """How many phantoms were looked for, over the whole run."""
        return self._run.phantoms

    def scenarios(self) -> tuple[str, ...]:
        """Names, in the order of the run."""
        return tuple(p.scenario.name for p in self.plans)

    def scenario(self, name: str) -> History:
        """The rows of one scenario; sources and times of all others stay known."""
        if name not in self.scenarios():
            raise KeyError(name)
        return History(self._run, name)

    def only(self, windows: Iterable[int]) -> History:
        """The rows of some windows of one scenario; everything else stays known."""
        return History(self._run, self._only, frozenset(windows))

    def by_id(self, request_id: str) -> Request:
        """The planned request, of any scenario."""
        return self._run.all_requests[self._run.position[request_id]]

    def owners(self, request_id: str) -> tuple[str, ...]:
        """Every request that carries the payload of this one: its twins, its replays, itself."""
        return tuple(
            self._run.all_requests[p].id for p in self._run.members(self._run.position[request_id])
        )

    def text(
        self, request_id: str, field: str = "content", *, observation: int | None = None
    ) -> str:
        """One field of the answer as received, joined; empty when there is none.

        That of the whole answer if there is one, otherwise of the last attempt, unless the row of
        an `observation` is given.
        """
        row = self._run.deciding.get(request_id) if observation is None else observation
        return "" if row is None else self._run.texts[row].get(field, "")

    def answer(self, request_id: str) -> Observation | None:
        """The observation that decided the outcome: the whole answer, or the last attempt."""
        row = self._run.deciding.get(request_id)
        return None if row is None else self._run.seen[row]

    def served_after(self, at_ns: int) -> Observation | None:
        """The first whole answer to what was sent later, in any scenario of the run."""
        later = (o for o in self._run.seen if o.outcome == "ok" and o.start_ns > at_ns)
        return min(later, key=lambda o: o.start_ns, default=None)

    def attempt(self, observation: int) -> Observation:
        """The attempt at a row of `observations`."""
        return self._run.seen[observation]

    def ended(self, observation: int) -> bool:
        """Whether the end of the attempt at a row of `observations` was seen."""
        return bool(self._run.came_back[observation])

    def timing(self, source: str, recipient: str, *, observation: int | None = None) -> Timing:
        """How two requests lay in time: the attempts of the source that were not refused (those
        only where no other explains anything), and the recipient's attempt at the row
        `observation`, or any of its attempts.
        """
        return self._run.timing(source, recipient, observation)

    def relation(self, source: str, recipient: str, *, observation: int | None = None) -> Relation:
        """`concurrent` when the two are known to have been in flight at one time; see `timing`."""
        return self._run.timing(source, recipient, observation).relation

    def crossing(
        self, source: str, recipient: str, *, observation: int | None = None
    ) -> boundaries.Crossing:
        """The trust boundary between two requests: by the recipient's attempt at the row
        `observation`, or that which decided its outcome, and the attempt of the source that may
        explain it.
        """
        row = self._run.timing(source, recipient, observation).source
        sent = self.answer(source) if row is None else self.attempt(row)
        shows = self.answer(recipient) if observation is None else self.attempt(observation)
        return boundaries.crossed(self.by_id(source), sent, self.by_id(recipient), shows)

    @cached_property
    def exposed(self) -> dict[Boundary | boundaries.Replica, boundaries.Pairs]:
        """How many pairs of requests of one window met over each boundary, replays included."""
        windows: dict[tuple[str, int], list[boundaries.Sent]] = {}
        mine = set(self.requests["id"])
        for request_id, row in self._run.deciding.items():
            if request_id in mine:
                request = self.by_id(request_id)
                sent = boundaries.Sent(
                    request=request,
                    seen=self._run.seen[row],
                    group=int(self._run.groups[self._run.position[request_id]]),
                    ended=bool(self._run.came_back[row]),
                )
                windows.setdefault((request.scenario, request.window), []).append(sent)
        return boundaries.summed(boundaries.exposed(each) for each in windows.values())

    def _of(self, table: pd.DataFrame) -> pd.DataFrame:
        if self._only is None:
            return table
        mine = table[table["scenario"] == self._only]
        if self._windows is None:
            return mine
        if "window" in mine:
            return mine[mine["window"].isin(self._windows)]
        numbers = mine["request_id"].map(self._run.window_of)
        return mine[numbers.isin(self._windows)]


def read(folder: Path) -> History:
    """The history of a run folder. Raises RunFolderError for damage beyond a torn last line."""
    shards = runfolder.read_shards(folder)
    return build(
        runfolder.read_plans(folder),
        shards.invocations,
        shards.observations,
        provenance=runfolder.read_provenance(folder),
        events=runfolder.read_events(folder),
        torn=shards.torn,
        gauges=runfolder.read_gauges(folder),
    )


def build(
    plans: Iterable[Plan],
    invocations: Iterable[runfolder.Invocation],
    observations: Iterable[Observation],
    *,
    provenance: Provenance,
    events: Iterable[RunEvent] = (),
    torn: Iterable[str] = (),
    gauges: Iterable[Gauges] = (),
) -> History:
    """A history from memory. Raises RunFolderError when plan and shards do not fit together.

    Windows that a settled scenario did not play any more are left out: nobody waits for them.
    """
    every, sent, seen, befell = tuple(plans), tuple(invocations), tuple(observations), tuple(events)
    started = {i.request_id for i in sent} | {o.request_id for o in seen}
    return History(
        Run(
            plans=tuple(settled.played(plan, started, befell) for plan in every),
            invocations=sent,
            observations=seen,
            provenance=provenance,
            events=befell,
            torn=tuple(torn),
            gauges=tuple(gauges),
            budgets={plan.scenario.name: settled.windows(plan) for plan in every},
        )
    )
