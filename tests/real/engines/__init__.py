"""One file an engine: how it is installed and started, and what is known of it beforehand.

Each has `ENGINES`, a tuple of `real.engine.Engine`. A new engine is one file here (and, where it
has no server of its own, one in `real/servers`); the files are found by looking into this folder.
"""

import importlib
from pathlib import Path

from real.engine import Engine


def engines() -> tuple[Engine, ...]:
    """All of them, in the order of the files, vLLM first.

    It keeps two cores busy. Beside OpenVINO, whose threads wait for each other, some answers of it
    took minutes; `make test-real` plays two halves, and llama.cpp comes first in the other one.
    """
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    names.sort(key=lambda name: name != "vllm")
    modules = [importlib.import_module(f"real.engines.{name}") for name in names]
    return tuple(engine for module in modules for engine in module.ENGINES)
