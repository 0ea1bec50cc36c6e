"""The one-screen verdict. Everything a target said is shown as plain, visible text."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from leakcheck.history import troubles
from leakcheck.records import Finding, Report, Status, Verdict
from leakcheck.report import boundaries, plain_run, reply_ids, sentences
from leakcheck.report.counting import many
from leakcheck.report.steps import next_steps
from leakcheck.report.untrusted import clipped, cut, excerpt, visible

FINDINGS = 5
"""Findings shown at most; the others are in report.html."""

_CONTEXT = 60
_NAME = 40
_REASONS = 3
_TABLE_WIDTH = 96
_COLOURS: dict[Status, str] = {
    "clean": "bold green",
    "leak": "bold red",
    "corruption": "bold magenta",
    "inconclusive": "bold yellow",
    "error": "bold red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One logical line; where it is wrapped, what follows is indented by `hang` columns."""

    text: Text
    hang: int = 0


_BLANK = _Line(text=Text())


def render(report: Report, *, width: int = 100, colour: bool = False, folder: str = "") -> str:
    """The verdict for a terminal `width` columns wide; ANSI colours only when `colour`.

    `folder` is the run folder, named in "next"; without it a placeholder stands there. The caller
    decides `colour` (NO_COLOR, a pipe). Our own words are ASCII; excerpts may not be.
    """
    blocks = [
        [_headline(report), *_in_plain_words(report)],
        list(_scenarios(report, width)),
        list(_findings(report)),
        list(_reasons(report)),
        list(_run(report)),
        list(_next(report, folder)),
    ]
    return _printed(blocks, width=width, colour=colour)


def findings(report: Report, *, width: int = 100, colour: bool = False) -> str:
    """Only the gravest findings, as `render` shows them; empty where there are none."""
    return _printed([list(_findings(report))], width=width, colour=colour)


