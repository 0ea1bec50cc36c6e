"""The ids by which the logs of the target know the two replies of a finding."""

from __future__ import annotations

from leakcheck.records import Finding

TITLE = "ids in the logs of the target"


def of(finding: Finding) -> tuple[tuple[str, str], ...]:
    """Request and id, the recipient first: that of the reply's headers, else that in the answer."""
    sides = (("recipient", finding.recipient), ("source", finding.source))
    found = []
    for side, name in sides:
        told = (finding.evidence.get(f"{side}_{what}") for what in ("reply_id", "target_id"))
        given = next((each for each in told if isinstance(each, str) and each), None)
        if name and given:
            found.append((name, given))
    return tuple(found)
