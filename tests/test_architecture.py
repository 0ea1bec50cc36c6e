"""The rules of the layout, as design decisions that cannot rot: imports, sizes, start-up."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "leakcheck"
FILE_LINES, FUNCTION_LINES = 480, 60

# each layer may import itself and what stands before it
LAYERS = [
    {"records", "errors", "redact"},
    {
        "folding",
        "passphrase",
        "match",
        "evidence",
        "runfolder",
        "plugin",
        "wording",
        "budget",
    },
    {"history"},
    {"backends", "traffic", "checks"},
    {"scenario", "runner", "analyzer", "report"},
    {"run", "survey", "planning", "certify", "differential", "doctor", "selftest"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "engine" not in path.parts)
ENGINE = sorted((PACKAGE / "engine").rglob("*.py"))


def part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path):
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "leakcheck" and rest:
            yield rest.split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    if part(path) == "__init__":
        return
    for name in ours(path):
        if name in LEVEL:
            assert LEVEL[name] <= LEVEL[part(path)], f"{path.name} must not import {name}"


def test_every_module_has_its_place_in_the_layers():
    assert {part(path) for path in MODULES} - {"__init__"} <= set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_harness_imports_nothing_of_the_engine(path):
    assert "engine" not in set(ours(path))


@pytest.mark.parametrize("path", ENGINE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_engine_imports_nothing_of_the_harness(path):
    assert set(ours(path)) <= {"engine"}


@pytest.mark.parametrize("path", [*MODULES, *ENGINE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"


def broad_excepts(path):
    """Line numbers of handlers that catch everything."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            kind = node.type
            if kind is None or (isinstance(kind, ast.Name) and kind.id == "Exception"):
                yield node.lineno


def test_the_broad_excepts_of_the_harness_are_around_a_stream_and_around_everything():
    found = [str(path.relative_to(PACKAGE)) for path in MODULES for _ in broad_excepts(path)]
    assert found == ["cli/__init__.py", "runner/lane.py"]


@pytest.mark.parametrize("path", ENGINE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_broad_except_of_the_engine_says_why(path):
    lines = path.read_text().splitlines()
    for line in broad_excepts(path):
        assert "#" in lines[line - 1] + lines[line], f"line {line} gives no reason"


def test_help_loads_neither_torch_nor_pandas():
    code = (
        "import sys, leakcheck.cli\n"
        "try: leakcheck.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'pandas', 'numpy', 'numba', 'transformers', 'aiohttp', 'rich'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
