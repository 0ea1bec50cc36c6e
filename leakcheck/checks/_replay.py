"""A shell script that does again what a finding rests on, without leakcheck."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from leakcheck import plugin
from leakcheck.records import Provenance, Request

_PATHS = {"chat": "chat/completions", "completions": "completions", "responses": "responses"}


def script(origin: Provenance, lifetimes: Sequence[Sequence[Request]]) -> str | None:
    """POSIX shell that sends the requests of each lifetime one by one, the target restarted before
    each; None for a backend whose bodies nobody but it can send. It holds no key: where the target
    wants one, the script reads the environment variable of the run.
    """
    target = origin.target
    body = plugin.find("backends", target.backend, "body")
    if body is None or not target.base_url.startswith(("http://", "https://")):
        return None
    lines = ["#!/bin/sh", "# needs curl; prints each temperature and the answer to it"]
    lines += _start(origin)
    headers = ["-H", shlex.quote("Content-Type: application/json")]
    if target.api_key_env is not None:
        headers += ["-H", f'"Authorization: Bearer ${{{target.api_key_env}}}"']
    for name, variable in target.headers_env.items():
        headers += ["-H", f'"{name}: ${{{variable}}}"']
    for number, requests in enumerate(lifetimes, 1):
        lines += ["", f"echo '--- lifetime {number}'", "restart"]
        for request in requests:
            document = json.dumps(body(target, request), ensure_ascii=True)
            sent = f"curl -sS {' '.join(headers)} --data-raw {shlex.quote(document)}"
            lines += [
                f"echo 'temperature {request.sampling.temperature:g} ({request.cell}):'",
                f'{sent} "$BASE/{_PATHS[target.api]}"; echo',
            ]
    return "\n".join(lines) + "\n"


def _start(origin: Provenance) -> list[str]:
    """How the target is started anew: by the command of the run, else by whoever reads it."""
    lines = []
    wait = 'until curl -sf -o /dev/null "$BASE/models"; do sleep 1; done'
    if origin.engine is not None:
        flags = " ".join(shlex.quote(str(flag)) for flag in origin.engine.get("flags", ()))
        lines += [
            "BASE=${BASE:-http://127.0.0.1:8123/v1}",
            'restart() { [ -z "$SERVER" ] || { kill "$SERVER"; wait "$SERVER"; }',
            f"  leakcheck serve --port 8123 {flags} & SERVER=$!; {wait}; }}",
            "trap 'kill $SERVER' EXIT",
        ]
    elif origin.restart is not None:
        lines += [
            f"BASE=${{BASE:-{shlex.quote(origin.target.base_url)}}}",
            f"restart() {{ {shlex.join(shlex.split(origin.restart))}; sleep 2; {wait}; }}",
        ]
    else:
        lines += [
            f"BASE=${{BASE:-{shlex.quote(origin.target.base_url)}}}",
            "restart() { :; }",
        ]
    return lines
