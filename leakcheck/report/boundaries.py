"""What a report says of trust boundaries: which of them leaks crossed, of how many pairs met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from leakcheck.records import BOUNDARIES, Finding, Report, Verdict
from leakcheck.report.counting import many

KEY = "another key"
_WORDS = {
    KEY: "between keys",
    "same key": "within one key",
    "same connection": "within one connection",
    "another replica": "between replicas",
    "same replica": "within one replica",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One boundary: leaks (pairs of source and recipient), and pairs exposed, together or apart."""

    boundary: str
    leaks: int
    together: int
    apart: int

    @property
    def pairs(self) -> int:
        """All pairs exposed."""
        return self.together + self.apart


def rows(verdicts: Iterable[Verdict]) -> tuple[Row, ...]:
    """The boundaries of these verdicts, summed, strongest first; none of a report of an older
    version.
    """
    sums: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        for row in _read(verdict):
            mine = sums.setdefault(row.boundary, Counter())
            mine.update(leaks=row.leaks, together=row.together, apart=row.apart)
    return tuple(
        Row(boundary=name, leaks=of["leaks"], together=of["together"], apart=of["apart"])
        for name, of in sorted(sums.items(), key=lambda item: _place(item[0]))
    )


def line(report: Report) -> str:
    """`leaks between keys: 0 of 5,120 pairs; within one key: 2 of 4,800 pairs`: of a target with
    several keys or several replicas, and of any that leaks; else empty.
    """
    found = rows(report.verdicts)
    several = len(report.provenance.target.tenants) > 1
    replicas = any(row.boundary.endswith("replica") for row in found)
    if not found or not (several or replicas or any(row.leaks for row in found)):
        return ""
    parts = [
        f"{_WORDS.get(row.boundary, row.boundary)} {row.leaks} of {many_pairs(row.pairs)}"
        for row in found
        if row.pairs or row.leaks or (row.boundary == KEY and several)
    ]
    untested = "" if several else "; between keys not tested (--tenant)"
    return f"leaks {', '.join(parts)}{untested}" if parts else ""


def many_pairs(number: int) -> str:
    """`1 pair`, `5,120 pairs`."""
    return many(number, "pair") if number == 1 else f"{number:,} pairs"


def clause(verdict: Verdict) -> str:
    """` that was sent with another API key`, where all leaks crossed from one to another, or in how
    many of them; empty where none did.
    """
    found = {row.boundary: row for row in _read(verdict)}
    leaks = sum(found[name].leaks for name in (KEY, "same key", "same connection") if name in found)
    crossed = found[KEY].leaks if KEY in found else 0
    if not crossed:
        return ""
    if crossed == leaks:
        return " that was sent with another API key"
    return f" (in {crossed} of {leaks} leaks one that was sent with another API key)"


def crossing(finding: Finding) -> str:
    """`a secret sent with the key of alice was shown to bob`; empty where it stayed with a key."""
    names = [finding.evidence.get(name) for name in ("source_key", "recipient_key")]
    if finding.evidence.get("boundary") != KEY or not all(isinstance(n, str) for n in names):
        return ""
    return f"a secret sent with the key of {names[0]} was shown to {names[1]}"


def _read(verdict: Verdict) -> Iterator[Row]:
    _, *content = verdict.tables.get(BOUNDARIES) or ((),)
    for row in content:
        if len(row) == 4 and all(isinstance(each, int) for each in row[1:]):  # noqa: PLR2004 - columns
            yield Row(boundary=str(row[0]), leaks=row[1], together=row[2], apart=row[3])


def _place(name: str) -> int:
    return list(_WORDS).index(name) if name in _WORDS else len(_WORDS)
