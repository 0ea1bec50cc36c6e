"""Mint passphrases and phantoms, know their entropy, and prove that a match will mean a leak.

A passphrase is `length` words of a list, drawn at random. What makes a match evidence is counting:
whatever an answer says, it can match only so many of all the phrases that might have been drawn
(`false_match_bound`), provided nothing but its owner's payload holds a phrase (`assert_separate`).
Both count with what `match.find` calls equal, and with lists in which no word begins another word:
then the letters from a given place on spell one phrase at most.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol

from leakcheck.errors import UsageError
from leakcheck.folding import fold
from leakcheck.records import Passphrase, Plan, Request, Style

VARIANTS = 13
"""Places for each character of an answer at which a phrase of its window may be spelled in any form
of `match.altered`: base64 3 (four alignments of 3/4), leet 2 (fewer letters), the others 1 each."""
FALSE_MATCH_LIMIT = 1e-7
"""The largest chance of a false match in a run that `require_entropy` lets pass."""
CHARS_PER_TOKEN = 8
"""Letters and digits planned for per generated token: twice what is usual."""
ENOUGH_WORDS = 2048
"""With fewer listed words as whole tokens, `rare_token_words` also looks into the vocabulary."""
_SHORTEST_WORD, _LONGEST_WORD = 5, 12
_WITHHELD = "withheld passphrase"
_WORD_START = ("\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}", "\N{LOWER ONE EIGHTH BLOCK}")


def list_file(path: Path | None = None) -> Traversable:
    """The list of words at `path`, or the one shipped with the package."""
    return files("leakcheck") / "words.txt" if path is None else path


def load_words(path: Path | None = None) -> tuple[str, ...]:
    """The words passphrases are drawn from: the list shipped with the package, or a file of yours.

    One word a line; blank lines and lines that begin with `#` are skipped. Raises UsageError, with
    file and line, for a file that cannot be read, a word that is not all lower-case letters and
    digits, and a word that begins another one (or is there twice).
    """
    source = list_file(path)
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source}: the list of words cannot be read: {error}") from error
    where: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        if fold(word) != word:
            raise UsageError(
                f"{source}:{number}: {word!r} is no word; use lower-case letters without accents"
            )
        if word in where:
            raise UsageError(f"{source}:{number}: {word!r} is already in line {where[word]}")
        where[word] = number
    for short, long in itertools.pairwise(sorted(where)):
        if long.startswith(short):
            raise UsageError(
                f"{source}:{where[long]}: {long!r} begins with {short!r} of line {where[short]}; "
                "leave one of them out"
            )
    return tuple(where)


# --- rare whole tokens ---------------------------------------------------------------------------


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of control tokens."""

    def get_vocab(self) -> dict[str, int]:
        """Every token as written in the vocabulary, with its id."""

    def get_added_vocab(self) -> dict[str, int]:
        """Tokens that were added to the trained vocabulary."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""

    def decode(self, token_ids: list[int]) -> str:
        """Ids to text."""


def whole_token_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[str, ...]:
    """The words that are one token each of this tokenizer; sorted, none begins another.

    A word qualifies when, after a space in the middle of a sentence, it is one token that is
    neither special nor added, that decodes to just this word (so no byte, control or partial UTF-8
    token), and when the sentence survives decoding and encoding again.
    """
    return _prefix_free(_whole_tokens(_TokenCheck(tokenizer), words))


def rare_token_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[str, ...]:
    """Candidates for a model that can be measured: whole tokens, rare in natural text; sorted.

    What is rare, `words` knows: the shipped list was chosen by frequency in natural text. Where
    fewer than `ENOUGH_WORDS` of them are whole tokens, words of the vocabulary fill up to that
    many: of all its words of 5 or more letters a to z in order of id, those between the middle and
    the last twentieth, evenly spread, 12 letters at most. Being merged early is good evidence that
    a word is common, hence not the first half; being merged last is what unfit tokens have in
    common, hence not the end. A word that begins another one, or with another one, is left out: it
    is a fragment, or common enough to have inflections and compounds.

    The largest ids are *not* simply taken. Ids follow the frequency in the corpus that the
    tokenizer was trained on, which need not be the model's; their end holds special, added and
    reserved tokens, runs of whitespace and code, fragments of other scripts and tokens that the
    model hardly ever saw in training. Such tokens are not repeated when asked for, are changed by
    a server that decodes and encodes again, or derail the model: a leak of them goes unseen, and a
    difference they cause is none.

    Whether the model can echo them, and does not say them unasked, has to be measured on the model
    (`certify`): words of a vocabulary are never used before.
    """
    check = _TokenCheck(tokenizer)
    kept = _whole_tokens(check, words)
    if len(kept) < ENOUGH_WORDS:
        middle = _middle_of_vocabulary(tokenizer, check)
        middle = [word for word in middle if not _clashes(word, kept)]
        room = min(len(middle), ENOUGH_WORDS - len(kept))
        kept += [middle[i * len(middle) // room] for i in range(room)]
    return _prefix_free(kept)


def _whole_tokens(check: _TokenCheck, words: Iterable[str]) -> list[str]:
    return [word for word in words if len(word) >= _SHORTEST_WORD and check.is_whole_token(word)]


class _TokenCheck:
    """Whether a word is one token in the middle of a sentence, and stays one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.unfit = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        self._before = self._encode("We say")
        self._after = {end: self._encode(f"We say{end}") for end in (" and more", ".")}

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def is_whole_token(self, word: str) -> bool:
        at = len(self._before)
        for end, without in self._after.items():
            ids = self._encode(f"We say {word}{end}")
            if ids[:at] + ids[at + 1 :] != without or ids[:at] != self._before:
                return False
            if ids[at] in self.unfit or self._tokenizer.decode([ids[at]]).strip() != word:
                return False
            if self._encode(self._tokenizer.decode(ids)) != ids:
                return False
        return True


