"""Start an engine's server, wait until it answers, and take its whole process group down again."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from real import environments
from real.engine import Engine, Places

ASIDE_S = 10.0


class ServerError(RuntimeError):
    """A server that did not come up, with the end of what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """`url` has no path, such as http://127.0.0.1:1234; `group` is its process group."""

    url: str
    group: int

    def cpu_s(self) -> float:
        """Processor time that all its processes have used until now, which says more than a clock
        on a busy machine.
        """
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                after_name = stat.read_text().rpartition(")")[2].split()
                if int(after_name[2]) == self.group:
                    ticks += int(after_name[11]) + int(after_name[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(
    engine: Engine,
    python: Path,
    scratch: Path,
    command: Callable[[Places], list[str]] | None = None,
) -> Iterator[Server]:
    """A running server; its process group is gone afterwards, also when the block failed."""
    port = free_port()
    places = Places(
        python=python,
        port=port,
        scratch=scratch,
        gguf=environments.gguf,
        folder=environments.folder,
    )
    log = scratch / "server.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            (command or engine.command)(places),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environ(engine),
            start_new_session=True,  # a group of its own, to be ended as a whole
        )
    try:
        wait(process, f"http://127.0.0.1:{port}{engine.ready}", engine.patience_s, log)
        yield Server(url=f"http://127.0.0.1:{port}", group=process.pid)
    finally:
        end(process)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody had a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def environ(engine: Engine) -> dict[str, str]:
    """One thread: two on two busy cores wait for each other most of the time."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | threads | dict(engine.environ)


def wait(process: subprocess.Popen, url: str, patience_s: float, log: Path) -> None:
    """Until the server answers 200 at `url`. Raises ServerError when it died or took too long."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended with {process.returncode}: {tail(log)}")
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 - a local server
            if reply.status == 200:
                return
        time.sleep(0.1)
    raise ServerError(f"the server did not answer {url} in {patience_s:g} s: {tail(log)}")


def tail(log: Path) -> str:
    """The last words of a server."""
    return log.read_text(errors="replace")[-2000:]


def end(process: subprocess.Popen) -> None:
    """The whole group, politely at first."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ASIDE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
