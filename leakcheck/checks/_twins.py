"""Two requests with one prompt that differ in one parameter: whether one has the other's answer.

The *tight* twin has the smaller max_tokens, or a stop string; the *free* one has neither. A sign
takes three things: the answer breaks the request's own parameter, it is word for word the twin's,
and a request of the same kind that no twin came before, in the same window, obeyed. What a target
ignores, caps or cuts for everybody therefore makes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakcheck.checks._parameters import Answer, Cells, Sign, Told
from leakcheck.records import Request

_DUE = 2
"""So many words before a stop string must end an answer that was cut there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Both answered. `first` is the one that was sent first; of two together, of the plan."""

    first: Answer
    second: Answer
    together: bool

    @property
    def by_stop(self) -> bool:
        """Whether they differ in their stop strings, not in max_tokens."""
        return self.first.request.sampling.stop != self.second.request.sampling.stop

    @property
    def tight(self) -> Answer:
        """The one that must be cut."""
        both = self.first, self.second
        return min(both, key=lambda each: _freedom(each.request))

    @property
    def free(self) -> Answer:
        """The one that must not."""
        return self.second if self.tight is self.first else self.first

    @property
    def alike(self) -> bool:
        """Whether the answers are the same, and say something."""
        text = self.first.text.rstrip()
        return bool(text) and text == self.second.text.rstrip()


def _freedom(request: Request) -> tuple[bool, int]:
    return not request.sampling.stop, request.sampling.max_tokens


def _pairs(window: Told, cells: Cells, *, by_stop: bool) -> Iterator[_Pair]:
    for cell in (cells.twins, cells.together):
        known = {each.request.id: each for each in window.of(cell)}
        for second in known.values():
            first = known.get(second.request.partner or "")
            if first is None or first.request.messages != second.request.messages:
                continue
            pair = _Pair(first=first, second=second, together=cell == cells.together)
            if pair.by_stop == by_stop:
                yield pair


def _judged(pairs: Sequence[_Pair], *, tight: bool) -> Iterator[_Pair]:
    """Those whose tight (or free) one may have the other's answer: came second, or together."""
    return (p for p in pairs if p.together or p.second is (p.tight if tight else p.free))


def _controls(pairs: Sequence[_Pair], *, tight: bool) -> list[_Pair]:
    """Those whose tight (or free) one came first."""
    return [p for p in pairs if not p.together and p.first is (p.tight if tight else p.free)]


# --- max_tokens ----------------------------------------------------------------------------------


def longer(windows: Sequence[Told], cells: Cells) -> Iterator[Sign]:
    """Tight twins that have more tokens than they may, as the free one does. None where a tight one
    that came first has too many, anywhere in the run. Where the target counts no tokens of the
    one, those of the other count: the text is the same.
    """
    every = [list(_pairs(window, cells, by_stop=False)) for window in windows]
    controls = [_controls(pairs, tight=True) for pairs in every]
    if any(_too_long(pair.tight) for found in controls for pair in found):
        return
    for pairs, found in zip(every, controls, strict=True):
        obeyed = any(pair.tight.written for pair in found)
        for pair in _judged(pairs, tight=True):
            written = pair.tight.written or (pair.alike and pair.free.written) or 0
            if not obeyed or not written:
                continue
            request, other = pair.tight.request, pair.free.request
            yield _sign(
                pair.tight,
                pair.free,
                direction=int(pair.alike and written > request.sampling.max_tokens),
                what=(
                    f"has {written} tokens and its max_tokens are {request.sampling.max_tokens}; "
                    f"it is word for word the answer to {other.id}, the same prompt with "
                    f"max_tokens {other.sampling.max_tokens}"
                ),
            )


def _too_long(answer: Answer) -> bool:
    return (answer.written or 0) > answer.request.sampling.max_tokens


