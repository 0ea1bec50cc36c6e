"""What is found without anybody's passphrase is shown as plainly as a leak."""

from dataclasses import replace

import pytest
from pretending import Reply, history, obedient, say

from leakcheck.analyzer import analyze
from leakcheck.report import html, markdown, sentences, terminal

GONE = Reply(outcome="unknown", status=None, error="no whole answer within 60 s")


def dying(request, company):
    return GONE if request.window >= 10 else obedient(request, company)


def ignoring_stops_in_company(request, company):
    stop = () if company else request.sampling.stop
    return say(request, replace(request.sampling, stop=stop))


def losing_tickets_in_planted_company(request, company):
    lost = request.cell == "planted" and request.role == "recipient"
    return Reply(text="So it goes on.") if lost else obedient(request, company)


CASES = {
    "lost-capacity": ("concurrency-sweep", dying, "error", 4),
    "foreign-parameters": ("parameter-twins", ignoring_stops_in_company, "corruption", 1),
    "changed-answer": (
        "mixed-batch-differential",
        losing_tickets_in_planted_company,
        "corruption",
        1,
    ),
}


@pytest.fixture(scope="module")
def reports():
    return {
        anomaly: analyze(history(name, 24, model, load__requests=12))
        for anomaly, (name, model, _, _) in CASES.items()
    }


@pytest.mark.parametrize("anomaly", CASES)
def test_status_and_exit_code_follow_the_severity(reports, anomaly):
    _, _, status, code = CASES[anomaly]
    assert (reports[anomaly].status, reports[anomaly].exit_code) == (status, code)


@pytest.mark.parametrize("anomaly", CASES)
def test_every_renderer_shows_the_finding_and_why(reports, anomaly):
    report = reports[anomaly]
    finding = next(f for f in sentences.grave(report) if f.anomaly == anomaly)
    assert f"{anomaly}" in terminal.render(report)
    assert f'class="card finding {finding.severity}"' in html.render(report)
    assert f"**1. {finding.severity}**" in markdown.render(report)
    for text in (terminal.render(report, width=4000), html.render(report)):
        assert finding.explanation.split(";")[0][:60].split("'")[0] in text


def test_the_terminal_colours_an_error_like_the_status(reports):
    shown = terminal.render(reports["lost-capacity"], colour=True)
    assert "\x1b[1;31m  lost-capacity" in shown


def test_the_page_has_a_colour_for_each_severity_of_a_finding():
    page = html.render(analyze(history("concurrency-sweep", 24, dying, load__requests=4)))
    for severity in ("leak", "corruption", "error", "note"):
        assert f".{severity}.tag" in page


@pytest.mark.parametrize(
    ("anomaly", "words"),
    [
        ("lost-capacity", "the target lost capacity"),
        ("foreign-parameters", "were shaped by the parameters of other requests, over windows"),
        ("changed-answer", "changed with what was sent beside or before them, over windows"),
    ],
)
def test_the_headline_says_what_kind_of_trouble_it_is(reports, anomaly, words):
    assert words in sentences.headline(reports[anomaly])


def test_only_what_was_replayed_is_said_to_be_confirmed_by_replay(reports):
    for report in reports.values():
        assert "confirmed by replay" not in sentences.headline(report)
        assert not any("confirmed by" in reason for v in report.verdicts for reason in v.reasons)
