"""Find a plug-in by its name, and bind a scenario's table to its keyword-only parameters.

A bare name is a module of one of our folders (`traffic`, `checks`, `backends`), a dotted name is
any importable module. There is no registry: workers are spawned processes, and a name means the
same in all of them.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leakcheck.errors import UsageError


def names(kind: str) -> tuple[str, ...]:
    """Names of the modules in the folder `kind`, without importing them."""
    folder = importlib.import_module(f"leakcheck.{kind}")
    found = (module.name for module in pkgutil.iter_modules(folder.__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(kind: str, name: str, function: str) -> Callable[..., Any]:
    """The function called `function` in the plug-in `name` of `kind`.

    Raises UsageError that names the nearest valid plug-in.
    """
    found = find(kind, name, function)
    if found is None:
        known = names(kind)
        raise UsageError(
            f"no {kind} plug-in {name!r} with a function `{function}`"
            f"{nearest(name, known)} (known: {', '.join(known)})"
        )
    return found


def find(kind: str, name: str, function: str) -> Callable[..., Any] | None:
    """As `load`; None where there is no such plug-in or it has no such function."""
    path = name if "." in name else f"leakcheck.{kind}.{name}"
    try:
        found = getattr(importlib.import_module(path), function, None)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            return None
        raise UsageError(f"the {kind} plug-in {name!r} cannot be imported: {error}") from error
    return typing.cast("Callable[..., Any] | None", found)


def summary(kind: str, name: str) -> str:
    """First line of a plug-in's docstring."""
    module = importlib.import_module(f"leakcheck.{kind}.{name}")
    return (module.__doc__ or "").strip().splitlines()[0]


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only parameters of a plug-in: its options, name to annotation."""
    hints = typing.get_type_hints(function)
    return {
        p.name: hints.get(p.name, Any)
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


def check_options(function: Callable[..., Any], table: Mapping[str, Any], where: str) -> None:
    """Raise UsageError unless every key of `table` is an option of the right type."""
    known = options_of(function)
    for key, value in table.items():
        if key not in known:
            raise UsageError(
                f"{where}: unknown key {key!r}{nearest(key, known)} "
                f"(known: {', '.join(known) or 'none'})"
            )
        if not fits(value, known[key]):
            raise UsageError(f"{where}.{key}: {value!r} is not of type {type_name(known[key])}")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` or nothing, for the end of a sentence."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def fits(value: Any, wanted: Any) -> bool:
    """Whether a TOML value is of the annotated type (an int is a good float, a bool no int,
    and nan and inf are no numbers).
    """
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin is typing.Literal:
        return value in inner
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(fits(item, inner[0]) for item in value)
    odd = isinstance(value, bool) and wanted is not bool
    odd = odd or (isinstance(value, float) and not math.isfinite(value))
    return not odd and isinstance(value, (int, float) if wanted is float else wanted)


def type_name(wanted: Any) -> str:
    """An annotation as a user reads it."""
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(option) for option in typing.get_args(wanted))
    if origin is typing.Literal:
        return " or ".join(repr(option) for option in typing.get_args(wanted))
    if origin in (tuple, list):
        return f"list of {type_name(typing.get_args(wanted)[0])}"
    return {str: "string", float: "number", int: "integer", bool: "boolean", dict: "table"}.get(
        wanted, str(wanted)
    )
