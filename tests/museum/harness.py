"""What every exhibit needs: an environment per release, services that start and stop, leakcheck.

An environment is made once, under `.museum/` of the repository, and used again as long as its pins
are the same. leakcheck is the ordinary command line, as a process; what it found is read from
report.json of the run folder that it wrote.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXHIBITS = Path(__file__).parent
ENVIRONMENTS = ROOT / ".museum"
INSTALLING_S = 900
STARTING_S = 120
FEW = ("--set", "gate.min_windows=10")
"""For the mended releases: leaks in 20 % of the windows are excluded by about twenty of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What leakcheck made of one release; `took_s` seconds from start to exit."""

    status: str
    exit_code: int
    took_s: float
    requests: int
    screen: str
    folder: Path
    reasons: tuple[str, ...]
    anomalies: frozenset[str]


def environment(*pins, first=(), without=()):
    """The interpreter of an environment with `pins`, `first` of which pip gets by themselves, and
    `without` what the pins ask for and what does not work there.

    Skips the test with pip's last line when they cannot be installed.
    """

    def make(folder):
        python = folder / "bin" / "python"
        _run(pins, sys.executable, "-m", "venv", "--clear", folder)
        for some in (first, pins):
            if some:
                _run(pins, *_pip(python, "install"), *some)
        if without:
            _run(pins, *_pip(python, "uninstall"), "--yes", *without)

    wanted = "\n".join([*first, "--", *pins, *(f"without {each}" for each in without)])
    return _made_once(wanted, make) / "bin" / "python"


def beside(python, pin):
    """A folder with one release of a package and nothing else, for PYTHONPATH: what else it needs
    is in the environment of `python`. Skips as `environment`.
    """
    return _made_once(
        f"{python}\n{pin}",
        lambda folder: _run(
            [pin], *_pip(python, "install"), "--no-deps", "--upgrade", "--target", folder, pin
        ),
    )


def _made_once(wanted, make):
    """The folder for what is wanted, made unless it is there."""
    folder = ENVIRONMENTS / hashlib.sha256(wanted.encode()).hexdigest()[:12]
    ready = folder / "pins.txt"
    ENVIRONMENTS.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # two runs may want the same one
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (ready.exists() and ready.read_text() == wanted):
            make(folder)
            ready.write_text(wanted)
    return folder


def _pip(python, what):
    return [python, "-m", "pip", what, "--quiet", "--disable-pip-version-check"]


def _run(pins, *command):
    """One step of making an environment; skips the test with the reason where it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=INSTALLING_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"cannot install {' '.join(pins)} within {INSTALLING_S} s")
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        pytest.skip(f"cannot install {' '.join(pins)}: {' '.join(last)}")


@contextlib.contextmanager
def serving(*command, log, env=None):
    """What a process says of itself in its READY line; it ends when its standard input does.

    `log` is a file for its standard error.
    """
    surrounding = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env=surrounding,
        ) as process,
    ):
        try:
            yield _ready(process, log)
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process, log):
    """The READY line; other lines before it are put into the log."""
    for line in process.stdout:
        if line.startswith(b"READY "):
            return json.loads(line.removeprefix(b"READY "))
        with log.open("ab") as errors:
            errors.write(line)
    raise AssertionError(f"the service ended before it was ready; see {log}")


def until_open(port, within_s=STARTING_S):
    """Wait until something accepts connections at a port of this machine."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nothing at port {port} after {within_s} s"
            time.sleep(0.02)
        else:
            return


def _keep(folder):
    """Copy the screen-sized report where `LEAKCHECK_MUSEUM_REPORTS` names a folder for it."""
    if wanted := os.environ.get("LEAKCHECK_MUSEUM_REPORTS"):
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        kept = Path(wanted) / f"{name}.md"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "report.md", kept)


def engine(log, *flags):
    """The embedded engine, in a context: `base_url`, `model` and more."""
    return serving(
        sys.executable, "-m", "leakcheck.cli", "serve", "--exit-with-stdin", *flags, log=log
    )


def leakcheck(base_url, model, *scenarios, out, flags=(), command="run"):
    """Run `leakcheck run` against a target as a user would; `out` is where its folders go."""
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "leakcheck.cli", command, *scenarios),
            *("--target", base_url, "--model", model, "--out", str(out), *flags),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        check=False,
    )
    took_s = time.monotonic() - began
    assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
    folder = (out / "latest").resolve()
    report = json.loads((folder / "report.json").read_text())
    _keep(folder)
    return Seen(
        status=report["status"],
        exit_code=done.returncode,
        took_s=took_s,
        requests=report["requests"]["attempts"],
        screen=done.stdout,
        folder=folder,
        anomalies=frozenset(
            finding["anomaly"]
            for verdict in report["verdicts"]
            for finding in verdict["findings"]
            if finding["severity"] != "note"
        ),
        reasons=tuple(reason for verdict in report["verdicts"] for reason in verdict["reasons"]),
    )
