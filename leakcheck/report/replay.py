"""replay.sh: sends again what a finding rests on, without leakcheck."""

from __future__ import annotations

from leakcheck.records import Report


def render(report: Report) -> str | None:
    """The script of the first finding that has one (`replay` of its evidence); None without any."""
    for verdict in report.verdicts:
        for finding in verdict.findings:
            script = finding.evidence.get("replay")
            if isinstance(script, str):
                return script
    return None
