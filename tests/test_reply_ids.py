"""By which ids the logs of a target know what a finding is about."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from shorthand import history

from leakcheck import analyzer
from leakcheck import history as histories
from leakcheck.backends._headers import reply_id
from leakcheck.report import document, html, markdown, terminal

LEAK = "a> b> a=aA b=bA"


def judged(line, **ids):
    """The report on a run on a line; `ids` are fields of the observations by name of request."""
    run = history(line)._run
    seen = [replace(o, **ids.get(o.request_id, {})) for o in run.seen]
    origin = run.provenance
    return analyzer.analyze(
        histories.build(run.plans, [], seen, provenance=origin, events=run.events)
    )


def test_a_leak_names_the_ids_of_both_replies():
    report = judged(LEAK, a={"reply_id": "req_1"}, b={"reply_id": "req_2", "target_id": "chat-2"})
    evidence = report.verdicts[0].findings[0].evidence
    assert {name: evidence[name] for name in evidence if name.endswith("_id")} == {
        "source_reply_id": "req_1",
        "recipient_reply_id": "req_2",
        "recipient_target_id": "chat-2",
    }


def test_the_ids_are_those_of_the_attempt_that_shows_the_leak():
    run = history("a> b> b!A b> a=A b=B")._run
    seen = [replace(o, reply_id=f"{o.request_id}{o.attempt}") for o in run.seen]
    h = histories.build(run.plans, [], seen, provenance=run.provenance, events=run.events)
    found = analyzer.analyze(h).verdicts[0].findings
    assert {f.evidence["recipient_reply_id"] for f in found if f.severity == "leak"} == {"b1"}


def test_what_a_check_says_nothing_of_is_looked_up():
    report = judged("a> b> a=aA b=bB", a={"target_id": "same"}, b={"target_id": "same"})
    assert all("recipient_reply_id" not in f.evidence for f in report.verdicts[0].findings)
    lost = judged("a> b> a=_ b=bB", a={"reply_id": "req_1"}).verdicts[0].findings
    assert [f.evidence["recipient_reply_id"] for f in lost if f.recipient == "a"] == ["req_1"]


def test_every_form_of_the_report_shows_them_and_escapes_them():
    report = judged(LEAK, a={"reply_id": "<b>1"}, b={"target_id": "chat-\x1b[2J"})
    assert document.load(document.render(report)) == report
    line = "ids in the logs of the target: b chat-\\x1b[2J, a <b>1"
    assert line in " ".join(terminal.render(report, width=400).split())
    for shown in (html.render(report), markdown.render(report)):
        assert "<b>1" not in shown.replace("`<b>1`", "")
        assert "\x1b" not in shown
    assert "source reply id" in html.render(report).replace("_", " ")


def test_without_ids_there_is_no_line_of_them():
    assert "ids in the logs" not in terminal.render(judged(LEAK))
    assert "ids in the logs" not in markdown.render(judged(LEAK))


@given(st.text(st.characters(codec=None), max_size=400))
def test_an_id_is_short_and_printable_or_none(value):
    found = reply_id({"X-Request-Id": value})
    assert found is None or (0 < len(found) <= 128 and found.isprintable())


def test_the_first_header_that_says_anything_counts():
    assert reply_id({"X-Request-Id": " \u202e ", "Request-Id": "req_1"}) == "req_1"
    assert reply_id({"X-Request-Id": "one", "Apim-Request-Id": "two"}) == "one"
    assert reply_id({"CF-Ray": "8", "Date": "x"}) is None
