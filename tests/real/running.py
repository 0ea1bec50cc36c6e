"""Run the ordinary command line against a server, and read what it reports."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real.engine import Engine
from real.serving import Server

COMMON = (
    "--workers", "2", "--lanes", "4", "--phantoms", "99", "--style", "phrase",
    "--timeout-s", "240", "--set", "load.timeout_s=240.0",
)  # fmt: skip
"""Eight requests at a time; a machine of two slow cores needs patience. Which style is
echoed is not measured each time: listed words were the best at all these engines and one model.
"""
LONGEST_S = 3000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run gave. `took_s`: the whole command, with its start; `cpu_s`: processor time that
    the server used for it; `folder`: the run folder.
    """

    code: int
    report: dict[str, Any]
    took_s: float
    cpu_s: float
    folder: Path

    @property
    def verdicts(self) -> dict[str, dict[str, Any]]:
        """By scenario."""
        return {each["scenario"]: each for each in self.report["verdicts"]}

    def found(self, *severities: str) -> list[dict[str, Any]]:
        """Findings of these severities, of all scenarios."""
        return [
            finding
            for verdict in self.report["verdicts"]
            for finding in verdict["findings"]
            if finding["severity"] in severities
        ]

    def exposure(self, scenario: str) -> dict[str, dict[str, Any]]:
        """What was measured in a scenario, by its name."""
        return {each["name"]: each for each in self.verdicts[scenario]["exposure"]}

    def notes(self, scenario: str) -> list[str]:
        """The notes of a scenario."""
        return list(self.verdicts[scenario]["notes"])


def run(engine: Engine, server: Server, out: Path, *arguments: str, api: str = "/v1") -> Run:
    """`leakcheck run` against a server; AssertionError for a traceback."""
    command = [
        sys.executable, "-m", "leakcheck.cli", "run", "--target", server.url + api,
        "--model", engine.model, *COMMON, *engine.flags, "--out", str(out), *arguments,
    ]  # fmt: skip
    began, used_s = time.monotonic(), server.cpu_s()
    screen = out / "screen.txt"
    with screen.open("w") as shown:
        done = subprocess.run(
            command, stdout=shown, stderr=subprocess.STDOUT, check=False, timeout=LONGEST_S
        )
    took_s, cpu_s = time.monotonic() - began, server.cpu_s() - used_s
    said = screen.read_text()
    assert "Traceback" not in said, said
    report = out / "latest" / "report.json"
    assert report.exists(), said
    return Run(
        code=done.returncode,
        report=json.loads(report.read_text()),
        took_s=took_s,
        cpu_s=cpu_s,
        folder=report.parent.resolve(),
    )
