"""Find out what must be known of a target before anything is planned, in about twenty requests.

Nothing asked here carries a passphrase. The plan depends on the target through these facts alone,
and they are kept with the run.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from leakcheck import backends, plugin, wording
from leakcheck.backends import Backend, Broken, Refused
from leakcheck.errors import TargetError
from leakcheck.records import Message, Request, Sampling, Target, TargetFacts, Usage

_LENGTHS = (40, 61, 87, 115, 150, 201, 300, 420)
"""Words of filler whose cached tokens give the block size: it is their greatest common divisor."""

_AFTER_USER_TOKENS = 5  # end of message and start of answer in the common chat templates
_SMALLEST_BLOCK = 8  # below it the target caches single tokens, and there is no block to overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    usage: Usage | None
    logprobs: bool
    error: str | None


def preflight(target: Target) -> tuple[str, ...]:
    """The models the target offers, where its backend can tell (a function `probe`).

    Raises TargetError for a dead target, UsageError for a wrong key, model or address, each one
    sentence that says what would be right.
    """
    probe = plugin.find("backends", target.backend, "probe")
    return () if probe is None else tuple(probe(target))


def survey(
    target: Target, *, seed: int, models: Sequence[str] = (), template_tokens: int | None = None
) -> TargetFacts:
    """Measure the target's facts.

    `template_tokens` is how many tokens its chat template puts in front of the user's text, where
    a tokenizer is at hand to tell. Raises TargetError when the target does not answer at all.
    """
    return asyncio.run(_survey(target, seed, tuple(models), template_tokens))


async def _survey(
    target: Target, seed: int, models: tuple[str, ...], template_tokens: int | None
) -> TargetFacts:
    rng = random.Random(f"{seed}/survey")
    backend = backends.load(target.backend)(target)
    try:
        ask = partial(_ask, backend, timeout_s=target.timeout_s)
        first = await ask("Say yes.", top_logprobs=2)
        plain = first if first.usage else await ask("Say yes.")
        if plain.error is not None:
            raise TargetError(f"the target does not answer a first request: {plain.error}")
        if plain.usage is None or plain.usage.prompt_tokens is None:
            notes = ("the target reports no usage: prefix lengths are guesses in words",)
            return TargetFacts(models=models, reports_logprobs=first.logprobs, notes=notes)
        points: list[tuple[int, Usage]] = []
        for words in _LENGTHS:
            text = wording.filler(rng, words)
            await ask(text)
            again = await ask(text)
            if again.usage is None or again.usage.prompt_tokens is None:
                break  # a context length reached, most likely: what was measured so far will do
            points.append((words, again.usage))
    finally:
        await backend.close()
    return _facts(points, models, first.logprobs, template_tokens)


def _facts(
    points: Sequence[tuple[int, Usage]],
    models: tuple[str, ...],
    logprobs: bool,
    template_tokens: int | None,
) -> TargetFacts:
    """Block size, tokens per word and template length from prompts of known numbers of words."""
    notes: list[str] = []
    per_word, overhead = 1.0, 0
    measured = [(w, u.prompt_tokens) for w, u in points if u.prompt_tokens is not None]
    if len(measured) > 1:
        (w0, t0), (w1, t1) = measured[0], measured[-1]
        per_word = (t1 - t0) / (w1 - w0)
        overhead = max(0, round(t0 - per_word * w0) - _AFTER_USER_TOKENS)
    if template_tokens is not None:
        overhead = template_tokens
    else:
        notes.append("without a tokenizer the template's length is an estimate")
    cached = [u.cached_tokens for _, u in points if u.cached_tokens is not None]
    block = math.gcd(*cached) if any(cached) else None
    if block is not None and block < _SMALLEST_BLOCK:
        notes.append(f"the target caches in steps of {block} tokens: usual block sizes are tried")
        block = None
    if not cached:
        notes.append("the target does not report cached tokens: usual block sizes are tried")
    return TargetFacts(
        models=models,
        block_tokens=block,
        overhead_tokens=overhead,
        tokens_per_word=per_word if per_word > 0 else 1.0,
        reports_cached_tokens=bool(cached),
        reports_logprobs=logprobs,
        notes=tuple(notes),
    )


async def _ask(
    backend: Backend, text: str, timeout_s: float, top_logprobs: int | None = None
) -> _Reply:
    request = Request(
        id="survey",
        scenario="survey",
        window=0,
        phase=0,
        arm="control",
        tenant="survey",
        role="companion",
        ask="free",
        worker=0,
        lane=0,
        messages=(Message(role="user", content=text),),
        sampling=Sampling(max_tokens=1, top_logprobs=top_logprobs),
    )
    try:
        async with asyncio.timeout(timeout_s):
            chunks = [chunk async for chunk in backend.stream(request)]
    except (Refused, Broken, TimeoutError) as error:
        return _Reply(usage=None, logprobs=False, error=str(error) or "no answer in time")
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    return _Reply(usage=usage, logprobs=any(chunk.logprobs for chunk in chunks), error=None)


def template_tokens(tokenizer: Any) -> int | None:
    """Tokens of the chat template in front of the user's text; None without a template."""
    mark = "sun"
    if not getattr(tokenizer, "chat_template", None):
        return None
    messages = [{"role": "user", "content": mark}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(text[: text.index(mark)], add_special_tokens=False)["input_ids"])
