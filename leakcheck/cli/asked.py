"""What the flags and the environment ask for, checked: a target, a setup, scenarios, overrides."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import shutil
import sys
import tomllib
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leakcheck.cli import tenants
from leakcheck.errors import UsageError
from leakcheck.records import Style, Target

if TYPE_CHECKING:
    from leakcheck.backends import Address
    from leakcheck.run.session import Setup

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NUMBER = re.compile(r"((?:\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?:[eE][+-]?\d{1,3})?)\s*(%?)", re.ASCII)
_LONGEST_WAIT_S = 86_400
SMOKE = 0.05
"""The leak rate that --smoke is content to exclude."""
SHORTCUTS = ("windows", "requests", "workers", "lanes", "max_tokens", "timeout_s", "phantoms")
"""Values of [load] that have a flag of their own."""


def _env(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def setup(arguments: argparse.Namespace, out: Path | None) -> Setup:
    """Everything around a run; raises UsageError for what cannot be."""
    from leakcheck.cli import bounds  # noqa: PLC0415 - it reads shares as we do
    from leakcheck.run.session import Setup  # noqa: PLC0415 - heavy

    target, seed, page = _target(arguments), _seed(arguments), _metrics(arguments)
    bounds.require_permission(arguments, target, page)
    model = arguments.model or _env("LEAKCHECK_MODEL") or "witness"
    flags = [f"--model={model}", f"--seed={seed}", *arguments.engine_flag]
    if arguments.fault:
        flags.append(f"--fault={arguments.fault}")
    return Setup(
        target=target,
        engine=None if target else tuple(flags),
        api=arguments.api,
        timeout_s=arguments.timeout_s or 60.0,
        seed=seed,
        out=out or Path(_env("LEAKCHECK_OUT") or "reports"),
        tokenizer=arguments.tokenizer,
        words=arguments.words,
        style=_style(arguments, target),
        fresh=getattr(arguments, "fresh", False),
        command=("leakcheck", *sys.argv[1:]),
        play_all=getattr(arguments, "play_all", False),
        metrics=page,
        wait_ready_s=_wait_ready_s(arguments),
        **_lifetimes(arguments, target),
        **bounds.limits(arguments, target),
    )


def _style(arguments: argparse.Namespace, target: Target | None) -> Style | Literal["auto"] | None:
    """The style of passphrases that was asked for; None where none is to be measured."""
    style: Style | Literal["auto"] | None = getattr(arguments, "style", None)
    if style not in (None, "auto") and arguments.words is not None:
        raise UsageError("--style and --words exclude each other: a list of words is a style")
    if style not in (None, "auto") and target is None:
        raise UsageError(
            f"--style {style}: the model of the embedded engine was trained on its own words; "
            "leave it out, or name a --target"
        )
    return None if target is None else style or "auto"


def _lifetimes(arguments: argparse.Namespace, target: Target | None) -> dict[str, Any]:
    """How many lifetimes of the target there are to be, and what restarts one of the user's."""
    count, command = getattr(arguments, "lifetimes", None), getattr(arguments, "restart", None)
    if command is not None and target is None:
        raise UsageError(
            "--restart: leakcheck restarts the embedded engine itself; give --lifetimes alone"
        )
    if command is not None and not command.strip():
        raise UsageError("--restart: the command is empty; name one that restarts the target")
    if command is not None:
        _require_program("--restart", command)
    if command is not None and count == 1:
        raise UsageError(
            "--lifetimes 1 and --restart exclude each other: with one lifetime nothing is "
            "restarted; leave out one of them"
        )
    if target is not None and command is None and (count or 1) > 1:
        raise UsageError(
            f"--lifetimes: for {count} lifetimes of {target.base_url}, name the command that "
            "restarts it with --restart"
        )
    return {"lifetimes": count or (1 if command is None else 2), "restart": command}


