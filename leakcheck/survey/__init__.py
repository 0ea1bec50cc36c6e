"""Find out what must be known of a target before the scenarios are planned.

The survey is traffic like any other: planned, journalled, and every prompt of it that is long
enough to be cached starts with a passphrase. What leakcheck sends first is what a broken cache
hands out later; it has to have an owner. The plan of the scenarios depends on the target through
`TargetFacts` alone, and these are a function of the survey's plan and observations.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leakcheck import plugin, wording
from leakcheck.backends import Turns
from leakcheck.budget import spending
from leakcheck.errors import LeakcheckError, TargetError
from leakcheck.passphrase import Minter, load_words, styles
from leakcheck.records import (
    Gate,
    Load,
    Observation,
    Plan,
    PlugIn,
    Request,
    Sampling,
    Scenario,
    Style,
    Target,
    TargetFacts,
    Usage,
)
from leakcheck.traffic import Window, user_text

NAME = "survey"

_LENGTHS = (20, 40, 61, 87, 115, 150, 201, 300, 420)
"""Words of filler whose cached tokens give the block size: it is their greatest common divisor."""

_TINY_WORDS = 2
_TINY = " ".join(wording.WORDS[:_TINY_WORDS])
"""Too short to fill a block of any cache: measures the chat template."""

_AFTER_USER_TOKENS = 5  # end of message and start of answer in the common chat templates
_SMALLEST_BLOCK = 8  # below it the target caches single tokens, and there is no block to overlap
_LARGEST_BLOCK = 2048
"""Beyond it a figure is a mistake: prompts of the survey do not fill such a block twice."""
_LEAST_PER_WORD = 0.25
"""Tokens of a word of filler: no tokenizer has four of them in one."""
_NEARLY_ONE = 0.05
_ASSUMED = 2.0
"""Tokens of a listed word of a passphrase, where nothing says how many: 1.9 by usual tokenizers."""
_MARKS = re.compile(r"[^\w\s]")
HOT = 2.0
"""A temperature at which two seeds give two answers of `_HOT_TOKENS` tokens, whatever the model."""
_HOT_TOKENS = 16

SCENARIO = Scenario(
    name=NAME,
    version=1,
    summary="What the target is like: block size, template, logprobs.",
    load=Load(windows=len(_LENGTHS) + 1, requests=1, workers=1, lanes=1, phantoms=0),
    traffic=PlugIn(name=NAME),
    checks=(),
    gate=Gate(min_windows=1),
    digest="",
    path="",
)


def meet(target: Target, turns: Turns | None = None) -> tuple[Target, tuple[str, ...]]:
    """The target as it is to be spoken to, and the models it offers, where its backend can tell (a
    function `meet(target, turns)`, which waits for a turn before each request).

    The key of every tenant is tried, with `spending.MEETING` requests at most, and what is refused
    to one of them is sent by none. Raises TargetError for a dead target, UsageError for a wrong
    key, model or address, each one sentence that says what would be right, and names the tenant.
    """
    turns = turns or Turns()
    if not target.tenants:
        return _met(target, turns)
    models: tuple[str, ...] = ()
    for tenant in target.tenants:
        alone = replace(
            target,
            api_key_env=tenant.api_key_env,
            headers_env=target.headers_env | tenant.headers_env,
            tenants=(),
        )
        try:
            known, offered = _met(alone, turns)
        except LeakcheckError as error:
            raise type(error)(f"tenant {tenant.name}: {error}") from None
        target = replace(target, refuses=known.refuses, hottest=known.hottest)
        models = models or offered
    return target, models


def _met(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    meets = plugin.find("backends", target.backend, "meet")
    if meets is None:
        return target, ()
    turns.grant(spending.MEETING)
    known, models = meets(target, turns)
    return known, tuple(models)


def plan(
    *,
    seed: int,
    words: Sequence[str],
    style: Style,
    ids: Iterator[int],
    length: int = 6,
    hottest: float = HOT,
) -> Plan:
    """The survey's requests: one tiny one with logprobs and hot, then each length twice in a row.

    `length`: words of a passphrase, as many as in the scenarios that follow. `hottest`: see
    `Target`.
    """
    load = replace(SCENARIO.load, passphrase_words=length)
    requests: list[Request] = []
    for index, filler in enumerate((0, *_LENGTHS)):
        rng = random.Random(f"{seed}/{NAME}/{index}")
        window = Window(
            scenario=NAME,
            index=index,
            arm="planted",
            load=load,
            facts=TargetFacts(hottest=hottest),
            rng=rng,
            minter=Minter(rng, words, style, length),
            ids=ids,
        )
        requests += _tiny(window) if filler == 0 else _twice(window, filler)
    return Plan(
        scenario=replace(SCENARIO, load=load),
        seed=seed,
        words=tuple(words),
        style=style,
        requests=tuple(replace(request, tenant=NAME) for request in requests),
    )


def _tiny(window: Window) -> Iterator[Request]:
    hot = Sampling(max_tokens=_HOT_TOKENS, temperature=min(HOT, window.facts.hottest))
    for phase, sampling in enumerate(
        (
            Sampling(max_tokens=1),
            Sampling(max_tokens=1, top_logprobs=2),
            replace(hot, seed=1),
            replace(hot, seed=2),
        )
    ):
        yield window.request(
            0,
            phase=phase,
            role="companion",
            ask="free",
            text=_TINY,
            sampling=sampling,
            stream=False,
        )


def _twice(window: Window, words: int) -> Iterator[Request]:
    owner = window.owner(owns=True)
    filler = wording.filler(window.rng, words)
    first = window.request(
        0,
        phase=0,
        role="source",
        ask="eliciting",
        text=user_text(
            **owner, before=filler, between="", ask=wording.ELICITING, passphrase_first=True
        ),
        sampling=Sampling(max_tokens=1),
        stream=False,
        **owner,
    )
    yield first
    yield replace(first, id=f"r{next(window.ids):05}", phase=1, twin=first.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a tokenizer at hand knows: tokens of the template before the user's text, per word of
    filler, and per word of a passphrase (None: nothing says).
    """

    template: int
    per_word: float
    per_phrase_word: float | None = None


