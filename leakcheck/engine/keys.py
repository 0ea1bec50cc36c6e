"""Keys are named by environment variable, never given."""

from __future__ import annotations

import os

from leakcheck.engine.values import EngineError


def key_from_environment(name: str | None) -> str | None:
    """The API key in the environment variable of this name; EngineError when it is not set."""
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise EngineError(f"the environment variable {name}, named by --api-key-env, is not set")
    return key
