"""The tables of a run, each made when it is first asked for: see `history` for their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from leakcheck.errors import RunFolderError
from leakcheck.history import overlap, scan
from leakcheck.records import Gauges, Observation, Plan, Provenance, Relation, RunEvent
from leakcheck.runfolder import Invocation

REQUEST_COLUMNS = (
    "id scenario window phase start_offset_s arm tenant role ask worker lane cell partner "
    "shared_tokens twin replays"
).split()
NO_ANSWER = "nothing came back: the worker that had sent it did not live to see the answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How two requests lay in time.

    `seconds` is how long they ran together (`concurrent`; None where the end of the source was not
    seen), or how long the source had ended before the recipient began (`sequential`). `unknown`:
    one was not sent, or the source only afterwards, or it had been sent before and nobody saw its
    end. `source` is the row of the attempt that this rests on; None where there is none.
    """

    relation: Relation
    seconds: float | None
    source: int | None = None


class Run:
    """Everything of one run, shared by the histories of its scenarios."""

    def __init__(
        self,
        *,
        plans: tuple[Plan, ...],
        invocations: tuple[Invocation, ...],
        observations: tuple[Observation, ...],
        provenance: Provenance,
        events: tuple[RunEvent, ...],
        torn: tuple[str, ...],
        gauges: tuple[Gauges, ...] = (),
        budgets: Mapping[str, int],
    ) -> None:
        """Raises RunFolderError when plan and shards do not fit together."""
        self.plans, self.provenance, self.events, self.torn = plans, provenance, events, torn
        self.gauges = gauges
        self.budgets = budgets
        self.all_requests = [r for plan in plans for r in plan.requests]
        self.position = {r.id: n for n, r in enumerate(self.all_requests)}
        self.window_of = {r.id: r.window for r in self.all_requests}
        if len(self.position) != len(self.all_requests):
            raise RunFolderError("the plan has two requests with one id; every id must be unique")
        self.seen: list[Observation] = list(observations)
        came_back = {(o.request_id, o.attempt) for o in observations}
        lost = [i for i in invocations if (i.request_id, i.attempt) not in came_back]
        times = [o.end_ns for o in observations] + [i.at_ns for i in invocations]
        end_ns = max(times, default=0)
        self.seen += [
            Observation(
                request_id=i.request_id,
                worker=i.worker,
                lane=i.lane,
                outcome="unknown",
                start_ns=i.at_ns,
                end_ns=end_ns,
                attempt=i.attempt,
                error=NO_ANSWER,
            )
            for i in lost
        ]
        self.came_back = np.arange(len(self.seen)) < len(observations)
        for observation in self.seen:
            if observation.request_id not in self.position:
                raise RunFolderError(
                    f"{observation.request_id} was sent and is in no plan of this run folder"
                )
        self.sent = np.array([self.position[o.request_id] for o in self.seen], np.int64)

    @cached_property
    def deciding(self) -> dict[str, int]:
        """Request id to the row of its whole answer, or of its last attempt."""
        rows: dict[str, int] = {}
        for row, o in enumerate(self.seen):
            best = rows.get(o.request_id)
            rank = (o.outcome == "ok", o.attempt)
            if best is None or rank > (self.seen[best].outcome == "ok", self.seen[best].attempt):
                rows[o.request_id] = row
        return rows

    @cached_property
    def texts(self) -> list[dict[str, str]]:
        """Field to joined text, for every attempt."""
        return [scan.fields(o) for o in self.seen]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """See `history`."""
        all_requests = self.all_requests
        columns = {c: [getattr(r, c) for r in all_requests] for c in REQUEST_COLUMNS}
        table = pd.DataFrame(columns)
        table["shared_tokens"] = pd.array(columns["shared_tokens"], "Int64")
        table["has_passphrase"] = [r.passphrase is not None for r in all_requests]
        table["has_ticket"] = [r.ticket is not None for r in all_requests]
        rank = np.zeros(len(all_requests), np.int64)
        order = {"failed": 1, "aborted": 2, "unknown": 3, "ok": 4}
        np.maximum.at(rank, self.sent, [order[o.outcome] for o in self.seen])
        table["outcome"] = np.array(["unsent", *order], object)[rank]
        wrong = np.array([r.sent == "misdirected" for r in all_requests], bool)
        reached = np.zeros(len(all_requests), bool)
        reached[self.sent] = [o.status is not None for o in self.seen]
        table.loc[wrong & reached & (rank == order["failed"]), "outcome"] = "rejected"
        return table

    @cached_property
    def observations(self) -> pd.DataFrame:
        """See `history`."""
        seen = self.seen
        names = "request_id attempt outcome worker lane start_ns end_ns finish_reason error".split()
        table = pd.DataFrame({c: [getattr(o, c) for o in seen] for c in names})
        table["scenario"] = [self.all_requests[p].scenario for p in self.sent]
        table["content"] = [text.get("content", "") for text in self.texts]
        table["observed"] = self.came_back
        for column in ("first_chunk_ns", "status"):
            table[column] = pd.array([getattr(o, column) for o in seen], "Int64")
        for column in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            values = [None if o.usage is None else getattr(o.usage, column) for o in seen]
            table[column] = pd.array(values, "Int64")
        table["impossible"] = [o.usage is not None and o.usage.impossible for o in seen]
        table.loc[table["impossible"], "cached_tokens"] = pd.NA
        return table

    @cached_property
    def overlaps(self) -> pd.DataFrame:
        """See `history`."""
        starts = np.array([o.start_ns for o in self.seen], np.int64)
        ends = np.array([o.end_ns for o in self.seen], np.int64)
        ran = self.came_back & np.array([o.outcome != "failed" for o in self.seen], bool)
        company = overlap.company(starts, ends, ran)
        table = pd.DataFrame(
            {"position": self.sent, "peak": company.peak, "with_any": company.with_any}
        )
        table = table.groupby("position", as_index=False).max()
        table["request_id"] = [self.all_requests[p].id for p in table["position"]]
        table["scenario"] = [self.all_requests[p].scenario for p in table["position"]]
        return table.drop(columns="position")

    @cached_property
    def windows(self) -> pd.DataFrame:
        """See `history`."""
        answered = [row for row in self.deciding.values() if self.seen[row].outcome == "ok"]
        spans = pd.DataFrame(
            {
                "id": [self.seen[row].request_id for row in answered],
                "start_ns": [self.seen[row].start_ns for row in answered],
                "end_ns": [self.seen[row].end_ns for row in answered],
            }
        )
        table = self.requests.merge(spans, on="id", how="left").merge(
            self.overlaps[["request_id", "peak"]], left_on="id", right_on="request_id", how="left"
        )
        table = table.sort_values("start_ns", kind="stable")
        group = table.groupby(["scenario", "window"], sort=False)
        before = group["end_ns"].cummax().groupby([table["scenario"], table["window"]]).shift()
        table["together"] = table["start_ns"] < before
        table["replay"] = table["replays"].notna()
        result = table.groupby(["scenario", "window"], as_index=False).agg(
            arm=("arm", "first"),
            replay=("replay", "any"),
            requests=("id", "size"),
            answered=("start_ns", "count"),
            peak=("peak", "max"),
            overlapping=("together", "any"),
            phases=("phase", "nunique"),
        )
        result["peak"] = result["peak"].fillna(0).astype(int)
        result["alone"] = result.pop("phases") == result["requests"]
        held = result.set_index(["scenario", "window"]).index.isin(self._held)
        planted = (result["arm"] == "planted") & ~result["replay"]
        result["trial"] = planted & (result["overlapping"] | result["alone"]) & held
        return result

    @cached_property
    def _held(self) -> list[tuple[str, int]]:
        """Scenario and number of the windows in which a passphrase was in the target.

        It was sent (and not only refused) before a request of another payload was answered.
        """
        ends: dict[tuple[str, int], dict[int, int]] = {}
        for request_id, row in self.deciding.items():
            position = self.position[request_id]
            if self.seen[row].outcome == "ok":
                last = ends.setdefault(self._window(position), {})
                group = int(self.groups[position])
                last[group] = max(last.get(group, 0), self.seen[row].end_ns)
        latest = {  # the last two answers of different payloads: one of them is not the owner's
            window: sorted(((end, group) for group, end in last.items()), reverse=True)[:2]
            for window, last in ends.items()
        }
        held = set()
        for o, position in zip(self.seen, self.sent.tolist(), strict=True):
            if o.outcome == "failed" or self.all_requests[position].passphrase is None:
                continue
            window, group = self._window(position), int(self.groups[position])
            if any(o.start_ns < end and group != other for end, other in latest.get(window, ())):
                held.add(window)
        return list(held)

    def _window(self, position: int) -> tuple[str, int]:
        request = self.all_requests[position]
        return request.scenario, request.window

    @cached_property
    def groups(self) -> np.ndarray:
        """Number of the payload of each request: twins and replays carry the same."""
        return scan.payload_groups(self.all_requests, self.position)

    @cached_property
    def _members(self) -> dict[int, list[int]]:
        members: dict[int, list[int]] = {}
        for position, group in enumerate(self.groups.tolist()):
            members.setdefault(group, []).append(position)
        return members

    def members(self, position: int) -> Sequence[int]:
        """Positions of the requests with this payload, in the order of the plan."""
        return self._members[int(self.groups[position])]

    @cached_property
    def _planted(self) -> tuple[pd.DataFrame, scan.Scanned]:
        return scan.search(
            self.all_requests,
            self.groups,
            texts=self.texts,
            sent=self.sent,
            nearest=self.nearest,
        )

    @cached_property
    def _phantoms(self) -> tuple[pd.DataFrame, int]:
        return scan.search_phantoms(self.plans, self.all_requests, texts=self.texts, sent=self.sent)

    @property
    def planted(self) -> pd.DataFrame:
        """See History.planted."""
        return self._planted[0]

    @cached_property
    def matches(self) -> pd.DataFrame:
        """See `history`."""
        ghosts = self._phantoms[0]
        return pd.concat([self.planted, ghosts], ignore_index=True) if len(ghosts) else self.planted

    @property
    def scanned(self) -> scan.Scanned:
        """How much was searched for how much."""
        return self._planted[1]

    @property
    def phantoms(self) -> int:
        """How many phantoms were looked for."""
        return self._phantoms[1]

    def nearest(self, source: int, row: int) -> int:
        """Of the requests that carry the payload of `source`, the likeliest to have leaked into the
        attempt at `row`.

        One that ran at the same time, else the one that had ended last before it, else one whose
        end was not seen, else the first.
        """
        order = {"concurrent": 0, "sequential": 1, "unknown": 2}
        recipient = self.seen[row].request_id

        def distance(position: int) -> tuple[int, bool, float, int]:
            timing = self.timing(self.all_requests[position].id, recipient, row)
            seconds = timing.seconds or 0.0
            close = -seconds if timing.relation == "concurrent" else seconds
            return order[timing.relation], timing.source is None, close, position

        return min(self.members(source), key=distance)

    @cached_property
    def _attempts(self) -> dict[str, list[int]]:
        """Rows of the attempts of each request."""
        found: dict[str, list[int]] = {}
        for row, o in enumerate(self.seen):
            found.setdefault(o.request_id, []).append(row)
        return found

    def timing(self, source: str, recipient: str, observation: int | None = None) -> Timing:
        """See History.timing."""
        rows = self._attempts.get(source, ())
        shows = self._attempts.get(recipient, ()) if observation is None else (observation,)
        for refused in (False, True):  # what was refused counts where nothing else can explain it
            own = [row for row in rows if (self.seen[row].outcome == "failed") == refused]
            found = [timing for s in own for r in shows if (timing := self._pair(s, r)) is not None]
            if found:
                return min(found, key=_likeliest)
        return Timing(relation="unknown", seconds=None)

    def _pair(self, source: int, recipient: int) -> Timing | None:
        """How two attempts lay in time; None when the recipient had ended before the source."""
        s, r = self.seen[source], self.seen[recipient]
        s_end, r_end = max(s.end_ns, s.start_ns + 1), max(r.end_ns, r.start_ns + 1)
        if s.start_ns >= r_end:
            return None
        if not self.came_back[source]:
            met = s.start_ns >= r.start_ns
            return Timing(relation="concurrent" if met else "unknown", seconds=None, source=source)
        together_ns = min(s_end, r_end) - max(s.start_ns, r.start_ns)
        if together_ns > 0:
            return Timing(relation="concurrent", seconds=together_ns / 1e9, source=source)
        return Timing(relation="sequential", seconds=-together_ns / 1e9, source=source)


def _likeliest(timing: Timing) -> tuple[int, float]:
    """Order of the attempts that may explain a leak: one that may still have run comes before one
    that had ended.
    """
    rank = {"concurrent": 0, "unknown": 1, "sequential": 2}[timing.relation]
    seconds = timing.seconds or 0.0
    return rank, -seconds if timing.relation == "concurrent" else seconds
