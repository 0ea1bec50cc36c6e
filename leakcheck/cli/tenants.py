"""`--tenant NAME=ENV_VAR[,HEADER=ENV_VAR][,salt=TEXT][,user=TEXT]`: several identities at a target.

Whatever is wrong is said in one sentence that repeats no value: it may be a key.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

from leakcheck.errors import UsageError
from leakcheck.records import Tenant

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FORM = "NAME=ENV_VAR, such as alice=ALICE_KEY,OpenAI-Organization=ALICE_ORG,salt=a1,user=alice"


def read(texts: Sequence[str]) -> tuple[Tenant, ...]:
    """The tenants of these values of --tenant. Raises UsageError for a wrong form, a name given
    twice, a variable that is not set, and two tenants with one key: they would be one identity.
    """
    found = tuple(_tenant(text) for text in texts)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--tenant: {name!r} is given twice; each tenant needs its own name")
    if len(found) == 1:
        raise UsageError(
            f"--tenant: {names[0]!r} is alone; give two or more, or name its key with --api-key-env"
        )
    for one, other in itertools.combinations(found, 2):
        if _key(one) == _key(other):
            raise UsageError(
                f"--tenant: {one.name} ({one.api_key_env}) and {other.name} ({other.api_key_env}) "
                "have the same API key, so no boundary between them could be tested; give each "
                "its own"
            )
    return found


def _tenant(text: str) -> Tenant:
    first, *parts = text.split(",")
    name, equals, variable = first.partition("=")
    if not (equals and _NAME.fullmatch(name) and variable):
        raise UsageError(f"--tenant: not of the form {_FORM}")
    _require_set(name, variable, "its API key")
    headers: dict[str, str] = {}
    texts: dict[str, str] = {}
    for part in parts:
        what, equals, value = part.partition("=")
        if not (equals and value and _HEADER.fullmatch(what)):
            raise UsageError(f"--tenant {name}: a part after a comma is not of the form {_FORM}")
        known = texts if what in {"salt", "user"} else headers
        if what in known:
            raise UsageError(f"--tenant {name}: {what} is given twice; leave out one of them")
        known[what] = value
        if known is headers:
            _require_set(name, value, f"the header {what}")
    return Tenant(
        name=name,
        api_key_env=variable,
        headers_env=headers,
        cache_salt=texts.get("salt"),
        user=texts.get("user"),
    )


def _require_set(name: str, variable: str, what: str) -> None:
    if not _VARIABLE.fullmatch(variable):
        raise UsageError(
            f"--tenant {name}: what is named for {what} is no environment variable (it is not "
            "repeated here: it may be a key); set one and give its name"
        )
    if not os.environ.get(variable):
        raise UsageError(
            f"--tenant {name}: environment variable {variable} is not set; it should hold {what}"
        )


def _key(tenant: Tenant) -> str:
    return os.environ.get(tenant.api_key_env or "", "").strip()
