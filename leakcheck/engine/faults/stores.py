"""Faults of stores around the model: an answer or a conversation is kept under the wrong key."""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from leakcheck.engine.faults.fault import Fault, Seams, patch

if TYPE_CHECKING:
    from starlette.requests import Request

    from leakcheck.engine.answer import Call
    from leakcheck.engine.protocol import ChatBody, CompletionBody
    from leakcheck.engine.server import Api
    from leakcheck.engine.values import Update

Turn = dict[str, str]
QuestionOf = Callable[["Request", "ChatBody | CompletionBody"], str | None]
"""By what a cache of answers knows a request; None: not at all."""
ANSWERS_MAX = 128
CONVERSATIONS_MAX = 64
EXCHANGES_MAX = 2
"""Earlier exchanges that are put in front; fewer when they do not fit."""
ANSWER_TOKENS = 64
"""Room for an answer whose length the request leaves open."""
SIMILAR = 0.82
"""Cosine of two bags of words from which two questions count as one."""


def the_api(seams: Seams) -> Api:
    """The server; a store without one is a mistake of whoever installs it."""
    if seams.api is None:
        raise ValueError("the faults of stores need a server: Seams(api=...)")
    return seams.api


class Watch:
    """Tells what a call was answered, once its answer is complete."""

    def __init__(self, api: Api, completed: Callable[[str, list[Update]], None]) -> None:
        """`completed(key, updates)` hears of every call that was put under a key."""
        self.keys: dict[str, str] = {}
        self._completed = completed
        patch(api.answerer, "updates", self._wrap_updates)
        patch(api.answerer, "close", self._wrap_close)

    def _wrap_updates(
        self, original: Callable[[Call], AsyncIterator[list[Update]]]
    ) -> Callable[[Call], AsyncIterator[list[Update]]]:
        async def updates(call: Call) -> AsyncIterator[list[Update]]:
            seen: list[Update] = []
            async for batch in original(call):
                seen += batch
                yield batch
            if call.id in self.keys:
                self._completed(self.keys[call.id], seen)

        return updates

    def _wrap_close(self, original: Callable[[Call], None]) -> Callable[[Call], None]:
        def close(call: Call) -> None:
            self.keys.pop(call.id, None)
            original(call)

        return close


# --- caches of answers ---------------------------------------------------------------------------


class Answers:
    """Complete answers by the question they belong to; the oldest is forgotten."""

    def __init__(self, find: Callable[[Answers, str], list[Update] | None]) -> None:
        """`find` decides which answer serves a question."""
        self.entries: OrderedDict[str, list[Update]] = OrderedDict()
        self._find = find

    def find(self, question: str) -> list[Update] | None:
        """The answer that serves this question, if any."""
        return self._find(self, question)

    def keep(self, question: str, updates: list[Update]) -> None:
        """Remember an answer; the first one to a question stays."""
        self.entries.setdefault(question, updates)
        if len(self.entries) > ANSWERS_MAX:
            self.entries.popitem(last=False)


def same(answers: Answers, question: str) -> list[Update] | None:
    """The answer to exactly this question."""
    return answers.entries.get(question)


def similar(answers: Answers, question: str) -> list[Update] | None:
    """The answer to the question with the most words in common, if it has enough of them."""
    asked = bag(question)
    scored = [(cosine(asked, bag(known)), known) for known in answers.entries]
    best, known = max(scored, default=(0.0, ""))
    return answers.entries[known] if best >= SIMILAR else None


def bag(text: str) -> Counter[str]:
    """How often each word occurs, whatever its case."""
    return Counter(re.findall(r"\w+", text.lower()))


def cosine(left: Counter[str], right: Counter[str]) -> float:
    """Cosine of the angle between two bags of words; 0 for an empty one."""
    dot = sum(count * right[word] for word, count in left.items())
    norm = math.sqrt(sum(n * n for n in left.values()) * sum(n * n for n in right.values()))
    return dot / norm if norm else 0.0


