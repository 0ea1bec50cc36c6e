"""What the answers of one window show of each source, against the phantoms of that source.

A *source* is a payload that was sent, with all requests that carry it. It may show in the answers
of everybody else in the window that were not over before. `checks.altered` says what makes the
comparison exact.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakcheck import evidence
from leakcheck.checks import _topics
from leakcheck.history import History, scan
from leakcheck.match import altered
from leakcheck.passphrase import phantoms
from leakcheck.records import Look, Observation, Passphrase, Plan, Request

FRAGMENT, ENCODED, ALTERNATIVES, TOPIC = "fragment", "encoded", "alternatives", "topic"
RARE = 0.01
"""An alternative is worth a finding if at most this share of the phantoms scores as high."""
_BELOW = 1.0  # nats under the least alternative that came: the score of what did not come
_LARGEST_POOL = 20  # phantoms drawn for one that must remain, where words are short
_SPARE = 1.15  # so many times the phantoms expected to be needed: hardly ever too few

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One attempt: everything of it that is searched, and what it shows that is not its own.

    `lowest` is the least log-probability (nats) of its alternatives; infinity where it has none.
    """

    row: int
    request: Request
    payload: str
    start_ns: int
    end_ns: int
    texts: dict[str, str]
    own: frozenset[str]
    seams: altered.Shown
    topics: frozenset[int]
    begun: dict[int, tuple[float, str]]
    lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One payload that was sent: its passphrase, if it has one, and its filler."""

    payload: str
    start_ns: int
    owners: tuple[str, ...]
    words: tuple[str, ...]
    filler: _topics.Filler


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One planted window. `held` says in how many payloads each word of the index stands, `holds`
    which words are in each.
    """

    plan: Plan
    number: int
    index: altered.Index
    answers: tuple[Answer, ...]
    sources: tuple[Source, ...]
    held: Numbers
    holds: dict[str, Numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A source that shows in an answer by one tier, as `as_well` of its `phantoms` do."""

    tier: str
    source: Source
    answer: Answer
    as_well: int
    phantoms: int
    token: str | None = None


@dataclass(slots=True, kw_only=True)
class _Tally:
    """The counts of one tier in one window."""

    tier: str
    sources: int
    entries: list[tuple[bool, int, int]]
    phantoms: int = 0

    def add(self, *, planted: bool, as_well: int, phantoms: int) -> None:
        """One source: whether it shows, and how many of so many phantoms do."""
        self.phantoms += phantoms
        if planted or as_well:
            self.entries.append((planted, as_well + planted, phantoms + 1))

    def look(self, window: int, e_values: tuple[float, ...]) -> Look:
        """As it goes into the evidence."""
        hits = sum(planted for planted, _, _ in self.entries)
        return Look(
            tier=self.tier,
            window=window,
            e_values=e_values,
            sources=self.sources,
            planted_hits=hits,
            phantoms=self.phantoms,
            phantom_hits=sum(shown for _, shown, _ in self.entries) - hits,
        )


# --- gathering -----------------------------------------------------------------------------------


def windows(history: History) -> Iterator[Window]:
    """Every window of the planted arm of which anything was sent; no replays."""
    attempts: dict[tuple[str, int], list[int]] = defaultdict(list)
    names = history.observations["request_id"]
    for row, name in zip(names.index.tolist(), names.tolist(), strict=True):
        request = history.by_id(name)
        if request.arm == "planted" and request.replays is None:
            attempts[request.scenario, request.window].append(row)
    for plan in history.plans:
        requests: dict[int, list[Request]] = defaultdict(list)
        for request in plan.requests:
            if (plan.scenario.name, request.window) in attempts and request.replays is None:
                requests[request.window].append(request)
        for number, those in sorted(requests.items()):
            rows = attempts[plan.scenario.name, number]
            yield _window(history, plan, number, requests=those, rows=rows)


def _window(
    history: History, plan: Plan, number: int, *, requests: Sequence[Request], rows: Sequence[int]
) -> Window:
    phrases = [phrase.words for request in requests for phrase in _phrases(request)]
    known = set(plan.words)
    extra = sorted({word for words in phrases for word in words} - known)
    index = altered.index((*plan.words, *extra))
    payloads = {request.id: history.owners(request.id)[0] for request in requests}
    own: dict[str, frozenset[str]] = {}
    for request in requests:
        if payloads[request.id] not in own:
            said = [message.content for message in request.messages]
            said += [phrase.text for phrase in _phrases(request)]
            own[payloads[request.id]] = altered.tokens("\n".join(said))
    held = np.zeros(len(index.number), np.int64)
    holds = {}
    for payload, words in own.items():
        numbers = [index.number[word] for word in words if word in index.number]
        holds[payload] = np.array(sorted(numbers), np.int64)
        held[holds[payload]] += 1
    answers = [_answer(history, row, index=index, payloads=payloads, own=own) for row in rows]
    sent: dict[str, int] = {}
    for answer in answers:
        sent[answer.payload] = min(sent.get(answer.payload, answer.start_ns), answer.start_ns)
    return Window(
        plan=plan,
        number=number,
        index=index,
        answers=tuple(answers),
        sources=tuple(_sources(history, plan, requests, payloads, sent)),
        held=held,
        holds=holds,
    )


def _phrases(request: Request) -> list[Passphrase]:
    own = (request.passphrase, request.ticket, request.withheld)
    return [phrase for phrase in own if phrase is not None]


def _sources(
    history: History,
    plan: Plan,
    requests: Iterable[Request],
    payloads: dict[str, str],
    sent: dict[str, int],
) -> Iterator[Source]:
    """The payloads that were sent, once each."""
    done: set[str] = set()
    shape = plan.scenario.traffic.name
    for request in requests:
        payload = payloads[request.id]
        if payload in done or payload not in sent:
            continue
        done.add(payload)
        known = shape in _topics.SHAPES
        yield Source(
            payload=payload,
            start_ns=sent[payload],
            owners=history.owners(request.id),
            words=() if request.passphrase is None else request.passphrase.words,
            filler=_topics.filler(request.messages if known else ()),
        )


def _answer(
    history: History,
    row: int,
    *,
    index: altered.Index,
    payloads: dict[str, str],
    own: dict[str, frozenset[str]],
) -> Answer:
    seen = history.attempt(row)
    request = history.by_id(seen.request_id)
    payload = payloads[request.id]
    texts = scan.fields(seen)
    seams, topics = altered.Shown(), frozenset[int]()
    for text in texts.values():
        seams |= altered.shown(index, text, own[payload])
        topics |= _topics.runs_of(text)
    if topics:
        for message in request.messages:
            topics -= _topics.runs_of(message.content)
    alternatives = _unsampled(seen)
    return Answer(
        row=row,
        request=request,
        payload=payload,
        start_ns=seen.start_ns,
        end_ns=seen.end_ns,
        texts=texts,
        own=own[payload],
        seams=seams,
        topics=topics,
        begun=altered.begun(index, alternatives, own[payload]) if alternatives else {},
        lowest=min((logprob for _, logprob in alternatives), default=math.inf),
    )


def _unsampled(seen: Observation) -> list[tuple[str, float]]:
    """The likely tokens that were not sampled, with their log-probabilities (nats)."""
    return [
        (token, logprob)
        for chunk in seen.chunks
        for sampled in chunk.logprobs
        for token, logprob in sampled.top
        if token != sampled.token and math.isfinite(logprob)
    ]


# --- weighing ------------------------------------------------------------------------------------


def weigh(window: Window) -> tuple[list[Look], list[Hit]]:
    """What each tier says of a window, and who was shown."""
    owners = [source for source in window.sources if source.words]
    looks: list[Look] = []
    hits: list[Hit] = []
    if owners:
        candidates = _candidates(window, owners)
        looks += [_seams(window, tier, owners, candidates, hits) for tier in (FRAGMENT, ENCODED)]
        if any(answer.lowest < math.inf for answer in window.answers):
            looks.append(_alternatives(window, owners, candidates, hits))
    fillers = [source for source in window.sources if source.filler.parts]
    if fillers:
        looks.append(_topic(window, fillers, hits))
    return looks, hits


def others(window: Window, source: Source) -> list[Answer]:
    """The answers of everybody else that were not over when the source was first sent."""
    return [
        answer
        for answer in window.answers
        if answer.payload != source.payload and answer.end_ns > source.start_ns
    ]


def _candidates(window: Window, owners: Sequence[Source]) -> dict[str, Numbers]:
    """The numbers of the words of each passphrase, in the first row, and of its phantoms; only of
    those of which anything could show: no phrase shows in answers that have no seam at all.

    Left out is a passphrase with a word that another payload holds as well: the others are uniform
    over the phrases without such words, and so are their phantoms.
    """
    asked = [
        source
        for source in owners
        if any(answer.seams or answer.begun for answer in others(window, source))
    ]
    pools = {size: _pool(window, size) for size in {len(source.words) for source in asked}}
    count = window.plan.scenario.load.phantoms
    found = {}
    for source in asked:
        elsewhere = window.held.copy()
        elsewhere[window.holds[source.payload]] -= 1
        taken = elsewhere > 0
        planted = window.index.numbers([source.words])
        pool = pools[len(source.words)]
        if not taken[planted].any():
            kept = pool[~taken[pool].any(axis=1)][:count]
            found[source.payload] = np.concatenate((planted, kept))
    return found


def _pool(window: Window, size: int) -> Numbers:
    """Phantoms of a window, enough to have as many as asked for when those are left out that have
    words of other payloads; `passphrase.phantoms_of` gives the first of them.
    """
    plan = window.plan
    wanted, total = plan.scenario.load.phantoms, len(plan.words)
    free = int((window.held[:total] == 0).sum())
    if free < size:
        return np.empty((0, size), np.int64)
    kept = math.prod((free - at) / (total - at) for at in range(size))
    count = min(math.ceil(_SPARE * wanted / kept) + 16, _LARGEST_POOL * wanted)
    drawn = phantoms(plan.seed, plan.scenario.name, window.number, plan.words, size, count)
    return window.index.numbers(phrase.split(" ") for phrase in drawn)


def _seams(
    window: Window,
    tier: str,
    owners: Sequence[Source],
    candidates: dict[str, Numbers],
    hits: list[Hit],
) -> Look:
    """The tiers of seams: as they are, or in other forms."""
    flags = altered.in_plain if tier == FRAGMENT else altered.in_other_forms
    tally = _Tally(tier=tier, sources=len(owners), entries=[])
    for source in owners:
        phrases = candidates.get(source.payload)
        if phrases is None:
            tally.add(planted=False, as_well=0, phantoms=window.plan.scenario.load.phantoms)
            continue
        theirs = others(window, source)
        seen = altered.Shown()
        for answer in theirs:
            seen |= answer.seams
        shown = flags(window.index, seen, phrases)
        planted, as_well = bool(shown[0]), int(shown[1:].sum())
        tally.add(planted=planted, as_well=as_well, phantoms=len(shown) - 1)
        for answer in theirs if planted else ():
            if flags(window.index, answer.seams, phrases[:1])[0]:
                hit = Hit(
                    tier=tier,
                    source=source,
                    answer=answer,
                    as_well=as_well,
                    phantoms=len(shown) - 1,
                )
                hits.append(hit)
    return tally.look(
        window.number, evidence.phantom_bets(tally.entries, sources=max(1, len(owners)))
    )


def _alternatives(
    window: Window,
    owners: Sequence[Source],
    candidates: dict[str, Numbers],
    hits: list[Hit],
) -> Look:
    """The tier of tokens that were not sampled: the best one of each phrase is its score."""
    tally = _Tally(tier=ALTERNATIVES, sources=len(owners), entries=[])
    nothing = np.array(evidence.directed_bets([0.0, 0.0], 0))
    e_values = np.zeros_like(nothing)
    for source in owners:
        phrases = candidates.get(source.payload)
        theirs = others(window, source)
        begun = [answer for answer in theirs if answer.begun]
        if phrases is None or len(phrases) < 2 or not begun:  # noqa: PLR2004 - nothing to compare
            e_values += nothing
            count = window.plan.scenario.load.phantoms if phrases is None else len(phrases) - 1
            tally.add(planted=False, as_well=0, phantoms=count)
            continue
        # of others' answers alone: an own answer knows which passphrase was planted
        floor = min(each.lowest for each in theirs) - _BELOW
        of_word = np.full(len(window.index.number), floor)
        for answer in begun:
            for number, (logprob, _) in answer.begun.items():
                of_word[number] = max(of_word[number], logprob)
        scores = of_word[phrases].max(axis=1)
        e_values += np.array(evidence.directed_bets(scores.tolist(), 0))
        tally.add(
            planted=bool(scores[0] > floor),
            as_well=int((scores[1:] > floor).sum()),
            phantoms=len(scores) - 1,
        )
        as_well = int((scores[1:] >= scores[0]).sum())
        if scores[0] > floor and as_well <= RARE * (len(scores) - 1):
            hits.append(_likeliest(source, begun, phrases[0], as_well, len(scores) - 1))
    return tally.look(window.number, tuple((e_values / len(owners)).tolist()))


def _likeliest(
    source: Source, begun: Sequence[Answer], words: Numbers, as_well: int, count: int
) -> Hit:
    """The answer in which a word of the phrase was the likeliest, and the token that said so."""
    (_, token), answer = max(
        (
            (answer.begun[number], answer)
            for answer in begun
            for number in words.tolist()
            if number in answer.begun
        ),
        key=lambda found: found[0][0],
    )
    return Hit(
        tier=ALTERNATIVES,
        source=source,
        answer=answer,
        as_well=as_well,
        phantoms=count,
        token=token,
    )


def _topic(window: Window, fillers: Sequence[Source], hits: list[Hit]) -> Look:
    """The tier of runs of common words: phantoms are drawn where an answer has one not its own."""
    plan = window.plan
    tally = _Tally(tier=TOPIC, sources=len(fillers), entries=[])
    count = plan.scenario.load.phantoms
    every = frozenset[int]().union(*(answer.topics for answer in window.answers))
    # where no answer shows a run, none of a source or a phantom can
    of_source = [source.filler.runs() if every else frozenset[int]() for source in fillers]
    shared = _shared(of_source)
    drawn: _topics.Phantoms | None = None
    for source, runs in zip(fillers, of_source, strict=True):
        theirs = [answer for answer in others(window, source) if answer.topics]
        seen = frozenset[int]().union(*(answer.topics for answer in theirs))
        if not seen or runs & shared:
            tally.add(planted=False, as_well=0, phantoms=count)
            continue
        if drawn is None:
            drawn = _topics.phantoms(
                (plan.seed, plan.scenario.name, window.number),
                words=max(each.filler.words for each in fillers),
                count=count,
                shown=every,
            )
        as_well = drawn.hits(source.filler, seen)
        tally.add(planted=bool(runs & seen), as_well=as_well, phantoms=count)
        hits += [
            Hit(tier=TOPIC, source=source, answer=answer, as_well=as_well, phantoms=count)
            for answer in theirs
            if runs & answer.topics
        ]
    return tally.look(window.number, evidence.phantom_bets(tally.entries, sources=len(fillers)))


def _shared(of: Iterable[frozenset[int]]) -> frozenset[int]:
    """Runs of words that several payloads have: theirs were not drawn independently."""
    seen: set[int] = set()
    twice: set[int] = set()
    for runs in of:
        twice |= seen & runs
        seen |= runs
    return frozenset(twice)
