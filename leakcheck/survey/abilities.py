"""Ask a target what it can do: some forty short requests, one at a time, each counted.

What a target *takes* it is asked for; what it *does* shows in its answers. A field that is taken
and changes nothing is no ability. Nothing here is judged, and only what a survey finds out (see
`TargetFacts`) goes into a plan.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson

from leakcheck import plugin, wording
from leakcheck.backends import Turns, _probe
from leakcheck.records import Abilities, Api, Message, Request, Sampling, Target
from leakcheck.survey.asking import MOST, Asker, Seen
from leakcheck.survey.places import Places, places

__all__ = ["MOST", "ask"]

APIS: dict[Api, str] = {
    "chat": "chat/completions",
    "completions": "completions",
    "responses": "responses",
}
"""OpenAI's, and their paths below a base URL."""
ALTERNATIVES = 5
_TOKENS, _SHORT_TOKENS, _LONG_TOKENS = 16, 8, 48
_ASKED = (
    "seed",
    "stop",
    "top_logprobs",
    "logit_bias",
    "allowed_token_ids",
    "n",
    "tools",
    "response_format",
    "cache_salt",
    "return_token_ids",
)
"""Fields of requests that matter here, of those that a backend may have no words for."""
_LOST = 3
"""Requests in a row without any reply."""
_SALTED_WORDS = 330
"""Beyond two of the largest blocks in use, 128 tokens."""
_ROOM = 120
_MARK = 3
_REPEAT = wording.ECHO.format(words="one two three four five six seven eight nine ten")
_TELL = "Tell me about the sea."
_CONTINUED = "one two three four five six seven"
_JSON = 'Answer with a JSON object that has the key "colour".'
_TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def ask(
    target: Target,
    models: Sequence[str],
    listed: Any,
    *,
    turns: Turns | None = None,
    most: int = MOST,
    tokens: int | None = None,
    reports_cached_tokens: bool | None = None,
) -> Abilities:
    """What the target can do. `models` and `listed` are its list of models, by name and as it came.

    At most `most` requests are sent, of at most so many `tokens` (None: any number). With
    `reports_cached_tokens` a survey already knows of its cached tokens. Never raises for what a
    target does; UsageError as the backend.
    """
    return asyncio.run(
        _ask(
            lambda: Asker(target, turns or Turns(), most=most, tokens=tokens),
            models,
            listed,
            cached=reports_cached_tokens,
        )
    )


async def _ask(
    connect: Callable[[], Asker], models: Sequence[str], listed: Any, *, cached: bool | None
) -> Abilities:
    asker = connect()
    target = asker.target
    try:
        where = None
        if asker.http is not None:
            where = await places(asker, asker.http.base, listed)
        found = Abilities(
            base_url=target.base_url,
            backend=target.backend,
            api=target.api,
            model=target.model,
            models=tuple(models),
            refuses=target.refuses,
            unsaid=_unsaid(target),
        )
        if where is not None:
            found = _placed(found, where)
        found = await _apis(asker, found, where)
        found, said = await _forms(asker, found)
        found = await _sampled(asker, found, said)
        found = await _shaped(asker, found)
        found = await _extras(asker, found)
        if cached if cached is not None else found.cached_tokens:
            found = await _salted(asker, found)
        return replace(
            found,
            limits=dict(asker.limits),
            requests=asker.used.requests,
            tokens=asker.used.tokens,
            lost=asker.unanswered >= _LOST,
        )
    finally:
        await asker.close()


def _unsaid(target: Target) -> tuple[str, ...]:
    dialect = plugin.find("backends", target.backend, "DIALECT")
    if not isinstance(dialect, _probe.Dialect):
        return ()
    return tuple(name for name in _ASKED if not dialect.says(name))


def _placed(found: Abilities, where: Places) -> Abilities:
    return replace(
        found,
        engine=where.engine,
        endpoints=where.endpoints,
        context_tokens=where.context_tokens,
        metrics=where.metrics,
        notes=(*found.notes, *where.notes),
    )


