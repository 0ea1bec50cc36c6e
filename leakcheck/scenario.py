"""Read and validate a scenario file, and expand it into a plan."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from leakcheck import plugin
from leakcheck.errors import ScenarioError, UsageError
from leakcheck.passphrase import Minter
from leakcheck.records import (
    SCHEMA,
    Arm,
    Gate,
    Load,
    Plan,
    PlugIn,
    Request,
    Scenario,
    Style,
    TargetFacts,
)
from leakcheck.traffic import Window

_TABLES = ("load", "traffic", "checks", "gate")
_TOP = ("schema", "name", "version", "summary", "catches", *_TABLES)
_SHARES = ("control", "min_echo", "min_overlap", "min_cache_hits")
_CHANCES = {"detect": 1, "alpha": 0.5}
_AT_LEAST = {"phantoms": 0, "retries": 0, "timeout_s": 0.001}
_AT_MOST = {
    "windows": 100_000,
    "requests": 1_000,
    "workers": 64,
    "lanes": 256,
    "max_tokens": 100_000,
    "passphrase_words": 64,
    "phantoms": 10_000,
    "timeout_s": 86_400,
    "retries": 10,
    "min_windows": 100_000,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_LEAK_CHECK = "foreign_passphrase"
_CLAIM = "gate.detect"

_WORDING = 11
"""Tokens of an answer around a ticket and two passphrases: marks, an end, a few words."""

T = TypeVar("T", Load, Gate)


def find(name: str) -> Path:
    """The file of a scenario: a path, or the bare name of a shipped one."""
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix or len(path.parts) > 1:
        raise ScenarioError(f"no scenario file at {name}")
    shipped = {p.stem: p for p in shipped_files()}
    if name not in shipped:
        raise ScenarioError(
            f"no scenario {name!r}{plugin.nearest(name, shipped)} (known: {', '.join(shipped)})"
        )
    return shipped[name]


def shipped_files() -> tuple[Path, ...]:
    """Scenario files of ./scenarios if there is such a folder, else those of the package."""
    package = Path(__file__).parent
    for folder in (Path("scenarios"), package / "scenarios", package.parent / "scenarios"):
        found = tuple(sorted(folder.glob("*.toml")))
        if found:
            return found
    return ()


def read(path: Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Read one scenario file; `overrides` maps dotted keys to values: `load.windows`, or
    `name:load.windows` for the scenario of that name only, which comes before.

    Raises ScenarioError, one sentence that names file, key and the nearest valid name.
    """
    try:
        raw = path.read_bytes()
        data = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: not valid TOML: {error}") from error
    own = _own(overrides or {}, data.get("name"))
    for key, value in own.items():
        if key != _CLAIM or not _claims_nothing(data):
            _override(data, key, value, path)
    digest = hashlib.sha256(raw + json.dumps(own, sort_keys=True, default=str).encode())
    return _scenario(data, path, digest.hexdigest(), overridden=bool(own))


