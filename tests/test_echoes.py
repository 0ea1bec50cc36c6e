"""Echo by question and place of the passphrase."""

import pytest
from pretending import obedient, plan, played
from shorthand import history, passphrase, ticket

from leakcheck import wording
from leakcheck.analyzer import echoes, judge
from leakcheck.records import Gate, Message

ASK = wording.ELICITING
OWN = wording.TICKET.format(ticket=ticket("a"))
SECRET = wording.PASSPHRASE.format(passphrase=passphrase("a"))
FILLER = "We saw the house. It was near."


def asked(text, **more):
    return {"messages": (Message(role="user", content=text),), **more}


def only(text, **more):
    """The one request of a run, whose user's message is `text`."""
    return history("a> a=aA", changes={"a": asked(text, **more)}).by_id("a")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{SECRET} {FILLER} {OWN} {ASK}", "beginning of the prompt"),
        (f"{SECRET} {ASK}", "beginning of the prompt"),
        (f"{OWN} {SECRET} {ASK}", "end of the prompt"),
        (f"{FILLER} {OWN} {SECRET} {ASK}", "end of the prompt, after other content"),
        (f"{OWN} {FILLER} {SECRET} {ASK}", "end of the prompt, after other content"),
        (f"{OWN} {SECRET} {FILLER} {ASK}", "middle of the prompt"),
        (f"{FILLER} {SECRET} {OWN} {ASK}", "middle of the prompt, after other content"),
    ],
)
def test_the_place_is_what_stands_around_the_passphrase(text, place):
    assert echoes.place(only(text)) == place


def test_a_system_message_is_content_before():
    messages = (
        Message(role="system", content=wording.SYSTEM),
        Message(role="user", content=f"{SECRET} {ASK}"),
    )
    request = only("", messages=messages)
    assert echoes.place(request) == "end of the prompt, after other content"


def test_the_records_of_a_continued_text_are_no_content():
    records = wording.records(ticket("a"), passphrase("a"))
    request = only(f"{FILLER} {OWN} {SECRET} {ASK}{records}")
    assert echoes.place(request) == "end of the prompt, after other content"
    assert echoes.question(request) == ASK


@pytest.mark.parametrize("ask", wording.ALIKE)
def test_known_questions_are_told_apart(ask):
    assert echoes.question(only(f"{FILLER} {SECRET} {ask}")) == ask


def test_an_unknown_question_is_the_last_sentence():
    assert echoes.question(only(f"{SECRET} We saw it. What do you see?")) == "What do you see"


LINE = "a> b> c> d> a=aA b=b c=cC d!"


def owners():
    return {
        name: asked(
            f"{wording.TICKET.format(ticket=ticket(name))} "
            f"{wording.PASSPHRASE.format(passphrase=passphrase(name))} {ASK}"
        )
        for name in "abcde"
    }


def test_a_row_counts_owners_that_asked_and_were_answered():
    tables, _ = echoes.table(history(LINE, changes=owners()), 0.0)
    columns, row = tables[echoes.TITLE]
    assert columns[2:4] == ("owners asked", "echoed")
    assert row[:4] == (ASK, "end of the prompt", 3, 2)


def test_cells_are_told_apart_and_add_up_to_the_echo_rate():
    changes = owners() | {"c": asked(f"{SECRET} {passphrase('c')} {FILLER} {ASK}")}
    h = history(LINE, changes=changes)
    rows = echoes.table(h, 0.0)[0][echoes.TITLE][1:]
    assert len(rows) == 2
    assert sum(row[2] for row in rows) == echoes.rate(h).trials == 3
    assert sum(row[3] for row in rows) == echoes.rate(h).events == 2


def test_bounds_are_never_rounded_up():
    *_, lower = echoes.table(history(LINE, changes=owners()), 0.0)[0][echoes.TITLE][1]
    exact = echoes.rate(history(LINE, changes=owners())).lower
    assert exact - 1e-4 < lower <= exact


def test_a_cell_that_loses_echoes_is_named_below_the_minimum():
    (note,) = echoes.table(history(LINE, changes=owners()), 0.5)[1]
    assert "stands at the end of the prompt" in note
    assert "2 of 3 owners (at least 13.5 %, and 50 % wanted)" in note
    assert note.endswith("may not show")


def test_a_cell_that_surely_echoes_too_little_would_hardly_show_a_leak():
    h = history("a> b> c> d> e> a=a b=b c=c d=d e=e", changes=owners())
    (note,) = echoes.table(h, 0.5)[1]
    assert note.endswith("would hardly show")


@pytest.mark.parametrize("minimum", [0.0, 0.13])
def test_no_cell_is_named_that_keeps_the_minimum(minimum):
    assert echoes.table(history(LINE, changes=owners()), minimum)[1] == ()


def test_a_few_owners_that_were_all_echoed_are_no_weak_cell():
    assert echoes.table(history("a> b> a=aA b=bB"), 0.9)[1] == ()


def test_without_an_owner_that_asked_there_is_no_table():
    h = history("a> a=aA", changes={"a": {"ask": "neutral"}})
    assert echoes.table(h, 0.5) == ({}, ())


def test_replays_do_not_count():
    h = history("a> b> a=aA b=bB", changes={"b": {"replays": "a"}})
    assert echoes.rate(h).trials == 1


@pytest.mark.parametrize(
    ("scenario", "places"),
    [
        ("rare-token-passphrase", {"beginning of the prompt", "end of the prompt"}),
        ("identity-twins", {"middle of the prompt", "end of the prompt"}),
    ],
)
def test_shipped_scenarios_put_passphrases_into_several_places(scenario, places):
    h = played(plan(scenario, 20), obedient)
    rows = echoes.table(h, 0.5)[0][echoes.TITLE][1:]
    assert {row[1].partition(",")[0] for row in rows} == places
    assert {row[0] for row in rows} <= set(wording.ALIKE)


def test_the_verdict_has_the_table_and_names_the_weak_place():
    h = history(LINE, changes=owners(), gate=Gate(min_windows=1, min_echo=0.5)).scenario("tiny")
    verdict = judge(h, h.plans[0])
    assert verdict.tables[echoes.TITLE][0] == echoes.COLUMNS
    assert any(note.startswith("echo is weakest where") for note in verdict.notes)