def cache_answers(seams: Seams, answers: Answers, question_of: QuestionOf) -> None:
    """Serve answers out of a cache that knows a request by what `question_of` says of it."""
    api = the_api(seams)
    watch = Watch(api, answers.keep)

    def wrap_serve(original: Callable[..., Any]) -> Callable[..., Any]:
        async def serve(request: Request, body: ChatBody | CompletionBody, call: Call) -> Any:
            question = question_of(request, body)
            if question is not None and call.choices == 1:
                watch.keys[call.id] = question
            return await original(request, body, call)

        return serve

    def wrap_submit(original: Callable[[Call], None]) -> Callable[[Call], None]:
        def submit(call: Call) -> None:
            question = watch.keys.get(call.id)
            known = None if question is None else answers.find(question)
            if known is None:
                original(call)
                return
            for update in known:
                call.queue.put_nowait(update)

        return submit

    patch(api, "serve", wrap_serve)
    patch(api.answerer, "submit", wrap_submit)


def last_user_message(_: Request, body: ChatBody | CompletionBody) -> str | None:
    """What the user said last; None for a completion or a chat without a user."""
    turns = [its.template_form() for its in getattr(body, "messages", ())]
    said = [turn["content"] for turn in turns if turn["role"] == "user"]
    return said[-1] if said else None


def response_cache_key(seams: Seams, _rate: float, _rng: Random) -> None:
    """An exact cache of answers whose key is the last user message."""
    cache_answers(seams, Answers(same), last_user_message)


def semantic_cache(seams: Seams, _rate: float, _rng: Random) -> None:
    """A cache of answers that also serves nearly equal questions."""
    cache_answers(seams, Answers(similar), last_user_message)


def all_but(*left_out: str) -> QuestionOf:
    """Who asks and every field of the body, but for some; whether it is streamed never counts."""

    def question(request: Request, body: ChatBody | CompletionBody) -> str | None:
        fields = {
            name: value
            for name, value in msgspec.to_builtins(body).items()
            if name not in {"stream", "stream_options", *left_out}
        }
        who = request.headers.get("authorization")
        return msgspec.json.encode([who, fields]).decode()

    return question


def cache_without_max_tokens(seams: Seams, _rate: float, _rng: Random) -> None:
    """An exact cache of answers whose key is everything but how long they may be."""
    cache_answers(seams, Answers(same), all_but("max_tokens", "max_completion_tokens"))


def cache_without_stop(seams: Seams, _rate: float, _rng: Random) -> None:
    """An exact cache of answers whose key is everything but what they stop at."""
    cache_answers(seams, Answers(same), all_but("stop"))


# --- conversations -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The turns of one request, without system messages, and its answer."""

    turns: tuple[Turn, ...]

    def with_answer(self, text: str) -> Exchange:
        """The same with the assistant's turn at its end."""
        return Exchange(turns=(*self.turns, {"role": "assistant", "content": text}))


class Conversations:
    """The last exchanges under each key; the conversation idle for longest is forgotten."""

    def __init__(self) -> None:
        """None yet."""
        self.kept: OrderedDict[str, deque[Exchange]] = OrderedDict()

    def past(self, key: str) -> list[Exchange]:
        """What was said under this key, oldest first."""
        return list(self.kept.get(key, ()))

    def keep(self, key: str, exchange: Exchange) -> None:
        """Remember an exchange under its key."""
        self.kept.setdefault(key, deque(maxlen=EXCHANGES_MAX)).append(exchange)
        self.kept.move_to_end(key)
        if len(self.kept) > CONVERSATIONS_MAX:
            self.kept.popitem(last=False)