async def _apis(asker: Asker, found: Abilities, where: Places | None) -> Abilities:
    """Which of OpenAI's APIs answer; the one that is to be used was answered already."""
    answered: list[Api] = []
    for api, path in APIS.items() if found.backend == "openai" else ():
        if api == found.api:
            answered.append(api)
        elif where is None or where.there(path) is not False:
            seen = await asker.answer(_request(api, max_tokens=1), api=api)
            answered += [api] if seen.ok else []
    return replace(found, apis=tuple(answered))


async def _forms(asker: Asker, found: Abilities) -> tuple[Abilities, Seen]:
    """Streams and whole replies: pieces, usage, log-probabilities; and the greedy answer."""
    streamed = await asker.answer(_request(found.api))
    pieces = sum(1 for chunk in streamed.chunks if chunk.text and chunk.field != "error")
    whole = await asker.answer(_request(found.api, stream=False))
    told: int | None = 0
    if "top_logprobs" not in found.unsaid:
        asked = _request(found.api, stream=False, top_logprobs=ALTERNATIVES)
        told = _tops(await asker.answer(asked))
    usages = [seen.usage for seen in (streamed, whole) if seen.usage is not None]
    both = replace(
        found,
        pieces=pieces if streamed.ok else None,
        usage=whole.usage is not None if whole.ok else None,
        usage_in_streams=streamed.usage is not None if streamed.ok else None,
        cached_tokens=any(u.cached_tokens is not None and not u.impossible for u in usages)
        if usages
        else None,
        logprobs=told,
        reasoning=bool(streamed.text("reasoning")) if streamed.ok else None,
    )
    return both, whole


def _tops(seen: Seen) -> int | None:
    """How many alternatives came with a token; 0: none did, or they are refused."""
    if not seen.ok:
        return 0 if seen.refused else None
    return max((len(item.top) for item in seen.logprobs), default=0)


