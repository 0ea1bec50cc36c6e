"""Plans, targets and run folders for tests that really play something.

As a script (`python playing.py FOLDER PORT MODEL WORKERS LANES`) it plays the plan of a run folder
and prints the ids of its workers first, what was played last: a parent to interrupt and to kill.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from leakcheck import backends, runfolder
from leakcheck.records import (
    Gate,
    Load,
    Message,
    Observation,
    Plan,
    PlugIn,
    Request,
    Sampling,
    Scenario,
    Target,
)
from leakcheck.runfolder import Shards
from leakcheck.runner import Played, Runner
from leakcheck.runner.lane import Job, Lane


def request(name: str, **fields: Any) -> Request:
    """A request called `name` that says so."""
    given = {
        "scenario": "tiny",
        "window": 0,
        "phase": 0,
        "arm": "planted",
        "tenant": "t00",
        "role": "recipient",
        "ask": "neutral",
        "worker": 0,
        "lane": 0,
        "messages": (Message(role="user", content=f"this is {name}"),),
        "sampling": Sampling(max_tokens=8),
    }
    return Request(id=name, **(given | fields))


def plan(*requests: Request, **load: Any) -> Plan:
    """A plan of one scenario."""
    scenario = Scenario(
        name="tiny",
        version=1,
        summary="",
        load=Load(windows=1, **load),
        traffic=PlugIn(name="concurrent"),
        checks=(),
        gate=Gate(),
        digest="0",
        path="tiny.toml",
    )
    return Plan(scenario=scenario, seed=1, words=("a", "b"), style="phrase", requests=requests)


def run_folder(root: Path, *requests: Request, **load: Any) -> Path:
    """A new run folder that holds this plan."""
    folder = runfolder.create(root, "tiny", 1)
    runfolder.write_plans(folder, [plan(*requests, **load)])
    return folder


def target(port: int, model: str, **fields: Any) -> Target:
    """The hostile target on this port; the model's name says how it behaves."""
    return Target(base_url=f"http://127.0.0.1:{port}/v1", model=model, **fields)


def windows(count: int, *, size: int = 4, workers: int = 2) -> tuple[Request, ...]:
    """`count` windows of `size` requests, spread over workers, then over lanes."""
    return tuple(
        request(
            f"w{window}-{number}", window=window, worker=number % workers, lane=number // workers
        )
        for window in range(count)
        for number in range(size)
    )


def play(
    root: Path, aim: Target, *requests: Request, workers: int = 1, lanes: int = 1, **load: Any
) -> tuple[Played, Shards]:
    """Play requests with real processes; what was played, and what is on disk afterwards."""
    folder = run_folder(root, *requests, **load)
    with Runner(aim, folder, workers, lanes) as runner:
        played = runner.play(requests)
    return played, runfolder.read_shards(folder)


def observe(root: Path, aim: Target, sent: Request, *, retries: int = 0) -> list[Observation]:
    """Send one request over one lane of this very process: every attempt's observation."""
    folder = root / f"lane-{time.monotonic_ns()}"
    folder.mkdir()

    async def run() -> None:
        shard = runfolder.Shard(folder, 0)
        backend = backends.load(aim.backend)(aim)
        lane = Lane(worker=0, lane=0, target=aim, backend=backend, shard=shard)
        job = Job(request=sent, at_ns=0, retries=retries, timeout_s=aim.timeout_s)
        try:
            await lane.run(job)
        finally:
            await lane.close()
            shard.close()

    asyncio.run(run())
    return list(runfolder.read_shards(folder).observations)


def text(observation: Observation, field: str = "content") -> str:
    """What an observation says in one field."""
    return "".join(chunk.text for chunk in observation.chunks if chunk.field == field)


def eventually(condition: Any, *, within_s: float = 60.0) -> Any:
    """The first true value of `condition()`; fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{condition} did not come true in {within_s} s"
        time.sleep(0.01)
    return value


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _main(folder: str, port: str, model: str, workers: str, lanes: str) -> None:
    (only,) = runfolder.read_plans(Path(folder))
    with Runner(target(int(port), model), Path(folder), int(workers), int(lanes)) as runner:
        print(*runner.pids, flush=True)  # noqa: T201 - a script
        print(runner.play(only.requests), flush=True)  # noqa: T201 - a script


if __name__ == "__main__":
    _main(*sys.argv[1:])
