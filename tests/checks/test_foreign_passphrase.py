"""Nobody may be answered with somebody else's passphrase."""

import pytest
from shorthand import history, passphrase, ticket, with_chunks, withheld

from leakcheck.checks import excerpt, foreign_passphrase, seconds
from leakcheck.passphrase import phantoms
from leakcheck.records import Chunk


def findings(h):
    return foreign_passphrase.check(h).findings


@pytest.mark.parametrize(
    ("line", "relation"),
    [
        ("a> b> a=A b=A", "concurrent"),
        ("a> a=A b> b=A", "sequential"),
        ("a> b> a! b=A", "concurrent"),
        ("a> b> b=A", "unknown"),
        ("b> a> b=A", "concurrent"),
        ("a> b> b- a=A b> b=A", "sequential"),
        ("a> a- b> b=A", "sequential"),
        ("a. b> b=A", "unknown"),
    ],
)
def test_a_foreign_passphrase_is_a_leak_from_its_owner(line, relation):
    (found,) = findings(history(line))
    assert (found.anomaly, found.severity) == ("foreign-passphrase", "leak")
    assert (found.source, found.recipient, found.relation) == ("a", "b", relation)


@pytest.mark.parametrize("line", ["a> b> a=aA b=bB", "a> b> a=_ b=", "a> b> a=b b=a", "a. b."])
def test_own_passphrases_tickets_and_silence_are_none(line):
    assert findings(history(line)) == ()


def test_a_pair_is_one_finding_however_often_it_shows():
    (found,) = findings(history("a> b> a=A b=A_A_A"))
    assert found.mark == (0, len(passphrase("a")))


def test_every_pair_is_a_finding():
    pairs = {(f.source, f.recipient) for f in findings(history("a> b> c> a=A b=AC c=A"))}
    assert pairs == {("a", "b"), ("c", "b"), ("a", "c")}


def test_the_sentence_can_be_read_aloud():
    (found,) = findings(history("a> b> a=aA b=bA"))
    assert found.explanation == (
        "b (tenant t01, window 0) was answered with the passphrase that only a (tenant t00) was "
        "given; the two ran at the same time for 0.10 s."
    )
    (found,) = findings(history("a> a=aA | b> b=bA"))
    assert "; a had ended 0.20 s before b began." in found.explanation
    (found,) = findings(history("b> b=bA | a> a=aA"))
    assert "an earlier run with the same seed may have left it in the target" in found.explanation


def times(found):
    return {k: round(v, 3) for k, v in found.evidence.items() if k.endswith("_s")}


def test_times_are_those_of_the_attempt_that_shows_it():
    (found,) = findings(history("a> b> b!A b> a=A b=B"))
    assert times(found) == {
        "source_start_s": 0.0,
        "source_end_s": 0.4,
        "recipient_start_s": 0.1,
        "recipient_end_s": 0.2,
    }
    (found,) = findings(history("a> a- b> a> b=A a=A"))
    assert times(found)["recipient_start_s"] == 0.0


def test_an_end_that_nobody_saw_is_neither_claimed_nor_shown():
    (found,) = findings(history("a> b> b=bA"))
    assert times(found).keys() == {"source_start_s", "recipient_start_s", "recipient_end_s"}
    assert found.explanation.endswith("before b began, and nobody saw whether it still ran.")
    (found,) = findings(history("b> a> b=bA"))
    assert "ran at the same time for an unknown time" in found.explanation


def test_the_sentence_says_when_others_carried_the_payload():
    a = history("a.").by_id("a")
    same = {"ticket": a.ticket, "passphrase": a.passphrase}
    twins = {"c": same | {"twin": "a"}, "d": same | {"twin": "a"}}
    (found,) = findings(history("a> b> a=A b=bA c. d.", changes=twins))
    assert "that only a (tenant t00) and its 2 twins were given;" in found.explanation
    (found,) = findings(history("c> b> c=A b=bA a.", changes={"c": same | {"replays": "a"}}))
    assert "that only c (tenant t02, a replay of a) was given;" in found.explanation


def test_the_excerpt_marks_the_passphrase():
    (found,) = findings(history("a> b> a=aA b=bA_"))
    start, end = found.mark
    assert found.excerpt[start:end] == passphrase("a")
    assert len(found.excerpt) <= 162
    assert ticket("b")[-10:] in found.excerpt


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [(0, 2, "0123…"), (4, 6, "…234567…"), (8, 10, "…6789"), (0, 10, "0123456789")],
)
def test_an_excerpt_keeps_what_is_marked_and_shows_where_it_cut(monkeypatch, start, end, text):
    monkeypatch.setattr("leakcheck.checks.EXCERPT_CHARS", 6)
    found, mark = excerpt("0123456789", start, end)
    assert found == text
    assert found[slice(*mark)] == "0123456789"[start:end]


def test_a_withheld_passphrase_accuses_the_experiment_and_nobody_else():
    (found,) = findings(history("a> b> a=a b=b~a", control="ab"))
    assert (found.anomaly, found.severity, found.source) == ("withheld-passphrase", "note", "a")
    assert found.excerpt[slice(*found.mark)] == withheld("a")
    assert "never sent" in found.explanation


def test_a_phantom_that_shows_accuses_the_words_and_names_no_source():
    h = history("a> b> a=a b=b")
    plan = h.plans[0]
    length = plan.scenario.load.passphrase_words
    phantom = phantoms(plan.seed, "tiny", 0, plan.words, length, 20)[0]
    (found,) = findings(with_chunks(h, "b", Chunk(text=phantom)))
    assert (found.anomaly, found.severity, found.source) == ("withheld-passphrase", "note", None)
    assert "a phantom, which was never sent" in found.explanation


def test_the_note_says_what_the_control_was():
    (note,) = foreign_passphrase.check(history("a> b> a=a b=b")).notes
    assert "and showed: 0" in note
    assert "20 phantoms" in note


@pytest.mark.parametrize(
    ("value", "text"), [(12.34, "12.3 s"), (0.213, "0.21 s"), (0.0042, "0.004 s")]
)
def test_durations_have_digits_that_say_something(value, text):
    assert seconds(value) == text
