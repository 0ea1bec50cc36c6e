"""A phrasing adds to the end of a prompt; all in front of it is as every shape planned it."""

import pytest

from leakcheck import scenario, wording
from leakcheck.analyzer import echoes
from leakcheck.passphrase import assert_separate, load_words
from leakcheck.records import Phrasing, TargetFacts

SHIPPED = [path.stem for path in scenario.shipped_files()]
PHRASINGS: tuple[Phrasing, ...] = wording.phrasings(continues=False)[1:]


def planned(name, phrasing="asked", *, continues=False, **load):
    overrides = {"load.windows": 2, **{f"load.{key}": value for key, value in load.items()}}
    its = scenario.read(scenario.find(name), overrides)
    facts = TargetFacts(block_tokens=16, phrasing=phrasing, continues=continues)
    return scenario.plan(its, seed=11, facts=facts, words=load_words(), style="phrase")


def said(request):
    """What the shape of traffic has others say than the target."""
    return [m for m in request.messages if m.role != "assistant" and m.content != wording.AGAIN]


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("phrasing", PHRASINGS)
def test_prompts_begin_as_they_would_and_all_else_is_the_same(name, phrasing):
    usual, other = planned(name), planned(name, phrasing)
    assert [r.id for r in usual.requests] == [r.id for r in other.requests]
    for one, two in zip(usual.requests, other.requests, strict=True):
        pairs = zip(said(one), said(two), strict=True)
        assert all(b.content.startswith(a.content) and a.role == b.role for a, b in pairs)
        assert (one.passphrase, one.ticket, one.ask) == (two.passphrase, two.ticket, two.ask)
        assert echoes.place(one) == echoes.place(two)
        assert echoes.question(one) == echoes.question(two)


@pytest.mark.parametrize("phrasing", PHRASINGS)
def test_a_request_with_a_phrasing_holds_its_own_phrases_and_nobody_elses(phrasing):
    assert_separate([planned("concurrency-sweep", phrasing)])


@pytest.mark.parametrize("phrasing", PHRASINGS)
def test_a_withheld_passphrase_is_in_no_message(phrasing):
    for request in planned("control-group", phrasing, control=1.0).requests:
        text = " ".join(message.content for message in request.messages)
        assert request.withheld is None or request.withheld.text not in text
        assert "PASSPHRASE=" not in text


@pytest.mark.parametrize("phrasing", PHRASINGS)
def test_questions_that_are_to_be_the_same_stay_the_same(phrasing):
    twins = [r for r in planned("identity-twins", phrasing).requests if r.cell == "same"]
    asked = {r.messages[1].content for r in twins if r.partner or r.role == "source"}
    assert len(asked) == len(twins) / 2


def test_a_target_that_continues_texts_gets_records_whatever_the_phrasing():
    usual = planned("concurrency-sweep", continues=True)
    assert planned("concurrency-sweep", "begun", continues=True) == usual
    assert all(r.messages[-1].content.endswith(wording.CONTINUED) for r in usual.requests)


def test_the_answer_is_begun_where_that_is_the_phrasing():
    assert all(
        r.messages[-1].role == "assistant" for r in planned("control-group", "begun").requests
    )


def test_nothing_is_added_by_the_usual_phrasing():
    assert wording.ending("asked", ticket="a b", passphrase="c d") == ("", ())
