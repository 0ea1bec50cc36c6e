"""The format of a run on disk, in this one place: who writes what, and how it is read back.

::

    reports/<UTC stamp>-<name>-<seed>/
        run.json                   Provenance
        plan.jsonl                 {"plan": ...} per scenario, then {"request": ...} lines
        observations-w00.jsonl     {"invoke": ...} before sending, {"observe": ...} after
        observations-w00-1.jsonl   the same worker, started again by --resume
        events.jsonl               RunEvent
        evidence.json              State of each scenario so far, for who looks on (`watching`)
        metrics.jsonl              Gauges, where the target's metrics are read
    reports/latest -> the newest

Every line is one JSON object, written by one unbuffered write; fields that hold their default are
left out. A process killed in the middle of a write leaves at most a torn last line, which readers
report and skip; any other damage is a `RunFolderError` that names file and line.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson

from leakcheck.errors import HarnessError, RunFolderError, UsageError
from leakcheck.records import Gauges, Load, Observation, Plan, Provenance, Request, RunEvent

_PLAN = "plan.jsonl"
_EVENTS = "events.jsonl"
_METRICS = "metrics.jsonl"
_RUN = "run.json"
_Line = TypeVar("_Line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Written before the first byte of an attempt is sent; `attempt` counts from 1."""

    request_id: str
    attempt: int
    worker: int
    lane: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """What all workers wrote, shard by shard. `torn` has a sentence for each torn last line."""

    invocations: tuple[Invocation, ...]
    observations: tuple[Observation, ...]
    torn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanIndex:
    """Where each request stands in plan.jsonl: id -> (offset, length) in bytes; loads by scenario.

    `request_at` reads one back.
    """

    lines: dict[str, tuple[int, int]]
    loads: dict[str, Load]


# --- the folder ----------------------------------------------------------------------------------


def create(root: Path, name: str, seed: int) -> Path:
    """Make and return a new folder `root/<UTC stamp>-<name>-<seed>`.

    Raises UsageError where it cannot be made or written.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    stem = f"{stamp}-{plain}-{seed}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
            folder = root / (stem + suffix)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise UsageError(
            f"the reports folder {root} cannot be written ({error.strerror}); name another folder"
        ) from None
    raise UsageError(f"the reports folder {root} already holds a thousand runs named {stem}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else sends this run meanwhile. Raises UsageError where somebody does already."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UsageError(f"{folder} is being sent by another leakcheck; wait for its end") from None
    finally:
        os.close(handle)


def link_latest(folder: Path) -> None:
    """Point `latest` beside `folder` at it, atomically. Raises HarnessError where it cannot."""
    link = folder.parent / "latest"
    fresh = folder.parent / f".latest-{os.getpid()}"
    try:
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder.name)
        fresh.replace(link)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise HarnessError(f"{link} cannot be made a link to {folder.name}: {error}") from None


def write_provenance(folder: Path, provenance: Provenance) -> None:
    """Write run.json, whole or not at all."""
    replace_file(folder / _RUN, _dump(provenance) + b"\n")


def read_provenance(folder: Path) -> Provenance:
    """Read run.json. Raises RunFolderError where it is missing or holds something else."""
    path = folder / _RUN
    try:
        return msgspec.json.decode(path.read_bytes(), type=Provenance)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read ({error.strerror}); a run folder has one"
        ) from None
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RunFolderError(f"{path}: {error}") from None


# --- plans ---------------------------------------------------------------------------------------


class _PlanLine(msgspec.Struct, forbid_unknown_fields=True):
    plan: Plan | None = None
    request: Request | None = None


class _Head(msgspec.Struct):
    id: str


class _ScenarioHead(msgspec.Struct):
    name: str
    load: Load


class _PlanHead(msgspec.Struct):
    scenario: _ScenarioHead


class _HeadLine(msgspec.Struct):
    plan: _PlanHead | None = None
    request: _Head | None = None


def plan_path(folder: Path) -> Path:
    """Where the plan of a run is."""
    return folder / _PLAN


def write_plans(folder: Path, plans: Sequence[Plan]) -> None:
    """Write plan.jsonl, whole or not at all: it must be on disk before anything is sent."""
    lines: list[bytes] = []
    for plan in plans:
        lines.append(b'{"plan":' + _dump(replace(plan, requests=())) + b"}\n")
        lines.extend(_request_line(request) for request in plan.requests)
    replace_file(folder / _PLAN, b"".join(lines))


def append_requests(folder: Path, requests: Iterable[Request]) -> None:
    """Add requests (confirmations) to plan.jsonl; each belongs to the plan of its scenario."""
    path = folder / _PLAN
    lines = b"".join(map(_request_line, requests))
    with path.open("r+b", buffering=0) as file:
        _drop_torn_line(file)  # it was never played: play comes after this function
        _write(file.fileno(), lines, path)
        os.fsync(file.fileno())


def read_plans(folder: Path) -> tuple[Plan, ...]:
    """Read every plan, appended requests included, in the order written."""
    path = folder / _PLAN
    heads: list[Plan] = []
    requests: dict[str, list[Request]] = {}
    for number, line in _lines(path, _PlanLine, []):
        if line.plan is not None:
            heads.append(line.plan)
            requests[line.plan.scenario.name] = []
        elif line.request is not None and line.request.scenario in requests:
            requests[line.request.scenario].append(line.request)
        else:
            raise RunFolderError(f"{path}:{number}: neither a plan nor a request of one before it")
    return tuple(replace(plan, requests=tuple(requests[plan.scenario.name])) for plan in heads)


def index_plans(folder: Path) -> PlanIndex:
    """Find every request in plan.jsonl without keeping it: about a second for a gigabyte."""
    path = folder / _PLAN
    decoder = msgspec.json.Decoder(_HeadLine)
    lines: dict[str, tuple[int, int]] = {}
    loads: dict[str, Load] = {}
    offset = 0
    with _opened(path) as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                break
            head = _decoded(decoder, raw, path, number)
            if head.request is not None:
                lines[head.request.id] = (offset, len(raw))
            elif head.plan is not None:
                loads[head.plan.scenario.name] = head.plan.scenario.load
            offset += len(raw)
    return PlanIndex(lines=lines, loads=loads)


def request_at(descriptor: int, offset: int, length: int) -> Request:
    """Read the one request at `offset` of an open plan.jsonl (a place from `index_plans`)."""
    line = msgspec.json.decode(os.pread(descriptor, length, offset), type=_PlanLine)
    if line.request is None:
        raise RunFolderError(f"{_PLAN}: no request at byte {offset}")
    return line.request


def _request_line(request: Request) -> bytes:
    return b'{"request":' + _dump(request) + b"}\n"


# --- shards --------------------------------------------------------------------------------------


class ShardLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a shard: either of the two."""

    invoke: Invocation | None = None
    observe: Observation | None = None


