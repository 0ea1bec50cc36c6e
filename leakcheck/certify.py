"""Which words can a target be tested with: it echoes them when asked, and never says them unasked.

A round asks for every word that may still pass once, six at a time in a fresh random combination.
A word that failed too often is dropped at once; one whose request was not answered gets another
try. The traffic takes the ordinary path: planned, journalled, observed, kept in a run folder.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from leakcheck import runfolder, wording
from leakcheck.budget import spending
from leakcheck.errors import TargetError, UsageError
from leakcheck.match import find
from leakcheck.passphrase import (
    Minter,
    entropy,
    list_file,
    load_words,
    rare_token_words,
    styles,
    words_needed,
)
from leakcheck.records import (
    Ask,
    Gate,
    Load,
    Observation,
    Passphrase,
    Plan,
    PlugIn,
    Request,
    Sampling,
    Scenario,
    Style,
    TargetFacts,
)
from leakcheck.run import session
from leakcheck.run.session import Opened, Session, Setup, Watch
from leakcheck.traffic import Window

NAME = "words"
PER_REQUEST = 6
NEEDED_SHARE = 0.95
"""Of the tries of a word, so many have to be echoed: 19 of 20."""
RUN_BITS, RUN_PHRASES, RUN_WORDS = 64.5, 32, 6
"""What all shipped scenarios together ask for: entropy of a passphrase, phrases in a window; and
how many words a passphrase has by default."""

_MAX_TOKENS = 48
_FILLER_WORDS = 12
_EXTRA_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user asked for; `file` is where the words go."""

    setup: Setup
    file: Path
    repeats: int = 20
    neutral: int = 100
    workers: int = 4
    lanes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What is known of each word: tries that were answered, and how many of them failed."""

    words: tuple[str, ...]
    repeats: int
    tries: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    unasked: frozenset[str] = frozenset()

    @property
    def needed(self) -> int:
        """So many of `repeats` tries have to be echoed."""
        return math.ceil(NEEDED_SHARE * self.repeats)

    def _hopeful(self, word: str) -> bool:
        return word not in self.unasked and self.failures[word] <= self.repeats - self.needed

    @property
    def open(self) -> tuple[str, ...]:
        """Words that may still pass and have not been tried often enough."""
        return tuple(w for w in self.words if self._hopeful(w) and self.tries[w] < self.repeats)

    @property
    def passed(self) -> tuple[str, ...]:
        """Words that did."""
        return tuple(w for w in self.words if self._hopeful(w) and self.tries[w] >= self.repeats)

    def after(self, requests: Iterable[Request], answers: Mapping[str, str]) -> Tally:
        """With one more round counted; a request without an answer is no try."""
        told = [(r.passphrase.words, answers[r.id]) for r in requests
                if r.passphrase is not None and r.id in answers]  # fmt: skip
        said = _said([answer for _, answer in told], self.words)
        tries, failures = Counter(self.tries), Counter(self.failures)
        for index, (asked, _) in enumerate(told):
            tries.update(asked)
            failures.update(word for word in asked if word not in said[index])
        return replace(self, tries=tries, failures=failures)

    def without(self, answers: Iterable[str]) -> Tally:
        """Without the words that stand in answers to neutral requests."""
        said = frozenset(itertools.chain.from_iterable(_said(list(answers), self.words)))
        return replace(self, unasked=self.unasked | said)


def _said(answers: Sequence[str], words: Sequence[str]) -> list[set[str]]:
    """The words each answer holds, by the matcher's idea of equal."""
    said: list[set[str]] = [set() for _ in answers]
    hits = find(answers, words)
    for answer, word in zip(hits.text.tolist(), hits.phrase.tolist(), strict=True):
        said[answer].add(words[word])
    return said


# --- planning ------------------------------------------------------------------------------------


def scenario(options: Options) -> Scenario:
    """What the run folder says of this traffic."""
    load = Load(
        windows=options.repeats + _EXTRA_ROUNDS + 1,
        requests=1,
        workers=options.workers,
        lanes=options.lanes,
        max_tokens=_MAX_TOKENS,
        passphrase_words=PER_REQUEST,
        phantoms=0,
        timeout_s=options.setup.timeout_s,
    )
    return Scenario(
        name=NAME,
        version=1,
        summary="Which words the model echoes and does not say unasked. Not judged.",
        load=load,
        traffic=PlugIn(name=NAME),
        checks=(),
        gate=Gate(min_windows=1),
        digest="",
        path="",
    )


def budget(words: int, options: Options) -> int:
    """The largest number of requests that are sent when every one of them is answered."""
    return options.neutral + options.repeats * math.ceil(words / PER_REQUEST)


