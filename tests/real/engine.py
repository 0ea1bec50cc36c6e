"""What a file of `real/engines` says about its engines, in plain data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment below .engines. `steps`: the arguments of pip, one tuple a call."""

    name: str
    steps: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What a command line is made of: the interpreter of the environment, a free port of
    127.0.0.1, the model as one GGUF file and as a transformers folder (made when asked for), and a
    scratch folder.
    """

    python: Path
    port: int
    scratch: Path
    gguf: Callable[[], Path]
    folder: Callable[[], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How it repeats itself: the `grade` that `leakcheck doctor` would give it by so many `windows`
    of the differential, with a command of its own where `command` is given.
    """

    grade: str
    windows: int = 2
    command: Callable[[Places], list[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine as it is started, and what is known of it beforehand.

    `model`: the name that it is asked for. `ready`: the path that answers 200 when it is up, within
    `patience_s`. `metrics` and `cached_tokens`: whether it reports them, so that exposure can be
    demanded. `flags`: of `leakcheck run`, for every run. `environ`: for its process. `seeds`: of
    the runs of all scenarios but those that it `breaks` at. `prefix_windows`: of prefix-overlap in
    each of them, as many as it takes to see a hit for sure. `leaves_open`: beginnings of true
    reasons that no other engine gives. `full_set_cpu_s`: the processor time of the server within
    which each of them has to end; on a machine that does other things too, a clock says little.
    """

    name: str
    environment: Environment
    command: Callable[[Places], list[str]]
    model: str
    metrics: bool
    cached_tokens: bool
    ready: str = "/health"
    patience_s: float = 60.0
    flags: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1, 2, 3)
    breaks: tuple[str, ...] = ()
    prefix_windows: int = 1
    leaves_open: tuple[str, ...] = ()
    full_set_cpu_s: float = 600.0
    noise: Noise | None = None
