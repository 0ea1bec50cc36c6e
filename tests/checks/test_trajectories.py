"""Where two answers part, over what both have."""

from dataclasses import replace

import pytest

from leakcheck.checks._trajectories import compare
from leakcheck.records import Chunk, Observation, TokenLogprob


def tokens(text, **better):
    """One token a letter; `better` gives letters their alternatives."""
    return tuple(
        TokenLogprob(token=letter, logprob=-0.1, top=((letter, -0.1), *better.get(letter, ())))
        for letter in text
    )


def answer(letters, finish="length", *, logprobs=True):
    text = letters if isinstance(letters, str) else "".join(t.token for t in letters)
    probs = tokens(letters) if isinstance(letters, str) else letters
    return Observation(
        request_id="a", worker=0, lane=0, outcome="ok", start_ns=0, end_ns=1,
        chunks=(Chunk(text=text, logprobs=probs if logprobs else ()),), finish_reason=finish,
    )  # fmt: skip


def test_equal_answers_do_not_differ():
    assert compare(answer("abcd"), answer("abcd")).at is None


def test_the_gap_is_that_of_the_reference():
    reference = answer(tokens("abc", c=(("x", -0.6), ("y", -3.0))))
    seen = compare(reference, answer("abx"))
    assert (seen.at, seen.took, seen.censored) == (2, "x", False)
    assert seen.gap == pytest.approx(0.5)


def test_a_token_that_is_no_alternative_makes_the_gap_at_least_that_of_the_last_one():
    seen = compare(answer(tokens("abc", c=(("y", -2.0), ("z", -4.1)))), answer("abx"))
    assert seen.gap == pytest.approx(4.0)
    assert seen.censored


def test_of_alternatives_that_look_the_same_the_likeliest_counts():
    """A token that is part of a character is shown as U+FFFD, as is any other such token."""
    reference = answer(tokens("abc", c=(("\ufffd", -3.2), ("\ufffd", -9.0))))
    seen = compare(reference, answer("ab\ufffd"))
    assert seen.gap == pytest.approx(3.1)
    assert not seen.censored


@pytest.mark.parametrize("finish", [("length", "length"), ("stop", None), ("length", "stop")])
def test_a_cut_answer_does_not_differ(finish):
    reference, other = ("abcd", "ab") if finish != ("length", "stop") else ("ab", "abcd")
    assert compare(answer(reference, finish[0]), answer(other, finish[1])).at is None


def test_one_that_ended_where_the_reference_goes_on_has_the_gap_to_the_best_of_the_others():
    reference = answer(tokens("abc", c=(("y", -2.1), ("z", -4.1))), "stop")
    seen = compare(reference, answer("ab", "stop"))
    assert (seen.at, seen.took, seen.censored) == (2, "", True)
    assert seen.gap == pytest.approx(2.0)


def test_where_the_reference_had_ended_nothing_tells_the_gap():
    seen = compare(answer("ab", "stop"), answer("abcd", "stop"))
    assert (seen.at, seen.took, seen.gap) == (2, "c", None)


def test_only_the_first_difference_counts_and_drift_only_before_it():
    other = tokens("abxy")
    other = (replace(other[0], logprob=-0.3), *other[1:3], replace(other[3], logprob=-9.0))
    seen = compare(answer("abcd"), answer(other))
    assert seen.at == 2
    assert seen.drift == pytest.approx(0.2)


def test_without_logprobs_texts_are_compared():
    seen = compare(answer("abcd", logprobs=False), answer("abxd", logprobs=False))
    assert (seen.at, seen.unit, seen.took, seen.gap) == (2, "character", "x", None)


def numbered(text, ids, finish="length", *, logprobs=True):
    """An answer whose tokens came as ids too."""
    plain = answer(text, finish, logprobs=logprobs)
    return replace(plain, chunks=tuple(replace(c, token_ids=tuple(ids)) for c in plain.chunks))


def test_token_ids_tell_apart_tokens_that_look_the_same():
    seen = compare(numbered("a\ufffd", [1, 2]), numbered("a\ufffd", [1, 3]))
    assert (seen.at, seen.took, seen.unit, seen.gap) == (1, "\ufffd", "token", None)


def test_token_ids_do_where_there_are_no_logprobs():
    seen = compare(
        numbered("one two", [1, 2], logprobs=False), numbered("one ten", [1, 3], logprobs=False)
    )
    assert (seen.at, seen.took, seen.unit, seen.char) == (1, "token 3", "token", 5)
    assert seen.gap is None


def test_token_ids_of_another_number_than_the_logprobs_are_left_aside():
    assert compare(numbered("ab", [1, 2, 3]), numbered("ab", [1, 2, 4])).at is None


def test_texts_that_differ_though_their_tokens_do_not_differ():
    """As where one answer is turned into text with what another left behind."""
    other = numbered("ab", [1, 2])
    other = replace(other, chunks=(replace(other.chunks[0], text="ax"),))
    seen = compare(numbered("ab", [1, 2]), other)
    assert (seen.at, seen.took, seen.unit) == (1, "x", "character")
