"""What renderers pick out of a verdict."""

from __future__ import annotations

from leakcheck.records import Exposure, Finding, Verdict


def listed(judged: Verdict, severity: str) -> list[Finding]:
    """The findings of one severity that the report lists."""
    return [finding for finding in judged.findings if finding.severity == severity]


def exposed(judged: Verdict, name: str) -> Exposure | None:
    """The exposure of that name."""
    return next((each for each in judged.exposure if each.name == name), None)
