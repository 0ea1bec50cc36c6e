"""Everybody must get their own answer."""

import pytest
from shorthand import history, ticket, with_chunks

from leakcheck.checks import own_answer
from leakcheck.checks.own_answer import ALONE, IN_WINDOW
from leakcheck.records import Chunk, Usage


def findings(h, **options):
    return own_answer.check(h, **options).findings


def replays(**kinds):
    """Changes that make letters replays of `b`."""
    b = history("b.").by_id("b")
    return {
        name: {
            "ticket": b.ticket,
            "passphrase": b.passphrase,
            "replays": "b",
            "cell": cell,
            "window": 1_000_000 + number,
        }
        for number, (name, cell) in enumerate(kinds.items())
    }


CONFIRMING = replays(c=ALONE, d=ALONE, e=ALONE, f=IN_WINDOW, g=IN_WINDOW, h=IN_WINDOW)


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


def test_a_ticket_kept_alone_and_lost_again_in_the_window_is_corruption():
    line = "a> b> a=a b=_ | c> c=b d> d=b e> e=b | f> g> h> f=_ g=_ h=_"
    (found,) = findings(history(line, changes=CONFIRMING))
    assert (found.anomaly, found.severity) == ("lost-answer", "corruption")
    assert "alone it returned it 3 of 3 times" in found.explanation
    assert "it lost it 3 of 3 times" in found.explanation


@pytest.mark.parametrize(
    "replayed",
    [
        "c> c=_ d> d=b e> e=b f> g> h> f=_ g=_ h=_",
        "c> c=_ d> d=_ e> e=_ f> g> h> f=_ g=_ h=_",
        "c> c=b d> d=b e> e=b f> g> h> f=b g=_ h=_",
        "c> c=b d> d=b e> e=b f> g> h> f=b g=b h=b",
        "c> c! d> d! e> e! f> g> h> f=_ g=_ h=_",
        "c> c=b d> d=b e> e! f> g> h> f=_ g=_ h=_",
        "c> c=b d> d=b e> e=b f> g> h> f! g=_ h=_",
        "c> c=b d> d=b e> e=b f. g. h.",
    ],
)
def test_anything_less_stays_a_note(replayed):
    (found,) = findings(history(f"a> b> a=a b=_ | {replayed}", changes=CONFIRMING))
    assert found.severity == "note"


def test_a_foreign_ticket_in_a_replay_is_a_leak():
    line = "a> b> a=a b=_ | c> c=b d> d=b e> e=b | f> g> h> f=a g=_ h=_"
    severities = {f.recipient: f.severity for f in findings(history(line, changes=CONFIRMING))}
    assert severities == {"f": "leak", "b": "note"}


def test_how_much_must_be_lost_again_is_an_option():
    line = "a> b> a=a b=_ | c> c=b d> d=b e> e=b | f> g> h> f=_ g=b h=b"
    (found,) = findings(history(line, changes=CONFIRMING), lost_again=1)
    assert found.severity == "corruption"


WORDS = ticket("b").split()


def answered(text, finish="stop", tokens=None):
    """The findings of a run in which b, allowed 32 tokens, was answered with this text."""
    h = history("a> b> a=a b=_")
    more = {"finish_reason": finish, "usage": Usage(completion_tokens=tokens)}
    return findings(with_chunks(h, "b", Chunk(text=text), **more))


@pytest.mark.parametrize(("finish", "tokens"), [("length", 5), ("content_filter", None)])
def test_an_answer_that_was_cut_lost_nothing(finish, tokens):
    assert answered(" ".join(WORDS[:1]), finish, tokens) == ()


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
    line = "a> b> a=a b=_ | c> c=b d> d=b e> e=b | f> g> h> f=_ g=_ h=_"
    h = with_chunks(history(line, changes=CONFIRMING), "h", Chunk(text=" ".join(WORDS[:4])))
    assert [f.severity for f in findings(h)] == ["note"]


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
