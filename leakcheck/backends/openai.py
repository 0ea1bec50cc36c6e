"""The OpenAI API: chat, completions, responses, streamed or not: what nearly every target speaks.

Some servers refuse fields that they do not know, and some models fields that others need (newer
ones of OpenAI take `max_completion_tokens` for `max_tokens`, reasoning models no `temperature`).
So nothing is sent that a request does not ask for, and `meet` finds out what a target refuses by
asking: what it names in a 400 is left out and it is asked again. `Target.refuses` tells the lanes.

What makes an outcome is said in `_http`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from yarl import URL

from leakcheck.backends import Turns
from leakcheck.backends import _probe as probing
from leakcheck.backends._answers import Answer
from leakcheck.backends._http import Connection, Page
from leakcheck.backends._probe import Dialect, Visit, accepted, no_entry
from leakcheck.backends._responses import Response
from leakcheck.budget.spending import LEAST_ANSWER
from leakcheck.errors import TargetError, UsageError
from leakcheck.records import Api, Chunk, Request, Target

_PATHS: dict[Api, str] = {
    "chat": "chat/completions",
    "completions": "completions",
    "responses": "responses",
}
_OK, _NO_ENTRY, _NO_LIST = 200, frozenset({401, 403}), frozenset({404, 405})
_LOGPROBS = frozenset({"logprobs", "top_logprobs", "include"})


def connect(target: Target) -> OpenAI:
    """A backend for one lane; call it inside a running event loop. Raises UsageError as
    `Connection`.
    """
    return OpenAI(target)


DIALECT = Dialect(
    protocol="OpenAI API",
    key_env="OPENAI_API_KEY",
    always=("max_tokens", "temperature", "stream_options"),
    some={
        "top_p": ("top_p",),
        "seed": ("seed",),
        "stop": ("stop",),
        "top_logprobs": ("logprobs", "top_logprobs"),
        "logit_bias": ("logit_bias",),
        "allowed_token_ids": ("allowed_token_ids",),
        "return_token_ids": ("return_token_ids",),
        "cache_salt": ("cache_salt",),
        "conversation": ("metadata", "user"),
    },
    also=frozenset({"n", "tools", "response_format", "prompt_logprobs"}),
)


def meet(target: Target, turns: Turns) -> tuple[Target, tuple[str, ...]]:
    """Find out whether the target can be used at all, and what it refuses: GET /models, one tiny
    request, and one with everything that the traffic of leakcheck sends; more where these fail.

    Returns the target as it is to be spoken to (`refuses`, `hottest`), and the ids of the models it
    offers; none where it does not tell. Raises TargetError for a target that is dead or broken,
    UsageError for a wrong URL, key or model: one sentence each.
    """
    return probing.meet(target, turns, DIALECT, connect, _models)


async def _models(visit: Visit) -> tuple[str, ...]:
    base = visit.http.base
    page = await visit.get(_list(base))
    if page.status in _NO_ENTRY:
        raise no_entry(visit, page.status, page.words)
    ids = _ids(page)
    if page.status == _OK and ids is not None:
        return ids
    if not base.path.endswith("/v1"):
        # The root of a server answers with a page, a 404 or JSON of its own: is the API below it?
        longer = base.joinpath("v1")
        below = await visit.get(_list(longer))
        if _ids(below) is not None or below.status in _NO_ENTRY:
            raise UsageError(f"there is no OpenAI API at {base}, but one at {longer}: name that")
    if page.status in _NO_LIST:
        return ()  # some targets offer no list; the tiny request will tell
    if page.status != _OK:
        raise TargetError(f"the target at {base} answers with status {page.status}: {page.words}")
    what = "a web page" if page.content_type == "text/html" else "something else"
    raise TargetError(
        f"there is no OpenAI API at {base}: /models is {what}, not a list of models ({page.words})"
    )


def _list(base: URL) -> URL:
    return base.joinpath("models").with_query(base.query)


def _ids(page: Page) -> tuple[str, ...] | None:
    """The model ids, where this is OpenAI's list of models."""
    try:
        return tuple(item["id"] for item in page.document["data"] if isinstance(item["id"], str))
    except (KeyError, TypeError):
        return None


