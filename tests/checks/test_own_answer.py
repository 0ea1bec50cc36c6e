"""Everybody must get their own answer."""

import pytest
from shorthand import history, ticket, with_chunks

from leakcheck.checks import own_answer
from leakcheck.checks.own_answer import ALONE, HOT, IN_WINDOW, Replays
from leakcheck.records import Chunk, TargetFacts, Usage

SAMPLES = TargetFacts(samples=True)


def findings(h):
    return own_answer.check(h).findings


CELLS = {"alone": ALONE, "hot": HOT, "window": IN_WINDOW}


def replayed(facts=SAMPLES, **answers):
    """A run in which b was answered without its ticket, then sent again: a letter or mark an
    answer, `b` its ticket, `_` none, `!` no answer at all.
    """
    b, line, changes = history("b.").by_id("b"), "a> b> a=a b=_", {}
    same = {"ticket": b.ticket, "passphrase": b.passphrase, "replays": "b"}
    for kind, cell in CELLS.items():
        for answer in answers.get(kind, ""):
            name = chr(0x4E00 + len(changes))
            line += f" | {name}> {name}" + ("!" if answer == "!" else f"={answer}")
            changes[name] = same | {"cell": cell}
    return history(line, changes=changes, facts=facts)


def severity(facts=SAMPLES, **answers):
    return {f.recipient: f.severity for f in findings(replayed(facts, **answers))}["b"]


CONFIRMING = {"alone": "bbb", "hot": "b" * 23 + "_", "window": "_____b"}


@pytest.mark.parametrize("line", ["a> b> a=a b=b", "a> b> a=aA b=Bb", "a> b> a! b-", "a> b."])
def test_own_tickets_and_missing_answers_are_no_finding(line):
    assert findings(history(line)) == ()


@pytest.mark.parametrize(("answer", "where"), [("a", "in place of"), ("ba", "beside")])
def test_a_foreign_ticket_is_a_leak_with_or_without_the_own_one(answer, where):
    (found,) = findings(history(f"a> b> a=a b={answer}"))
    assert (found.anomaly, found.severity) == ("foreign-answer", "leak")
    assert (found.source, found.recipient, found.relation) == ("a", "b", "concurrent")
    assert f"with the ticket of a (tenant t00) {where} its own" in found.explanation


def test_two_swapped_answers_are_two_leaks():
    pairs = {(f.source, f.recipient) for f in findings(history("a> b> a=bB b=aA"))}
    assert pairs == {("a", "b"), ("b", "a")}


def test_a_foreign_ticket_in_an_attempt_that_failed_is_a_leak():
    (found,) = findings(history("a> b> b!a a=a"))
    assert found.anomaly == "foreign-answer"


def test_an_answer_with_nobodys_ticket_is_a_note_while_nothing_confirms_it():
    (found,) = findings(history("a> b> a=a b=B"))
    assert (found.anomaly, found.severity, found.source) == ("lost-answer", "note", None)
    assert found.explanation.endswith("was answered without any ticket; it was not sent again.")


def test_a_ticket_kept_alone_even_when_hot_and_lost_again_in_the_window_is_corruption():
    (found,) = findings(replayed(**CONFIRMING))
    assert (found.anomaly, found.severity) == ("lost-answer", "corruption")
    assert found.explanation.endswith(
        "; sent again alone it returned it 3 of 3 times, at temperature 1 it lost it 1 of 24 times,"
        " and with its whole window it lost it 5 of 6 times."
    )
    assert found.evidence == {
        "kept_alone": 3,
        "replayed_alone": 3,
        "lost_hot": 1,
        "replayed_hot": 24,
        "lost_in_window": 5,
        "replayed_in_window": 6,
    }


@pytest.mark.parametrize(
    "less",
    [
        {"alone": "bb_"},
        {"alone": "___"},
        {"alone": "!!!"},
        {"alone": "bb!"},
        {"alone": "", "hot": ""},
        {"hot": "b" * 22 + "__"},
        {"hot": "b" * 22 + "!_"},
        {"hot": "b" * 22},
        {"hot": ""},
        {"window": "____bb"},
        {"window": "____b!"},
        {"window": "____"},
        {"window": ""},
    ],
)
def test_anything_less_stays_a_note(less):
    assert severity(**CONFIRMING) == "corruption"
    assert severity(**CONFIRMING | less) == "note"


@pytest.mark.parametrize("samples", [None, False])
def test_a_target_that_does_not_follow_temperature_is_never_accused(samples):
    (found,) = findings(replayed(TargetFacts(samples=samples), **CONFIRMING))
    assert found.severity == "note"
    assert "this target does not follow temperature and seed" in found.explanation


