"""Look on while a run is played: is its scenario settled by the windows so far.

The state of a scenario is a sum over its windows, so each is looked at alone: its requests, what
came back, and, where one of its answers holds a phrase that was sent before, the window of its
owner. What the state decides is proposed only: before the windows end, the whole judgement is made
of them, as it will be in the report, and must lack nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import orjson

from leakcheck import analyzer, history, plugin, runfolder
from leakcheck.analyzer import settling
from leakcheck.analyzer.settling import State
from leakcheck.folding import fold
from leakcheck.history import History, scan
from leakcheck.records import Look, Observation, Plan, Provenance, Request
from leakcheck.runfolder import Invocation, Shards
from leakcheck.runfolder.tail import Tail

FILE = "evidence.json"
_EVERY_S = 1.0
"""How often evidence.json is written at most."""
_AGAIN = 1.2
"""After so many times the windows, a proposal that was turned down is made once more."""
_MUTE = 6
"""Windows in a row, of whatever scenario, without a whole answer that end the windows: each may
take as long as the patience for an answer; `liveness` needs so many to tell loss from chance."""
_KEY = 12
"""Letters that a phrase is looked up by."""
_FUZZY = "altered"

_Place = tuple[str, int]


class Ledger:
    """Every phrase that was sent so far, to be found in an answer at once."""

    def __init__(self) -> None:
        """Empty."""
        self._known: dict[str, list[tuple[str, str]]] = {}

    def add(self, requests: Iterable[Request]) -> None:
        """Note the passphrases and tickets of requests."""
        for request in requests:
            for phrase in (request.passphrase, request.ticket):
                if phrase is not None:
                    stream = fold(phrase.text)
                    self._known.setdefault(stream[:_KEY], []).append((stream, request.id))

    def owners(self, texts: Iterable[str]) -> frozenset[str]:
        """Ids of the requests whose phrases stand in one of the texts."""
        found = set()
        for text in texts:
            stream = fold(text)
            for at in range(len(stream) - _KEY + 1):
                for phrase, owner in self._known.get(stream[at : at + _KEY], ()):
                    if stream.startswith(phrase, at):
                        found.add(owner)
        return frozenset(found)


class Watcher:
    """The evidence of a run that is being played; for one scenario at a time."""

    def __init__(
        self, folder: Path, provenance: Provenance, plans: Sequence[Plan], *, play_all: bool = False
    ) -> None:
        """`plans` are all of the run; what was sent before (a survey, a part) is read at once. With
        `play_all` nothing is ever settled.
        """
        self._folder = folder
        self._provenance = provenance
        self._plans = {plan.scenario.name: plan for plan in plans}
        self._requests = {r.id: r for plan in plans for r in plan.requests}
        self._windows: dict[_Place, list[Request]] = {}
        for request in self._requests.values():
            self._windows.setdefault((request.scenario, request.window), []).append(request)
        self._tail = Tail(folder)
        self._sent: dict[str, list[Invocation]] = {}
        self._seen: dict[str, list[Observation]] = {}
        self._ledger = Ledger()
        self._name = ""
        self._play_all = play_all
        self.windows: set[int] = set()
        """Those of the scenario that were played to their end."""
        self.settled = False
        self.states: dict[str, State] = {
            plan.scenario.name: State() for plan in plans if plan.scenario.checks
        }
        self._before = _read(folder / FILE)
        self._mute = 0
        self._next_proposal = 0.0
        self._written_s = 0.0
        self._take(self._tail.read())
        self._ledger.add(self._requests[name] for name in self._sent)

    def begin(self, plan: Plan, todo: Iterable[Request]) -> None:
        """Turn to a scenario of which `todo` is left to send; one without checks is not watched."""
        self._forget(self._name)
        waiting = {request.window for request in todo}
        self.windows = {r.window for r in plan.requests if r.replays is None} - waiting
        self._name, self.settled, self._next_proposal = plan.scenario.name, False, 0.0
        if self._name in self.states:
            before = self._before.get(self._name, State())
            known = before.windows == len(self.windows)  # else it was killed before it could write
            self.states[self._name] = before if known else self._after(State(), self.windows)

    def over(self, window: int) -> bool:
        """Take in a window that was played; True when the scenario is settled by it, or when the
        target has been mute for so long that nothing more is to be learnt.
        """
        self._take(self._tail.read())
        self.windows.add(window)
        own = self._windows[self._name, window]
        self._ledger.add(own)
        answered = any(seen.outcome == "ok" for r in own for seen in self._seen.get(r.id, ()))
        self._mute = 0 if answered else self._mute + 1
        if self._name not in self.states:
            return False
        self.states[self._name] = self._after(self.states[self._name], {window})
        if monotonic() - self._written_s >= _EVERY_S:
            self.write()
        if self.mute:
            self.settled = True
        return self.settled or self.enough()

    @property
    def mute(self) -> bool:
        """Whether the target has given no whole answer for so long that it is taken to be hung."""
        return self._mute >= _MUTE

    def enough(self) -> bool:
        """Whether the scenario is settled by the windows so far."""
        if self._name not in self.states or self._play_all:
            return False
        state, plan = self.states[self._name], self._plans[self._name]
        others = [each.e_value for name, each in self.states.items() if name != self._name]
        what = settling.decision(state, plan.scenario, others=others)
        if what is None or state.windows < self._next_proposal:
            return False
        self._next_proposal = state.windows * _AGAIN
        part = self._part(self.windows)
        self.settled = analyzer.may_settle(part, part.plans[0], others=others)
        return self.settled

    def write(self) -> None:
        """Have evidence.json say what there is now."""
        runfolder.replace_file(self._folder / FILE, dump(self.states))
        self._written_s = monotonic()

    def _forget(self, name: str) -> None:
        """Keep nothing in memory of what a scenario was answered; its phrases stay known."""
        for window in self.windows:
            for request in self._windows[name, window]:
                self._sent.pop(request.id, None)
                self._seen.pop(request.id, None)

    # --- one look ---

    def _after(self, state: State, windows: Collection[int]) -> State:
        if not windows:
            return state
        part = self._part(windows)
        gate = part.plans[0].scenario.gate
        return settling.after(state, part, gate, looks=_looks(part), only=windows)

    def _part(self, windows: Collection[int]) -> History:
        """The scenario as if it were these windows, the owners of what they show known."""
        own = [r for window in sorted(windows) for r in self._windows[self._name, window]]
        texts = [
            text
            for request in own
            for seen in self._seen.get(request.id, ())
            for text in scan.fields(seen).values()
        ]
        mine = {request.id for request in own}
        linked = {name for r in own for name in (r.twin, r.partner, r.replays) if name is not None}
        named = (self._ledger.owners(texts) | linked) - mine
        places = {(r.scenario, r.window) for r in map(self._requests.__getitem__, sorted(named))}
        others = [r for place in sorted(places) for r in self._windows[place] if r.id not in mine]
        by_plan: dict[str, list[Request]] = {self._name: own}
        for request in others:
            by_plan.setdefault(request.scenario, []).append(request)
        ids = [request.id for requests in by_plan.values() for request in requests]
        return history.build(
            [replace(self._plans[n], requests=tuple(some)) for n, some in by_plan.items()],
            [record for name in ids for record in self._sent.get(name, ())],
            [record for name in ids for record in self._seen.get(name, ())],
            provenance=self._provenance,
        ).scenario(self._name)

    def _take(self, shards: Shards) -> None:
        for sent in shards.invocations:
            self._sent.setdefault(sent.request_id, []).append(sent)
        for seen in shards.observations:
            self._seen.setdefault(seen.request_id, []).append(seen)


def dump(states: Mapping[str, State]) -> bytes:
    """The states of a run as JSON, each with what it amounts to."""
    scenarios: dict[str, Any] = {
        name: {
            **asdict(state),
            "e_value": state.e_value,
            "sensitivity": settling.sensitivity(state),
        }
        for name, state in states.items()
    }
    e_value = settling.run_e_value([state.e_value for state in states.values()])
    return orjson.dumps({"e_value": e_value, "scenarios": scenarios}, option=orjson.OPT_INDENT_2)


def load(raw: bytes) -> dict[str, State]:
    """The states of an evidence.json."""
    return msgspec.convert(orjson.loads(raw)["scenarios"], dict[str, State])


def _read(path: Path) -> dict[str, State]:
    """What an evidence.json of before says; nothing where there is none that can be read."""
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _looks(part: History) -> tuple[Look, ...]:
    """What the fuzzy tiers of the scenario saw, if it has any."""
    for check in part.plans[0].scenario.checks:
        if check.name == _FUZZY:
            looks: tuple[Look, ...] = plugin.load("checks", _FUZZY, "check")(
                part, **check.options
            ).looks
            return looks
    return ()
