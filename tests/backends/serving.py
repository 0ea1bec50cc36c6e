"""Serve one protocol until standard input ends: `python -m backends.serving tgi [--leaking]`."""

import importlib
import sys

from backends.servers import wire

if __name__ == "__main__":
    dialect = importlib.import_module(f"backends.servers.{sys.argv[1]}")
    with wire.Server(dialect, leaking="--leaking" in sys.argv) as server:
        print(server.port, flush=True)  # noqa: T201 - how the port is told
        sys.stdin.read()