def _require_program(flag: str, command: str) -> None:
    """Raise UsageError for a command that cannot be split, or whose program is not there."""
    try:
        program = shlex.split(command)[0]
    except ValueError as error:
        raise UsageError(f"{flag}: {command!r} cannot be split ({error})") from None
    except IndexError:
        raise UsageError(f"{flag}: {command!r} names no program") from None
    if shutil.which(program) is None:
        raise UsageError(f"{flag}: there is no program {program!r} that can be run")


def _wait_ready_s(arguments: argparse.Namespace) -> float | None:
    seconds: float | None = arguments.wait_ready
    if seconds is not None and not 0 < seconds <= _LONGEST_WAIT_S:
        raise UsageError(
            f"--wait-ready: {seconds:g} is out of range; use seconds, more than 0 and at most "
            f"{_LONGEST_WAIT_S}"
        )
    return seconds


def _metrics(arguments: argparse.Namespace) -> str:
    """Where the target's metrics are; a URL, `auto` or `off`, which is that of other commands."""
    where = str(getattr(arguments, "metrics", "off"))
    if where not in ("auto", "off"):
        _require_plain("--metrics", where, "http://host:port/metrics, auto or off")
    return where


def _seed(arguments: argparse.Namespace) -> int:
    """The seed of the flag or the environment; else a fresh one, for a passphrase is used once."""
    text = _env("LEAKCHECK_SEED")
    if arguments.seed is None and text is None:
        return secrets.randbelow(2**31)
    if arguments.seed is None and not (text or "").removeprefix("-").isdecimal():
        raise UsageError(f"LEAKCHECK_SEED: {text!r} is not an integer")
    seed = int(text or "0") if arguments.seed is None else int(arguments.seed)
    if not 0 <= seed < 2**63:
        raise UsageError(f"the seed {seed} is out of range; use 0 to {2**63 - 1}")
    return seed


def _target(arguments: argparse.Namespace) -> Target | None:
    """The target of the flags and the environment; None for the embedded engine."""
    embedded = arguments.embedded or arguments.fault or arguments.engine_flag
    if arguments.target is not None and not arguments.target.strip():
        raise UsageError("--target is empty; name a URL, or leave it out for the embedded engine")
    if arguments.target and embedded:
        raise UsageError("--target and --embedded (--fault, --engine-flag) exclude each other")
    url = None if embedded else arguments.target or _env(*_usual_targets(arguments.backend))
    if url is None:
        _require_no_tenants(arguments)
        return None
    wanted = _address(arguments.backend, url)
    model = arguments.model or _env("LEAKCHECK_MODEL") or wanted.model
    if not model:
        raise UsageError(f"--model is missing: name the model that {url} should answer with")
    named = tenants.read(arguments.tenant)
    key = arguments.api_key_env or (named[0].api_key_env if named else None)
    key = key or (wanted.key_env if wanted.key_env and _env(wanted.key_env) else None)
    headers = dict(_header(text) for text in arguments.header_env)
    for name in [*headers.values(), *([key] if key else [])]:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                "what --api-key-env or --header-env names is no environment variable (it is not "
                "repeated here: it may be a key); set one and give its name"
            )
        if not os.environ.get(name):
            raise UsageError(f"environment variable {name} is not set; it should hold a secret")
    return Target(
        base_url=url.rstrip("/") if wanted.check is None else url,
        model=model,
        backend=arguments.backend,
        api=arguments.api,
        api_key_env=key,
        headers_env=headers,
        ca_file=arguments.ca_file,
        tenants=named,
        keep_alive=not arguments.no_keep_alive,
        replica_header=_replica_header(arguments),
        **({} if arguments.timeout_s is None else {"timeout_s": arguments.timeout_s}),
    )


def _usual_targets(backend: str) -> tuple[str, ...]:
    """Variables of the environment that stand for --target."""
    return ("LEAKCHECK_TARGET", *(("OPENAI_BASE_URL",) if backend == "openai" else ()))


def _address(backend: str, target: str) -> Address:
    """What this backend wants as a target; UsageError unless `target` is that."""
    from leakcheck import backends  # noqa: PLC0415 - imports the backend

    wanted = backends.address(backend)
    if wanted.check is None or target.startswith(("http://", "https://")):
        _require_plain("--target", target, wanted.right)
        return wanted
    try:
        wanted.check(target)
    except UsageError as error:
        raise UsageError(f"--target: {error}") from None
    return wanted


