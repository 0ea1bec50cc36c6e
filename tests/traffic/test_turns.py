import itertools
from collections import defaultdict

import pytest
from planning import FACTS, in_cell, plan, planned

from leakcheck import scenario, wording
from leakcheck.analyzer import echoes
from leakcheck.passphrase import assert_separate, load_words
from leakcheck.records import TargetFacts

NAME = "multi-turn"


def talks(requests, *cells):
    """The turns of each conversation, in the order in which they are sent."""
    found = defaultdict(list)
    for request in in_cell(requests, *cells):
        found[request.twin or request.id].append(request)
    return list(found.values())


def order(requests, window, cell):
    """Who speaks in each phase of a pair, A being who speaks first: `A B AB`."""
    mine = [r for r in in_cell(requests, cell) if r.window == window]
    names = {first: name for name, first in zip("AB", dict.fromkeys(map(root, mine)), strict=True)}
    phases = defaultdict(str)
    for request in mine:
        phases[request.phase] += names[root(request)]
    return " ".join("".join(sorted(phases[phase])) for phase in sorted(phases))


def root(request):
    return request.twin or request.id


def test_a_turn_holds_all_that_was_said_before_and_one_more_message_of_the_user():
    for turns in talks(planned(NAME, 20), "in turn", "nested", "at once", "same"):
        for before, after in itertools.pairwise(turns):
            assert after.messages[: len(before.messages)] == before.messages
            assert [m.role for m in after.messages[len(before.messages) :]] == ["assistant", "user"]


def test_secrets_are_given_in_the_first_turn_and_not_by_the_user_again():
    for request in planned(NAME, 10).values():
        last = request.messages[-1].content
        given = (request.ticket.text in last, request.passphrase.text in last)
        assert given == (len(request.messages) == 1,) * 2
        assert request.ticket.text in request.messages[0].content


def test_the_turns_of_a_conversation_are_one_tenants_on_one_lane():
    requests = planned(NAME, 10)
    for turns in talks(requests, "in turn", "nested", "at once", "same", "joined"):
        assert len({(r.tenant, r.worker, r.lane, r.ticket, r.passphrase) for r in turns}) == 1
    assert len({(r.window, r.tenant) for r in requests.values()}) == 10 * 10


@pytest.mark.parametrize(
    ("cell", "orders"),
    [
        ("in turn", {"A B A B A B"}),
        ("nested", {"A B B A"}),
        ("at once", {"AB AB AB", "AB A B AB", "AB B A AB"}),
        ("same", {"A B A B"}),
        ("joined", {"A A B"}),
    ],
)
def test_who_speaks_when(cell, orders):
    requests = planned(NAME, 40)
    assert {order(requests, window, cell) for window in range(40)} == orders


def test_of_two_that_come_at_once_one_is_late_and_one_is_answered_sooner():
    requests = planned(NAME, 40)
    firsts = [r for r in in_cell(requests, "at once") if r.role == "source"]
    seen = set()
    for one, two in zip(firsts[::2], firsts[1::2], strict=True):
        assert one.phase == two.phase
        assert {one.ask, two.ask} == {"eliciting", "neutral"}
        assert sorted((one.start_offset_s, two.start_offset_s)) == [0.0, 0.03]
        seen.add(one.ask == "neutral" and one.start_offset_s > 0)
        seen.add(two.ask == "neutral" and two.start_offset_s > 0)
    assert seen == {True, False}


def test_twins_end_with_the_same_words_and_no_others_do():
    requests = planned(NAME, 40)
    one_text = 0
    for window in range(40):
        lasts = [t[-1] for t in talks(requests, "same") if t[0].window == window]
        one_text += len({r.messages[-1].content for r in lasts}) == 1
    assert one_text == 40
    others = [r.messages[-1].content for r in requests.values() if r.cell != "same"]
    assert len(others) == len(set(others))


def test_one_joins_with_turns_that_nobody_sent_after_as_many_of_another():
    for turns in talks(planned(NAME, 10), "joined"):
        assert [len(r.messages) for r in turns] in ([1, 3], [5])


def test_every_later_turn_asks_for_everything_and_is_aimed_at_the_other_conversation():
    requests = planned(NAME, 10)
    for request in requests.values():
        assert (request.role == "source") == (len(request.messages) == 1)
        if request.role == "recipient":
            assert request.ask == "eliciting"
            assert request.messages[-1].content.endswith(wording.ELICITING)
            alone = request.cell == "joined" and len(request.messages) == 3
            assert (request.partner is None) == alone
            assert alone or root(requests[request.partner]) != root(request)


def test_an_answer_of_the_control_arm_tells_no_passphrase():
    for request in planned(NAME, 5, facts=FACTS).values():
        assert request.withheld is None
    made = plan_of_control()
    assert_separate([made])
    said = [m.content for r in made.requests for m in r.messages if m.role == "assistant"]
    assert any("Passphrase: none." in each for each in said)


def plan_of_control():
    read = scenario.read(scenario.find(NAME), {"load.windows": 5, "load.control": 1.0})
    return scenario.plan(read, seed=3, facts=FACTS, words=load_words(), style="phrase")


@pytest.mark.parametrize("phrasing", ["asked", "exactly", "records", "again", "begun"])
def test_a_conversation_goes_on_as_it_was_sent_whatever_the_phrasing(phrasing):
    facts = TargetFacts(phrasing=phrasing)
    for turns in talks(planned(NAME, 5, facts=facts), "in turn"):
        for before, after in itertools.pairwise(turns):
            sent = before.messages[: -1 if phrasing == "begun" else None]
            assert after.messages[: len(sent)] == sent
            roles = [m.role for m in after.messages]
            assert all(a != b for a, b in itertools.pairwise(roles))


def test_what_is_asked_last_is_the_question_and_where_it_stood_first_the_place():
    made = plan(NAME, 5)
    later = [r for r in made.requests if len(r.messages) > 1]
    assert {echoes.question(r) for r in later} == {wording.ELICITING}
    assert {echoes.place(r).partition(",")[0] for r in later} == {"middle of the prompt"}


def test_of_fewer_kinds_each_window_has_those_that_it_draws():
    cells = defaultdict(set)
    for request in planned("multi-turn", 12, kinds=2).values():
        cells[request.window].add(request.cell)
    assert {len(seen) for seen in cells.values()} == {2}
    assert set().union(*cells.values()) == {"in turn", "nested", "at once", "same", "joined"}