def tokens_of(
    tokenizer: Any, *, chat: bool = True, words: Sequence[str] | None = None
) -> Tokens | None:
    """Measure a transformers tokenizer; None for one without the template a chat needs. Passphrases
    are made of `words`, those shipped if not given.
    """
    if chat and not getattr(tokenizer, "chat_template", None):
        return None
    before = ""
    if chat:
        mark = wording.WORDS[0]
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
        )
        before = text[: text.index(mark)]
    listed = load_words() if words is None else words

    def count(piece: str) -> int:
        return len(tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])

    def each(some: Sequence[str]) -> float:
        return count(" " + " ".join(some)) / len(some)

    return Tokens(
        template=count(before.rstrip(" ")),
        per_word=each(wording.WORDS),
        per_phrase_word=each(listed),
    )


def facts(
    plan: Plan,
    observations: Iterable[Observation],
    *,
    models: Sequence[str] = (),
    tokens: Tokens | None = None,
    target: Target | None = None,
) -> TargetFacts:
    """What the survey's answers say, and what is not sent to the `target` as it was met. Raises
    TargetError when there was no answer at all.
    """
    refuses = () if target is None else target.refuses
    hottest = HOT if target is None else target.hottest
    last = {o.request_id: o for o in observations if o.outcome == "ok"}
    if not last:
        error = next((o.error for o in observations if o.error), "nothing came back")
        raise TargetError(f"the target answers no request of the survey: {error}")
    answered = [(r, last[r.id]) for r in plan.requests if r.id in last]
    logprobs = any(chunk.logprobs for _, o in answered for chunk in o.chunks)
    notes = [f"the target refuses {', '.join(refuses)}: not sent"] if refuses else []
    if hottest < HOT:
        notes.append(f"the target refuses temperatures above {hottest:g}: none is sent")
    samples = _samples([o for r, o in answered if r.sampling.temperature], hottest, notes)
    block, reports = _block_tokens([o.usage for r, o in answered if r.twin], notes)
    if tokens is None:
        tokens = _estimated([(r, o.usage) for r, o in answered], notes)
    per_phrase_word = tokens.per_phrase_word
    if plan.style == "rare-token":  # whole tokens, which is how they were chosen
        per_phrase_word = 1.0
    elif per_phrase_word is None:
        listed = plan.style == "phrase"
        per_phrase_word = _ASSUMED if listed else styles.TOKENS_A_WORD[plan.style]
        notes.append(f"words of passphrases are taken to be {per_phrase_word:g} tokens each")
    return TargetFacts(
        models=tuple(models),
        block_tokens=block,
        overhead_tokens=tokens.template,
        tokens_per_word=tokens.per_word,
        tokens_per_phrase_word=per_phrase_word,
        reports_cached_tokens=reports,
        reports_logprobs=logprobs,
        samples=samples,
        refuses=tuple(refuses),
        hottest=hottest,
        notes=tuple(notes),
    )


