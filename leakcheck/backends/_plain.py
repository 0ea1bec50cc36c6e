"""The plain protocol of `callable` and `command`: a request and its answers as small JSON objects.

An answer is one `{"text": "..."}`, or any number of `{"piece": "..."}` and then `{"done": true}`,
or `{"error": "..."}`. Beside them may stand:

- `field`: `content` (the default), `reasoning` or `tool`;
- `finish_reason`: `stop` or `length`;
- `usage`: `{"prompt_tokens": n, "completion_tokens": n, "cached_tokens": n}`;
- `logprobs`: `[{"token": "...", "logprob": -0.1, "top_logprobs": [the same, ...]}, ...]`;
- `id`: what the target calls this answer;
- with an error in front of everything else, `status` (HTTP's: 4xx says that nothing was
  generated, 429 that it was too much at once) and `retry_after_s`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leakcheck.backends import Refused
from leakcheck.backends import _json as json
from leakcheck.backends._probe import accepted
from leakcheck.records import Chunk, Request, Target
from leakcheck.redact import one_line

FIELDS: dict[str, tuple[str, ...]] = {
    "top_p": ("top_p",),
    "seed": ("seed",),
    "stop": ("stop",),
    "top_logprobs": ("top_logprobs",),
    "logit_bias": ("logit_bias",),
    "allowed_token_ids": ("allowed_token_ids",),
    "cache_salt": ("cache_salt",),
    "conversation": ("conversation",),
}
"""What some requests have, with its names here; a 4xx may name one that is not taken."""
_MAYBE_GENERATED = frozenset({408, 424, 499})


def document(target: Target, request: Request) -> dict[str, Any]:
    """A request: whose it is, what it says, and the sampling parameters that it asks for.

    `key` is the tenant whose API key it is to be sent with, and `api_key_env` the environment
    variable that holds it: keys themselves are not handed on.
    """
    sampling = request.sampling
    whose = next((tenant for tenant in target.tenants if tenant.name == request.key), None)
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "top_logprobs": sampling.top_logprobs,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "allowed_token_ids": list(sampling.allowed_token_ids) or None,
        "cache_salt": request.cache_salt or (whose and whose.cache_salt),
        "user": whose and whose.user,
        "conversation": request.conversation,
        "tools": list(request.tools) or None,
        "key": request.key,
        "api_key_env": target.api_key_env if whose is None else whose.api_key_env,
    }
    return {
        "id": request.id,
        "model": target.model,
        "tenant": request.tenant,
        "messages": [
            {"role": message.role, "content": message.content} for message in request.messages
        ],
        "max_tokens": sampling.max_tokens,
        "stream": request.stream,
        **accepted(target, fields),
        **request.extra,
    }


class Answer:
    """One answer in the making: feed it every object of the reply, in order."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.begun = False
        """A part of an answer was seen."""
        self.done = False
        """The target said that this is all."""

    @property
    def finished(self) -> bool:
        """The target said that this is all."""
        return self.done

    def read(self, raw: bytes) -> Iterator[Chunk]:
        """The chunks of one object as JSON. Raises Broken (after the chunks it could read), and
        Refused where an error says so in front of an answer.
        """
        return json.read(raw, self._chunks, self._refusal)

    def _refusal(self, answer: dict[str, Any]) -> Refused | None:
        status = json.count(answer.get("status"))
        if self.begun or status is None or not 400 <= status < 500 or status in _MAYBE_GENERATED:  # noqa: PLR2004 - refusals
            return None
        words = one_line(json.shown(answer.get("error")))
        retry_after_s = json.number(answer.get("retry_after_s"))
        return Refused(words, status=status, retry_after_s=retry_after_s)

    def _chunks(self, answer: dict[str, Any]) -> Iterator[Chunk]:
        whole = isinstance(answer.get("text"), str)
        self.begun = self.begun or whole or isinstance(answer.get("piece"), str)
        self.done = whole or answer.get("done") is True
        self.begun = self.begun or self.done  # an answer may have no words
        usage = json.table(answer.get("usage"))
        chunk = Chunk(
            text=json.text(answer.get("text" if whole else "piece")),
            field=json.text(answer.get("field")) or "content",
            logprobs=json.logprobs(answer.get("logprobs")),
            finish_reason=json.text(answer.get("finish_reason")) or None,
            usage=json.usage(
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
                usage.get("cached_tokens"),
            ),
            target_id=json.text(answer.get("id")) or None,
        )
        if chunk != Chunk(field=chunk.field):
            yield chunk
