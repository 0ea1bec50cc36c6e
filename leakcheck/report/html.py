"""One self-contained HTML page: no script, no request, nothing a target said is ever markup.

Three things keep it so, by construction: Jinja escapes every value; `_shown` makes every value
visible and bounded before that; the content security policy allows the one style element only.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from leakcheck.history import troubles
from leakcheck.records import Curve, Evidence, Finding, Rate, Report, Scenario, Status, Verdict
from leakcheck.report import boundaries, echoed, plain_run, plots, sentences
from leakcheck.report import plain as plain_words
from leakcheck.report.steps import next_steps
from leakcheck.report.untrusted import cut, excerpt, plain, visible

FINDINGS_OPEN = 6
"""Findings that stand open on the page; the next ones are folded."""

FINDINGS = 200
"""Findings on the page at most, and as many notes; the others are counted."""

ROWS = 200
"""Rows shown of one table at most; the others are counted."""

_GRAVEST_FIRST: tuple[Status, ...] = ("leak", "corruption", "error", "inconclusive", "clean")
_LONGEST = 1200
_TIMES = ("source_start_s", "source_end_s", "recipient_start_s", "recipient_end_s")


def render(report: Report) -> str:
    """The page as HTML 5 in UTF-8."""
    style = _file("report.css")
    policy = (
        "default-src 'none'; "
        f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'; "
        "base-uri 'none'; form-action 'none'"
    )
    template = _environment().get_template("page")
    graves, grave = sentences.shown_at_once(report)
    findings = graves[:FINDINGS]
    notes = [f for f in sentences.ranked(report) if f.severity == "note" and f not in graves]
    total = sentences.findings_total(report)
    return template.render(
        report=report,
        style=Markup(style),  # noqa: S704 (our own file)
        policy=policy,
        headline=sentences.headline(report),
        said=plain_run.run(report),
        wrong=troubles.sentence(report.troubles),
        verdicts=_ordered(report),
        findings=findings,
        findings_open=FINDINGS_OPEN,
        findings_rest=grave - len(findings),
        notes=notes[:FINDINGS],
        notes_total=total - grave,
        curves=_curves(report),
        provenance=_provenance(report),
        scenarios={scenario.name: scenario for scenario in report.provenance.scenarios},
        next_steps=next_steps(report),
        meaning=sentences.MEANING,
        rows=ROWS,
        echoed=(echoed.TITLE, echoed.table(report.provenance.facts.echoes)),
    )


def _ordered(report: Report) -> list[Verdict]:
    """The scenarios that were asked for, the gravest first, and then what was sent before them."""
    asked = sentences.asked_for(report)
    return sorted(
        report.verdicts, key=lambda each: (each not in asked, _GRAVEST_FIRST.index(each.status))
    )


def _environment() -> Environment:
    environment = Environment(
        loader=DictLoader({"page": _file("report.html.jinja")}),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pictures = {
        "icon": plots.icon,
        "whisker": plots.whisker,
        "chart": plots.chart,
        "heat_map": plots.heat_map,
        "gauge": plots.gauge,
        "timeline": _timeline,
    }
    environment.globals |= {name: _safe(picture) for name, picture in pictures.items()}
    environment.globals |= {
        "is_chart": plots.is_chart,
        "scale_of": plots.scale_of,
        "heat_rest": plots.heat_rest,
        "showed_in_part": sentences.showed_in_part,
        "times": _times,
        "overlap": lambda times: plots.how_they_overlapped(*_spans(times)),
        "evidence": _evidence,
        "load_of": _load,
        "in_words": plain_words.verdict,
        "figures": _figures,
        "most_evidence": _most_evidence,
        "excerpt": excerpt,
        "plain": plain,
        "is_number": _is_number,
    }
    environment.filters |= {
        "percent": sentences.percent,
        "setting": sentences.setting,
        "counts": sentences.counts,
        "settled": sentences.settled,
        "amount": _amount,
        "excluded": sentences.excluded,
        "of_what_shows": lambda rate: sentences.of_what_shows(rate, "–"),  # noqa: RUF001 (dash)
        "interval": lambda rate: sentences.interval(rate, "–"),  # noqa: RUF001 (an interval's dash)
        "certified": sentences.certified,
        "in_brief": sentences.exposures_in_brief,
        "measured": sentences.measured,
        "minimum": sentences.minimum,
        "duration": sentences.duration,
        "outcomes": sentences.outcomes,
        "share": _share,
    }
    return environment


def _safe(picture: Any) -> Any:
    """A picture of `plots` is well-formed XML made by a writer that escapes: no second escaping."""
    return lambda *values: Markup(picture(*values))  # noqa: S704 (see above)


def _shown(value: Any) -> Any:
    """What every `{{ }}` of the page passes: visible, bounded text. Markup is ours already."""
    if isinstance(value, Markup) or value is None:
        return value
    return visible(cut(str(value), _LONGEST))


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _share(rate: Any) -> str:
    """The percentage of a measured rate with its interval; nothing for a plain number."""
    if not isinstance(rate, Rate) or rate.value is None:
        return ""
    return f"{sentences.percent(rate.value)}, {sentences.interval(rate, '–')}"  # noqa: RUF001 (dash)


def _curves(report: Report) -> dict[str, list[tuple[str, Curve]]]:
    """Curves with their scenario: those that show a leak and the flat ones, charts before rows. Of
    an error nothing follows, so it has none.
    """
    judged = [verdict for verdict in report.verdicts if verdict.status != "error"]
    drawn = [(v.scenario, curve) for v in judged for curve in v.curves if curve.points]
    drawn.sort(key=lambda pair: not plots.is_chart(pair[1]))
    leaking = [pair for pair in drawn if any(rate.events for _, rate in pair[1].points)]
    return {"leaking": leaking, "flat": [pair for pair in drawn if pair not in leaking]}


def _times(finding: Finding) -> dict[str, float] | None:
    """When source and recipient were in flight, where the evidence says so."""
    found = {name: finding.evidence.get(name) for name in _TIMES}
    if not all(_is_number(value) for value in found.values()):
        return None
    return {name: float(value) for name, value in found.items() if value is not None}


def _timeline(times: Mapping[str, float]) -> str:
    return plots.timeline(*_spans(times))


def _spans(times: Mapping[str, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    return (
        (times["source_start_s"], times["source_end_s"]),
        (times["recipient_start_s"], times["recipient_end_s"]),
    )


def _evidence(finding: Finding) -> dict[str, str]:
    """The evidence in words, without what the timeline shows."""
    shown = {
        name: plain(value)
        for name, value in finding.evidence.items()
        if name not in _TIMES or _times(finding) is None
    }
    return {"check": finding.check, **shown}


def _figures(verdict: Verdict) -> dict[str, str]:
    """How sure the verdict is, as figures with what they are held against."""
    shown = {
        "trials": f"{verdict.leak_rate.trials} of {verdict.windows_planned} planned windows",
        "chance of any accidental passphrase": f"at most {verdict.false_match_bound:.1e}",
    }
    known = verdict.evidence
    if known is None:
        return shown | {"evidence": "not weighed by the version that judged this"}
    altered = {
        "windows ended": sentences.settled(verdict) or "not by evidence",
        "evidence of altered content (e-value)": f"{_amount(known.e_value)}; "
        f"{_amount(1 / known.alpha)} make a leak, 1 says nothing",
    }
    if verdict.status == "error":
        return shown | altered
    certificate = (
        f"certificate against leaks in {sentences.setting(known.detect)} of windows (e-value)"
    )
    part = "nothing was echoed"
    if known.sensitivity is not None:
        part = f"{known.sensitivity:.3g} (lower bound of echo, times the share that was asked)"
    return (
        shown
        | altered
        | {
            "part of leaking windows that would show it": part,
            certificate: (f"{_amount(known.certificate)}; 25 exclude them with 95 % confidence"),
        }
    )


def _amount(value: float) -> str:
    """An e-value: three digits, written out as far as anybody reads them."""
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"  # noqa: PLR2004 (see above)


def _most_evidence(known: Evidence) -> float:
    """The end of the axis on which the evidence of all tiers is drawn."""
    return max(10 / known.alpha, known.e_value, *(tier.e_value for tier in known.tiers))


def _load(scenario: Scenario) -> dict[str, str]:
    """What a scenario sent and what its gate asks for."""
    return {
        name: plain(value)
        for name, value in (asdict(scenario.load) | asdict(scenario.gate)).items()
    }


def _provenance(report: Report) -> dict[str, str]:
    made = report.provenance
    return {
        "target": f"{made.target.model} at {made.target.base_url}",
        "protocol": f"{made.target.backend}, {made.target.api}",
        "command": " ".join(made.command),
        "seed": str(made.seed),
        "started": made.started_utc,
        "took": sentences.duration(report.duration_s),
        "requests": sentences.outcomes(report),
        "what went wrong": troubles.sentence(report.troubles) or "nothing",
        "trust boundaries": boundaries.line(report) or "no leak, and one key",
        "exit code": str(report.exit_code),
        "budget": sentences.budget(report) or "none asked for",
        "self-test": sentences.selftest(report) or "none before this run",
        "leakcheck": f"{made.leakcheck}, report schema {report.schema}",
        "python": made.python,
        "platform": made.platform,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 (NaN)