def test_a_near_tie_is_a_note_that_says_how_often_it_was_lost_when_hot():
    (found,) = findings(replayed(alone="bbb", hot="bb__b_b_"))
    assert found.severity == "note"
    assert found.explanation.endswith("3 of 3 times, and at temperature 1 it lost it 4 of 8 times.")


def test_a_foreign_ticket_in_a_replay_is_a_leak():
    h = replayed(alone="bbb", hot="b", window="a__")
    assert {f.recipient: f.severity for f in findings(h)} == {chr(0x4E04): "leak", "b": "note"}


@pytest.mark.parametrize(
    ("counts", "clear", "loses"),
    [
        ({}, False, False),
        ({"hot": 24, "lost_hot": 1, "again": 6, "lost_again": 5}, True, True),
        ({"hot": 24, "lost_hot": 2, "again": 6, "lost_again": 4}, False, False),
        ({"hot": 22, "again": 4, "lost_again": 4}, False, False),
    ],
)
def test_what_has_no_answer_counts_against_a_confirmation(counts, clear, loses):
    found = Replays(**counts)
    assert (found.clear(), found.loses()) == (clear, loses)


WORDS = ticket("b").split()


def answered(text, finish="stop", tokens=None):
    """The findings of a run in which b, allowed 32 tokens, was answered with this text."""
    h = history("a> b> a=a b=_")
    more = {"finish_reason": finish, "usage": Usage(completion_tokens=tokens)}
    return findings(with_chunks(h, "b", Chunk(text=text), **more))


@pytest.mark.parametrize(
    ("finish", "tokens"),
    [("length", 5), ("content_filter", None), ("abort", 0), ("error", None)],
)
def test_an_answer_that_was_cut_lost_nothing(finish, tokens):
    assert answered(" ".join(WORDS[:1]), finish, tokens) == ()


@pytest.mark.parametrize("finish", [None, "stop", "tool_calls"])
def test_an_answer_that_came_to_its_end_was_not_cut(finish):
    (found,) = answered("and so on", finish)
    assert found.anomaly == "lost-answer"


@pytest.mark.parametrize("tokens", [32, None])
def test_an_answer_that_ran_on_to_its_limit_was_not_cut(tokens):
    (found,) = answered("and so on " * 10, "length", tokens)
    assert found.anomaly == "lost-answer"


@pytest.mark.parametrize(
    "text",
    [
        " ".join([*WORDS[:3], "other", *WORDS[4:]]),
        " ".join(WORDS[:3]),
        ", ".join(f"**{word.upper()}**" for word in WORDS[:3]),
        " and ".join(WORDS[:3]),
    ],
)
def test_a_ticket_that_was_begun_is_a_slip_of_the_model_and_not_lost(text):
    assert answered(f"Your ticket is {text}.") == ()


@pytest.mark.parametrize("words", [WORDS[:2], WORDS[3:], WORDS[2::-1], []])
def test_less_than_the_first_half_in_order_is_lost(words):
    (found,) = answered(f"The service is busy {' '.join(words)}")
    assert found.anomaly == "lost-answer"


def test_windows_that_lose_it_by_a_slip_confirm_nothing():
    h = replayed(**CONFIRMING)
    last = max(h.requests.loc[h.requests["cell"] == IN_WINDOW, "id"])
    slips = Chunk(text=" ".join(WORDS[:4]))
    before = chr(ord(last) - 1)
    assert [f.severity for f in findings(with_chunks(h, last, slips))] == ["corruption"]
    assert [f.severity for f in findings(with_chunks(h, before, slips))] == ["note"]


def test_a_ticket_that_only_an_earlier_refusal_quotes_is_lost():
    (found,) = findings(history("a> b> b-b a=a b> b=_"))
    assert (found.anomaly, found.recipient) == ("lost-answer", "b")


def test_a_foreign_ticket_in_a_refusal_is_a_leak_and_no_answer():
    anomalies = [f.anomaly for f in findings(history("a> b> b-a a=a b> b=_"))]
    assert anomalies == ["foreign-answer", "lost-answer"]


def test_requests_without_a_ticket_lose_none():
    assert findings(history("a> b> a=a b=_", changes={"b": {"ticket": None}})) == ()


def test_the_noise_floor_is_counted():
    (note,) = own_answer.check(history("a> b> c> a=a b=_ c=c")).notes
    assert note.startswith("1 of 3 answers (33.3%) show nobody's ticket")
