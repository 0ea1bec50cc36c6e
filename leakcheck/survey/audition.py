"""Which passphrases a target echoes, and how it must be asked: measured at the start of a run.

A cell is a style (a list of words, `styles`) in a phrasing (`wording.ending`). All are asked a few
times, then the best ones again, at most `MOST` requests in all. It is traffic with owners like any
other: planned, journalled, a few at a time in one another's company, its answers searched for
everybody's passphrases in the end. What was found serves every run for a day (`kept`, `keep`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from leakcheck import evidence, runfolder, wording
from leakcheck.certify import RUN_BITS, RUN_PHRASES
from leakcheck.errors import HarnessError
from leakcheck.match import find
from leakcheck.passphrase import Minter, words_needed
from leakcheck.passphrase.styles import TOKENS_A_WORD
from leakcheck.records import (
    Echo,
    Gate,
    Load,
    Observation,
    Plan,
    PlugIn,
    Request,
    RunEvent,
    Sampling,
    Scenario,
    Style,
    Target,
    TargetFacts,
)
from leakcheck.run.session import Session
from leakcheck.traffic import Window, user_text

NAME = "audition"
MOST = 60
"""Requests, whatever there is to be measured."""
ENOUGH = 0.5
"""The share of owners that a verdict wants to see echo, with their ticket (`gate.min_echo`)."""
FRESH_S = 86_400.0
"""How long a measurement serves."""
COMPANY = 4
"""Requests in flight."""
_SHARE = 10
"""Of a budget of requests, at most one in so many goes here."""
_FIRST_TRIES, _FINALISTS, _MOST_AGAIN = 3, 4, 9
_FILLER_WORDS = 40
_AROUND = 16
_VERSION = 1

Words = Mapping[Style, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is to be measured: the words and the length of passphrases of each style, the usual one
    first; `most` requests at a target that `continues` texts or answers them. `tenants` are the
    names of the keys that requests are dealt to.
    """

    words: Words
    lengths: Mapping[Style, int]
    seed: int
    continues: bool
    most: int = MOST
    lanes: int = COMPANY
    tenants: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[Echo, ...]:
        """Nothing asked yet; as many as there are requests for, twice each at least."""
        every = itertools.product(self.words, wording.phrasings(continues=self.continues))
        cells = [Echo(style=s, phrasing=p, words=self.lengths[s]) for s, p in every]
        return tuple(cells[: self.most // 2])


def lengths(words: Words, usual: int, *, fixed: bool) -> dict[Style, int]:
    """Words of a passphrase of each style: the `usual` number of the shipped list, and of another
    one as few as have its entropy. `fixed`: the usual number whatever the style.
    """
    return {
        style: usual
        if fixed or style in ("phrase", "rare-token")
        else words_needed(len(listed), RUN_BITS, RUN_PHRASES) or usual
        for style, listed in words.items()
    }


def most(cap: int | None) -> int:
    """Requests to spend where a run may send `cap` (None: any number)."""
    return MOST if cap is None else min(MOST, cap // _SHARE)


# --- the traffic ---------------------------------------------------------------------------------


def hold(
    live: Session, stage: Stage, ids: Iterator[int], keep_plans: Callable[[Sequence[Plan]], None]
) -> tuple[tuple[Echo, ...], RunEvent | None]:
    """Measure; what was echoed, cell by cell, and what ended the run meanwhile, if anything did.

    `keep_plans` is given the plans before anything is sent (each style has one of its own), which
    is when the run folder must know them. Needs a budget of four requests.
    """
    cells = stage.cells
    tries = min(_FIRST_TRIES, max(1, stage.most // max(1, len(cells)) * 2 // 3))
    planner = _Planner(stage, ids)
    first = planner.round([cell for cell in cells for _ in range(tries)])
    keep_plans(planner.plans(first))
    ended = live.send(NAME, first)
    heard = _heard(live.folder, cells, planner.asked)
    if ended is not None:
        return heard, ended
    last = sorted(heard, key=_order(heard))[:_FINALISTS]
    again = min(_MOST_AGAIN, (stage.most - len(first)) // len(last))
    second = planner.round([cell for cell in last for _ in range(again)])
    runfolder.append_requests(live.folder, second)
    ended = live.send(NAME, second)
    return _heard(live.folder, cells, planner.asked), ended


class _Planner:
    """Draws the requests of both rounds from the run's seed."""

    def __init__(self, stage: Stage, ids: Iterator[int]) -> None:
        self._stage, self._ids = stage, ids
        self._windows: dict[Style, Iterator[int]] = {s: itertools.count() for s in stage.words}
        self.asked: dict[str, tuple[Request, Echo]] = {}

    def round(self, cells: Sequence[Echo]) -> tuple[Request, ...]:
        """One request a cell, in windows of one style each."""
        made: list[Request] = []
        for style in dict.fromkeys(cell.style for cell in cells):
            mine = [cell for cell in cells if cell.style == style]
            random.Random(f"{self._stage.seed}/{NAME}/{style}/{len(made)}").shuffle(mine)
            for at in range(0, len(mine), self._stage.lanes):
                made += self._window(mine[at : at + self._stage.lanes])
        return tuple(made)

    def plans(self, requests: Sequence[Request]) -> tuple[Plan, ...]:
        """What the run folder says of this traffic."""
        return tuple(
            Plan(
                scenario=_scenario(style, self._load(style)),
                seed=self._stage.seed,
                words=tuple(words),
                style=style,
                requests=tuple(r for r in requests if r.scenario == _name(style)),
            )
            for style, words in self._stage.words.items()
        )

    def _load(self, style: Style) -> Load:
        length = self._stage.lengths[style]
        return Load(
            windows=MOST,
            requests=self._stage.lanes,
            workers=1,
            lanes=self._stage.lanes,
            max_tokens=math.ceil(2 * length * TOKENS_A_WORD[style]) + _AROUND,
            passphrase_words=length,
            phantoms=0,
        )

    def _window(self, cells: Sequence[Echo]) -> Iterator[Request]:
        style, stage = cells[0].style, self._stage
        index = next(self._windows[style])
        rng = random.Random(f"{stage.seed}/{_name(style)}/{index}")
        load = self._load(style)
        window = Window(
            scenario=_name(style),
            index=index,
            arm="planted",
            load=load,
            facts=TargetFacts(continues=stage.continues),
            rng=rng,
            minter=Minter(rng, stage.words[style], style, load.passphrase_words),
            ids=self._ids,
        )
        for number, cell in enumerate(cells):
            facts = TargetFacts(continues=stage.continues, phrasing=cell.phrasing)
            made = _request(replace(window, facts=facts), number)
            if stage.tenants:
                made = replace(made, key=stage.tenants[len(self.asked) % len(stage.tenants)])
            self.asked[made.id] = made, cell
            yield made


def _request(window: Window, number: int) -> Request:
    """An owner of ticket and passphrase, as those of the scenarios are."""
    owner, rng = window.owner(owns=True), window.rng
    text = user_text(
        **owner,
        before=wording.sentences(rng, rng.randint(0, _FILLER_WORDS)),
        between=wording.sentences(rng, rng.randint(0, _FILLER_WORDS // 2)),
        ask=wording.ELICITING,
        passphrase_first=number % 2 == 1,
    )
    return window.request(
        number,
        phase=0,
        role="companion",
        ask="eliciting",
        text=text,
        sampling=Sampling(max_tokens=window.load.max_tokens),
        stream=False,
        **owner,
    )


def _name(style: Style) -> str:
    return f"{NAME}-{style}"


def _scenario(style: Style, load: Load) -> Scenario:
    return Scenario(
        name=_name(style),
        version=1,
        summary=f"Whether passphrases of the style {style} are echoed. Not judged.",
        load=load,
        traffic=PlugIn(name=NAME),
        checks=(),
        gate=Gate(min_windows=1),
        digest="",
        path="",
    )


# --- what was heard ------------------------------------------------------------------------------


def _heard(
    folder: Path, cells: Sequence[Echo], asked: Mapping[str, tuple[Request, Echo]]
) -> tuple[Echo, ...]:
    """What the answers show. What was refused, or not answered in time, is no answer: a phrasing
    that the target refuses has none, and is never chosen.
    """
    shards = runfolder.read_shards(folder)
    seen = {o.request_id: o for o in shards.observations if o.outcome == "ok"}
    return judged(cells, [(*asked[name], seen[name]) for name in asked if name in seen])


def judged(
    cells: Sequence[Echo], answers: Sequence[tuple[Request, Echo, Observation]]
) -> tuple[Echo, ...]:
    """The cells with their answers counted, in the matcher's way."""
    said = [_content(observation) for _, _, observation in answers]
    phrases = [
        "" if phrase is None else phrase.text
        for request, _, _ in answers
        for phrase in (request.passphrase, request.ticket)
    ]
    hits = find(said, phrases)
    shown = set(zip(hits.text.tolist(), hits.phrase.tolist(), strict=True))
    found: dict[tuple[str, str], list[tuple[bool, bool, int | None]]] = {}
    for at, (_, cell, seen) in enumerate(answers):
        tokens = None if seen.usage is None else seen.usage.completion_tokens
        row = (at, 2 * at) in shown, (at, 2 * at + 1) in shown, tokens
        found.setdefault((cell.style, cell.phrasing), []).append(row)
    return tuple(_counted(cell, found.get((cell.style, cell.phrasing), [])) for cell in cells)


def _counted(cell: Echo, rows: Sequence[tuple[bool, bool, int | None]]) -> Echo:
    used = [tokens for _, _, tokens in rows if tokens is not None]
    return replace(
        cell,
        asked=len(rows),
        echoed=sum(echoed for echoed, _, _ in rows),
        returned=sum(returned for _, returned, _ in rows),
        both=sum(echoed and returned for echoed, returned, _ in rows),
        tokens=sum(used) / len(used) if used else None,
    )


def _content(observation: Observation) -> str:
    return "".join(chunk.text for chunk in observation.chunks if chunk.field == "content")


def _order(heard: Sequence[Echo]) -> Callable[[Echo], tuple[float, bool, float, int]]:
    """Orders cells, the best first: by the lower bound of owners that echoed and kept their ticket;
    among equals the usual one, then the one whose answers are shortest, then as listed.
    """

    def key(cell: Echo) -> tuple[float, bool, float, int]:
        lower = evidence.rate(cell.both, cell.asked).lower if cell.asked else 0.0
        cost = math.inf if cell.tokens is None else cell.tokens
        return -round(lower, 9), cell is not heard[0], cost, heard.index(cell)

    return key


def best(heard: Sequence[Echo]) -> Echo:
    """The cell to go on with; the usual one where nothing was echoed at all."""
    return min(heard, key=_order(heard))


def sentence(heard: Sequence[Echo], *, kept: bool) -> str:
    """What is to be said of a measurement: what was chosen, and what it showed."""
    chosen = best(heard)
    if not any(each.asked for each in heard):
        return "the target answered no request that measures what it echoes: the usual way is taken"
    counts = f"{chosen.both} of {chosen.asked} owners gave passphrase and ticket back"
    when = " (measured less than a day ago; --fresh measures again)" if kept else ""
    if chosen.both and chosen.both >= ENOUGH * chosen.asked:
        how = f"of the style {chosen.style}, asked for as {chosen.phrasing!r}"
        return f"passphrases are {how}: {counts}{when}"
    rates = "; ".join(f"{e.style} {e.phrasing} {e.both} of {e.asked}" for e in heard if e.asked)
    return (
        f"this target hardly echoes passphrases, whatever the style and the phrasing: {counts} "
        f"at best{when}; leaks may not show, so that nothing can be clean ({rates})"
    )


# --- for a day -----------------------------------------------------------------------------------


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at: float
    echoes: tuple[Echo, ...]


def kept(target: Target, stage: Stage, now: float | None = None) -> tuple[Echo, ...] | None:
    """What was measured of this target and model less than a day ago; None where nothing was, or
    what is on disk is no such thing.
    """
    moment = time.time() if now is None else now
    try:
        found = msgspec.json.decode(_file(target, stage).read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    measured = [(each.style, each.phrasing, each.words) for each in found.echoes]
    wanted = [(each.style, each.phrasing, each.words) for each in stage.cells]
    fits = found.version == _VERSION and measured == wanted
    sane = all(0 <= each.both <= min(each.echoed, each.returned) for each in found.echoes)
    return found.echoes if fits and sane and 0 <= moment - found.at < FRESH_S else None


def keep(target: Target, stage: Stage, heard: Sequence[Echo], now: float | None = None) -> None:
    """Keep a measurement for a day, unless no answer showed anything: the target may have been
    down. A cache that cannot be written is no reason to fail.
    """
    if not any(each.echoed or each.returned for each in heard):
        return
    path = _file(target, stage)
    its = _Kept(version=_VERSION, at=time.time() if now is None else now, echoes=tuple(heard))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        runfolder.replace_file(path, msgspec.json.encode(its))
    except (OSError, HarnessError):
        return


def _file(target: Target, stage: Stage) -> Path:
    """A file named by a digest of the target and of the lists of words, nothing else."""
    lists = {s: hashlib.sha256("\n".join(w).encode()).hexdigest() for s, w in stage.words.items()}
    what = [target.base_url, target.model, target.backend, target.api, lists]
    name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return root / "leakcheck" / f"audition-{name}.json"
