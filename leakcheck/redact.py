"""Keep API keys out of everything that is written: errors, observations, reports.

A key is known here only as the value of an environment variable: one that the target names, and,
where the target runs in our environment, one whose own name says that it is a secret. What a target
sends back is masked character by character, so that offsets into the text stay true.
"""

from __future__ import annotations

import base64
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Target, TokenLogprob

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SECRET_END = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE)
_SHORTEST_INHERITED = 8
_INHERIT = frozenset({"callable", "command", "litellm"})
"""Backends that run in our environment, or hand it on: all of its secrets may come back."""
_SHORTEST = 6
"""Shorter header values are no keys, and masking every `1` would alter honest answers."""


def environment(name: str, what: str) -> str:
    """The value of an environment variable that holds `what`; UsageError where it is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise UsageError(f"the environment variable {name}, named for {what}, is not set")
    if not value.isprintable() or not value.isascii():
        raise UsageError(
            f"the environment variable {name}, named for {what}, holds characters that no HTTP "
            "header can carry; only printable ASCII can be sent"
        )
    return value


def bearer(key: str) -> dict[str, str]:
    """An API key as most targets want it."""
    return {"Authorization": f"Bearer {key}"}


def headers(
    target: Target, tenant: str | None = None, authorize: Callable[[str], dict[str, str]] = bearer
) -> dict[str, str]:
    """What lets us in at this target: its headers and the API key as `authorize` puts it, or those
    of one of its tenants in their place.

    Raises UsageError for a variable that is not set.
    """
    found: dict[str, str] = {}
    whose = next((each for each in target.tenants if each.name == tenant), None)
    key = target.api_key_env if whose is None else whose.api_key_env
    if key is not None:
        owner = "the API key" if whose is None else f"the API key of tenant {whose.name}"
        found |= authorize(environment(key, owner))
    named = target.headers_env | ({} if whose is None else whose.headers_env)
    for header, name in named.items():
        found[header] = environment(name, f"the header {header}")
    return found


def secrets(target: Target) -> tuple[str, ...]:
    """Every secret that this target is sent or can read in our environment, longest first; unset
    variables are skipped.
    """
    found = set(inherited()) if target.backend in _INHERIT else set()
    keys = [target.api_key_env, *(tenant.api_key_env for tenant in target.tenants)]
    named = [target.headers_env, *(tenant.headers_env for tenant in target.tenants)]
    names = [*filter(None, keys), *(name for each in named for name in each.values())]
    for name in names:
        value = os.environ.get(name, "").strip()
        found.update(_forms(value))
    return tuple(sorted(found, key=len, reverse=True))


def inherited() -> tuple[str, ...]:
    """What a process of our environment knows of secrets, longest first: all of it whose variable
    is called so, and that is not too short to be one.
    """
    found: set[str] = set()
    for name, value in os.environ.items():
        if _SECRET_END.fullmatch(name) and len(value.strip()) >= _SHORTEST_INHERITED:
            found.update(_forms(value.strip()))
    return tuple(sorted(found, key=len, reverse=True))


def spoken_of(words: Sequence[str]) -> tuple[str, ...]:
    """Secrets of the environment, longest first: what a variable holds that these words name, or
    whose own name says that it is one.
    """
    text = " ".join(words)
    found: set[str] = set()
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            found.update(_forms(value.strip()))
    return tuple(sorted(found, key=len, reverse=True))


def redact(text: str, keys: Sequence[str]) -> str:
    """`text` with every secret masked by as many asterisks; the beginning of one too, where the
    text was cut off in it.
    """
    for key in keys:
        if key in text:
            text = text.replace(key, "*" * len(key))
    plain = text.removesuffix("…")
    for key in keys:
        if key[:_SHORTEST] not in plain[-len(key) :]:
            continue
        for length in range(min(len(key) - 1, len(plain)), _SHORTEST - 1, -1):
            if plain.endswith(key[:length]):
                masked = plain[: len(plain) - length] + "*" * length
                return masked + text[len(plain) :]
    return text


def _forms(value: str) -> Iterator[str]:
    """A secret as it may stand in a text: whole, word by word, in URLs, and in base64 with anything
    around it. What is too short is none.
    """
    for part in {value, *value.split()}:
        if len(part) < _SHORTEST:
            continue
        yield part
        yield urllib.parse.quote(part, safe="")
        for before in range(3):
            raw = b"\0" * before + part.encode()
            whole = len(raw) // 3 * 4  # characters that only this part decides
            yield from (
                coded(raw).decode()[-(-8 * before // 6) : whole]
                for coded in (base64.b64encode, base64.urlsafe_b64encode)
            )


def redact_chunks(chunks: Sequence[Chunk], keys: Sequence[str]) -> tuple[Chunk, ...]:
    """The chunks with every secret masked, one spread over several chunks of a field included."""
    if not keys:
        return tuple(chunks)
    plain = [_redact_extras(chunk, keys) for chunk in chunks]
    fields: dict[str, list[int]] = {}  # a hostile reply may have as many as it has chunks
    for place, chunk in enumerate(plain):
        fields.setdefault(chunk.field, []).append(place)
    for places in fields.values():
        whole = "".join(plain[place].text for place in places)
        masked = redact(whole, keys)
        if masked == whole:
            continue
        start = 0
        for place in places:
            end = start + len(plain[place].text)
            plain[place] = replace(plain[place], text=masked[start:end])
            start = end
    return tuple(plain)


def _redact_extras(chunk: Chunk, keys: Sequence[str]) -> Chunk:
    """Mask what a chunk holds beside its text."""
    if chunk.logprobs:
        tokens = (
            TokenLogprob(
                token=redact(item.token, keys),
                logprob=item.logprob,
                top=tuple((redact(token, keys), value) for token, value in item.top),
            )
            for item in chunk.logprobs
        )
        chunk = replace(chunk, logprobs=tuple(tokens))
    if chunk.finish_reason or chunk.target_id:
        chunk = replace(
            chunk,
            finish_reason=chunk.finish_reason and redact(chunk.finish_reason, keys),
            target_id=chunk.target_id and redact(chunk.target_id, keys),
        )
    return chunk


def one_line(text: str, *, limit: int = 300) -> str:
    """Text of a target as part of one sentence: no line breaks or control characters, trimmed."""
    plain = re.sub(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]+", " ", text).strip()
    plain = plain.encode("utf-8", "replace").decode()
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
