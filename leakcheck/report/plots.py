"""Small pictures as inline SVG: no script, no style attribute, no request; classes give colour.

Every text goes through the XML writer and `visible`, so nothing a target said can be markup.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

from leakcheck.records import Curve, Rate, Status
from leakcheck.report.sentences import counts, interval, percent, setting
from leakcheck.report.untrusted import cut, visible

HEAT_NAMES = 24
"""Rows and columns of a heat map at most: those with most findings."""

_SHORT_LEVEL = 7
_MOST_COLUMNS = 14
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)

_ICONS: dict[Status, str] = {
    "clean": "M3 8.5 6.5 12 13 4.5",
    "leak": "M8 2.2 14.4 13.4H1.6ZM8 6.4v3.4M8 11.6v.1",
    "corruption": "M1.5 9.5c2-4.5 4-4.5 6.5-1.5s4.5 3 6.5-1.5",
    "inconclusive": "M5.2 6a2.8 2.8 0 1 1 4.1 2.5c-.9.5-1.3 1-1.3 2M8 13v.1",
    "error": "M4 4l8 8M12 4l-8 8",
}


def icon(status: Status) -> str:
    """A sign of its own shape for each status, for the eye only: the word stands beside it."""
    svg = _svg("icon", 16, 16, aria_hidden="true")
    _add(svg, "path", d=_ICONS[status])
    return _write(svg)


def scale_of(rates: Sequence[Rate]) -> float:
    """The smallest round number that no interval of `rates` passes: the end of a common axis."""
    most = max((rate.high for rate in rates if rate.trials), default=0.0)
    return next((step for step in _STEPS if step >= most), 1.0)


def whisker(rate: Rate, scale: float) -> str:
    """One rate on an axis 0..`scale`: a point with its exact interval, as wide as its cell."""
    svg = _svg("whisker", 100, 16, preserveAspectRatio="none", role="img")
    _title(svg, _sentence(rate))
    _line(svg, "axis", (0, 8), (100, 8))
    if rate.value is not None:
        low, value, high = (
            min(100.0, 100 * part / scale) for part in (rate.low, rate.value, rate.high)
        )
        _line(svg, "span", (low, 8), (high, 8))
        _line(svg, "span", (low, 4), (low, 12))
        _line(svg, "span", (high, 4), (high, 12))
        _line(svg, "point" if rate.events else "point none", (value, 8), (value, 8))
    return _write(svg)


def gauge(e_value: float, needed: float, most: float) -> str:
    """Evidence on a logarithmic axis 0.1..`most`: a point, a tick at 1 (says nothing), and a line
    at `needed`, as wide as its cell.
    """
    svg = _svg("gauge", 100, 16, preserveAspectRatio="none", role="img")
    _title(svg, f"{e_value:.3g} of {needed:.3g} needed; 1 says nothing")
    span = math.log10(most) + 1

    def at(value: float) -> float:
        return 100 * (math.log10(min(max(value, 0.1), most)) + 1) / span

    _line(svg, "axis", (0, 8), (100, 8))
    _line(svg, "axis", (at(1), 5), (at(1), 11))
    _line(svg, "span", (at(needed), 2), (at(needed), 14))
    point = "point" if e_value >= needed else "point none"
    _line(svg, point, (at(e_value), 8), (at(e_value), 8))
    return _write(svg)


def is_chart(curve: Curve) -> bool:
    """Whether the levels are short and few enough for columns; otherwise rows of whiskers do."""
    levels = [level for level, _ in curve.points]
    return 1 < len(levels) <= _MOST_COLUMNS and all(len(level) <= _SHORT_LEVEL for level in levels)


def chart(curve: Curve) -> str:
    """Leak rate against the levels of `curve`, each point with its exact 95 % interval."""
    step, left, top, height = 62, 52, 12, 150
    width = left + step * len(curve.points)
    svg = _svg("chart", width, top + height + 62, role="img")
    _title(svg, f"{curve.title}: " + "; ".join(f"{a}: {_sentence(b)}" for a, b in curve.points))
    scale = scale_of([rate for _, rate in curve.points])
    for share in (0.0, 0.5, 1.0):
        y = top + height * (1 - share)
        _line(svg, "axis" if share == 0 else "grid", (left, y), (width, y))
        _text(svg, "tick end", left - 8, y + 4, setting(scale * share))
    dots = []
    for place, (level, rate) in enumerate(curve.points):
        x = left + step * (place + 0.5)
        _text(svg, "level", x, top + height + 18, level)
        _text(svg, "tick", x, top + height + 34, counts(rate))
        if rate.value is not None:
            low, value, high = (
                top + height * (1 - part / scale) for part in (rate.low, rate.value, rate.high)
            )
            dots.append((x, value, rate.events))
            _line(svg, "span", (x, low), (x, high))
            _line(svg, "span", (x - 6, low), (x + 6, low))
            _line(svg, "span", (x - 6, high), (x + 6, high))
    if dots:
        _add(svg, "polyline", class_="trend", points=" ".join(f"{x:g},{y:.1f}" for x, y, _ in dots))
    for x, y, events in dots:
        _add(svg, "circle", class_="dot" if events else "dot none", cx=x, cy=y, r=4.5)
    _text(svg, "tick", left + (width - left) / 2, top + height + 55, curve.axis)
    return _write(svg)


def timeline(source: tuple[float, float], recipient: tuple[float, float]) -> str:
    """Two bars over one time axis (seconds of the window): source above, recipient below."""
    start, end = min(*source, *recipient), max(*source, *recipient)
    span = (end - start) or 1.0
    svg = _svg("timeline", 100, 34, preserveAspectRatio="none", role="img")
    _title(svg, how_they_overlapped(source, recipient))
    both = (max(source[0], recipient[0]), min(source[1], recipient[1]))
    if both[1] > both[0]:
        _bar(svg, "both", both, (start, span), y=0, height=34)
    _bar(svg, "source", source, (start, span), y=4, height=11)
    _bar(svg, "recipient", recipient, (start, span), y=19, height=11)
    return _write(svg)


def how_they_overlapped(source: tuple[float, float], recipient: tuple[float, float]) -> str:
    """The timeline in words."""
    together = min(source[1], recipient[1]) - max(source[0], recipient[0])
    if together > 0:
        return f"in flight together for {_seconds(together)} of the recipient's " + _seconds(
            recipient[1] - recipient[0]
        )
    if source[1] <= recipient[0]:
        return f"the source had ended {_seconds(recipient[0] - source[1])} before the recipient"
    return f"the source started {_seconds(source[0] - recipient[1])} after the recipient had ended"


def heat_map(pairs: Sequence[tuple[str, str, int]]) -> str:
    """Findings by source (rows) and recipient (columns); the number stands in each cell."""
    sources, recipients = _busiest(pairs, 0), _busiest(pairs, 1)
    table = Counter({(a, b): 0 for a, b, _ in pairs})
    for source, recipient, count in pairs:
        table[source, recipient] += count
    most = max(table.values(), default=1)
    cell, left = 36, max(70, 18 + 8 * max(len(_name(name)) for name in sources))
    top = 36 + 8 * max(len(_name(name)) for name in recipients)
    width = left + max(cell * len(recipients) + 4, 84)
    svg = _svg("heat", width, top + cell * len(sources) + 4, role="img")
    _title(svg, "Leaks by source (rows) and recipient (columns); the table below has the numbers")
    _text(svg, "tick", max(left + cell * len(recipients) / 2, 40), 14, "recipient →")
    _text(svg, "tick end", left - 8, top - 10, "source ↓")
    for column, recipient in enumerate(recipients):
        x, y = left + cell * (column + 0.5) + 4, top - 8
        _text(svg, "name", x, y, _name(recipient), transform=f"rotate(-90 {x:g} {y:g})")
    for row, source in enumerate(sources):
        _text(svg, "name end", left - 8, top + cell * (row + 0.5) + 4, _name(source))
        for column, recipient in enumerate(recipients):
            count = table[source, recipient]
            corner = (left + cell * column, top + cell * row)
            pair = f"{source} → {recipient}"
            _cell(svg, corner, side=cell, pair=pair, count=count, most=most)
    return _write(svg)


def heat_rest(pairs: Sequence[tuple[str, str, int]]) -> int:
    """How many leaks stand outside the map because it would grow too large."""
    sources, recipients = set(_busiest(pairs, 0)), set(_busiest(pairs, 1))
    return sum(n for a, b, n in pairs if a not in sources or b not in recipients)


def _cell(
    svg: ET.Element, corner: tuple[float, float], *, side: int, pair: str, count: int, most: int
) -> None:
    x, y = corner
    heat = 0 if not count else 1 + min(3, int(4 * (count - 1) / max(most, 1)))
    group = _add(svg, "g")
    if count:
        _title(group, f"{pair}: {count}")
    _add(group, "rect", class_=f"heat-{heat}", x=x + 1, y=y + 1, width=side - 2, height=side - 2)
    if count:
        _text(group, f"count on-{heat}", x + side / 2, y + side / 2 + 4, str(count))


def _busiest(pairs: Sequence[tuple[str, str, int]], place: int) -> list[str]:
    weight: Counter[str] = Counter()
    for pair in pairs:
        weight[str(pair[place])] += pair[2]
    return sorted((name for name, _ in weight.most_common(HEAT_NAMES)), key=_natural)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A key that puts t2 before t10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts]


def _name(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"  # noqa: PLR2004 (what a row label holds)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _sentence(rate: Rate) -> str:
    if rate.value is None:
        return "not measured"
    return f"{counts(rate)} windows = {percent(rate.value)}, 95 % interval {interval(rate)}"


# --- writing -------------------------------------------------------------------------------------


def _svg(name: str, width: float, height: float, **attributes: Any) -> ET.Element:
    svg = ET.Element("svg", {"class": name, "viewBox": f"0 0 {width:g} {height:g}"})
    if attributes.get("preserveAspectRatio") is None:
        svg.attrib |= {"width": f"{width:g}", "height": f"{height:g}"}
    svg.attrib |= {key.replace("_", "-"): str(value) for key, value in attributes.items()}
    return svg


def _add(parent: ET.Element, tag: str, **attributes: Any) -> ET.Element:
    written = {
        key.rstrip("_").replace("_", "-"): f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
        for key, value in attributes.items()
    }
    return ET.SubElement(parent, tag, written)


def _title(parent: ET.Element, text: str) -> None:
    _add(parent, "title").text = visible(cut(text, 2000))


def _text(parent: ET.Element, name: str, x: float, y: float, text: str, **more: Any) -> None:
    _add(parent, "text", class_=name, x=x, y=y, **more).text = visible(cut(text, 80))


def _line(
    parent: ET.Element, name: str, start: tuple[float, float], end: tuple[float, float]
) -> None:
    ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
    _add(parent, "line", class_=name, vector_effect="non-scaling-stroke", **ends)


def _bar(
    parent: ET.Element,
    name: str,
    bar: tuple[float, float],
    axis: tuple[float, float],
    *,
    y: int,
    height: int,
) -> None:
    start, span = axis
    width = max(0.8, 100 * (bar[1] - bar[0]) / span)
    x = 100 * (bar[0] - start) / span
    _add(parent, "rect", class_=name, x=min(x, 99.2), y=y, width=width, height=height)


def _write(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode")