def _require_no_tenants(arguments: argparse.Namespace) -> None:
    if arguments.tenant:
        raise UsageError("--tenant: the embedded engine has no API keys; name a --target")


def _replica_header(arguments: argparse.Namespace) -> str | None:
    name: str | None = arguments.replica_header
    if name is not None and not _HEADER.fullmatch(name):
        raise UsageError(f"--replica-header: {name!r} is no name of a header, such as X-Served-By")
    return name


def _require_plain(flag: str, url: str, right: str = "http://host:port/v1") -> None:
    """Refuse what is no URL, and one with a secret in it: a URL is written into every report."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise UsageError(f"{flag}: not a URL; write it as {right}") from None
    if parts.username or parts.password:
        raise UsageError(
            f"{flag}: the URL of {parts.hostname} holds credentials; put the key into an "
            "environment variable and name that with --api-key-env or --header-env"
        )
    extra = [name for name, _ in urllib.parse.parse_qsl(parts.query) if name != "api-version"]
    if extra:
        raise UsageError(
            f"{flag}: the URL of {parts.hostname} has the query parameter {extra[0]!r}; URLs are "
            "written into reports, so send it as a header with --header-env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
        raise UsageError(f"{flag}: {url!r} is not a URL; write it as {right}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(f"{flag}: the port of {url!r} is none; use 1 to 65535")


def _header(text: str) -> tuple[str, str]:
    header, equals, name = text.partition("=")
    if not (_HEADER.fullmatch(header) and equals and name):
        raise UsageError("--header-env: not of the form HEADER=NAME, such as X-Api-Key=MY_KEY")
    return header, name


def percent(flag: str, text: str) -> float:
    """A share between 0 and 1, both left out, as people write it: `5%`, `5 %`, `0.05`, `5e-2`.

    `flag` is who asks, for the sentence of the UsageError: anything else, `5` included, is one.
    """
    found = _NUMBER.fullmatch(text.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise UsageError(
            f"{flag}: {text!r} is no share between 0 % and 100 %; write it as 5% or 0.05"
        )
    return share


def paths(names: Sequence[str]) -> tuple[Path, ...]:
    """The scenario files of these names; all shipped ones where there is none."""
    from leakcheck import scenario  # noqa: PLC0415 - reads traffic and passphrases

    return tuple(scenario.find(name) for name in names) or scenario.shipped_files()


def overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """Dotted keys of scenario files and what the flags put in their place."""
    found = {f"load.{name}": getattr(arguments, name) for name in SHORTCUTS}
    chosen = {key: value for key, value in found.items() if value is not None}
    chosen |= _gate(arguments)
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"--set: {text!r} is not KEY=VALUE, such as load.windows=20")
        _require_played(getattr(arguments, "scenarios", ()), key)
        try:
            chosen[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            chosen[key] = value
    return chosen


def _require_played(names: Sequence[str], key: str) -> None:
    """Refuse the key of a scenario that is not played, as it would change nothing."""
    only, colon, _ = key.rpartition(":")
    if colon and only not in (played := [path.stem for path in paths(names)]):
        raise UsageError(
            f"--set: {key!r}: no scenario {only!r} is played (but {', '.join(played)})"
        )


def _gate(arguments: argparse.Namespace) -> dict[str, Any]:
    """What --detect, --alpha and --smoke put in place of values of [gate]."""
    if not hasattr(arguments, "smoke"):  # a command that has no gate
        return {}
    if arguments.smoke and arguments.detect is not None:
        raise UsageError("--smoke and --detect exclude each other: --smoke is --detect 5%")
    chosen: dict[str, Any] = {}
    if arguments.smoke:
        chosen["gate.detect"] = SMOKE
    if arguments.detect is not None:
        chosen["gate.detect"] = percent("--detect", arguments.detect)
    if arguments.alpha is not None:
        chosen["gate.alpha"] = percent("--alpha", arguments.alpha)
    return chosen
