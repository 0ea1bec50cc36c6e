"""Ids are unique, and a cached prefix serves only those who know its salt."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretending import built
from shorthand import history

from leakcheck.analyzer import analyze
from leakcheck.checks import metadata
from leakcheck.checks.metadata import _common
from leakcheck.records import Message, TargetFacts
from leakcheck.report import sentences

FACTS = TargetFacts(block_tokens=16, overhead_tokens=2, reports_cached_tokens=True)
PREFIX = " ".join(f"w{n}" for n in range(62))  # with the template four blocks
LINE = "a> a=aA / b> b=bB"


def saying(prefix, name, salt, **more):
    text = f"{prefix} {name * 3} and the rest"
    return {"messages": (Message(role="user", content=text),), "cache_salt": salt, **more}


def checked(
    line=LINE,
    *,
    salts=("one", "two"),
    cached=64,
    prefixes=(PREFIX, PREFIX),
    facts=FACTS,
    separates=True,
):
    names = "abcdefgh"[: len(salts)]
    changes = {
        name: saying(prefix, name, salt)
        for name, salt, prefix in zip(names, salts, prefixes, strict=False)
    }
    last = names[-1]
    h = history(line, changes=changes, cached={last: cached, "a": 0}, facts=facts)
    return metadata.check(h, separates=separates)


@pytest.mark.parametrize("separates", [None, False])
def test_a_target_that_promised_nothing_is_not_accused_of_sharing_prefixes(separates):
    (found,) = checked(separates=separates).findings
    assert (found.anomaly, found.severity) == ("foreign-cache-hit", "note")
    assert "checks.metadata.separates=true" in found.explanation


def test_the_embedded_engine_has_promised_to_keep_salts_apart():
    changes = {n: saying(PREFIX, n, s) for n, s in (("a", "one"), ("b", "two"))}
    ready = {"separates_salts": True}
    h = history(LINE, changes=changes, cached={"b": 64, "a": 0}, facts=FACTS, engine=ready)
    (found,) = metadata.check(h).findings
    assert found.severity == "leak"


def test_tokens_that_only_another_salt_sent_are_a_leak():
    (found,) = checked().findings
    assert (found.anomaly, found.severity) == ("foreign-cache-hit", "leak")
    assert (found.source, found.recipient, found.relation) == ("a", "b", "sequential")
    assert "found 64 tokens of its prompt cached, at most 16 of which" in found.explanation
    assert "a stranger can see" in found.explanation
    assert found.excerpt.rstrip().endswith("w61")


def test_a_sender_without_a_salt_is_another_side_too():
    (found,) = checked(salts=(None, "two")).findings
    assert "had sent the same text and has none" in found.explanation


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("the same salt", {"salts": ("one", "one")}),
        ("no salt at all", {"salts": ("one", None)}),
        ("nothing cached", {"cached": 0}),
        ("the template and the rest of its block", {"cached": 16}),
        ("another text: the target counts in its own way", {"prefixes": (PREFIX[::-1], PREFIX)}),
        ("more than anybody sent", {"cached": 400}),
    ],
)
def test_anything_else_is_no_foreign_hit(what, options):
    assert checked(**options).findings == (), what


def test_an_earlier_request_with_the_own_salt_explains_the_hit():
    line, salts = "a> a=aA / b> b=bB / c> c=cC", ("one", "two", "two")
    assert checked(line, salts=salts, prefixes=(PREFIX,) * 3).findings == ()


def test_a_target_that_counts_more_tokens_than_we_think_is_not_accused_where_its_own_side_sent_it():
    line, salts = "a> a=aA / b> b=bB / c> c=cC", ("one", "two", "two")
    assert checked(line, salts=salts, prefixes=(PREFIX,) * 3, cached=80).findings == ()


def test_an_own_request_explains_only_as_much_as_it_has_in_common():
    line, salts = "a> a=aA / b> b=bB / c> c=cC", ("one", "two", "two")
    half = " ".join(PREFIX.split()[:20])
    (found,) = checked(line, salts=salts, prefixes=(PREFIX, half, PREFIX)).findings
    assert (found.source, found.evidence["explained_tokens"]) == ("a", 32)


def test_a_sender_that_began_only_afterwards_explains_nothing():
    line, salts = "a> a=aA / c> c=cC / b> b=bB", ("one", "two", "two")
    changes = {n: saying(PREFIX, n, s) for n, s in zip("abc", salts, strict=True)}
    h = history(line, changes=changes, cached={"c": 64}, facts=FACTS)
    assert [f.recipient for f in metadata.check(h).findings] == ["c"]


def test_a_second_attempt_may_find_what_the_first_one_left():
    changes = {n: saying(PREFIX, n, s) for n, s in (("a", "one"), ("b", "two"))}
    line = "a> a=aA / b> b- b> b=bB"
    h = history(line, changes=changes, cached={"b": 64}, facts=FACTS)
    assert metadata.check(h).findings == ()


def test_punctuation_may_cost_tokens_that_words_do_not_show():
    dots = ". ".join(PREFIX.split()[:30])
    line, salts = "a> a=aA / b> b=bB / c> c=cC", ("one", "two", "two")
    assert checked(line, salts=salts, cached=64, prefixes=(PREFIX, dots, dots)).findings == ()


def test_a_target_that_reports_no_cached_tokens_is_not_judged():
    changes = {n: saying(PREFIX, n, s) for n, s in (("a", "one"), ("b", "two"))}
    result = metadata.check(history(LINE, changes=changes, facts=FACTS))
    assert result.findings == ()
    assert result.notes == ("the target does not report cached tokens: salts were not tested",)


def test_a_foreign_hit_makes_the_verdict_a_leak_and_says_what_it_is():
    changes = {n: saying(PREFIX, n, s) for n, s in (("a", "one"), ("b", "two"))}
    h = history(
        LINE,
        changes=changes,
        cached={"b": 64},
        facts=FACTS,
        checks=("foreign_passphrase", "metadata"),
        engine={"separates_salts": True},
    )
    report = analyze(h)
    assert (report.status, report.exit_code) == ("leak", 1)
    assert "shows somebody else's text in the cache" in report.verdicts[0].reasons[0]
    assert "a stranger could see that somebody else had sent a text" in sentences.headline(report)


def with_ids(*ids):
    """Three answers with these ids."""
    h = history("a> b> c> a=a b=b c=c")
    run = h._run
    names = dict(zip("abc", ids, strict=True))
    seen = [replace(o, target_id=names[o.request_id]) for o in run.seen]
    return metadata.check(built(run.plans[0], seen))


def test_two_answers_with_one_id_are_a_note():
    (found,) = with_ids("x", "y", "x").findings
    assert (found.anomaly, found.severity) == ("duplicate-id", "note")
    assert (found.source, found.recipient, found.excerpt) == ("a", "c", "x")


def test_one_finding_for_each_id():
    (found,) = with_ids("x", "x", "x").findings
    assert "and 1 more" in found.explanation
    assert found.evidence["answers"] == 3


@pytest.mark.parametrize("ids", [("x", "y", "z"), (None, None, None), ("", "", "")])
def test_different_and_missing_ids_are_no_finding(ids):
    assert with_ids(*ids).findings == ()


def with_reply_ids(*ids, changes=None):
    """Three answers whose headers have these ids."""
    run = history("a> b> c> a=a b=b c=c", changes=changes)._run
    names = dict(zip("abc", ids, strict=True))
    seen = [replace(o, reply_id=names[o.request_id]) for o in run.seen]
    return metadata.check(built(run.plans[0], seen)).findings


def test_two_replies_with_one_id_in_their_headers_are_a_note():
    (found,) = with_reply_ids("x", "y", "x")
    assert (found.anomaly, found.severity, found.evidence["reply_id"]) == (
        "duplicate-id",
        "note",
        "x",
    )
    assert found.explanation.startswith("the headers of the replies to a (tenant")


def test_an_id_in_headers_that_only_says_what_was_sent_is_no_finding():
    one = {name: {"client_id": "f00d"} for name in "ab"}
    assert with_reply_ids("f00d", "gw-f00d", "z", changes=one) == ()
    assert with_reply_ids("f00d", "f00d", "z", changes=one) == ()
    assert len(with_reply_ids("other", "other", "z", changes=one)) == 1


@given(st.text("ab"), st.text("ab"), st.integers(0, 5))
def test_the_common_beginning_is_the_longest(one, other, at_least):
    plain = next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1),
        min(len(one), len(other)),
    )
    found = _common(one, other, at_least=at_least)
    assert found == (one[:plain] if plain > at_least else "")
