import itertools
from collections import Counter

import pytest
from planning import FACTS, in_cell, planned, text

from leakcheck.records import TargetFacts

NAME = "identity-twins"


def pairs(requests, *cells):
    """First and second of each pair."""
    seconds = [r for r in in_cell(requests, *cells) if r.partner is not None]
    return [(requests[second.partner], second) for second in seconds]


def test_twins_send_one_user_message_and_their_secrets_in_the_system_message():
    for first, second in pairs(planned(NAME, 20), "same"):
        assert text(first) == text(second)
        for r in (first, second):
            assert [m.role for m in r.messages] == ["system", "user"]
            assert r.ticket.text in r.messages[0].content
            assert r.passphrase.text in r.messages[0].content
        assert first.tenant != second.tenant


def test_those_alike_differ_in_a_few_words_or_in_the_wording_of_the_ask():
    kinds = Counter()
    for first, second in pairs(planned(NAME, 40), "alike"):
        mine, theirs = text(first).split(), text(second).split()
        assert mine != theirs
        if len(mine) == len(theirs):
            assert sum(a != b for a, b in zip(mine, theirs, strict=True)) <= 2
        kinds[len(mine) == len(theirs)] += 1
    assert min(kinds[True], kinds[False]) >= 10


def test_no_message_of_one_pair_is_that_of_another():
    requests = planned(NAME, 60)
    texts = [text(first) for first, _ in pairs(requests, "same", "alike")]
    assert len(texts) == len(set(texts))


def test_twins_come_together_and_one_after_the_other():
    together = Counter(a.phase == b.phase for a, b in pairs(planned(NAME, 20), "same", "alike"))
    assert together[True] == together[False]


@pytest.mark.parametrize("facts", [FACTS, TargetFacts()])
def test_a_salted_prefix_is_whole_blocks_and_ends_there(facts):
    requests = planned(NAME, 20, facts=facts)
    for first, second in pairs(requests, "same salt", "other salt"):
        words = zip(text(first).split(), text(second).split(), strict=False)
        same = list(itertools.takewhile(lambda pair: pair[0] == pair[1], words))
        assert second.shared_tokens == 48
        assert len(same) == 48 - facts.overhead_tokens


def test_of_two_who_send_a_prefix_again_one_knows_its_salt():
    requests = planned(NAME, 20)
    salts = Counter(r.cache_salt for r in requests.values() if r.cache_salt is not None)
    assert sorted(set(salts.values())) == [1, 2]
    for cell, same in (("same salt", True), ("other salt", False)):
        for first, second in pairs(requests, cell):
            assert (first.cell, first.phase, second.phase) == ("salt", 0, 1)
            assert (first.cache_salt == second.cache_salt) == same


def test_two_tenants_name_one_small_conversation_and_nobody_else_does():
    requests = planned(NAME, 20)
    talks = Counter(r.conversation for r in in_cell(requests, "conversation"))
    assert set(talks.values()) == {2}
    assert all(talk.isdecimal() and len(talk) <= 4 for talk in talks)
    for first, second in pairs(requests, "conversation"):
        assert first.conversation == second.conversation
        assert (first.phase, second.phase, second.ask) == (0, 1, "eliciting")
        assert first.tenant != second.tenant


def test_who_shares_only_an_address_comes_right_after_the_other_with_nothing_between():
    requests = planned(NAME, 10)
    phases = Counter((r.window, r.phase) for r in requests.values())
    for first, second in pairs(requests, "address"):
        assert second.phase == first.phase + 1
        assert phases[first.window, first.phase] == phases[first.window, second.phase] == 1
        assert (first.conversation, second.conversation) == (None, None)
        assert first.passphrase is not None


def test_recipients_ask_for_everything():
    recipients = [r for r in planned(NAME, 10).values() if r.role == "recipient"]
    assert all(r.ask == "eliciting" for r in recipients)