async def _sampled(asker: Asker, found: Abilities, greedy: Seen) -> Abilities:
    """Whether temperature, seed and stop strings are followed; `greedy` is the answer as it is."""
    heat = asker.target.hottest
    hot = [
        await asker.answer(_request(found.api, _TELL, stream=False, temperature=heat, seed=seed))
        for seed in (1, 1, 2)
    ]
    followed = seeded = None
    if all(seen.ok and seen.said for seen in hot):
        first, again, other = (seen.said for seen in hot)
        followed = len({first, again, other}) > 1
        if "seed" not in found.unsaid:
            seeded = first == again and other != first
    stops = None
    text = greedy.text()
    mark = text[len(text) // 2 :][:_MARK]
    if greedy.ok and text.find(mark) > 0 and mark.strip():
        seen = await asker.answer(_request(found.api, stream=False, stop=(mark,)))
        if seen.ok or seen.refused:
            cut = mark not in seen.text() and len(seen.text()) < len(text)
            stops = seen.ok and cut
    return replace(found, temperature=followed, seed=seeded, stop=stops)


async def _shaped(asker: Asker, found: Abilities) -> Abilities:
    """Several answers, tools, formats."""
    if found.api != "responses" and "n" not in found.unsaid:
        several = await asker.answer(
            _request(found.api, stream=False, n=2, temperature=1.0, max_tokens=_SHORT_TOKENS)
        )
        if several.ok or several.refused:
            fields = {chunk.field for chunk in several.chunks}
            found = replace(found, n=bool(fields & {"content[1]", "reasoning[1]", "tool[1]"}))
    if found.api == "completions":
        return found
    if "tools" not in found.unsaid:
        found = await _called(asker, found)
    return found if "response_format" in found.unsaid else await _formed(asker, found)


async def _called(asker: Asker, found: Abilities) -> Abilities:
    called = await asker.answer(
        _request(
            found.api,
            text="What is the weather in Paris? Use the tool.",
            max_tokens=_LONG_TOKENS,
            stream=False,
            tools=(_TOOL,),
        )
    )
    if called.ok or called.refused:
        how: Literal["called", "accepted"] = "called" if called.text("tool") else "accepted"
        return replace(found, tools=how if called.ok else "refused")
    return found


async def _formed(asker: Asker, found: Abilities) -> Abilities:
    formed = await asker.answer(
        _request(
            found.api,
            text=_JSON,
            max_tokens=_LONG_TOKENS,
            stream=False,
            response_format={"type": "json_object"},
        )
    )
    if formed.ok or formed.refused:
        kept: Literal["followed", "ignored"] = "followed" if _is_json(formed) else "ignored"
        return replace(found, response_format=kept if formed.ok else "refused")
    return found


def _is_json(seen: Seen) -> bool:
    """An object, or the beginning of one that was cut off."""
    text = seen.text().strip()
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return text.startswith("{") and any(
            chunk.finish_reason == "length" for chunk in seen.chunks
        )


async def _extras(asker: Asker, found: Abilities) -> Abilities:
    """Beyond OpenAI's: answers and prompts as token ids, log-probabilities of the prompt."""
    if "return_token_ids" in found.refuses:
        found = replace(found, token_ids=False)
    elif "return_token_ids" not in found.unsaid:
        seen = await asker.answer(
            _request(found.api, stream=False, max_tokens=1, return_token_ids=True)
        )
        if seen.ok or seen.refused:
            found = replace(found, token_ids=any(chunk.token_ids for chunk in seen.chunks))
    if found.backend != "openai":
        return found
    if "completions" in found.apis:
        ids = _request("completions", max_tokens=1, prompt_token_ids=(5, 6, 7, 8))
        seen = await asker.answer(ids, api="completions")
        if seen.ok or seen.refused:
            found = replace(found, token_prompts=seen.ok)
    seen = await asker.answer(_request(found.api, stream=False, max_tokens=1, prompt_logprobs=0))
    if seen.ok or seen.refused:
        found = replace(found, prompt_logprobs=bool(seen.text("prompt")))
    return found


async def _salted(asker: Asker, found: Abilities) -> Abilities:
    """Whether what was cached under one salt is found under another."""
    if "cache_salt" in (*found.refuses, *found.unsaid):
        return found
    words = _SALTED_WORDS
    if found.context_tokens is not None:
        words = max(1, min(words, found.context_tokens // 2 - _ROOM))
    rng = random.Random()  # no secret: a prefix that is in no cache yet
    prefix = wording.filler(rng, words)
    salts = [f"{rng.getrandbits(64):016x}" for _ in range(2)]
    cached: list[int] = []
    for salt in (salts[0], salts[0], salts[1]):
        seen = await asker.answer(
            _request(found.api, text=prefix, stream=False, max_tokens=1, cache_salt=salt)
        )
        if seen.usage is None or seen.usage.cached_tokens is None:
            return found
        cached.append(seen.usage.cached_tokens)
    first, again, other = cached
    if again <= first:
        note = f"the same {words} words sent twice were not found in its cache: salts show nothing"
        return replace(found, notes=(*found.notes, note))
    apart = other - first < (again - first) / 2
    return replace(found, salts="apart" if apart else "together")


def _request(api: Api, text: str | None = None, *, stream: bool = True, **fields: Any) -> Request:
    """A short request; names of `Sampling` go into it."""
    names = Sampling.__dataclass_fields__.keys()
    sampling = Sampling(
        max_tokens=fields.pop("max_tokens", _TOKENS),
        **{name: fields.pop(name) for name in names & fields.keys()},
    )
    text = text or (_CONTINUED if api == "completions" else _REPEAT)
    return _probe.tiny(
        messages=(Message(role="user", content=text),),
        sampling=sampling,
        stream=stream,
        **fields,
    )