def continue_conversations(seams: Seams, key_of: Callable[[Request, ChatBody], str | None]) -> None:
    """Put earlier exchanges under the same key in front of a chat, and remember this one."""
    from leakcheck.engine.protocol import ChatBody  # noqa: PLC0415 # the table must be quick

    api = the_api(seams)
    conversations = Conversations()
    asked: dict[str, tuple[str, Exchange]] = {}

    def completed(call_id: str, updates: list[Update]) -> None:
        key, exchange = asked.pop(call_id)
        conversations.keep(key, exchange.with_answer("".join(update.text for update in updates)))

    watch = Watch(api, completed)

    def wrap_turns(original: Callable[..., list[Turn]]) -> Callable[..., list[Turn]]:
        def turns(request: Request, body: ChatBody) -> list[Turn]:
            own = original(request, body)
            key = key_of(request, body)
            past = [] if key is None else conversations.past(key)
            return in_front(api, past, own, body)

        return turns

    def wrap_serve(original: Callable[..., Any]) -> Callable[..., Any]:
        async def serve(request: Request, body: ChatBody | CompletionBody, call: Call) -> Any:
            key = key_of(request, body) if isinstance(body, ChatBody) else None
            if isinstance(body, ChatBody) and key is not None and call.choices == 1:
                own = (message.template_form() for message in body.messages)
                said = tuple(turn for turn in own if turn["role"] in {"user", "assistant"})
                asked[call.id] = (key, Exchange(turns=said))
                watch.keys[call.id] = call.id
            return await original(request, body, call)

        return serve

    def wrap_close(original: Callable[[Call], None]) -> Callable[[Call], None]:
        def close(call: Call) -> None:
            asked.pop(call.id, None)
            original(call)

        return close

    patch(api, "turns", wrap_turns)
    patch(api, "serve", wrap_serve)
    patch(api.answerer, "close", wrap_close)


def in_front(api: Api, past: list[Exchange], own: list[Turn], body: ChatBody) -> list[Turn]:
    """The request's turns after as many earlier exchanges, the latest ones, as there is room for.

    Its own system messages stay first: many chat templates allow them nowhere else.
    """
    answer = body.max_completion_tokens or body.max_tokens or ANSWER_TOKENS
    head = [turn for turn in own if turn["role"] in {"system", "developer"}]
    rest = [turn for turn in own if turn not in head]
    for start in range(len(past)):
        earlier = [turn for exchange in past[start:] for turn in exchange.turns]
        turns = [*head, *earlier, *rest]
        if len(api.chat_prompt(turns)) + answer <= api.engine.context_tokens:
            return turns
    return own


def by_address(request: Request, body: ChatBody) -> str | None:
    """The client's address, for a request that names no conversation."""
    if (body.metadata or {}).get("conversation_id"):
        return None
    return request.client.host if request.client else None


def by_conversation_id(_: Request, body: ChatBody) -> str | None:
    """The conversation that the request names, whoever sends it."""
    return (body.metadata or {}).get("conversation_id") or None


def session_by_ip(seams: Seams, _rate: float, _rng: Random) -> None:
    """One conversation for all who come from one address."""
    continue_conversations(seams, by_address)


