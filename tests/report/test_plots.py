from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from leakcheck.records import Curve
from leakcheck.report import plots

NAMES = st.text(st.characters(codec=None), min_size=1)


def parsed(svg):
    return ET.fromstring(svg)  # noqa: S314 (our own writer's text: whether it parses is the point)


TIMES = st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3)).map(lambda t: (t[0], t[0] + t[1]))


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(1, 10**6)), min_size=1, max_size=40))
def test_a_heat_map_is_well_formed_and_shows_every_leak_or_counts_it_outside(pairs):
    svg = parsed(plots.heat_map(pairs))
    inside = sum(int(text.text) for text in svg.iter("text") if "count" in text.get("class"))
    assert inside + plots.heat_rest(pairs) == sum(count for _, _, count in pairs)


def test_a_heat_map_of_hundreds_of_names_keeps_the_busiest():
    pairs = [(f"t{n}", f"t{n + 1}", n + 1) for n in range(300)]
    svg = parsed(plots.heat_map(pairs))
    names = [text.text for text in svg.iter("text") if "name" in text.get("class")]
    assert len(names) == 2 * plots.HEAT_NAMES
    assert "t299" in names
    assert "t2" not in names


def test_names_of_a_heat_map_stand_in_natural_order():
    pairs = [("t10", "t2", 1), ("t9", "t11", 1)]
    svg = parsed(plots.heat_map(pairs))
    names = [text.text for text in svg.iter("text") if "name" in text.get("class")]
    assert names == ["t2", "t11", "t9", "t10"]


def test_a_chart_has_a_whisker_and_counts_for_every_level(samples):
    points = tuple((str(n), samples.rate(n, 20)) for n in range(4))
    curve = Curve(title="Leak rate", axis="requests in flight", points=points)
    assert plots.is_chart(curve)
    svg = parsed(plots.chart(curve))
    shown = [text.text for text in svg.iter("text")]
    assert {"0/20", "1/20", "2/20", "3/20", "requests in flight"} <= set(shown)
    assert len(list(svg.iter("circle"))) == 4
    assert sum(line.get("class") == "span" for line in svg.iter("line")) == 12


def test_a_higher_rate_stands_higher(samples):
    points = (("1", samples.rate(1, 20)), ("2", samples.rate(9, 20)))
    svg = parsed(plots.chart(Curve(title="", axis="", points=points)))
    low, high = (float(dot.get("cy")) for dot in svg.iter("circle"))
    assert high < low


def test_a_level_without_trials_has_no_point(samples):
    points = (("1", samples.rate(0, 0)), ("2", samples.rate(1, 4)))
    svg = parsed(plots.chart(Curve(title="", axis="", points=points)))
    assert len(list(svg.iter("circle"))) == 1


def test_long_or_many_levels_are_rows_instead_of_a_chart(samples):
    long = (("1*B+1 equal warm", samples.rate(0, 9)), ("2", samples.rate(0, 9)))
    many = tuple((str(n), samples.rate(0, 9)) for n in range(40))
    assert not plots.is_chart(Curve(title="", axis="", points=long))
    assert not plots.is_chart(Curve(title="", axis="", points=many))


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_whisker_stays_inside_its_axis(samples, events, more):
    rate = samples.rate(events, events + more)
    svg = parsed(plots.whisker(rate, plots.scale_of([rate])))
    ends = [float(line.get(end)) for line in svg.iter("line") for end in ("x1", "x2")]
    assert all(0 <= end <= 100 for end in ends)


@given(st.floats(0, 1e300), st.floats(0, 1e300), st.sampled_from([20.0, 100.0, 1e6]))
def test_more_evidence_stands_further_right_and_inside_its_axis(one, other, needed):
    most = max(10 * needed, one, other)
    places = []
    for value in sorted((one, other)):
        svg = parsed(plots.gauge(value, needed, most))
        point = next(line for line in svg.iter("line") if "point" in line.get("class"))
        places.append(float(point.get("x1")))
        assert (point.get("class") == "point") == (value >= needed)
    assert 0 <= places[0] <= places[1] <= 100


@given(TIMES, TIMES)
def test_a_timeline_stays_inside_its_picture(source, recipient):
    svg = parsed(plots.timeline(source, recipient))
    for bar in svg.iter("rect"):
        assert float(bar.get("x")) >= 0
        assert float(bar.get("x")) + float(bar.get("width")) <= 100.9
        assert float(bar.get("width")) > 0


def test_how_two_requests_overlapped_is_said_in_words():
    assert (
        plots.how_they_overlapped((0.0, 0.5), (0.3, 1.8))
        == "in flight together for 200 ms of the recipient's 1.50 s"
    )
    assert (
        plots.how_they_overlapped((0.0, 0.5), (2.5, 3.0))
        == "the source had ended 2.00 s before the recipient"
    )
    assert (
        plots.how_they_overlapped((5.0, 6.0), (2.5, 3.0))
        == "the source started 2.00 s after the recipient had ended"
    )