def cut(windows: Sequence[Told], cells: Cells) -> Iterator[Sign]:
    """Free twins that were ended as too long where the tight one is, with its answer; only where a
    free one that came first, in the same window, was not cut short of what it may say.
    """
    for window in windows:
        pairs = list(_pairs(window, cells, by_stop=False))
        controls = _controls(pairs, tight=False)
        if not controls or any(_short(pair.free) for pair in controls):
            continue
        for pair in _judged(pairs, tight=False):
            request, other = pair.free.request, pair.tight.request
            limit = other.sampling.max_tokens
            at_limit = (pair.free.written or limit) == limit == (pair.tight.written or limit)
            both = _short(pair.free) and pair.tight.seen.finish_reason == "length"
            yield _sign(
                pair.free,
                pair.tight,
                direction=int(both and at_limit and pair.alike),
                what=(
                    f"was cut at {limit} tokens, which is what {other.id}, the same prompt, may "
                    f"write, and has its answer word for word; its own max_tokens are "
                    f"{request.sampling.max_tokens}"
                ),
            )


def _short(answer: Answer) -> bool:
    """Whether it was ended as too long before it was, as far as the target counts its tokens."""
    written = answer.written or 0
    return answer.seen.finish_reason == "length" and written < answer.request.sampling.max_tokens


# --- stop strings --------------------------------------------------------------------------------


def ignored_stops(windows: Sequence[Told], cells: Cells) -> Iterator[Sign]:
    """Tight twins whose answer holds their own stop string, as the free one's does. None where a
    tight one that came first goes beyond its own, anywhere in the run.
    """
    every = [list(_pairs(window, cells, by_stop=True)) for window in windows]
    controls = [_controls(pairs, tight=True) for pairs in every]
    if any(_beyond(pair, pair.tight) >= 0 for found in controls for pair in found):
        return
    for pairs, found in zip(every, controls, strict=True):
        obeyed = any(pair.tight.seen.finish_reason == "stop" for pair in found)
        for pair in _judged(pairs, tight=True) if obeyed else ():
            at = _beyond(pair, pair.tight)
            yield _sign(
                pair.tight,
                pair.free,
                direction=int(at >= 0 and pair.alike),
                at=(max(at, 0), max(at, 0) + len(_stop(pair))),
                what=(
                    f"went on beyond {_stop(pair)!r}, its own stop string, with the answer to "
                    f"{pair.free.request.id}, the same prompt without one, word for word"
                ),
            )


def foreign_stops(windows: Sequence[Told], cells: Cells) -> Iterator[Sign]:
    """Free twins that end where the tight one does, where the stop string is due, while those of
    the other pair go beyond theirs: 1 where the free one came second, -1 where it came first.

    A model that ends there by itself, or refuses both, does so in either order.
    """
    for window in windows:
        pairs = list(_pairs(window, cells, by_stop=True))
        first = _controls(pairs, tight=False)
        second = _controls(pairs, tight=True)  # whose free one came second
        if not first or not second:
            continue
        before, after = first[0], second[0]
        goes = [_beyond(pair, pair.free) >= 0 for pair in (before, after)]
        if not any(goes):
            continue
        up, down = goes[0] and _ends_alike(after), goes[1] and _ends_alike(before)
        end = len(after.free.text)
        yield _sign(
            after.free,
            after.tight,
            direction=up - down,
            at=(end, end),
            what=(
                f"ended where {_stop(after)!r} was due, which only {after.tight.request.id}, the "
                f"same prompt, has for a stop string, and has its answer word for word"
            ),
        )


def _ends_alike(pair: _Pair) -> bool:
    """Whether both ended by themselves with the words that stand before the stop string."""
    ended = pair.free.seen.finish_reason == pair.tight.seen.finish_reason == "stop"
    before, found, _ = pair.free.request.messages[-1].content.partition(_stop(pair))
    due = before.split()[-_DUE:] == pair.free.text.split()[-_DUE:]
    return ended and pair.alike and bool(found) and due


def _stop(pair: _Pair) -> str:
    return pair.tight.request.sampling.stop[0]


def _beyond(pair: _Pair, answer: Answer) -> int:
    """Where an answer holds the stop string of the tight one; -1 if nowhere."""
    return answer.text.find(_stop(pair))


def _sign(
    answer: Answer, other: Answer, *, direction: int, what: str, at: tuple[int, int] | None = None
) -> Sign:
    return Sign(
        window=answer.request.window,
        direction=direction,
        recipient=answer.request.id,
        source=other.request.id,
        at=at or (len(answer.text), len(answer.text)),
        what=what,
    )
