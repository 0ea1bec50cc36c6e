"""What to do with a report."""

from __future__ import annotations

import shlex

from leakcheck.records import Report


def next_steps(report: Report, folder: str = "DIR") -> list[str]:
    """What to do with this report, most useful first; `folder` is the run folder."""
    steps = {
        "leak": ["read each finding: it names source, recipient and how they overlapped"],
        "corruption": ["read each finding: it says when answers differ, and in how many windows"],
        "clean": ["keep the run folder: it proves the claim without the target"],
        "inconclusive": ["raise what the reasons name and run again"],
        "error": ["mend what the reasons name and run again"],
    }[report.status]
    if not report.verdicts:
        steps = ["start a new run: this one cannot be resumed"]
    if report.status in ("leak", "corruption") and (sent := _same_traffic(report)):
        steps.append(f"the same traffic again: {sent}")
    again = f"leakcheck analyze {folder}"
    steps.append(f"the same report again, without the target: {again}")
    return steps


def _same_traffic(report: Report) -> str:
    """The command that plans what this run has planned; empty where it is not known, or was given
    to go on with a run.
    """
    command = report.provenance.command
    if not command or "--resume" in command or "run" not in command:
        return ""
    seeded = any(each.partition("=")[0] == "--seed" for each in command)
    seed = [] if seeded else ["--seed", str(report.provenance.seed)]
    return shlex.join([*command, *seed])
