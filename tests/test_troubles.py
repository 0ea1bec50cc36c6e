"""What a sick target's trouble looks like: counted by kind, in every form of the report."""

from dataclasses import replace

from shorthand import history

from leakcheck import history as histories
from leakcheck.analyzer import analyze
from leakcheck.checks import metadata
from leakcheck.history.troubles import KINDS, sentence, table
from leakcheck.records import Usage
from leakcheck.report import document, html, markdown, terminal

LINE = "a> b> c> d> a=aA b! c! d! d> d=dD e> e- e> e=eE"
WRONG = {
    "b": {"status": 500, "error": "the target answered with status 500: <b>boom</b>"},
    "c": {"status": 500, "error": "the target answered with status 500: again"},
    "d": {"error": "the connection was cut"},
    "e": {"status": 429, "error": "refused with status 429: slow down"},
}


def changed(h, change):
    run = h._run
    seen = [replace(o, **change(o)) for o in run.seen]
    return histories.build(run.plans, [], seen, provenance=run.provenance, events=run.events)


def sick(line=LINE):
    h = history(line)
    return changed(h, lambda o: {} if o.outcome == "ok" else WRONG.get(o.request_id, {}))


def test_attempts_without_an_answer_are_counted_by_kind_and_waited_refusals_apart():
    assert sentence(table(sick())) == (
        "3 of 7 attempts brought no whole answer: 2 x status 500 (first: <b>boom</b>), 1 x the "
        "connection was cut; 1 of 7 attempts were refused for the moment and sent again: 1 x "
        "status 429 (first: slow down)"
    )


def test_a_healthy_run_has_nothing_to_say_of_it():
    assert table(history("a> b> a=aA b=bB")) == ()
    assert sentence(()) == ""


def test_messages_without_end_make_few_kinds():
    h = history(" ".join(f"{n}> {n}!" for n in "abcdefghijklmn"))
    mixed = changed(h, lambda o: {"error": f"it said {o.request_id}: more"})
    found = table(mixed)
    assert len(found) == KINDS + 1
    assert sum(each.attempts for each in found) == 14


def test_every_form_of_the_report_says_what_went_wrong_and_escapes_it():
    report = analyze(sick())
    assert document.load(document.render(report)).troubles == report.troubles
    assert "2 x status 500 (first: <b>boom</b>)" in terminal.render(report, width=400)
    for text in (html.render(report), markdown.render(report)):
        assert "status 500" in text
        assert "&lt;b&gt;boom" in text
        assert "<b>boom" not in text


def test_an_open_scenario_that_was_starved_says_what_starved_it():
    (verdict,) = analyze(sick()).verdicts
    assert verdict.status == "inconclusive"
    assert any("2 x status 500" in reason for reason in verdict.reasons)


def test_impossible_usage_is_noted_once_and_is_no_evidence_of_the_cache():
    for usage in (Usage(prompt_tokens=10, cached_tokens=30), Usage(cached_tokens=3, negative=True)):
        h = changed(history("a> b> a=aA b=bB"), lambda _, usage=usage: {"usage": usage})
        assert h.observations["cached_tokens"].isna().all()
        (verdict,) = analyze(h).verdicts
        (note,) = [each for each in verdict.notes if "impossible usage" in each]
        assert note.startswith("2 of 2 attempts")


def test_one_id_for_the_answers_to_several_requests_is_counted():
    h = changed(history("a> b> c> a=aA b=bB c=cC"), lambda _: {"target_id": "chatcmpl-1"})
    assert "3 of 3 answers with an id share it" in metadata.shared_ids(h)
    assert metadata.shared_ids(h) in analyze(h).verdicts[0].notes
    own = changed(h, lambda o: {"target_id": o.request_id})
    assert metadata.shared_ids(own) is None
