"""GitHub-flavoured Markdown for a pull-request comment: verdicts first, at most 60 000 characters.

GitHub makes mentions, links and issue references of plain text, backslash or not; so a target's
own words stand in code only, and every other text is escaped and loses those triggers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from leakcheck.history import troubles
from leakcheck.records import Finding, Report, Status, Verdict
from leakcheck.report import boundaries, echoed, plain, plain_run, reply_ids, sentences
from leakcheck.report.counting import many
from leakcheck.report.untrusted import clipped, cut, excerpt, visible

FINDINGS = 10
"""Findings listed at most."""

LIMIT = 60_000
"""Characters at most; GitHub refuses comments above 65 536."""

_SCENARIOS = 40
_REASONS = 5
_SIGNS: dict[Status, str] = {
    "clean": "✅",
    "leak": "❌",
    "corruption": "⚠️",
    "inconclusive": "❔",
    "error": "⛔",
}
_BREAK = "\u200b"  # ends a mention, a link, a reference; `visible` left none of the target's


def render(report: Report) -> str:
    """The report as Markdown; harmless and bounded whatever the target said."""
    parts = [
        [f"## {_SIGNS[report.status]} leakcheck: {report.status}", ""],
        [prose(sentences.headline(report), 600), "", prose(plain_run.run(report).text, 600), ""],
        _verdicts(report),
        _reasons(report),
        _findings(report),
        _numbers(report),
        _boundaries(report),
        _evidence(report),
        _exposure(report),
        _echoed(report),
        _provenance(report),
    ]
    kept: list[str] = []
    size = 0
    for part in parts:
        block = "\n".join(part) + "\n" if part else ""
        if size + len(block) > LIMIT - 200:
            kept.append("The rest is in `report.html` and `report.json`.\n")
            break
        kept.append(block)
        size += len(block)
    return "".join(kept)


def prose(text: str, limit: int = 300) -> str:
    """Text that renders as itself: no markup, mention, link, reference or table cell end."""
    shown = visible(cut(text, limit))
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([\\`*_{}\[\]()|~$!])", r"\\\1", shown)
    shown = re.sub(r"^(\s*)([-+=#])", r"\1\\\2", shown)
    shown = re.sub(r"^(\s*\d+)([.)])", r"\1\\\2", shown)
    shown = re.sub(r"@(?=\S)", f"@{_BREAK}", shown)
    shown = re.sub(r"#(?=\w)", f"#{_BREAK}", shown)
    shown = re.sub(r"(?i)\b(gh)-(?=\d)", rf"\1{_BREAK}-", shown)
    shown = re.sub(r"(?i)\bwww\.", f"www{_BREAK}.", shown)
    shown = re.sub(r":(?=[\w/+-])", f":{_BREAK}", shown)
    shown = re.sub(r"\b([0-9a-f]{6})(?=[0-9a-f])", rf"\1{_BREAK}", shown)
    return shown.replace(_BREAK, "&#8203;")


def code(text: str, limit: int = 120) -> str:
    """Text as an inline code span, also inside a table."""
    shown = visible(cut(text, limit)).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if not shown.strip() or "`" in shown else ""
    return f"{fence}{pad}{shown or ' '}{pad}{fence}"


def _block(text: str) -> list[str]:
    """Visible text (one line) as a fenced block."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}text", text, fence]