class OpenAI:
    """One lane's connection."""

    def __init__(self, target: Target) -> None:
        """As `connect`."""
        self._target = target
        self.http = Connection(target)
        self._url = self.http.url(_PATHS[target.api])

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """See `leakcheck.backends.Backend`."""
        reader = Response() if self._target.api == "responses" else Answer()
        return self.http.stream(request, self._url, body(self._target, request), reader)

    async def close(self) -> None:
        """Close the connection."""
        await self.http.close()


# --- what is sent --------------------------------------------------------------------------------


def body(target: Target, request: Request) -> dict[str, Any]:
    """The JSON of one request: only what it asks for, and nothing that the target refuses.

    Completions get the messages joined by blank lines as prompt, or its token ids. A conversation
    belongs to somebody: with it, and only then, the tenant is sent as user; a tenant of the target
    brings its own user and salt.
    """
    made = {"chat": _chat, "completions": _completion, "responses": _response}[target.api](request)
    shared: dict[str, Any] = {
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "seed": request.sampling.seed,
        "stop": list(request.sampling.stop) or None,
        "allowed_token_ids": list(request.sampling.allowed_token_ids) or None,
        "n": request.sampling.n,
        "ignore_eos": request.sampling.ignore_eos or None,
        "prompt_logprobs": request.sampling.prompt_logprobs,
        "tool_choice": request.tool_choice,
        **_identity(target, request),
    }
    fields = {"model": target.model} | made | shared | {"stream": request.stream} | request.extra
    if request.sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in request.sampling.logit_bias}
    if request.stream and target.api != "responses":
        fields["stream_options"] = {"include_usage": True}
    return _accepted(target, fields)


def _identity(target: Target, request: Request) -> dict[str, Any]:
    """Who sends it, as far as the request or its tenant say so."""
    mine = next((each for each in target.tenants if each.name == request.key), None)
    salt, user, metadata = request.cache_salt, None, None
    if mine is not None:
        salt, user = salt or mine.cache_salt, mine.user
    if request.conversation is not None:
        metadata, user = {"conversation_id": request.conversation}, user or request.tenant
    return {"cache_salt": salt, "user": user, "metadata": metadata}


def _chat(request: Request) -> dict[str, Any]:
    wanted = request.sampling.top_logprobs
    tools = [{"type": "function", "function": tool} for tool in request.tools]
    return {
        "messages": _messages(request),
        "max_tokens": request.sampling.max_tokens,
        "logprobs": None if wanted is None else True,
        "top_logprobs": wanted,
        "tools": tools or None,
        "response_format": request.response_format,
        "return_token_ids": request.sampling.return_token_ids or None,
    }


def _completion(request: Request) -> dict[str, Any]:
    prompt: str | list[int] = "\n\n".join(message.content for message in request.messages)
    if request.prompt_token_ids is not None:
        prompt = list(request.prompt_token_ids)
    return {
        "prompt": prompt,
        "max_tokens": request.sampling.max_tokens,
        "logprobs": request.sampling.top_logprobs,
        "response_format": request.response_format,
        "return_token_ids": request.sampling.return_token_ids or None,
    }


def _response(request: Request) -> dict[str, Any]:
    wanted = request.sampling.top_logprobs
    form = request.response_format
    if form is not None and isinstance(schema := form.get("json_schema"), dict):
        form = {"type": form["type"], **schema}  # one level less than in a chat
    messages = _messages(request)
    own = len(messages) > 1 and messages[0]["role"] == "system"
    return {
        "instructions": messages[0]["content"] if own else None,
        "input": messages[own:],
        "max_output_tokens": max(LEAST_ANSWER, request.sampling.max_tokens),
        "include": None if wanted is None else ["message.output_text.logprobs"],
        "logprobs": None if wanted is None else True,  # llama.cpp wants both
        "top_logprobs": wanted,
        "tools": [{"type": "function", **tool} for tool in request.tools] or None,
        "text": None if form is None else {"format": form},
    }


def _messages(request: Request) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in request.messages]


def _accepted(target: Target, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What there is of these fields and is not refused, `max_tokens` by its newer name if need be;
    what only goes with a refused field goes with it.
    """
    kept = accepted(target, fields)
    if "max_tokens" in target.refuses and "max_tokens" in fields:
        kept["max_completion_tokens"] = fields["max_tokens"]
    told = {"top_logprobs"} if target.api == "responses" else {"logprobs", "top_logprobs"}
    if told & set(target.refuses):
        kept = {name: value for name, value in kept.items() if name not in _LOGPROBS}
    return kept
