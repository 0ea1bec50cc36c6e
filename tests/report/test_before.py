"""What was sent before the scenarios is no scenario; and sentences that were stumbled over."""

import dataclasses

from leakcheck.records import RunEvent
from leakcheck.report import html, plain_run, sentences, terminal


def with_auditions(samples, *, asked="leak"):
    name = samples.NAMES[0]
    leaking = samples.leak_finding(1)
    first = samples.verdict(name, asked)
    if asked == "leak":
        found = (dataclasses.replace(leaking, scenario=name),)
        first = samples.verdict(name, asked, leaks=1, findings=found, findings_total=1)
    others = [
        samples.verdict(each, "leak", leaks=1, findings=(leaking,), findings_total=1)
        for each in ("audition-phrase", "audition-digits")
    ]
    return samples.report("leak", [*others, first])


def test_auditions_are_no_scenarios_in_the_headline(samples):
    said = plain_run.run(with_auditions(samples)).found
    assert said.startswith("The scenario shows a leak, and requests sent before the scenarios")
    assert "audition" not in sentences.headline(with_auditions(samples))
    said = plain_run.run(with_auditions(samples, asked="clean")).found
    assert said.startswith("The scenario is clean, and requests sent before the scenarios show")


def test_auditions_stand_after_the_scenarios(samples):
    page = html.render(with_auditions(samples, asked="clean"))
    assert page.index(f">{samples.NAMES[0]}</h3>") < page.index(">audition-phrase</h3>")


def test_an_event_without_words_is_a_sentence(samples):
    events = (RunEvent(kind="resumed", at_ns=1),)
    shown = terminal.render(dataclasses.replace(samples.clean(), events=events))
    assert "the run was resumed" in shown
    assert "resumed:" not in shown


def test_unknown_is_explained_where_it_is_counted(samples):
    assert f"2 unknown ({sentences.UNKNOWN})" in sentences.outcomes(samples.leak())