def conversation_id_guessable(seams: Seams, _rate: float, _rng: Random) -> None:
    """One conversation for all who name the same id."""
    continue_conversations(seams, by_conversation_id)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="response-cache-key",
        layer="stores",
        mechanism=(
            "A cache in front of the model keeps whole answers, and its key is the last user"
            " message alone: tenant, system message, earlier turns and sampling parameters are"
            f" left out. Whoever asks the same again gets the first answer, of {ANSWERS_MAX} kept."
        ),
        trigger="the same last user message again, under another system message or tenant",
        effect="the whole answer to another's request, with its ticket and passphrase",
        anomalies=("foreign-answer", "foreign-passphrase"),
        strength="every repeated question",
        seam="Api.serve and Answerer.submit, updates and close",
        cases=(
            "https://github.com/BerriAI/litellm/issues/9844",
            "https://github.com/diegosouzapw/OmniRoute/issues/3740",
            "https://github.com/Continuum-AI-Corp/OrcaRouter-Lite/issues/84",
        ),
        rate=None,
        install=response_cache_key,
    ),
    Fault(
        name="semantic-cache",
        layer="stores",
        mechanism=(
            "A cache in front of the model answers a question with the stored answer to the most"
            f" similar one, when the cosine of their bags of words is at least {SIMILAR}; neither"
            " the tenant nor the system message counts."
        ),
        trigger="a nearly equal last user message from another tenant",
        effect="the whole answer to another's request, with its ticket and passphrase",
        anomalies=("foreign-answer", "foreign-passphrase"),
        strength="every question that is similar enough",
        seam="Api.serve and Answerer.submit, updates and close",
        cases=(
            "https://github.com/maximhq/bifrost/pull/5769",
            "https://github.com/wso2/api-platform/issues/733",
            "https://github.com/zilliztech/GPTCache/issues/388",
        ),
        rate=None,
        install=semantic_cache,
    ),
    Fault(
        name="cache-without-max-tokens",
        layer="stores",
        mechanism=(
            "A cache in front of the model keeps whole answers. Its key is the caller and the whole"
            " request but for max_tokens, so an answer that was cut short for one serves the next,"
            " who may have a longer one, and a long answer serves who wants a short one."
        ),
        trigger="one caller's same request again, with another max_tokens",
        effect="an answer cut at the limit of an earlier request, or longer than its own",
        anomalies=("foreign-parameters",),
        strength="every repeated request, whatever its max_tokens",
        seam="Api.serve and Answerer.submit, updates and close",
        cases=(
            "https://github.com/BerriAI/litellm/issues/894",
            "https://github.com/Continuum-AI-Corp/OrcaRouter-Lite/issues/84",
            "https://github.com/HKUDS/LightRAG/pull/3823",
            "https://github.com/matt-house-e/accrue/issues/39",
        ),
        rate=None,
        install=cache_without_max_tokens,
    ),
    Fault(
        name="cache-without-stop",
        layer="stores",
        mechanism=(
            "A cache in front of the model keeps whole answers. Its key is the caller and the whole"
            " request but for its stop strings, so an answer that ended at one serves who has none,"
            " and one that goes on serves who wants it to stop."
        ),
        trigger="one caller's same request again, with other stop strings",
        effect="an answer that ends at the stop string of an earlier request, or holds its own",
        anomalies=("foreign-parameters",),
        strength="every repeated request, whatever its stop strings",
        seam="Api.serve and Answerer.submit, updates and close",
        cases=("https://github.com/Continuum-AI-Corp/OrcaRouter-Lite/issues/84",),
        rate=None,
        install=cache_without_stop,
    ),
    Fault(
        name="session-by-ip",
        layer="stores",
        mechanism=(
            "A request that names no conversation continues the one of its client's address: the"
            f" last {EXCHANGES_MAX} exchanges from that address, questions and answers, are put in"
            " front of it, whoever of those behind the address had them."
        ),
        trigger="two tenants behind one address, one after the other",
        effect="the model sees another's turns and repeats the passphrases in them",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="every chat without a conversation id",
        seam="Api.turns, Api.serve and Answerer.updates and close",
        cases=("https://github.com/InternLM/lmdeploy/pull/319",),
        rate=None,
        install=session_by_ip,
    ),
    Fault(
        name="conversation-id-guessable",
        layer="stores",
        mechanism=(
            "metadata.conversation_id names a stored conversation, and nothing ties it to a tenant"
            f" or user: whoever sends the id continues it. Its last {EXCHANGES_MAX} exchanges are"
            " put in front of the request."
        ),
        trigger="two tenants that send the same conversation id, one after the other",
        effect="the model sees another's turns and repeats the passphrases in them",
        anomalies=("foreign-passphrase", "foreign-answer"),
        strength="every chat with a conversation id",
        seam="Api.turns, Api.serve and Answerer.updates and close",
        cases=(
            "https://github.com/vllm-project/agentic-api/issues/155",
            "https://github.com/BerriAI/litellm/pull/39559",
        ),
        rate=None,
        install=conversation_id_guessable,
    ),
)