def _printed(blocks: Sequence[Sequence[_Line]], *, width: int, colour: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(width, 20),
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for number, block in enumerate(filter(None, blocks)):
        for line in [_BLANK, *block] if number else block:
            _print(console, line)
    return out.getvalue()


def _print(console: Console, line: _Line) -> None:
    """Print one line, wrapped at words; `Text.wrap` alone has no hanging indent."""
    first = line.text.wrap(console, console.width)[0]
    first.rstrip()
    console.print(first)
    rest = line.text[len(first) :]
    begin = len(rest.plain) - len(rest.plain.lstrip())
    if begin == len(rest.plain):
        return
    for part in rest[begin:].wrap(console, console.width - line.hang):
        part.rstrip()
        console.print(Text(" " * line.hang).append_text(part))


def _headline(report: Report) -> _Line:
    text = Text.assemble((f"{report.status}:", _COLOURS[report.status]), " ")
    return _Line(text=text.append(_shown(sentences.headline(report), 600)))


def _in_plain_words(report: Report) -> Iterator[_Line]:
    said = plain_run.run(report)
    yield _Line(text=Text(said.found))
    yield _Line(text=Text(said.means))


def _scenarios(report: Report, width: int) -> Iterator[_Line]:
    names = [visible(clipped(verdict.scenario, _NAME)) for verdict in report.verdicts]
    column = max([len("scenario"), *map(len, names)])
    wide = width >= _TABLE_WIDTH
    if wide and names:
        title = f"{'scenario':{column}}  {'verdict':12}  windows with a leak"
        yield _Line(text=Text(title, "dim"))
    for name, verdict in zip(names, report.verdicts, strict=True):
        text = Text(name.ljust(column) if wide else name, "bold").append("  ")
        text.append(verdict.status.ljust(12) if wide else verdict.status, _COLOURS[verdict.status])
        if wide:
            yield _Line(text=text.append("  ").append(_rate(verdict), "not bold"), hang=column + 16)
        else:
            yield _Line(text=text, hang=2)
            yield _Line(text=Text(f"  {_rate(verdict)}"), hang=2)
        shown = ", ".join(_shown(brief) for brief in sentences.exposures_in_brief(verdict))
        yield _Line(text=Text(f"  {shown}", "dim"), hang=2)


def _rate(verdict: Verdict) -> str:
    """Counts with the bound of the verdict, or why the windows ended early, which has it."""
    if early := sentences.settled(verdict):
        what = "window" if verdict.leak_rate.trials == 1 else "windows"
        return f"{sentences.counts(verdict.leak_rate)} {what}, {early}"
    return sentences.of_windows(verdict)


def _findings(report: Report) -> Iterator[_Line]:
    graves, total = sentences.shown_at_once(report)
    listed = graves[:FINDINGS]
    for number, finding in enumerate(listed, start=1):
        yield from _finding(number, finding)
    rest = total - len(listed)
    if rest > 0:
        yield _Line(text=Text(f"and {rest} more in report.html and report.json"))


def _finding(number: int, finding: Finding) -> Iterator[_Line]:
    style = _COLOURS["corruption" if finding.severity == "note" else finding.severity]
    name = visible(clipped(finding.scenario, _NAME))
    text = Text(f"{number}. ").append(_shown(sentences.direction(finding)), "bold")
    text.append(f"  {_shown(finding.anomaly)}", style)
    text.append(f"  {name}, window {finding.window}, {finding.relation}")
    yield _Line(text=text, hang=3)
    part = excerpt(finding.excerpt, finding.mark, _CONTEXT)
    said = Text(f"   {part.before}")
    if part.marked:
        said.append(">>", style).append(part.marked, f"{style} underline").append("<<", style)
    yield _Line(text=said.append(part.after), hang=3)
    if ids := [f"{_shown(name, 60)} {_shown(given, 130)}" for name, given in reply_ids.of(finding)]:
        yield _Line(text=Text(f"   {reply_ids.TITLE}: {', '.join(ids)}"), hang=3)


def _reasons(report: Report) -> Iterator[_Line]:
    """Why, as far as the headline does not say it; what several scenarios say alike, but for its
    figures, is said once.
    """
    headline = sentences.headline(report)
    told: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for verdict in sentences.not_clean(report):
        forms: Counter[str] = Counter()
        for reason in verdict.reasons[:_REASONS]:
            form = re.sub(r"\d+", "0", reason)
            told.setdefault((form, forms[form]), []).append((verdict.scenario, reason))
            forms[form] += 1
    for (name, reason), *others in told.values():
        told_above = cut(reason, 400).removesuffix(".") in headline
        if not told_above:
            shown = visible(clipped(name, _NAME))
            yield _Line(text=Text.assemble((shown, "bold"), f": {_shown(reason, 400)}"), hang=2)
        if others:
            names = ", ".join(visible(clipped(other, _NAME)) for other, _ in others)
            alike = all(other == reason for _, other in others)
            numbers = "" if alike else ", with other numbers,"
            head, colon, _ = reason.partition(":")
            what = f"{_shown(head, 80)}: " if told_above and colon else ""
            yield _Line(text=Text(f"{what}the same holds{numbers} for {names}"), hang=2)
    for verdict in sentences.not_clean(report):
        if (more := len(verdict.reasons) - _REASONS) > 0:
            name = visible(clipped(verdict.scenario, _NAME))
            yield _Line(text=Text(f"{name}: {many(more, 'more reason')} in report.html"), hang=2)


def _run(report: Report) -> Iterator[_Line]:
    facts = f"{sentences.outcomes(report)}; {sentences.duration(report.duration_s)}; "
    yield _Line(text=Text(_shown(f"{facts}seed {report.provenance.seed}", 400)))
    if wrong := troubles.sentence(report.troubles):
        yield _Line(text=Text(_shown(wrong, 600), "yellow"), hang=2)
    if crossed := boundaries.line(report):
        yield _Line(text=Text(_shown(crossed, 300)), hang=2)
    if used := sentences.budget(report):
        yield _Line(text=Text(_shown(used, 300)), hang=2)
    if own := sentences.selftest(report):
        yield _Line(text=Text(_shown(own, 200)), hang=2)
    reasons = [reason for verdict in report.verdicts for reason in verdict.reasons]
    for event in report.events:
        told = event.detail and any(event.detail in reason for reason in reasons)
        if event.kind not in {"finished", "settled", "restarted", "met"} and not told:
            kind = event.kind.replace("-", " ")
            said = f"{kind}: {event.detail}" if event.detail else f"the run was {kind}"
            yield _Line(text=Text(_shown(said, 300), "yellow"), hang=2)


def _next(report: Report, folder: str) -> Iterator[_Line]:
    place = visible(folder).rstrip("/")
    steps = next_steps(report, place or "DIR")
    opened = [f"open {place}/report.html"] if place else []
    for number, step in enumerate([*opened, *steps]):
        yield _Line(text=Text(("      " if number else "next: ") + visible(step)), hang=6)


def _shown(value: str, limit: int = 120) -> str:
    return visible(cut(value, limit))