def _verdicts(report: Report) -> list[str]:
    """Every verdict in its two sentences."""
    if not report.verdicts:
        return []
    rows = ["| scenario | verdict | in plain words |", "| --- | --- | --- |"]
    for verdict in report.verdicts[:_SCENARIOS]:
        early = sentences.settled(verdict)
        cells = [
            code(clipped(verdict.scenario, 60)),
            _status(verdict) + (f" ({prose(early)})" if early else ""),
            prose(plain.verdict(verdict, report.e_value).text, 600),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if len(report.verdicts) > _SCENARIOS:
        rows += ["", f"and {many(len(report.verdicts) - _SCENARIOS, 'more scenario')}"]
    return [*rows, ""]


def _status(verdict: Verdict) -> str:
    return f"{_SIGNS[verdict.status]} **{verdict.status}**"


def _numbers(report: Report) -> list[str]:
    """What the sentences rest on, behind a fold."""
    rows = [
        "| scenario | verdict | windows with a leak | of what shows, before echo | exposure |",
        "| --- | --- | --- | --- | --- |",
    ]
    for verdict in report.verdicts[:_SCENARIOS]:
        shown = ", ".join(sentences.exposures_in_brief(verdict))
        cells = [
            code(clipped(verdict.scenario, 60)),
            _status(verdict),
            prose(sentences.of_windows(verdict)),
            "" if verdict.status == "error" else sentences.of_what_shows(verdict.leak_rate),
            prose(shown, 300),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return _folded("Numbers", rows) if report.verdicts else []


def _boundaries(report: Report) -> list[str]:
    """Leaks by the trust boundary that they crossed, behind a fold that says the sum."""
    lines = [
        "| boundary | leaks | pairs together | pairs one after the other |",
        "| --- | --- | --- | --- |",
    ]
    found = boundaries.rows(report.verdicts)
    for row in found:
        name = prose(row.boundary, 60)
        lines.append(f"| {name} | {row.leaks} | {row.together} | {row.apart} |")
    said = boundaries.line(report)
    head = [prose(said), ""] if said else []
    return [*head, *_folded("Trust boundaries", lines)] if found else []


def _evidence(report: Report) -> list[str]:
    """Evidence of altered content by tier, behind a fold; nothing where none was weighed."""
    rows = [
        "| scenario | tier | sent, showed | phantoms, showed | e-value | a leak from |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for verdict in report.verdicts[:_SCENARIOS]:
        known = verdict.evidence
        if known is None:
            continue
        name, needed = code(clipped(verdict.scenario, 60)), f"{1 / known.alpha:.3g}"
        for tier in known.tiers[:12]:
            cells = [name, prose(tier.name, 40), f"{tier.planted_hits}/{tier.sources}"]
            cells += [f"{tier.phantom_hits}/{tier.phantoms}", f"{tier.e_value:.3g}", ""]
            rows.append(f"| {' | '.join(cells)} |")
        rows.append(f"| {name} | together | | | {known.e_value:.3g} | {needed} |")
    return _folded("Evidence", rows) if len(rows) > 2 else []  # noqa: PLR2004 (the two of the head)


def _reasons(report: Report) -> list[str]:
    lines = [line for v in sentences.not_clean(report)[:_SCENARIOS] for line in _reasons_of(v)]
    return ["### Why", "", *lines, ""] if lines else []


def _reasons_of(verdict: Verdict) -> Iterator[str]:
    name = code(clipped(verdict.scenario, 60))
    for reason in verdict.reasons[:_REASONS]:
        yield f"- {name}: {prose(reason)}"
    if len(verdict.reasons) > _REASONS:
        yield f"- {name}: and {many(len(verdict.reasons) - _REASONS, 'more reason')}"


def _findings(report: Report) -> list[str]:
    graves, total = sentences.shown_at_once(report)
    listed = graves[:FINDINGS]
    notes = sentences.findings_total(report) - total
    are = "is" if notes == 1 else "are"
    said = f"{many(notes, 'note')} that {are} no leak {are} in `report.html`"
    noted = [said, ""] if notes else []
    if not listed:
        return noted
    lines = [
        "### Findings",
        "",
        "Source → recipient; the part that matters stands between `>>` and `<<`.",
    ]
    for number, finding in enumerate(listed, start=1):
        lines += ["", *_finding(number, finding)]
    rest = total - len(listed)
    if rest > 0:
        lines += ["", f"and {rest} more in `report.html` and `report.json`"]
    return [*lines, "", *noted]


def _finding(number: int, finding: Finding) -> list[str]:
    who = code(finding.recipient, 60)
    if finding.source is not None:
        who = f"{code(finding.source, 60)} → {who}"
    name = code(clipped(finding.scenario, 60))
    where = f"{name}, window {finding.window}, {finding.relation}"
    part = excerpt(finding.excerpt, finding.mark)
    said = (
        f"{part.before}>>{part.marked}<<{part.after}" if part.marked else part.before + part.after
    )
    lines = [f"**{number}. {finding.severity}** {who}: {code(finding.anomaly, 60)} in {where}", ""]
    if finding.explanation:
        lines += [prose(finding.explanation), ""]
    lines += _block(said) if said else []
    if ids := [f"{code(name, 60)} {code(given, 130)}" for name, given in reply_ids.of(finding)]:
        lines += ["", f"{reply_ids.TITLE}: {', '.join(ids)}"]
    return lines


def _exposure(report: Report) -> list[str]:
    rows = ["| scenario | what | measured | minimum | enough |", "| --- | --- | --- | --- | --- |"]
    enough = {None: "not judged", True: "yes", False: "**no**"}
    for verdict in report.verdicts[:_SCENARIOS]:
        for exposure in verdict.exposure[:12]:
            cells = [code(clipped(verdict.scenario, 60)), prose(exposure.name, 60)]
            cells += [prose(exposure.text, 200), sentences.minimum(exposure)]
            rows.append(f"| {' | '.join([*cells, enough[exposure.enough]])} |")
    return _folded("Exposure", rows) if len(rows) > 2 else []  # noqa: PLR2004 (the two of the head)


def _echoed(report: Report) -> list[str]:
    head, *rows = echoed.table(report.provenance.facts.echoes) or ((),)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return _folded(echoed.TITLE, lines) if rows else []


def _provenance(report: Report) -> list[str]:
    made = report.provenance
    took = sentences.duration(report.duration_s)
    lines = [
        f"- target: {code(made.target.model)} at {code(made.target.base_url)}",
        f"- command: {code(' '.join(made.command), 400)}",
        f"- seed {made.seed}, started {prose(made.started_utc)}, took {took}",
        f"- {prose(sentences.outcomes(report))}",
        f"- leakcheck {prose(made.leakcheck)}, Python {prose(made.python)}, {prose(made.platform)}",
        f"- report schema {report.schema}, exit code {report.exit_code}",
    ]
    if wrong := troubles.sentence(report.troubles):
        lines.append(f"- {prose(wrong, 1200)}")
    if used := sentences.budget(report):
        lines.append(f"- {prose(used)}")
    if own := sentences.selftest(report):
        lines.append(f"- {prose(own)}")
    lines += [f"- {prose(e.kind, 60)}: {prose(e.detail)}" for e in report.events[:20] if e.detail]
    return _folded("Provenance", lines)


def _folded(title: str, lines: list[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]