class Planner:
    """Draws the requests of every round from the run's seed."""

    def __init__(
        self, options: Options, style: Style, *, continues: bool, keys: Sequence[str] = ()
    ) -> None:
        """`continues`: the target goes on with a text rather than answer one. `keys` are the names
        of its tenants, whose keys the requests are sent with in turn.
        """
        self._keys = itertools.cycle(keys or (None,))
        self._load = scenario(options).load
        self._seed = options.setup.seed
        self._style: Style = style
        self._facts = TargetFacts(continues=continues)
        self._ids = itertools.count()
        self._windows = itertools.count()
        self.planned = 0

    def neutral(self, count: int) -> tuple[Request, ...]:
        """Requests that ask for none of the words: common words, then a question or a topic."""
        window, rng = self._window()
        asks = [question for question, _ in wording.questions()]
        asks += [f"Tell me about {topic}." for topic in wording.TOPICS]
        texts = (
            f"{wording.sentences(rng, _FILLER_WORDS)} {asks[number % len(asks)]}"
            for number in range(count)
        )
        return tuple(self._request(window, n, text, "neutral") for n, text in enumerate(texts))

    def round(self, words: Sequence[str]) -> tuple[Request, ...]:
        """Each word once, in a fresh combination; the last request may hold fewer."""
        window, rng = self._window()
        left = rng.sample(list(words), len(words))
        groups = [left[at : at + PER_REQUEST] for at in range(0, len(left), PER_REQUEST)]
        bits = entropy(len(words), min(PER_REQUEST, len(words)))
        phrases = [Passphrase(words=tuple(g), style=self._style, entropy_bits=bits) for g in groups]
        return tuple(
            self._request(window, n, self._echo(phrase), "eliciting", passphrase=phrase)
            for n, phrase in enumerate(phrases)
        )

    def _echo(self, phrase: Passphrase) -> str:
        form = wording.ECHO_CONTINUED if self._facts.continues else wording.ECHO
        return form.format(words=phrase.text)

    def _window(self) -> tuple[Window, random.Random]:
        index = next(self._windows)
        rng = random.Random(f"{self._seed}/{NAME}/{index}")
        window = Window(
            scenario=NAME,
            index=index,
            arm="planted",
            load=self._load,
            facts=self._facts,
            rng=rng,
            minter=Minter(rng, wording.WORDS, "phrase", 1),
            ids=self._ids,
        )
        return window, rng

    def _request(self, window: Window, number: int, text: str, ask: Ask, **fields: Any) -> Request:
        sampling = Sampling(max_tokens=_MAX_TOKENS)
        made = window.request(
            number, phase=0, role="companion", ask=ask, text=text, sampling=sampling, **fields
        )
        self.planned += 1
        return replace(made, tenant=NAME, key=next(self._keys))


# --- measuring -----------------------------------------------------------------------------------

Asker = Callable[[tuple[Request, ...]], "dict[str, str] | None"]
"""Sends requests; gives the answers by request id, or None when the user has had enough."""


def run(options: Options, watch: Watch, say: Callable[[str], None]) -> str | None:
    """Measure, write the list, and return a sentence on it; None when it was interrupted.

    `say` is told beforehand how much will be sent. Raises UsageError for words or a file that
    cannot be used, TargetError for a target that is of no use or gone; then nothing is written.
    """
    setup, its = options.setup, scenario(options)
    _require_writable(options.file)
    with session.opened(setup) as opened:
        opened = session.met(opened)  # noqa: PLW2901 - what every lane is to know
        words, style = _candidates(setup, opened)
        total = budget(len(words), options)
        _require_room(setup, len(words), total)
        say(
            f"at most {total} requests for {len(words)} words: {options.neutral} neutral ones, "
            f"then {options.repeats} rounds of {PER_REQUEST} words a request; words that fail are "
            "dropped on the way"
        )
        folder = runfolder.create(setup.out, NAME, setup.seed)
        runfolder.write_provenance(folder, session.provenance(setup, opened, (its,)))
        plan = Plan(scenario=its, seed=setup.seed, words=words, style=style, requests=())
        runfolder.write_plans(folder, [plan])
        planner = Planner(
            options,
            style,
            continues=opened.target.api == "completions",
            keys=[each.name for each in opened.target.tenants],
        )
        with session.started(
            folder, opened, [its.load], watch, caps=setup.caps, pace=setup.pace
        ) as live:
            tally = measure(options, words, planner, partial(_answers, live, planner, total))
        if tally is None:
            return None
        session.note(folder, "finished")
        if not tally.passed:
            raise TargetError(
                f"none of {len(words)} words was echoed by {opened.target.model} in at least "
                f"{tally.needed} of {tally.repeats} tries: no passphrase can be made for it; try "
                f"another list (--words) or endpoint (--api); the answers are in {folder}"
            )
        text = render(tally, options, opened.target.model, folder.name)
    runfolder.replace_file(options.file, text.encode())
    return f"{verdict(tally)}; written to {options.file}"