def _middle_of_vocabulary(tokenizer: Tokenizer, check: _TokenCheck) -> list[str]:
    vocabulary = tokenizer.get_vocab()
    marked = any(token.startswith(_WORD_START) for token in vocabulary)
    by_id: list[str] = []
    for token, number in sorted(vocabulary.items(), key=lambda item: item[1]):
        word = token[1:] if token.startswith(_WORD_START) else token
        if (marked and word == token) or number in check.unfit:
            continue
        if len(word) >= _SHORTEST_WORD and word.isascii() and word.isalpha() and word.islower():
            by_id.append(word)
    alone = set(by_id)
    for short, long in itertools.pairwise(sorted(by_id)):
        if long.startswith(short):
            alone.discard(short)
    whole = set(by_id)
    middle = by_id[len(by_id) // 2 : len(by_id) - len(by_id) // 20]
    return [
        word
        for word in middle
        if word in alone
        and len(word) <= _LONGEST_WORD
        and not any(word[:size] in whole for size in range(_SHORTEST_WORD, len(word)))
        and check.is_whole_token(word)
    ]


def _clashes(word: str, others: Iterable[str]) -> bool:
    return any(word.startswith(other) or other.startswith(word) for other in others)


def _prefix_free(words: Iterable[str]) -> tuple[str, ...]:
    """The words, sorted, without those that begin with another one."""
    kept: list[str] = []
    for word in sorted(set(words)):
        if not kept or not word.startswith(kept[-1]):
            kept.append(word)
    return tuple(kept)


# --- minting -------------------------------------------------------------------------------------


def entropy(pool: int, length: int) -> float:
    """Bits of a phrase of `length` different words out of `pool`; minus infinity if too few."""
    if pool < length:
        return -math.inf
    return math.fsum(math.log2(pool - used) for used in range(length))


def words_needed(pool: int, bits: float, phrases: int) -> int | None:
    """The smallest length, in words, of a passphrase of at least `bits` drawn out of `pool` words
    that `phrases` of a window share; None where no length will do.
    """
    lengths = range(1, pool // phrases + 1)
    enough = (k for k in lengths if entropy(pool - k * (phrases - 1), k) >= bits)
    return next(enough, None)


class Minter:
    """The phrases of one window: no word is used twice in it, so one leaked word names its source.

    The entropy of a phrase counts the phrases that could still be drawn when it was. Given *all*
    others of the window, every phrase has the entropy of the last one (they are exchangeable), so
    the smallest of a window or a run is the figure to reckon with.
    """

    def __init__(self, rng: random.Random, words: Sequence[str], style: Style, length: int) -> None:
        """Raises UsageError when the list has not enough words for a single phrase."""
        if length < 1:
            raise UsageError(f"load.passphrase_words: {length} is too few; use at least 1")
        self._rng = rng
        self._left = list(words)
        self._size = len(self._left)
        self._style: Style = style
        self._length = length
        if self._size < length:
            raise UsageError(_exhausted(self._size, length))

    def mint(self) -> Passphrase:
        """A phrase of words that no earlier one has. Raises UsageError when they have run out."""
        bits = entropy(len(self._left), self._length)
        if bits == -math.inf:
            raise UsageError(_exhausted(self._size, self._length))
        return Passphrase(
            words=tuple(self._draw() for _ in range(self._length)),
            style=self._style,
            entropy_bits=bits,
        )

    def _draw(self) -> str:
        at = self._rng.randrange(len(self._left))
        self._left[at], self._left[-1] = self._left[-1], self._left[at]
        return self._left.pop()


def _exhausted(size: int, length: int) -> str:
    return (
        f"{size} words are enough for {size // length} passphrases and tickets of {length} words "
        "in one window, and this one needs more: lower load.requests or load.passphrase_words, or "
        "use a longer list of words"
    )


def phantoms(  # noqa: PLR0917 - the six facts that name a draw, in the order of their scope
    seed: int, scenario: str, window: int, words: Sequence[str], length: int, count: int
) -> list[str]:
    """Phrases of one window that are never sent: free controls, drawn as `Minter` draws one phrase.

    The same for the same arguments, on every machine and version, so they are drawn again instead
    of stored; about a second for a million words. Raises UsageError when `words` are too few.
    """
    import numpy as np  # noqa: PLC0415 - not needed to plan, nor for --help

    if len(words) < length:
        raise UsageError(_exhausted(len(words), length))
    digest = hashlib.sha256(f"{seed}/{scenario}/{window}/phantoms".encode()).digest()
    # of numpy's generators only the raw numbers are promised to stay the same
    bits = np.random.PCG64(int.from_bytes(digest))
    chosen = np.empty((0, length), np.int64)
    while len(chosen) < count:
        rows = count - len(chosen) + 16
        drawn = (bits.random_raw((rows, length)) % np.uint64(len(words))).astype(np.int64)
        ordered = np.sort(drawn, axis=1)
        different = (ordered[:, 1:] != ordered[:, :-1]).all(axis=1)
        chosen = np.concatenate((chosen, drawn[different]))
    spelled = np.array(words, dtype=object)[chosen[:count]]
    return [" ".join(row) for row in spelled.tolist()]


def phantoms_of(plan: Plan, window: int) -> list[str]:
    """The phantoms of one window of a plan: as many and as long as its load says."""
    load = plan.scenario.load
    name = plan.scenario.name
    return phantoms(plan.seed, name, window, plan.words, load.passphrase_words, load.phantoms)


# --- what a match proves -------------------------------------------------------------------------


def false_match_bound(
    *, outputs: int, phrases: int, output_chars: int, variants: int, entropy_bits: float
) -> float:
    """Upper bound (a probability, 0..1) of any false match in a run.

    `outputs` x `phrases` x `output_chars` x `variants` x 2**-`entropy_bits`: each of `outputs`
    texts is compared with each of `phrases` phrases; at each of at most `output_chars` places it
    matches at most `variants` of the 2**`entropy_bits` phrases that might have been drawn instead
    (1 with `match.find` and a list in which no word begins another).

    Holds for any behaviour of the target whatsoever, as long as the phrases were drawn at random
    independently of all that the target saw apart from the owner's payload: a seed unrelated to
    the prompts, no phrase used before, none in another payload (`assert_separate`).
    """
    return min(1.0, outputs * phrases * output_chars * variants * math.exp2(-entropy_bits))


def require_entropy(plans: Sequence[Plan], limit: float = FALSE_MATCH_LIMIT) -> float:
    """The bound on a false match (a probability) for all plans of a run, before anything is sent.

    Every answer, of `CHARS_PER_TOKEN` characters a token, is compared with every passphrase, ticket
    and withheld passphrase (and note, though nobody looks for one). Raises UsageError if the bound
    is above `limit`, with the smallest number of words that would do.
    """
    counts = [_phrase_counts(plan) for plan in plans]
    places = sum(
        request.sampling.max_tokens * CHARS_PER_TOKEN for plan in plans for request in plan.requests
    )

    def bound(words: int | None) -> float:
        return math.fsum(
            false_match_bound(
                outputs=1,
                phrases=counted.total() + _again(counted),
                output_chars=places,
                variants=1,
                entropy_bits=entropy(
                    len(plan.words) - length * (max(counted.values(), default=1) - 1), length
                ),
            )
            for plan, counted in zip(plans, counts, strict=True)
            for length in [plan.scenario.load.passphrase_words if words is None else words]
        )

    now = bound(None)
    if now <= limit:
        return now
    longest = max(len(plan.words) for plan in plans)
    enough = next((words for words in range(1, longest + 1) if bound(words) <= limit), None)
    advice = (
        f"set load.passphrase_words to at least {enough}"
        if enough is not None
        else f"no length will do with {longest} words: use a longer list, or fewer windows"
    )
    raise UsageError(
        f"by chance alone a passphrase might be found in this run with a probability of up to "
        f"{now:.1g}, more than {limit:.1g} ({sum(c.total() for c in counts)} passphrases and "
        f"tickets in {sum(len(plan.requests) for plan in plans)} answers): {advice}"
    )


def _owned(request: Request) -> dict[str, Passphrase]:
    phrases = {
        "passphrase": request.passphrase,
        "ticket": request.ticket,
        _WITHHELD: request.withheld,
        "note": request.note,
    }
    return {kind: phrase for kind, phrase in phrases.items() if phrase is not None}


def in_other_forms(plan: Plan) -> int:
    """How many phrases to add to those each answer is compared with, for forms in its window."""
    return _again(_phrase_counts(plan))


def _again(counted: Counter[int]) -> int:
    return (VARIANTS - 1) * max(counted.values(), default=0)


def _phrase_counts(plan: Plan) -> Counter[int]:
    """The number of different phrases in each window."""
    seen = {(r.window, phrase.words) for r in plan.requests for phrase in _owned(r).values()}
    return Counter(window for window, _ in seen)


# --- nothing but the owner's payload holds a phrase ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Whose a phrase is: a payload's (the request that stands for it)."""

    owner: str
    sent: bool
    label: str


def assert_separate(plans: Sequence[Plan]) -> None:
    """Nothing but its owner's payload holds a phrase: a match can come from nowhere else.

    Checked for every passphrase, ticket and withheld passphrase of the run, with what the matcher
    calls equal (`match.find`, so in near-linear time): none is part of another one, nor of the
    payload of a request that does not own it. A request, its twins and its replays own the same
    phrases; nobody's payload holds a withheld one. Raises UsageError that names both sides.
    Phantoms are drawn after the run: one that stands in a payload is left out then.
    """
    from leakcheck.match import find  # noqa: PLC0415 - numpy: not needed for --help

    requests = {request.id: request for plan in plans for request in plan.requests}
    owners = {name: _first_of_payload(name, requests) for name in requests}
    phrases = _phrases_by_text(plans, owners)
    texts, sources, names = list(phrases), list(phrases.values()), list(requests)
    payloads = [
        "\n".join(message.content for message in request.messages) for request in requests.values()
    ]
    hits = find([*payloads, *texts], texts)
    for text, phrase in zip(hits.text.tolist(), hits.phrase.tolist(), strict=True):
        source = sources[phrase]
        if text >= len(names):
            if text - len(names) == phrase:
                continue
            where = sources[text - len(names)].label
        elif source.sent and owners[names[text]] == source.owner:
            continue
        else:
            where = f"the payload of request {names[text]}"
        raise UsageError(
            f"{source.label}, {texts[phrase]!r}, is also part of {where}: a match would prove "
            "nothing; use another seed, or take these words out of the scenario's texts"
        )


def _first_of_payload(name: str, requests: Mapping[str, Request]) -> str:
    """The request that stands for all that carry the same payload."""
    chain = [name]
    while True:
        request = requests.get(chain[-1])
        link = None if request is None else request.replays or request.twin
        if link is None:
            return chain[-1]
        if link in chain:  # twins that name each other
            return min(chain[chain.index(link) :])
        chain.append(link)


def _phrases_by_text(plans: Sequence[Plan], owners: Mapping[str, str]) -> dict[str, _Source]:
    """Every phrase of a run, once. Raises UsageError when two owners drew the same."""
    found: dict[str, _Source] = {}
    size = 0
    for text, source in _drawn(plans, owners):
        known = found.setdefault(text, source)
        if len(found) > size:
            size = len(found)
        elif (known.owner, known.sent) != (source.owner, source.sent):
            raise UsageError(
                f"{source.label} is the same as {known.label}, {text!r}: a match would not tell "
                "them apart; use another seed, or more words (load.passphrase_words)"
            )
    return found


def _drawn(plans: Sequence[Plan], owners: Mapping[str, str]) -> Iterator[tuple[str, _Source]]:
    for plan in plans:
        for request in plan.requests:
            for kind, phrase in _owned(request).items():
                label = f"the {kind} of request {request.id}"
                sent = kind != _WITHHELD
                yield phrase.text, _Source(owner=owners[request.id], sent=sent, label=label)
