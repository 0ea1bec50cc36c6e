"""Parts of passphrases in texts, as they are or in another form: what a fuzzy tier looks for.

A part is the seam of two adjacent words of a phrase: the last four letters of the one and the first
four of the next, eight consecutive letters of the folded text (`folding.fold`). A single word never
has a seam of its phrase, and two adjacent words always have one, however they are separated, even
where the answer begins or ends within them. Fewer letters are looked for where a word has no four.

A text is read as it is, and decoded in every way that a model or a server is known to write things:
reversed, spelled by the NATO alphabet, base64, hex, URL-encoded, with JSON escapes, rot13, leet.
Decoding the text rather than encoding the phrase finds it at any alignment, with any separators,
and cut short. (Letters spelled one by one, `m-a-r-b-l-e`, are equal under folding already.)

Only letters decide; that no part proves anything alone, and how often it shows by chance, is the
business of phantoms (`checks.altered`).
"""

from __future__ import annotations

import binascii
import bisect
import codecs
import functools
import itertools
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakcheck.folding import ASCII_DROPPED, ASCII_LOWER, fold, origins

PLAIN, WORDS_REVERSED, LEET = "as it is", "words reversed", "leet"
SEAM = 4
"""Letters looked for on each side of a seam."""
LEAST_BEGINNING = 3
"""Letters with which a token must begin a word to count as a beginning of it."""

Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BAR = "\x01"
_DROPPED = ASCII_DROPPED.replace(_BAR.encode(), b"")
_TOKEN = re.compile(r"[^\W_]+")
_PRINTABLE = re.compile(rb"[\t\n\r\x20-\x7e]{8,}")
_ANY_BYTES = re.compile(rb"(?s).{8,}")
_URL = re.compile(r"(?s)[^\s%]*%[0-9A-Fa-f]{2}(?:.*%[0-9A-Fa-f]{2})?\S*")
_JSON = re.compile(r"(?s)[^\s\\]*\\u[0-9A-Fa-f]{4}(?:.*\\u[0-9A-Fa-f]{4})?\S*")
_JSON_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")
_LEET = str.maketrans("0134578962@$!|+", "oieastbggzasiit")
_LEET_MARK = re.compile(r"[^\W\d_][0134578962@$!|+]|[0134578962@$!|+][^\W\d_]")
_ONE_LETTER = str.maketrans("l", "i")  # in leet, 1 and ! and | stand for both
_NATO = re.compile(
    "alfa|alpha|bravo|charlie|delta|echo|foxtrot|golf|hotel|india|juliet(?:t(?!ango))?|kilo|lima|"
    "mike|november|oscar|papa|quebec|romeo|sierra|tango|uniform|victor|whiske?y|xray|yankee|zulu"
)
_LEAST_SPELLED = 2 * SEAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """The seams that words can make: `ends` and `starts` are the letters before and after one.

    `end` and `start` have the number of each word's own; a seam is `end * len(starts) + start`.
    """

    ends: dict[str, int]
    starts: dict[str, int]
    end: Codes
    start: Codes
    sizes: tuple[tuple[int, int], ...]

    def of(self, first: Codes, second: Codes) -> Codes:
        """The seam of each pair of words, by their numbers."""
        return self.end[first] * len(self.starts) + self.start[second]

    def within(self, stream: str) -> set[int]:
        """Every seam in a folded text."""
        found = set()
        for before, after in self.sizes:
            for at in range(before, len(stream) - after + 1):
                end = self.ends.get(stream[at - before : at])
                if end is not None:
                    start = self.starts.get(stream[at : at + after])
                    if start is not None:
                        found.add(end * len(self.starts) + start)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A list of words by what can be seen of them; a word's number is its place in the list."""

    number: dict[str, int]
    plain: Seams
    leet: Seams
    ordered: tuple[str, ...]
    ascii: bool

    def numbers(self, phrases: Iterable[Sequence[str]]) -> Codes:
        """Phrases of one length, at least one, as rows of the numbers of their words."""
        rows = list(phrases)
        words = itertools.chain.from_iterable(rows)
        flat = np.fromiter(map(self.number.__getitem__, words), np.int64)
        return flat.reshape(len(rows), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The seams that an answer shows: as it is, decoded, and in leet (where `1` may be i or l)."""

    plain: frozenset[int] = frozenset()
    encoded: frozenset[int] = frozenset()
    leet: frozenset[int] = frozenset()

    def __or__(self, other: Shown) -> Shown:
        """What either shows."""
        return Shown(
            plain=self.plain | other.plain,
            encoded=self.encoded | other.encoded,
            leet=self.leet | other.leet,
        )

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.plain or self.encoded or self.leet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Where a text shows a part of a phrase: `text[start:end]`, which `reads` so when decoded."""

    form: str
    start: int
    end: int
    reads: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A text decoded: its character at k comes from about `first` + k * `step` of the original."""

    form: str
    text: str
    first: int
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code:
    """A way to write bytes: `chars` characters stand for `size` of them, `between` for nothing."""

    form: str
    between: re.Pattern[str]
    runs: re.Pattern[str]
    decode: Callable[[str], bytes]
    chars: int
    size: int


@functools.lru_cache(maxsize=8)
def index(words: tuple[str, ...]) -> Index:
    """What can be seen of a list of words; kept for the lists asked for last."""
    folded = [fold(word) for word in words]
    return Index(
        number={word: number for number, word in enumerate(words)},
        plain=_seams(folded),
        leet=_seams([_leet(word) for word in folded]),
        ordered=tuple(sorted(words)),
        ascii=all(map(str.isascii, words)),
    )


def _seams(words: Sequence[str]) -> Seams:
    ends: dict[str, int] = {}
    starts: dict[str, int] = {}
    end = [ends.setdefault(word[-SEAM:], len(ends)) for word in words]
    start = [starts.setdefault(word[:SEAM], len(starts)) for word in words]
    lengths = [sorted({len(key) for key in keys}) for keys in (ends, starts)]
    return Seams(
        ends=ends,
        starts=starts,
        end=np.array(end, np.int64),
        start=np.array(start, np.int64),
        sizes=tuple((before, after) for before in lengths[0] for after in lengths[1]),
    )


def _leet(folded: str) -> str:
    """Folded letters in the alphabet of leet. Numbers stay: leet turns letters into digits, and
    nobody writes digits that way; 6 and 9 would be the same.
    """
    if folded.isdigit():
        return folded
    return folded.translate(_LEET).translate(_ONE_LETTER)


def tokens(text: str) -> frozenset[str]:
    """The words of a text, in small letters: what its author may be answered with."""
    return frozenset(_TOKEN.findall(text.lower()))


# --- reading a text in every form ----------------------------------------------------------------


def shown(of: Index, text: str, own: Collection[str]) -> Shown:
    """The seams in a text, `own` words left out: those of the one who may say them, in small
    letters. What the text shows as it is counts as decoded in no other form.
    """
    plain: set[int] = set()
    encoded: set[int] = set()
    leet: set[int] = set()
    for reading in _readings(text, own, ascii_only=of.ascii):
        stream = _stream(reading.text)
        if reading.form == PLAIN:
            plain = of.plain.within(stream)
        elif reading.form == LEET:
            leet = of.leet.within(_leet(stream))
        else:
            encoded |= of.plain.within(stream)
    if leet:
        leet -= of.leet.within(_stream(_masked(text, own)).translate(_ONE_LETTER))
    return Shown(plain=frozenset(plain), encoded=frozenset(encoded - plain), leet=frozenset(leet))


def in_plain(of: Index, seen: Shown, phrases: Codes) -> Flags:
    """Which phrases, rows of numbers of words, show a seam as they are."""
    if not seen.plain:
        return np.zeros(len(phrases), np.bool_)
    return _any(of.plain.of(phrases[:, :-1], phrases[:, 1:]), seen.plain)


def in_other_forms(of: Index, seen: Shown, phrases: Codes) -> Flags:
    """Which phrases, rows of numbers of words, show a seam in another form."""
    first, second = phrases[:, :-1], phrases[:, 1:]
    found = [np.zeros(len(phrases), np.bool_)]
    if seen.encoded or seen.plain:
        seams = of.plain.of(first, second)
        found.append(_any(seams, seen.encoded))
    if seen.plain:
        back = of.plain.of(second, first)  # words reversed
        shown_back = np.isin(back, np.fromiter(seen.plain, np.int64, len(seen.plain)))
        if shown_back.any():
            # a seam may be one of the phrase as it is: two of its words may end, or begin, alike
            shown_back &= ~(back[:, :, None] == seams[:, None, :]).any(axis=2)
            found.append(np.asarray(shown_back.any(axis=1), np.bool_))
    if seen.leet:
        found.append(_any(of.leet.of(first, second), seen.leet))
    either: Flags = np.logical_or.reduce(found)
    return either


def _any(seams: Codes, wanted: frozenset[int]) -> Flags:
    found = np.isin(seams, np.fromiter(wanted, np.int64, len(wanted)))
    return np.asarray(found.any(axis=1), np.bool_)


def passage(
    text: str, phrase: Sequence[str], own: Collection[str], *, plain: bool
) -> Passage | None:
    """The longest part of a phrase in a text, as it is or in any other form; None without one."""
    best: tuple[int, Passage] | None = None
    words = [fold(word) for word in phrase]
    for reading in _readings(text, own, ascii_only=all(map(str.isascii, words))):
        orders = [(reading.form, words)] if plain == (reading.form == PLAIN) else []
        if reading.form == PLAIN and not plain:
            orders = [(WORDS_REVERSED, words[::-1])]
        for form, order in orders:
            found = _longest(reading, order)
            if found is None or (best is not None and found[1] - found[0] <= best[0]):
                continue
            edges = [reading.first + reading.step * at for at in found]
            if reading.step < 0:  # the character at an edge itself, not what is before it
                edges = [edge + 1 for edge in edges[::-1]]
            start, end = map(round, edges)
            reads = reading.text[slice(*found)]
            place = Passage(form=form, start=max(0, start), end=min(len(text), end), reads=reads)
            best = (found[1] - found[0], place)
    return None if best is None else best[1]


def whole(text: str, phrase: Sequence[str]) -> Passage | None:
    """Where a text holds all words of a phrase in order (or all in reverse) in another form."""
    found = passage(text, phrase, frozenset(), plain=False)
    letters = sum(len(fold(word)) for word in phrase)
    return found if found is not None and len(_stream(found.reads)) >= letters else None


def _longest(reading: _Reading, words: Sequence[str]) -> tuple[int, int] | None:
    """Where the longest run of the words is that crosses a seam of them, in the decoded text."""
    stream, joined = _stream(reading.text), "".join(words)
    if reading.form == LEET:
        stream, joined = _leet(stream), _leet(joined)
    best = (0, 0)
    seam = 0
    for before, after in itertools.pairwise(words):
        seam += len(before)
        low, high = seam - min(SEAM, len(before)), seam + min(SEAM, len(after))
        at = stream.find(joined[low:high])
        while at >= 0:
            start, end = at, at + high - low
            left, right = low, high
            while start and left and stream[start - 1] == joined[left - 1]:
                start, left = start - 1, left - 1
            while end < len(stream) and right < len(joined) and stream[end] == joined[right]:
                end, right = end + 1, right + 1
            best = max(best, (start, end), key=lambda span: span[1] - span[0])
            at = stream.find(joined[low:high], at + 1)
    if best == (0, 0):
        return None
    place = [at for at, c in enumerate(reading.text) for _ in (c if c == _BAR else fold(c))]
    return place[best[0]], place[best[1] - 1] + 1


def _masked(text: str, own: Collection[str]) -> str:
    """The text with bars for own words, as long as it was."""
    return _TOKEN.sub(lambda t: _BAR * len(t[0]) if t[0].lower() in own else t[0], text)


def _stream(text: str) -> str:
    """A folded text, in which bars stay bars: nothing is adjacent over one."""
    if text.isascii():
        return text.encode().translate(ASCII_LOWER, _DROPPED).decode()
    return _BAR.join(map(fold, text.split(_BAR)))


def _readings(text: str, own: Collection[str], *, ascii_only: bool) -> Iterator[_Reading]:
    """The text as it is and in each form."""
    masked = _masked(text, own)
    yield _Reading(form=PLAIN, text=masked, first=0, step=1)
    yield _Reading(form="reversed", text=masked[::-1], first=len(text) - 1, step=-1)
    yield _Reading(form="rot13", text=codecs.encode(masked, "rot13"), first=0, step=1)
    if _LEET_MARK.search(masked):
        yield _Reading(form=LEET, text=masked.lower().translate(_LEET), first=0, step=1)
    yield from _in_runs(text, ascii_only=ascii_only)


def _in_runs(text: str, *, ascii_only: bool) -> Iterator[_Reading]:
    """Forms in which several characters stand for one."""
    yield from _escaped("URL-encoded", text, _URL, urllib.parse.unquote_plus)
    yield from _escaped("JSON escapes", text, _JSON, _without_escapes)
    yield from _spelled(text)
    pattern = _PRINTABLE if ascii_only else _ANY_BYTES
    yield from _bytes(_BASE64, text, pattern)
    yield from _bytes(_HEX, text, pattern)


def _escaped(
    form: str, text: str, stretch: re.Pattern[str], decode: Callable[[str], str]
) -> Iterator[_Reading]:
    """From the word with the first escape to that with the last."""
    found = stretch.search(text)
    if found is not None:
        decoded = decode(found[0])
        step = len(found[0]) / max(1, len(decoded))
        yield _Reading(form=form, text=decoded, first=found.start(), step=step)


def _without_escapes(text: str) -> str:
    return _JSON_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)


def _spelled(text: str) -> Iterator[_Reading]:
    """NATO words, whatever stands between them."""
    stream = fold(text)
    found = list(_NATO.finditer(stream))
    if len(found) >= _LEAST_SPELLED:
        origin = origins(text)
        first, last = origin[found[0].start()], origin[found[-1].end() - 1] + 1
        letters = "".join(match[0][0] for match in found)
        yield _Reading(form="NATO", text=letters, first=first, step=(last - first) / len(letters))


def _bytes(code: _Code, text: str, readable: re.Pattern[bytes]) -> Iterator[_Reading]:
    """Runs of the characters of a code, decoded at every alignment.

    Only what is `readable` can hold letters.
    """
    place: list[int] | None = None
    compact = code.between.sub("", text)
    for run in code.runs.finditer(compact):
        for shift in range(code.chars):
            for part in readable.finditer(code.decode(run[0][shift:])):
                if place is None:
                    place = _kept(text, code.between)
                at = run.start() + shift + part.start() * code.chars // code.size
                last = min(len(place) - 1, at + len(part[0]) * code.chars // code.size)
                yield _Reading(
                    form=code.form,
                    text=part[0].decode("utf-8", "ignore"),
                    first=place[at],
                    step=(place[last] - place[at] + 1) / len(part[0]),
                )


def _kept(text: str, between: re.Pattern[str]) -> list[int]:
    """Where each character comes from that is left without what stands between."""
    gone = [(gap.start(), gap.end()) for gap in between.finditer(text)]
    left: list[int] = []
    at = 0
    for start, end in [*gone, (len(text), len(text))]:
        left += range(at, start)
        at = end
    return left


def _from_base64(run: str) -> bytes:
    whole = len(run) - len(run) % 4
    rest = run[whole:]
    rest = rest.ljust(4, "A") if len(rest) > 1 else ""  # cut short: what is there of the last bytes
    return binascii.a2b_base64((run[:whole] + rest).replace("-", "+").replace("_", "/"))


def _from_hex(run: str) -> bytes:
    return binascii.unhexlify(run[: len(run) - len(run) % 2])


_BASE64 = _Code(
    form="base64",
    between=re.compile(r"\s+"),
    runs=re.compile(r"[A-Za-z0-9+/_-]{12,}"),
    decode=_from_base64,
    chars=4,
    size=3,
)
_HEX = _Code(
    form="hex",
    between=re.compile(r"(?:0[xX]|\\[xX]|[\s:,;.-])+"),
    runs=re.compile(r"[0-9A-Fa-f]{16,}"),
    decode=_from_hex,
    chars=2,
    size=1,
)


# --- tokens that were thought of -----------------------------------------------------------------


def begun(
    of: Index, tokens_seen: Iterable[tuple[str, float]], own: Collection[str]
) -> dict[int, tuple[float, str]]:
    """Numbers of the words that a token is or begins: its best log-probability (nats), and it.

    A token of less than `LEAST_BEGINNING` letters says nothing, nor does one that begins an `own`
    word.
    """
    mine = {word[:size] for word in own for size in range(LEAST_BEGINNING, len(word) + 1)}
    best: dict[str, float] = {}
    for token, logprob in tokens_seen:
        best[token] = max(best.get(token, logprob), logprob)
    found: dict[int, tuple[float, str]] = {}
    for token, logprob in best.items():
        letters = fold(token)
        if len(letters) < LEAST_BEGINNING or letters in mine:
            continue
        at = bisect.bisect_left(of.ordered, letters)
        while at < len(of.ordered) and of.ordered[at].startswith(letters):
            number = of.number[of.ordered[at]]
            found[number] = max(found.get(number, (logprob, token)), (logprob, token))
            at += 1
    return found
