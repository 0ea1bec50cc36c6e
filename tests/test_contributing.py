"""The recipes of CONTRIBUTING.md work as written: lint, types, and one run of each."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"```(?:python|toml)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
)
SCENARIO, TRAFFIC, CHECK, BACKEND = BLOCKS


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package of its own that holds the three Python recipes: plug-ins named with dots."""
    root = tmp_path_factory.mktemp("recipes")
    folder = root / "recipes"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Recipes."""\n')
    for name, text in (("pairs", TRAFFIC), ("usage", CHECK), ("example", BACKEND)):
        (folder / f"{name}.py").write_text(text)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def tool(*command, cwd):
    path = os.pathsep.join([str(cwd), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=cwd,
        env=os.environ | {"PYTHONPATH": path, "MYPYPATH": str(ROOT)},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_recipes_are_linted(package):
    code, said = tool("ruff", "check", "recipes", cwd=package)
    assert code == 0, said


def test_the_recipes_are_typed(package):
    code, said = tool("mypy", "--strict", "-p", "recipes", cwd=package)
    assert code == 0, said


@pytest.mark.parametrize("name", ["long-prompts", "pairs"])
def test_the_scenario_and_the_traffic_run_with_the_check(package, name):
    text = SCENARIO
    if name == "pairs":
        text = text.replace('"concurrent"', '"recipes.pairs"')
        text = text.replace("max_filler_words = 300", "filler_words = 10")
    text += '[checks."recipes.usage"]\n'
    path = package / f"{name}.toml"
    path.write_text(text)
    out = package / f"reports-{name}"
    flags = ["--embedded", "--windows", "3", "--set", "gate.min_windows=3", "--out", str(out)]
    code, said = tool("leakcheck.cli", "run", str(path), *flags, cwd=package)
    assert code in (0, 3), said
    (verdict,) = json.loads((out / "latest" / "report.json").read_text())["verdicts"]
    assert verdict["leak_rate"]["trials"] == 3
    assert any("answers were too long" in note for note in verdict["notes"])


def test_the_backend_tells_a_dead_target(package):
    flags = ["--target", "http://127.0.0.1:9/", "--model", "m", "--backend", "recipes.example"]
    code, said = tool("leakcheck.cli", "run", "rare-token-passphrase", *flags, cwd=package)
    assert code == 4
    assert "no connection to http://127.0.0.1:9" in said