def _require_room(setup: Setup, words: int, total: int) -> None:
    """Raise UsageError where the cap of requests would end it in the middle."""
    cap = setup.caps.requests
    identities = 1 if setup.target is None else max(1, len(setup.target.tenants))
    most = total + spending.meeting(identities).requests
    if cap is not None and most > cap:
        raise UsageError(
            f"--max-requests: {cap} is too small: {words} words take up to {most} requests; allow "
            "more, give a shorter list with --words, or fewer --repeats"
        )


def measure(options: Options, words: tuple[str, ...], planner: Planner, ask: Asker) -> Tally | None:
    """Listen to neutral answers, then rounds of echoes until no word is open."""
    tally = Tally(words=words, repeats=options.repeats)
    heard = 0
    while heard < options.neutral:
        answers = ask(planner.neutral(options.neutral - heard))
        if answers is None:
            return None
        heard += len(answers)
        tally = tally.without(answers.values())
    for _ in range(options.repeats + _EXTRA_ROUNDS):
        if not tally.open:
            break
        requests = planner.round(tally.open)
        answers = ask(requests)
        if answers is None:
            return None
        tally = tally.after(requests, answers)
    return tally


def _answers(
    live: Session, planner: Planner, total: int, requests: tuple[Request, ...]
) -> dict[str, str] | None:
    """Of requests sent by a session that shows progress out of `total`.

    Raises TargetError where nothing answers.
    """
    before = planner.planned - len(requests)

    def show(_what: str, done: int, _of: int) -> None:
        live.watch(NAME, before + done, max(total, before + done))

    runfolder.append_requests(live.folder, requests)
    ended = replace(live, watch=show).send(NAME, requests)
    if ended is not None and ended.kind == "interrupted":
        return None
    if ended is not None:
        raise TargetError(ended.detail)
    asked = {request.id for request in requests}
    seen = [o for o in runfolder.read_shards(live.folder).observations if o.request_id in asked]
    answers = {o.request_id: _content(o) for o in seen if o.outcome == "ok"}
    if not answers:
        error = next((o.error for o in seen if o.error), "nothing came back")
        raise TargetError(f"the target answers no request of {len(requests)}: {error}")
    return answers


def _content(observation: Observation) -> str:
    return "".join(chunk.text for chunk in observation.chunks if chunk.field == "content")


def _require_writable(path: Path) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--out: {path} cannot be written; name a file in an existing folder")


def _candidates(setup: Setup, opened: Opened) -> tuple[tuple[str, ...], Style]:
    words, tokenizer = load_words(setup.words), opened.tokenizer(setup.tokenizer)
    if setup.style == "made-up":
        return styles.made_up_words(), "made-up"
    if setup.style == "digits":
        return styles.digit_groups(), "digits"
    if tokenizer is None or setup.words is not None or setup.style == "phrase":
        return words, "phrase"
    return rare_token_words(tokenizer, words), "rare-token"


# --- the list ------------------------------------------------------------------------------------


def verdict(tally: Tally) -> str:
    """How many words passed, and what passphrases can be made of them."""
    passed = len(tally.passed)
    text = f"{passed} of {len(tally.words)} words passed"
    needed = words_needed(passed, RUN_BITS, RUN_PHRASES)
    if needed is None:
        return (
            f"{text}: too few for the shipped scenarios, whatever the length of a passphrase; use "
            "a longer list, or smaller windows (--requests)"
        )
    if needed > RUN_WORDS:
        return (
            f"{text}: with so few, a passphrase needs {needed} words in a run of the shipped "
            f"scenarios (--set load.passphrase_words={needed}, and --max-tokens for longer answers)"
        )
    return text


def render(tally: Tally, options: Options, model: str, run_name: str) -> str:
    """The list, one word a line and sorted, under a header that says where it comes from."""
    lost = [w for w in tally.words if tally.failures[w] > tally.repeats - tally.needed]
    given = list_file(options.setup.words).read_text(encoding="utf-8").splitlines()
    on = datetime.now(UTC).date().isoformat()
    counts = (
        f"Kept: {len(tally.passed)} of {len(tally.words)} words. Left out: {len(lost)} that were "
        f"not echoed in {tally.needed} of {tally.repeats} tries,\nand {len(tally.unasked)} that "
        f"stood in one of {options.neutral} answers to neutral requests."
    )
    how = (
        f"Measured on {on} by leakcheck words (run folder {run_name}):\n{PER_REQUEST} words a "
        "request in fresh random combinations, temperature 0, counted as leakcheck matches."
    )
    title = f"Words for passphrases, measured on the model {model}: one a line, sorted."
    lines = [title, "", *source_lines(given), *counts.split("\n"), *how.split("\n")]
    header = [f"# {line}".rstrip() for line in lines]
    return "\n".join([*header, *sorted(tally.passed)]) + "\n"


def source_lines(header: Iterable[str]) -> Iterator[str]:
    """What the header of a list says of its origin and licence."""
    for line in header:
        if line.startswith("#") and re.search(
            r"\bsource\b|licen[cs]e|https?://", line, re.IGNORECASE
        ):
            yield line.lstrip("# ").rstrip()
