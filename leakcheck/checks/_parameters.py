"""What one answer shows of sampling parameters: its own, and those of others. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakcheck.checks import paired
from leakcheck.history import ANSWER_FIELDS, History
from leakcheck.records import Observation, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One comparison in one window. `direction` 1: parameters of others show; -1: they show under
    the condition that is compared with; 0: neither, or both. `recipient` and `source` are ids,
    `at` the place in the recipient's answer that shows it, `what` ends its sentence. `alone`: it is
    compared with requests sent alone, which any company may differ from.
    """

    window: int
    direction: int
    recipient: str
    what: str
    source: str | None = None
    at: tuple[int, int] = (0, 0)
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Names of the conditions in the traffic."""

    alone: str
    plain: str
    seeded: str
    mixed: str
    twins: str
    together: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answered request."""

    request: Request
    seen: Observation
    text: str

    @property
    def written(self) -> int | None:
        """Tokens of the answer as the target counts them."""
        return None if self.seen.usage is None else self.seen.usage.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The answered requests of one window, by cell, in the order of the plan."""

    window: int
    cells: dict[str, list[Answer]] = field(default_factory=dict)

    def of(self, cell: str) -> list[Answer]:
        """Those of one cell."""
        return self.cells.get(cell, [])

    def twins(self, cell: str, request: Request) -> list[Answer]:
        """Those of one cell with the payload of this request, itself left out."""
        mine = request.twin or request.id
        return [
            each
            for each in self.of(cell)
            if (each.request.twin or each.request.id) == mine and each.request.id != request.id
        ]


def told(history: History) -> list[Told]:
    """Every window with what was answered in it; replays are left out."""
    requests = history.requests
    wanted = requests[requests["replays"].isna() & (requests["outcome"] == "ok")]
    windows: dict[int, Told] = {}
    rows: list[Any] = list(wanted.itertuples())
    for row in rows:
        request, seen = history.by_id(row.id), history.answer(row.id)
        if seen is None:
            continue
        window = windows.setdefault(int(row.window), Told(window=int(row.window)))
        answer = Answer(request=request, seen=seen, text=shown(history, request.id))
        window.cells.setdefault(request.cell, []).append(answer)
    return [windows[number] for number in sorted(windows)]


def shown(history: History, request_id: str) -> str:
    """All that the model wrote in an answer: content, reasoning, tool calls, a line each."""
    seen = history.answer(request_id)
    chunks = () if seen is None else seen.chunks
    fields = dict.fromkeys(c.field for c in chunks if ANSWER_FIELDS.fullmatch(c.field))
    return "\n".join(history.text(request_id, name) for name in fields)


# --- greedy beside hot ---------------------------------------------------------------------------


def greedy(history: History, compared: Sequence[paired.Pair]) -> Iterator[Sign]:
    """Greedy requests that keep their ticket among greedy ones and lose it among hot ones."""
    for pair in compared:
        if history.by_id(pair.treated).sampling.temperature == 0:
            yield Sign(
                window=pair.window,
                direction=pair.reference_kept - pair.treated_kept,
                recipient=pair.treated,
                what=(
                    f"lost its ticket, though greedy, beside requests with other parameters; "
                    f"{pair.reference}, the same among greedy ones, kept it"
                ),
            )


# --- stop strings --------------------------------------------------------------------------------


def ignored_stops(window: Told, cells: Cells) -> Iterator[Sign]:
    """Own stop strings that end the answer alone; 1 where the answer in company holds one."""
    for answer in window.of(cells.mixed):
        for alone in window.twins(cells.alone, answer.request):
            for stop in answer.request.sampling.stop:
                if not _stopped_at(alone, stop):
                    continue
                at = answer.text.find(stop)
                yield Sign(
                    window=window.window,
                    direction=int(at >= 0),
                    recipient=answer.request.id,
                    at=(max(at, 0), max(at, 0) + len(stop)),
                    what=f"went on beyond {stop!r}, its own stop string, which ended it alone",
                )


def stops_ignored_alone(windows: Sequence[Told], cells: Cells) -> bool:
    """Whether some answer holds its own stop string with nobody beside it."""
    return any(
        stop in answer.text
        for window in windows
        for answer in window.of(cells.alone)
        for stop in answer.request.sampling.stop
    )


def _stopped_at(answer: Answer, stop: str) -> bool:
    """Whether the answer was ended by this stop string, as far as can be told: it ended by itself
    and lacks a text that it was asked to repeat.
    """
    asked = any(stop in message.content for message in answer.request.messages)
    return asked and answer.seen.finish_reason == "stop" and stop not in answer.text


def foreign_stops(window: Told, cells: Cells) -> Iterator[Sign]:
    """Answers that alone go beyond the stop string of another: cut there among greedy requests
    (-1), or in mixed company (1).
    """
    owners = [
        (stop, owner.request)
        for owner in window.of(cells.mixed)
        for stop in owner.request.sampling.stop
    ]
    for answer in window.of(cells.mixed):
        request = answer.request
        alone, plain = window.twins(cells.alone, request), window.twins(cells.plain, request)
        if request.sampling.stop or not alone or not plain:
            continue
        for stop, owner in owners:
            at = alone[0].text.find(stop)
            if at < 0:
                continue
            cut = [_cut_at(each.text, alone[0].text, at) for each in (answer, plain[0])]
            yield Sign(
                window=window.window,
                direction=cut[0] - cut[1],
                recipient=request.id,
                source=owner.id,
                at=(len(answer.text), len(answer.text)),
                what=f"ended where {stop!r} was due, which is the stop string of {owner.id}",
            )


def _cut_at(text: str, whole: str, at: int) -> bool:
    return text.rstrip() == whole[:at].rstrip()


# --- heat and seeds ------------------------------------------------------------------------------


def alike(window: Told, cells: Cells) -> Iterator[Sign]:
    """Two hot requests with one payload and two seeds: the same answer beside each other (1), or
    where each is the only hot one (-1): each among as many greedy ones, and each alone.

    The same two on both sides: of more, two would be alike more often by chance.
    """
    alone = [each for each in window.of(cells.alone) if _hot(each)]
    for number, first in enumerate(alone):
        for second in alone[number + 1 :]:
            if first.request.messages != second.request.messages or _same_seed(first, second):
                continue
            both = first.request, second.request
            one, other = (window.twins(cells.mixed, each) for each in both)
            if not one or not other:
                continue
            apart = [window.twins(cells.seeded, each) for each in both]
            references = [(apart[0][0], apart[1][0])] if all(apart) else []
            for reference in [*references, (first, second)]:
                yield Sign(
                    window=window.window,
                    direction=_same(one[0], other[0]) - _same(*reference),
                    recipient=other[0].request.id,
                    alone=reference[0] is first,
                    what=(
                        f"got word for word the answer of {one[0].request.id}, although both are "
                        f"hot and their seeds are {both[0].sampling.seed} and "
                        f"{both[1].sampling.seed}; {where(alone=reference[0] is first)} they "
                        "differ"
                    ),
                )


def where(*, alone: bool) -> str:
    """Where else an answer was right, within a sentence."""
    return "alone" if alone else "in as much company, but apart,"


def reproduced(window: Told, cells: Cells) -> Iterator[Sign]:
    """A seeded request that comes out as it does alone: among greedy ones but not in mixed company
    (1), or the other way round (-1). Only where twice alone gave the same, and another seed not.
    """
    alone = [each for each in window.of(cells.alone) if _hot(each)]
    for first in alone:
        again = window.twins(cells.alone, first.request)
        others = [
            each
            for each in alone
            if each.request.messages == first.request.messages and not _same_seed(first, each)
        ]
        honoured = again and others and _same(first, again[0])
        if first.request.twin or not honoured or any(_same(first, each) for each in others):
            continue
        seeded = window.twins(cells.seeded, first.request)
        mixed = window.twins(cells.mixed, first.request)
        if seeded and mixed:
            yield Sign(
                window=window.window,
                direction=_same(first, seeded[0]) - _same(first, mixed[0]),
                recipient=mixed[0].request.id,
                what=(
                    f"was not answered as its seed {first.request.sampling.seed} has it alone and "
                    f"beside greedy requests ({seeded[0].request.id})"
                ),
            )


def _hot(answer: Answer) -> bool:
    return answer.request.sampling.temperature > 0 and answer.request.sampling.seed is not None


def _same_seed(first: Answer, second: Answer) -> bool:
    return first.request.sampling.seed == second.request.sampling.seed


def _same(first: Answer, second: Answer) -> bool:
    return first.text == second.text


# --- length --------------------------------------------------------------------------------------


def longer(window: Told, cells: Cells) -> Iterator[Sign]:
    """max_tokens that are obeyed alone; 1 where the answer in company has more."""
    for answer, alone in _measured(window, cells):
        most, written = answer.request.sampling.max_tokens, answer.written or 0
        if (alone.written or 0) > most:
            continue
        other = _may_write(written, window.of(cells.mixed))
        yield Sign(
            window=window.window,
            direction=int(written > most),
            recipient=answer.request.id,
            source=None if other is None else other.id,
            at=(len(answer.text), len(answer.text)),
            what=f"has {written} tokens and its max_tokens are {most}; alone it obeyed",
        )


def longer_alone(windows: Sequence[Told], cells: Cells) -> bool:
    """Whether some answer has more tokens than its max_tokens with nobody beside it."""
    return any(
        (answer.written or 0) > answer.request.sampling.max_tokens
        for window in windows
        for answer in window.of(cells.alone)
    )


def cut(window: Told, cells: Cells) -> Iterator[Sign]:
    """Answers ended as too long before they were, and before they end alone: 1 at the max_tokens of
    another in the same company, -1 anywhere else, as a full KV cache does it.
    """
    for answer, alone in _measured(window, cells):
        most, written = answer.request.sampling.max_tokens, answer.written or 0
        short = answer.seen.finish_reason == "length" and written < most
        short = short and written < (alone.written or 0) <= most
        other = _may_write(written, window.of(cells.mixed)) if short else None
        yield Sign(
            window=window.window,
            direction=0 if not short else 1 if other else -1,
            recipient=answer.request.id,
            source=None if other is None else other.id,
            at=(len(answer.text), len(answer.text)),
            what=(
                f"was cut at {written} tokens, which is what {other and other.id} may write; its "
                f"own max_tokens are {most}"
            ),
        )


def _measured(window: Told, cells: Cells) -> Iterator[tuple[Answer, Answer]]:
    """Answers in mixed company and alone whose tokens the target counts."""
    for answer in window.of(cells.mixed):
        for alone in window.twins(cells.alone, answer.request)[:1]:
            if answer.written is not None and alone.written:
                yield answer, alone


def _may_write(tokens: int, company: Sequence[Answer]) -> Request | None:
    """Who of the company may write so many tokens and no more."""
    return next(
        (each.request for each in company if each.request.sampling.max_tokens == tokens), None
    )