def _samples(hot: Sequence[Observation], hottest: float, notes: list[str]) -> bool | None:
    """Whether two seeds at a high temperature gave two answers; None where one is missing, and
    where they are equal at a temperature that need not part them.
    """
    texts = ["".join(chunk.text for chunk in seen.chunks) for seen in hot]
    if len(texts) < 2:  # noqa: PLR2004 - a pair
        notes.append(
            f"the target did not answer at temperature {hottest:g}: lost tickets cannot be "
            "confirmed"
        )
        return None
    if len(set(texts)) == 1 and hottest < HOT:
        notes.append(
            f"two answers at temperature {hottest:g} were the same: whether the target follows "
            "temperature and seed is not known, and lost tickets cannot be confirmed"
        )
        return None
    if len(set(texts)) == 1:
        notes.append("the target ignores temperature or seed: lost tickets cannot be confirmed")
        return False
    return True


def _block_tokens(again: Sequence[Usage | None], notes: list[str]) -> tuple[int | None, bool]:
    """Block size, from the cached tokens of prompts sent the second time; whether it tells any."""
    told = [u for u in again if u is not None]
    cached = [u.cached_tokens for u in told if u.cached_tokens is not None and not u.impossible]
    if not cached and any(u.impossible for u in told):
        notes.append("no count of cached tokens is possible: usual block sizes are tried")
        return None, False
    if not cached:
        notes.append("the target does not report cached tokens: usual block sizes are tried")
        return None, False
    block = math.gcd(*cached)
    if block == 0:
        notes.append("the target never reports a cache hit: usual block sizes are tried")
        return None, True
    if block < _SMALLEST_BLOCK:
        steps = "token by token" if block == 1 else f"in steps of {block} tokens"
        notes.append(f"the target caches {steps}: usual block sizes are tried")
        return None, True
    if block > _LARGEST_BLOCK:
        notes.append(f"no cache has blocks of {block} tokens: usual block sizes are tried")
        return None, True
    return block, True


def _estimated(seen: Sequence[tuple[Request, Usage | None]], notes: list[str]) -> Tokens:
    """Tokens per word of filler, of the template and per word of a passphrase, from the lengths the
    target reports.
    """
    known = [
        (len(r.messages[0].content.split()), u.prompt_tokens)
        for r, u in seen
        if u is not None and u.prompt_tokens is not None
    ]
    impossible = sum(usage is not None and usage.impossible for _, usage in seen)
    if impossible:
        notes.append(
            f"the usage of {impossible} of {len(seen)} answers is impossible (a count below 0, or "
            "more tokens cached than the prompt has)"
        )
    if not known and impossible:
        notes.append("no length of a prompt is known: prefix lengths are guesses in words")
        return Tokens(template=0, per_word=1.0)
    if not known:
        notes.append("the target reports no usage: prefix lengths are guesses in words")
        return Tokens(template=0, per_word=1.0)
    notes.append("without a tokenizer the template's length is an estimate")
    tiny = min(known)
    long = [(words, prompt) for words, prompt in known if words > tiny[0]]
    per_word = 1.0
    if long and max(long)[0] > min(long)[0]:
        (w0, t0), (w1, t1) = min(long), max(long)
        per_word = (t1 - t0) / (w1 - w0)
    if per_word < _LEAST_PER_WORD or abs(per_word - 1) < _NEARLY_ONE:
        per_word = 1.0
    overhead = round(tiny[1] - per_word * tiny[0])
    return Tokens(
        template=max(0, overhead - _AFTER_USER_TOKENS),
        per_word=per_word,
        per_phrase_word=_per_phrase_word(seen, overhead, per_word),
    )


def _per_phrase_word(
    seen: Sequence[tuple[Request, Usage | None]], overhead: int, per_word: float
) -> float | None:
    """What is left of the prompts with a ticket and a passphrase when template, filler and one
    token for each mark are taken away, per word of these two. At least 1; None without any.
    """
    left = listed = 0.0
    for request, usage in seen:
        phrases = [each for each in (request.ticket, request.passphrase) if each is not None]
        if usage is None or usage.prompt_tokens is None or not phrases:
            continue
        text = request.messages[0].content
        words = sum(len(each.words) for each in phrases)
        others = per_word * (len(text.split()) - words) + len(_MARKS.findall(text))
        left += usage.prompt_tokens - overhead - others
        listed += words
    return max(1.0, left / listed) if listed else None