class Shard:
    """One worker's journal. A new file each time: nothing is ever appended after a torn line.

    Every record is one unbuffered write, so that it survives a kill of the process. `sync` makes
    it survive a power cut too; call it once a second, from a thread: it can take a while. Raises
    HarnessError where the disk does not take a record.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        """Open the first shard file of this worker that does not exist yet."""
        for number in range(10_000):
            self.path = folder / f"observations-w{worker:02}{f'-{number}' * (number > 0)}.jsonl"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            try:
                self._file = os.open(self.path, flags, 0o644)
            except FileExistsError:
                continue
            except OSError as error:
                raise HarnessError(f"{self.path} cannot be written: {error.strerror}") from None
            self._dirty = False
            return
        raise HarnessError(f"{folder} holds ten thousand shards of worker {worker} already")

    def invoke(self, request_id: str, attempt: int, worker: int, lane: int, at_ns: int) -> None:
        """Journal that an attempt is about to be sent; return once it is written."""
        record = Invocation(
            request_id=request_id, attempt=attempt, worker=worker, lane=lane, at_ns=at_ns
        )
        self._append(b'{"invoke":' + _dump(record) + b"}\n")

    def observe(self, observation: Observation) -> None:
        """Journal what came back."""
        self._append(b'{"observe":' + _dump(observation) + b"}\n")

    def sync(self) -> None:
        """Have the disk confirm everything written so far."""
        if self._dirty:
            self._dirty = False
            try:
                os.fsync(self._file)
            except OSError as error:
                raise HarnessError(f"{self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._file >= 0:
            self.sync()
            os.close(self._file)
            self._file = -1

    def _append(self, line: bytes) -> None:
        _write(self._file, line, self.path)
        self._dirty = True


def read_shards(folder: Path) -> Shards:
    """Read every shard, in the order of their names (worker, then start)."""
    invocations: list[Invocation] = []
    observations: list[Observation] = []
    torn: list[str] = []
    for path in shard_files(folder):
        for number, line in _lines(path, ShardLine, torn):
            if line.invoke is not None:
                invocations.append(line.invoke)
            elif line.observe is not None:
                observations.append(line.observe)
            else:
                raise RunFolderError(f"{path}:{number}: neither an invocation nor an observation")
    return Shards(
        invocations=tuple(invocations), observations=tuple(observations), torn=tuple(torn)
    )


def remaining(requests: Iterable[Request], shards: Shards) -> tuple[Request, ...]:
    """The requests that were certainly never sent: what --resume has left to play.

    One that was invoked and not observed is not among them: it may have had an effect.
    """
    started = {record.request_id for record in shards.invocations}
    started.update(record.request_id for record in shards.observations)
    return tuple(request for request in requests if request.id not in started)


def shard_files(folder: Path) -> list[Path]:
    """Every shard, by worker, then by start."""
    return sorted(folder.glob("observations-w*.jsonl"), key=_shard_order)


def _shard_order(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


# --- events --------------------------------------------------------------------------------------


def append_event(folder: Path, event: RunEvent) -> None:
    """Note in events.jsonl what befell the run."""
    path = folder / _EVENTS
    with path.open("a+b", buffering=0) as file:
        _drop_torn_line(file)
        _write(file.fileno(), _dump(event) + b"\n", path)
        os.fsync(file.fileno())


def read_events(folder: Path) -> tuple[RunEvent, ...]:
    """Every event in the order written; none where there is no events.jsonl."""
    path = folder / _EVENTS
    if not path.exists():
        return ()
    return tuple(event for _, event in _lines(path, RunEvent, []))


# --- the target's metrics ------------------------------------------------------------------------


def append_gauges(folder: Path, gauges: Gauges) -> None:
    """Add one reading to metrics.jsonl. Raises HarnessError where the disk does not take it."""
    path = folder / _METRICS
    with path.open("a+b", buffering=0) as file:
        _drop_torn_line(file)
        _write(file.fileno(), _dump(gauges) + b"\n", path)


def read_gauges(folder: Path) -> tuple[Gauges, ...]:
    """Every reading in the order written, a torn last line left out; none without metrics.jsonl."""
    path = folder / _METRICS
    if not path.exists():
        return ()
    return tuple(gauges for _, gauges in _lines(path, Gauges, []))


# --- bytes ---------------------------------------------------------------------------------------


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (
            item.name,
            item.default_factory() if item.default_factory is not MISSING else item.default,
        )
        for item in fields(kind)
    )


def _sparse(record: Any) -> dict[str, Any]:
    kind: type = type(record)
    return {
        name: value
        for name, default in _defaults(kind)
        if (value := getattr(record, name)) is not default and value != default
    }


def _dump(record: Any) -> bytes:
    # Sparse: an observation of 32 chunks takes 620 bytes in place of 3400, in the same time.
    return orjson.dumps(record, default=_sparse, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _write(descriptor: int, line: bytes, path: Path) -> None:
    try:
        written = os.write(descriptor, line)
        while written < len(line):  # a signal or a nearly full disk: the rest, or the error
            written += os.write(descriptor, line[written:])
    except OSError as error:
        raise HarnessError(f"{path} cannot be written: {error.strerror}") from None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all. Raises HarnessError where the disk does not take it."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with fresh.open("wb", buffering=0) as file:
            _write(file.fileno(), content, fresh)
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise HarnessError(f"{path} cannot be written: {error.strerror}") from None


def _drop_torn_line(file: FileIO) -> None:
    """Cut the file after its last whole line and stand at its end."""
    end = file.seek(0, os.SEEK_END)
    if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
        file.seek(0)
        file.truncate(file.readall().rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read ({error.strerror}); a run folder has one"
        ) from None


def _decoded(decoder: msgspec.json.Decoder[_Line], raw: bytes, path: Path, number: int) -> _Line:
    try:
        return decoder.decode(raw)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path}:{number}: {error}") from None


def _lines(path: Path, kind: type[_Line], torn: list[str]) -> Iterator[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(kind)
    with _opened(path) as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):  # only a last line can lack it
                torn.append(
                    f"{path}:{number}: the last line is torn ({len(raw)} bytes) and left out"
                )
                return
            yield number, _decoded(decoder, raw, path, number)
