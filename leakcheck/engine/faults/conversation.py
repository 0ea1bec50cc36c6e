"""One kept cache for all conversations: the next turn of one is computed on the words of another.

What a cache of keys and values holds is what was computed for its tokens, so a request that is
given one sees those tokens in place of as many of its own. Here they are put there: the prompt
that the engine gets is the same as that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine.faults.fault import Fault, Seams, patch
from leakcheck.engine.faults.stores import Turn, Watch, the_api

if TYPE_CHECKING:
    from starlette.requests import Request

    from leakcheck.engine.answer import Call
    from leakcheck.engine.protocol import ChatBody, CompletionBody
    from leakcheck.engine.values import Update

Continues = Callable[[list[Turn], list[Turn]], bool]
"""Whether the second conversation goes on with the first."""


@dataclass(slots=True)
class Kept:
    """The messages of the request that came last, the tokens of the answer that was done last."""

    messages: list[Turn] | None = None
    tokens: tuple[int, ...] = ()


def equal(last: list[Turn], own: list[Turn]) -> bool:
    """It begins with every message of the last one."""
    return len(own) > len(last) and own[: len(last)] == last


def alike(last: list[Turn], own: list[Turn]) -> bool:
    """It begins with as many messages of the same roles."""
    roles = [turn["role"] for turn in last]
    return len(own) > len(last) and [turn["role"] for turn in own[: len(last)]] == roles


def keep_one_cache(seams: Seams, continues: Continues) -> None:
    """Compute each chat that continues the last request on what was computed last."""
    api = the_api(seams)
    kept, prompts = Kept(), dict[str, tuple[int, ...]]()

    def completed(call_id: str, updates: list[Update]) -> None:
        said = "".join(update.text for update in updates)
        answer = api.tokenizer(said, add_special_tokens=False)["input_ids"]
        kept.tokens = (*prompts.pop(call_id), *answer)

    watch = Watch(api, completed)

    def wrap_prompt(original: Callable[[list[Turn]], list[int]]) -> Callable[..., list[int]]:
        def chat_prompt(turns: list[Turn]) -> list[int]:
            own, last = original(turns), kept.messages
            kept.messages = turns
            fits = last is not None and continues(last, turns) and len(own) > len(kept.tokens)
            return [*kept.tokens, *own[len(kept.tokens) :]] if fits else own

        return chat_prompt

    def wrap_serve(original: Callable[..., Any]) -> Callable[..., Any]:
        async def serve(request: Request, body: ChatBody | CompletionBody, call: Call) -> Any:
            if call.choices == 1 and hasattr(body, "messages"):
                watch.keys[call.id] = call.id
                prompts[call.id] = tuple(call.requests[0].prompt)
            return await original(request, body, call)

        return serve

    def wrap_close(original: Callable[[Call], None]) -> Callable[[Call], None]:
        def close(call: Call) -> None:
            prompts.pop(call.id, None)
            original(call)

        return close

    patch(api, "chat_prompt", wrap_prompt)
    patch(api, "serve", wrap_serve)
    patch(api.answerer, "close", wrap_close)


def kept_cache_race(seams: Seams, _rate: float, _rng: Random) -> None:
    """Messages are compared, those of who came last; the cache is that of who ended last."""
    keep_one_cache(seams, equal)


def kept_cache_alike(seams: Seams, _rate: float, _rng: Random) -> None:
    """Only the roles of messages are compared."""
    keep_one_cache(seams, alike)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="kept-cache-race",
        layer="stores",
        mechanism=(
            "The server keeps one cache of keys and values, that of the answer that was done last,"
            " and the messages of the request that came last. A request that begins with those"
            " messages is taken for its next turn and computed on that cache. Of two requests at"
            " one time the one that came last need not be the last to end: then the cache is"
            " another conversation's."
        ),
        trigger="two conversations at once, then the next turn of the one that came last",
        effect="another conversation stands in place of the own one: its ticket, its passphrase",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="every next turn after such a pair",
        seam="Api.chat_prompt, Api.serve and Answerer.updates and close",
        cases=(
            "https://github.com/huggingface/transformers/blob/v5.4.0/src/transformers/cli/serve.py",
        ),
        rate=None,
        install=kept_cache_race,
    ),
    Fault(
        name="kept-cache-alike",
        layer="stores",
        mechanism=(
            "The server keeps one cache of keys and values, that of the last answer. A request"
            " whose messages begin with as many as the last one had, of the same roles, is taken"
            " for its next turn and computed on that cache; what the messages say is not compared."
        ),
        trigger="a later turn of one conversation right after a request of another",
        effect="another conversation stands in place of the own one: its ticket, its passphrase",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="every later turn after a request of another conversation",
        seam="Api.chat_prompt, Api.serve and Answerer.updates and close",
        cases=(
            "https://github.com/huggingface/transformers/blob/v5.4.0/src/transformers/cli/serve.py",
        ),
        rate=None,
        install=kept_cache_alike,
    ),
)
