"""Updates in OpenAI's shapes: one choice of a chunk, whole choices, usage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from leakcheck.engine.text import TokenTexts
from leakcheck.engine.values import TokenLogprob, Update, Usage

Style = Literal["chat", "completion"]


def merged(updates: Iterable[Update], choices: int) -> list[Update]:
    """All updates of each choice as one, by index."""
    parts: list[list[Update]] = [[] for _ in range(choices)]
    for update in updates:
        parts[update.index].append(update)
    return [
        replace(
            group[-1],
            text="".join(part.text for part in group),
            tokens=tuple(token for part in group for token in part.tokens),
            logprobs=tuple(one for part in group for one in part.logprobs),
        )
        for group in parts
        if group
    ]


def whole_choice(
    style: Style, update: Update, texts: TokenTexts, *, logprobs: bool, ids: bool
) -> dict[str, Any]:
    """One element of `choices` of a response that is not streamed."""
    shown = {"role": "assistant", "content": update.text, "refusal": None}
    return {
        "index": update.index,
        **({"message": shown} if style == "chat" else {"text": update.text}),
        "logprobs": logprob_block(style, update.logprobs, texts) if logprobs else None,
        "finish_reason": update.finish_reason,
        **({"token_ids": update.tokens} if ids else {}),
    }


def chunk_choice(
    style: Style, update: Update, texts: TokenTexts, *, logprobs: bool, ids: bool
) -> dict[str, Any]:
    """One element of `choices` of a streamed chunk."""
    shown = {"content": update.text} if update.text else {}
    return {
        "index": update.index,
        **({"delta": shown} if style == "chat" else {"text": update.text}),
        "logprobs": logprob_block(style, update.logprobs, texts) if logprobs else None,
        "finish_reason": update.finish_reason,
        **({"token_ids": update.tokens} if ids else {}),
    }


def logprob_block(
    style: Style, logprobs: Sequence[TokenLogprob], texts: TokenTexts
) -> dict[str, Any]:
    """Log-probabilities in the shape of chat, or the older one of completions."""
    if style == "chat":
        return {"content": [chat_logprob(one, texts) for one in logprobs], "refusal": None}
    return {
        "tokens": [texts.text(one.token) for one in logprobs],
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": [{texts.text(t): value for t, value in one.top} for one in logprobs],
        "text_offset": [one.offset for one in logprobs],
    }


def chat_logprob(one: TokenLogprob, texts: TokenTexts) -> dict[str, Any]:
    """One token of a chat answer with its alternatives."""
    return {
        **token_form(one.token, one.logprob, texts),
        "top_logprobs": [token_form(token, value, texts) for token, value in one.top],
    }


def token_form(token: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    """A token's text, bytes and log-probability."""
    return {"token": texts.text(token), "bytes": texts.raw_bytes(token), "logprob": logprob}


def usage_block(usages: Sequence[tuple[int, Usage]]) -> dict[str, Any]:
    """The usage of a request from (prompt number, usage of a choice): a prompt counts once."""
    prompts = dict(reversed(usages))
    prompt_tokens = sum(usage.prompt_tokens for usage in prompts.values())
    completion_tokens = sum(usage.completion_tokens for _, usage in usages)
    cached_tokens = sum(usage.cached_tokens for usage in prompts.values())
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
