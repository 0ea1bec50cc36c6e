"""Which trust boundaries the leaks of a scenario crossed, beside how many pairs met over each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leakcheck.checks import boundary
from leakcheck.history import History, boundaries
from leakcheck.records import BOUNDARIES, Finding

COLUMNS = ("boundary", "leaks", "pairs together", "pairs one after the other")


def marked(history: History, finding: Finding) -> Finding:
    """A leak, with the boundary that it crossed in its evidence; anything else unchanged, and one
    of which its check has said that, or no source is known.
    """
    if finding.severity != "leak" or finding.source is None or "boundary" in finding.evidence:
        return finding
    found = boundary(history, finding.source, finding.recipient)
    return replace(finding, evidence={**found, **finding.evidence})


def table(history: History, findings: Sequence[Finding]) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """Leaks, as pairs of source and recipient, and pairs exposed, by boundary: strongest first,
    then by replica where the target names them. A leak over windows counts among the pairs too.
    """
    leaks: dict[tuple[str, str], Finding] = {
        (each.source, each.recipient): each
        for each in findings
        if each.severity == "leak" and each.source is not None
    }
    counts, late = Counter[str](), Counter[str]()
    for (source, recipient), each in leaks.items():
        names = [str(each.evidence[k]) for k in ("boundary", "replica") if k in each.evidence]
        counts.update(names)
        one, other = history.by_id(source), history.by_id(recipient)
        if (one.scenario, one.window) != (other.scenario, other.window):
            late.update(names)
    exposed = history.exposed
    replicas = (each for each in boundaries.REPLICAS if each in exposed)
    rows = [
        (name, counts[name], exposed[name].together, exposed[name].apart + late[name])
        for name in (*boundaries.ORDER, *replicas)
    ]
    return {BOUNDARIES: (COLUMNS, *rows)}