def _own(overrides: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Overrides of every scenario, and after them those of this one: `name:load.windows`."""
    parted = [(*key.rpartition(":")[::2], value) for key, value in overrides.items()]
    of_all = {key: value for scenario, key, value in parted if not scenario}
    return of_all | {key: value for scenario, key, value in parted if scenario == name}


def _claims_nothing(data: Mapping[str, Any]) -> bool:
    """Whether the file says `gate.detect = 1.0`: too few windows by design to exclude any rate of
    leaks, so that it is not asked for one.
    """
    gate = data.get("gate")
    return isinstance(gate, dict) and gate.get("detect") == 1


def _override(data: dict[str, Any], key: str, value: Any, path: Path) -> None:
    *tables, last = key.split(".")
    here = data
    for table in tables:
        here = here.setdefault(table, {})
        if not isinstance(here, dict):
            raise ScenarioError(f"{path}: {key}: {table!r} is not a table")
    here[last] = value


def _require_shape(data: dict[str, Any], path: Path) -> None:
    """Raise ScenarioError unless the top of the file is as it should be; add missing tables."""
    for key in data:
        if key not in _TOP:
            raise ScenarioError(
                f"{path}: unknown key {key!r}{plugin.nearest(key, _TOP)} (known: {', '.join(_TOP)})"
            )
    for key, wanted in (("schema", int), ("name", str), ("version", int), ("summary", str)):
        if not plugin.fits(data.get(key), wanted):
            raise ScenarioError(
                f"{path}: {key}: {data.get(key)!r} is not of type {plugin.type_name(wanted)}"
            )
    _require_names(data.setdefault("catches", []), path)
    if data["schema"] != SCHEMA:
        raise ScenarioError(f"{path}: schema: {data['schema']} is not supported; use {SCHEMA}")
    for key in _TABLES:
        if not isinstance(data.setdefault(key, {}), dict):
            raise ScenarioError(f"{path}: {key}: {data[key]!r} is not a table")
    if not _NAME.fullmatch(data["name"]):
        raise ScenarioError(
            f"{path}: name: {data['name']!r} is no name; use letters, digits, '.', '_' and '-'"
        )
    if "use" not in data["traffic"]:
        known = ", ".join(plugin.names("traffic"))
        raise ScenarioError(f"{path}: traffic.use: missing; name a traffic shape ({known})")


def _require_names(catches: Any, path: Path) -> None:
    if not (isinstance(catches, list) and all(isinstance(each, str) for each in catches)):
        raise ScenarioError(f"{path}: catches: {catches!r} is not a list of names of faults")


def _scenario(data: dict[str, Any], path: Path, digest: str, *, overridden: bool) -> Scenario:
    _require_shape(data, path)
    load = _record(Load, data["load"], path, "load")
    gate = _record(Gate, data["gate"], path, "gate")
    if gate.min_windows > load.windows and not overridden:
        raise ScenarioError(
            f"{path}: gate.min_windows: {gate.min_windows} can never be reached with "
            f"load.windows = {load.windows}; raise load.windows or lower gate.min_windows"
        )
    checks = tuple(
        _plugin("checks", name, table, path, f"checks.{name}")
        for name, table in data["checks"].items()
    )
    if _LEAK_CHECK not in data["checks"]:
        raise ScenarioError(
            f"{path}: checks.{_LEAK_CHECK}: missing; without it no leak would be seen"
        )
    return Scenario(
        name=data["name"],
        version=data["version"],
        summary=data["summary"],
        load=load,
        traffic=_plugin("traffic", data["traffic"]["use"], data["traffic"], path, "traffic"),
        checks=checks,
        gate=gate,
        digest=digest,
        path=str(path),
        catches=tuple(data["catches"]),
    )


def _plugin(kind: str, name: Any, table: Any, path: Path, where: str) -> PlugIn:
    if not isinstance(name, str) or not isinstance(table, dict):
        raise ScenarioError(f"{path}: {where}: {table!r} is not a table with a plug-in's options")
    options = {key: value for key, value in table.items() if key != "use"}
    for key, value in options.items():
        if isinstance(value, (int, float)) and value < 0:
            raise ScenarioError(f"{path}: {where}.{key} is {value}; use 0 or more")
    try:
        function = plugin.load(kind, name, "plan" if kind == "traffic" else "check")
        plugin.check_options(function, options, f"{path}: {where}")
    except ScenarioError:
        raise
    except UsageError as error:
        text = str(error)
        raise ScenarioError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    return PlugIn(name=name, options=options)


def _record(kind: type[T], table: Mapping[str, Any], path: Path, where: str) -> T:
    hints = get_type_hints(kind)
    for key, value in table.items():
        if key not in hints:
            raise ScenarioError(
                f"{path}: {where}: unknown key {key!r}{plugin.nearest(key, hints)} "
                f"(known: {', '.join(hints)})"
            )
        if not plugin.fits(value, hints[key]):
            raise ScenarioError(
                f"{path}: {where}.{key}: {value!r} is not of type {plugin.type_name(hints[key])}"
            )
        least = 0 if key in (*_SHARES, *_CHANCES) else _AT_LEAST.get(key, 1)
        most = _AT_MOST.get(key, 1)
        if key in _CHANCES and not 0 < value <= _CHANCES[key]:
            raise ScenarioError(
                f"{path}: {where}.{key}: {value} is out of range; use a fraction above 0, at most "
                f"{_CHANCES[key]}"
            )
        if not least <= value <= most:
            right = "a fraction from 0 to 1" if key in _SHARES else f"{least} to {most}"
            raise ScenarioError(f"{path}: {where}.{key}: {value} is out of range; use {right}")
    missing = [f.name for f in fields(kind) if f.name == "windows" and "windows" not in table]
    if missing:
        raise ScenarioError(f"{path}: {where}.windows: missing; say how many windows to send")
    return kind(**table)


def plan(
    scenario: Scenario,
    *,
    seed: int,
    facts: TargetFacts,
    words: Sequence[str],
    style: Style,
    ids: Iterator[int] | None = None,
) -> Plan:
    """Every request of a scenario. `ids` yields the numbers of requests, shared by a run's plans.

    Raises UsageError when the words do not suffice for one window.
    """
    numbers = itertools.count() if ids is None else ids
    requests: list[Request] = []
    for index in range(scenario.load.windows):
        requests += plan_window(
            scenario, index, seed=seed, facts=facts, words=words, style=style, ids=numbers
        )
    return Plan(
        scenario=scenario, seed=seed, words=tuple(words), style=style, requests=tuple(requests)
    )


def room(load: Load, facts: TargetFacts) -> int:
    """Tokens of an answer that repeats its ticket and says its own passphrase and another's: with
    fewer, the one that leaked is cut off.
    """
    return math.ceil(3 * load.passphrase_words * facts.tokens_per_phrase_word + _WORDING)


def plan_window(
    scenario: Scenario,
    index: int,
    *,
    seed: int,
    facts: TargetFacts,
    words: Sequence[str],
    style: Style,
    ids: Iterator[int],
) -> list[Request]:
    """The requests of one window, drawn from the run's seed and the window's own number.

    Answers get room for what they are to show, whatever `load.max_tokens` says: see `room`. Where
    the target has tenants, requests are dealt to their keys: see `dealt`. Raises UsageError for
    options of the traffic with which nothing can be planned.
    """
    rng = random.Random(f"{seed}/{scenario.name}/{index}")
    most = max(scenario.load.max_tokens, room(scenario.load, facts))
    arm: Arm = "control" if rng.random() < scenario.load.control else "planted"
    window = Window(
        scenario=scenario.name,
        index=index,
        arm=arm,
        load=replace(scenario.load, max_tokens=most),
        facts=facts,
        rng=rng,
        minter=Minter(rng, words, style, scenario.load.passphrase_words),
        ids=ids,
    )
    shape = plugin.load("traffic", scenario.traffic.name, "plan")
    try:
        requests = list(shape(window, **scenario.traffic.options))
    except (ArithmeticError, LookupError, ValueError) as error:  # what numbers do not allow
        raise UsageError(
            f"{scenario.path}: traffic: no window can be planned with {scenario.traffic.options} "
            f"({error})"
        ) from error
    return dealt(requests, facts.tenants, random.Random(f"{seed}/{scenario.name}/{index}/keys"))


def dealt(requests: Sequence[Request], keys: Sequence[str], rng: random.Random) -> list[Request]:
    """The requests of a window, each with the key of a tenant of the target (`keys`: their names).

    All requests of one tenant of the plan have one key, and so have twins, whoever sends them. They
    are dealt evenly, each key as often as any other, or nearly; where there are too few for every
    key to come twice, by chance: neighbours with the same key and with another occur anywhere.
    """
    if not keys:
        return list(requests)
    owner = {request.id: request.tenant for request in requests}
    same = {r.tenant: owner[r.twin] for r in requests if r.twin in owner}
    names = list(dict.fromkeys(same.get(each, each) for each in owner.values()))
    deck = [*keys] * max(2, -(-len(names) // len(keys)))
    rng.shuffle(deck)
    key_of = dict(zip(names, deck, strict=False))
    return [replace(r, key=key_of[same.get(r.tenant, r.tenant)]) for r in requests]
