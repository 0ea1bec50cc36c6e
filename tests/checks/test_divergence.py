"""Where answers in company part from the answer alone."""

from dataclasses import replace

import pytest
from shorthand import history, provenance

from leakcheck import history as histories
from leakcheck.checks import divergence
from leakcheck.records import Chunk, TokenLogprob

PAIR = {"a": {"cell": "alone"}, "b": {"cell": "planted", "twin": "a", "ticket": None,
        "passphrase": None}}  # fmt: skip


def tokens(text, **better):
    """One token a letter; `better` gives letters their alternatives."""
    return tuple(
        TokenLogprob(token=letter, logprob=-0.1, top=((letter, -0.1), *better.get(letter, ())))
        for letter in text
    )


def compared(alone, mixed, *, finish=("length", "length"), outcome="ok", logprobs=True):
    h = history("a> a=_ / b> b=_", changes=PAIR)
    plan, seen = h.plans[0], list(h._run.seen)
    for at, letters in enumerate((alone, mixed)):
        text = letters if isinstance(letters, str) else "".join(t.token for t in letters)
        probs = () if isinstance(letters, str) and not logprobs else letters
        probs = tokens(probs) if isinstance(probs, str) else probs
        seen[at] = replace(
            seen[at],
            chunks=(Chunk(text=text, logprobs=probs),),
            finish_reason=finish[at],
            outcome="ok" if at == 0 else outcome,
        )
    return divergence.check(histories.build([plan], [], seen, provenance=provenance(plan)))


def one(result):
    (found,) = result.findings
    return found


def test_equal_answers_do_not_diverge():
    result = compared("abcd", "abcd")
    assert result.findings == ()
    assert result.notes == ("0 of 1 answers in company differ from the one alone",)


def test_a_divergence_is_a_note_with_the_gap_of_the_reference_run():
    found = one(compared(tokens("abc", c=(("x", -0.6), ("y", -3.0))), "abx"))
    assert (found.anomaly, found.severity, found.recipient) == ("divergence", "note", "b")
    assert found.evidence["at"] == 2
    assert found.evidence["gap_nats"] == pytest.approx(0.5)
    assert not found.evidence["censored"]
    assert "preferred its own token by 0.5 nats" in found.explanation


def test_a_token_that_is_no_alternative_makes_the_gap_at_least_that_of_the_last_one():
    found = one(compared(tokens("abc", c=(("y", -2.0), ("z", -4.1))), "abx"))
    assert found.evidence["gap_nats"] == pytest.approx(4.0)
    assert found.evidence["censored"]
    assert "by at least 4 nats" in found.explanation


def test_of_alternatives_that_look_the_same_the_likeliest_counts():
    """A token that is part of a character is shown as U+FFFD, as is any other such token."""
    found = one(compared(tokens("abc", c=(("\ufffd", -3.2), ("\ufffd", -9.0))), "ab\ufffd"))
    assert found.evidence["gap_nats"] == pytest.approx(3.1)
    assert not found.evidence["censored"]


@pytest.mark.parametrize("finish", [("length", "length"), ("stop", None), ("length", "stop")])
def test_a_cut_answer_is_no_divergence(finish):
    alone, mixed = ("abcd", "ab") if finish != ("length", "stop") else ("ab", "abcd")
    assert compared(alone, mixed, finish=finish).findings == ()


def test_an_answer_that_was_cancelled_is_not_compared():
    result = compared("abcd", "xy", outcome="unknown")
    assert result.findings == ()
    assert "nothing was compared" in result.notes[0]


def test_an_answer_that_ends_by_itself_where_the_other_goes_on_diverges():
    found = one(compared("abcd", "ab", finish=("stop", "stop")))
    assert found.evidence["at"] == 2
    assert found.evidence["gap_nats"] is None
    assert "how narrow that was is not known" in found.explanation


def test_only_the_first_difference_counts_and_drift_only_before_it():
    mixed = tokens("abxy")
    mixed = (replace(mixed[0], logprob=-0.3), *mixed[1:3], replace(mixed[3], logprob=-9.0))
    found = one(compared("abcd", mixed))
    assert found.evidence["at"] == 2
    assert found.evidence["largest_logprob_difference_nats"] == pytest.approx(0.2)


def test_without_logprobs_texts_are_compared():
    result = compared("abcd", "abxd", logprobs=False)
    found = one(result)
    assert found.evidence["gap_nats"] is None
    assert "from character 2 on" in found.explanation
    assert "1 were compared as text" in result.notes[0]


def test_the_table_counts_each_kind_of_company():
    (table,) = compared(tokens("abc", c=(("x", -0.6),)), "abx").tables.values()
    assert table[1] == ("planted", 1, 1, pytest.approx(0.5), pytest.approx(0.5), 0.0)


def test_replays_are_not_compared():
    changes = {"a": PAIR["a"], "b": PAIR["b"] | {"replays": "a"}}
    assert divergence.check(history("a> a=_ / b> b=", changes=changes)).tables == {}
