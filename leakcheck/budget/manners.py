"""Whose machine is it? Nothing is sent to somebody else's before the user has said so.

Permission is `--yes-i-am-allowed`, or a line of `leakcheck.toml` in the working directory that
names the host::

    allowed_hosts = ["api.example.com", "gpu-box.example.com:8000"]

It is asked for before the first packet: a name is not even looked up. A proxy of the environment
is a host like any other. What is never sent over a network needs none.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from leakcheck.errors import UsageError
from leakcheck.records import Caps, Pace, Target

FILE = Path("leakcheck.toml")
FLAG = "--yes-i-am-allowed"
DEFAULT_CAPS = Caps(requests=3_500, tokens=1_000_000)
"""For a target of somebody else: a tenth of windows can be cleared of leaks with that."""
DEFAULT_PACE = Pace(requests=60, per_s=60.0, in_flight=16, max_errors=0.5)
"""For a target of somebody else."""
_AT_HOME = ("callable", "command")
"""Backends that reach no network by themselves."""
_KEY = "allowed_hosts"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)(?::(\d{1,5}))?")
_PORTS = {"http": 80, "https": 443}


def is_this_machine(host: str) -> bool:
    """Whether a host is 127.0.0.0/8, ::1 or localhost; no name is looked up."""
    plain = host.strip("[]").rstrip(".").lower()
    if plain == "localhost":
        return True
    try:
        return ipaddress.ip_address(plain).is_loopback
    except ValueError:
        return False


def elsewhere(target: Target, *pages: str) -> tuple[str, ...]:
    """The hosts, as `host:port`, that are not this machine and that packets would go to: those of
    the target, of these pages, and of the proxies that the environment has for them.
    """
    urls = [] if target.backend in _AT_HOME else [target.base_url, *pages]
    proxies = urllib.request.getproxies() if urls else {}
    found = dict.fromkeys(place for url in urls for place in _places(url, proxies))
    return tuple(place for place in found if not is_this_machine(place.rpartition(":")[0]))


def is_guest(target: Target) -> bool:
    """Whether the target is somebody else's, so that budget, pace and breaker are on by default."""
    return bool(elsewhere(target))


def require_permission(
    target: Target, *pages: str, said_yes: bool, config: Path | None = None
) -> None:
    """Raise UsageError, which says what to do, unless every host may be sent to. `pages` are other
    URLs that will be fetched, `config` is where permissions are kept (FILE).

    Nothing is sent or looked up here.
    """
    listed = allowed(config or FILE)
    if said_yes:
        return
    for place in elsewhere(target, *pages):
        host = place.rpartition(":")[0]
        if place not in listed and host not in listed:
            ports = sorted(each for each in listed if each.rpartition(":")[0] == host)
            named = place if ports else host
            other = f" ({FILE.name} allows {', '.join(ports)})" if ports else ""
            raise UsageError(
                f"{named} is not this machine{other}: if you are allowed to send test traffic "
                f'there, say so with {FLAG}, or put {_KEY} = ["{named}"] into {FILE.name} in the '
                "working directory"
            )


def allowed(config: Path) -> frozenset[str]:
    """The hosts that a file names, each `host` or `host:port`; none where there is no file.

    Raises UsageError, one sentence, for a file that cannot be read or says anything else.
    """
    try:
        text = config.read_text(encoding="utf-8")
    except FileNotFoundError:
        return frozenset()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{config}: the file cannot be read: {why}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{config}: the file is not TOML: {error}") from None
    for key in document:
        if key != _KEY:
            raise UsageError(f'{config}: there is no key {key!r}; write {_KEY} = ["HOST"]')
    hosts = document.get(_KEY, [])
    if not isinstance(hosts, list):
        raise UsageError(f'{config}: {_KEY} is not a list of hosts; write {_KEY} = ["HOST"]')
    return frozenset(_entry(config, each) for each in hosts)


def _entry(config: Path, host: object) -> str:
    found = _HOST.fullmatch(host.rstrip(".").lower()) if isinstance(host, str) else None
    if found is None:
        raise UsageError(
            f"{config}: {_KEY} holds {host!r}, which is no host; write it as api.example.com or "
            "api.example.com:8443, without scheme, path or wildcard"
        )
    return found[0]


def _places(url: str, proxies: Mapping[str, str]) -> Iterable[str]:
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None:  # a provider by name: where that is, only its library knows
        yield f"{url}:0"
        return
    host = f"[{host}]" if ":" in host else host.rstrip(".")
    yield f"{host}:{port or _PORTS.get(parts.scheme, 0)}"
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        yield from _places(proxy if "://" in proxy else f"http://{proxy}", {})


def caps_of(target: Target, caps: Caps) -> Caps:
    """What was asked for, and for a guest the defaults where nothing was."""
    if not is_guest(target):
        return caps
    return Caps(
        requests=caps.requests or DEFAULT_CAPS.requests,
        tokens=caps.tokens or DEFAULT_CAPS.tokens,
        cost_usd=caps.cost_usd,
        prompt_usd=caps.prompt_usd,
        answer_usd=caps.answer_usd,
    )


def pace_of(target: Target, pace: Pace) -> Pace | None:
    """What was asked for, and for a guest the defaults where nothing was; None: no limits."""
    if is_guest(target):
        rated = pace if pace.requests else DEFAULT_PACE
        return Pace(
            requests=rated.requests,
            per_s=rated.per_s,
            in_flight=pace.in_flight or DEFAULT_PACE.in_flight,
            max_errors=pace.max_errors or DEFAULT_PACE.max_errors,
            max_wait_s=pace.max_wait_s,
        )
    return None if pace == Pace() else pace


def sentence(pace: Pace) -> str:
    """The pace and the breaker, in words."""
    parts = []
    if pace.requests is not None:
        units = {1.0: "second", 60.0: "minute", 3600.0: "hour"}
        span = units.get(pace.per_s, f"{pace.per_s:g} s")
        parts.append(f"at most {pace.requests} requests in any {span}")
    if pace.in_flight is not None:
        parts.append(f"at most {pace.in_flight} at one time")
    parts.append(f"a pause that the target asks for is kept, up to {pace.max_wait_s:g} s")
    if pace.max_errors is not None:
        parts.append(f"more than {100 * pace.max_errors:g} % of errors end the run")
    return f"pace: {'; '.join(parts)}"
