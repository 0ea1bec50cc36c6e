"""Did the condition under test occur at all?"""

from dataclasses import replace
from string import ascii_lowercase

import pytest
from shorthand import history, passphrase, with_chunks

from leakcheck import analyzer
from leakcheck import history as histories
from leakcheck.analyzer import exposure
from leakcheck.records import Chunk, Gate, Load, RunEvent, TargetFacts

GATE = Gate(min_windows=1, min_echo=0.1, min_overlap=0.1)
CACHED = TargetFacts(block_tokens=16, reports_cached_tokens=True)


def measured(h, name, gate=GATE):
    found = exposure.find(exposure.measure(h, gate), name)
    assert found is not None, name
    return found


def counts(found):
    return found.measured.events, found.measured.trials


def test_echo_counts_answered_owners_that_asked_for_it():
    neutral = {"c": {"ask": "neutral"}, "d": {"passphrase": None}}
    h = history("a> b> c> d> e> a=aA b=b c=cC d=d e!", changes=neutral)
    assert counts(measured(h, "echo")) == (1, 2)


def test_twins_have_one_vote_in_the_echo():
    twins = {"b": {"twin": "a"}, "c": {"twin": "a"}}
    assert counts(measured(history("a> a=aA / b> c> d> b=b c=c d=d", changes=twins), "echo")) == (
        1,
        2,
    )
    lost = history("a> a! / b> c> d> b=b c=c d=d", changes=twins)
    assert counts(measured(lost, "echo")) == (0, 2)


def test_the_passphrase_of_another_is_no_echo():
    assert counts(measured(history("a> b> a=aB b=bA"), "echo")) == (0, 2)


def test_echo_is_held_against_its_minimum_by_the_lower_bound():
    line = "a> b> a=aA b=bB"
    assert measured(history(line), "echo", Gate(min_echo=0.13)).enough
    assert not measured(history(line), "echo", Gate(min_echo=0.14)).enough  # at one look 0.22
    assert measured(history(line), "echo", Gate(min_echo=0.0)).enough is None


def test_no_owner_that_was_answered_is_never_enough():
    assert measured(history("a> b> a! b!"), "echo").enough is False


def test_tickets_count_answers_with_their_own():
    assert counts(measured(history("a> b> c> a=a b=a c!"), "tickets")) == (1, 2)


@pytest.mark.parametrize("name", ["echo", "tickets"])
@pytest.mark.parametrize("line", ["a> a-aA a> a=_", "a> a!aA a> a=_"])
def test_what_a_refusal_quotes_is_no_echo(line, name):
    assert counts(measured(history(line), name)) == (0, 1)


@pytest.mark.parametrize(
    ("field", "events"),
    [("content", 1), ("reasoning", 1), ("tool", 1), ("content[1]", 1), ("error", 0)],
)
def test_echo_is_what_the_model_wrote(field, events):
    h = with_chunks(history("a> a=_"), "a", Chunk(text=passphrase("a"), field=field))
    assert counts(measured(h, "echo")) == (events, 1)


def test_tickets_are_held_against_the_minimum_of_echo_where_lost_ones_are_looked_for():
    gate = Gate(min_echo=0.25)
    assert measured(history("a> b> a=aA b=bB"), "tickets", gate).enough is False
    assert measured(history("a> b> a=aA b=bB"), "tickets", GATE).enough
    without = history("a> b> a=aA b=bB", checks=("foreign_passphrase",))
    assert measured(without, "tickets", gate).enough is None


def test_answered_counts_planned_requests():
    found = measured(history("a> b> c> a=a b! c- d."), "answered")
    assert counts(found) == (1, 4)
    assert found.text.startswith("1 of 4 (25.0 %")
    assert found.text.endswith("planned requests were answered; 1 were never sent")


def test_half_of_the_planned_requests_must_be_answered_by_the_lower_bound():
    sent = "a> b> c> d> e> f> g> a=a b=b c=c d=d e=e f=f"
    assert measured(history(f"{sent} g=g"), "answered").enough
    assert measured(history(f"{sent} g!"), "answered").enough is False


def test_dead_workers_are_named_where_requests_are_missing():
    died = RunEvent(kind="worker-died", at_ns=1, detail="worker 2 was killed by signal 9")
    one = measured(history("a> a=a b.", events=(died,)), "answered").text
    assert one.endswith("1 were never sent; a worker died (worker 2 was killed by signal 9)")
    two = measured(history("a> a=a b.", events=(died, died)), "answered").text
    assert "2 workers died" in two


def test_overlap_counts_answered_recipients_in_company():
    h = history("a> b> c> a=a b=b c! d> d=d", changes={"c": {"role": "source"}})
    found = measured(h, "overlap")
    assert counts(found) == (2, 3)
    assert "3 (median), 3 (most)" in found.text


def test_requests_sent_alone_to_be_compared_with_need_no_company():
    twin = {"b": {"twin": "a", "ticket": None, "passphrase": None}}
    assert counts(measured(history("a> a=a / b> c> b= c=c", changes=twin), "overlap")) == (2, 2)


def test_a_twin_that_is_sent_alone_again_needs_no_company():
    twin = {n: {"twin": "a", "ticket": None, "passphrase": None} for n in "bc"}
    h = history("a> a=a / b> b= / c> d> c= d=d", changes=twin)
    assert counts(measured(h, "overlap")) == (2, 2)


def test_windows_are_trials_against_the_minimum():
    h = history("a> b> a=a b=b | c> c=c d> d=d")
    found = measured(h, "windows", Gate(min_windows=2))
    assert (found.measured, found.minimum, found.enough) == (1.0, 2.0, False)
    assert found.text.startswith("1 of 2 windows")


def test_replays_are_in_no_measure():
    replay = {n: {"replays": "a", "ticket": None, "passphrase": None} for n in "cd"}
    h = history("a> b> a=aA b=bB | c> d> c=A d=A", changes=replay)
    assert counts(measured(h, "answered")) == (2, 2)
    assert counts(measured(h, "overlap")) == (2, 2)
    assert measured(h, "windows").text.startswith("1 of 1")


def test_arms_are_asked_for_only_with_a_control_share():
    assert exposure.find(exposure.measure(history("a> a=a"), GATE), "arms") is None
    load = Load(windows=2, control=0.5, phantoms=0)
    line = "a> b> a=a b=b | c> d> c=c d=d"
    assert measured(history(line, load=load, control="cd"), "arms").enough
    found = measured(history(line, load=load), "arms")
    assert found.enough is False
    assert found.text.startswith("2 planted and 0 control windows")


def pairs(**timing):
    """Source a and recipient b share 16 tokens by plan."""
    return {"b": {"partner": "a", "shared_tokens": 16} | timing}


def hits(line, changes, cached, facts=CACHED):
    gate = Gate(min_cache_hits=0.1)
    return measured(history(line, changes=changes, cached=cached, facts=facts), "cache hits", gate)


@pytest.mark.parametrize(("tokens", "events"), [(16, 1), (0, 0)])
def test_cache_hits_count_requests_whose_source_came_before(tokens, events):
    found = hits("a> a=a / b> b=b", pairs(), {"a": 0, "b": tokens})
    assert counts(found) == (events, 1)


def test_a_source_that_is_running_already_came_before():
    assert counts(hits("a> b> a=a b=b", pairs(start_offset_s=0.03), {"a": 0, "b": 16})) == (1, 1)


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("a> b> a=a b=b", pairs()),
        ("a> a=a / b> b=b", pairs(shared_tokens=15)),
        ("a> a=a / b> b!", pairs()),
        ("a> a- / b> b=b", pairs()),
        ("a> a=a / b> b=b", {}),
    ],
)
def test_requests_that_start_cold_or_short_or_fail_need_no_hit(line, changes):
    assert hits(line, changes, {"a": 0, "b": 0}).measured.trials == 0


WARM = "a> a=a / b> b=b"
TEMPLATED = replace(CACHED, overhead_tokens=20)
UNKNOWN_BLOCK = TargetFacts(reports_cached_tokens=True, overhead_tokens=20)


@pytest.mark.parametrize(
    ("facts", "shared", "cached", "expected"),
    [
        (TEMPLATED, 64, 16, (0, 1)),  # what every request shares: the template
        (TEMPLATED, 64, 48, (0, 1)),
        (TEMPLATED, 64, 64, (1, 1)),
        (TEMPLATED, 70, 64, (1, 1)),
        (TEMPLATED, 36, 32, (1, 1)),
        (TEMPLATED, 35, 32, (0, 0)),
        (UNKNOWN_BLOCK, 64, 20, (0, 1)),
        (UNKNOWN_BLOCK, 64, 21, (1, 1)),
        (UNKNOWN_BLOCK, 30, 21, (0, 0)),
    ],
)
def test_a_cache_hit_has_the_whole_blocks_that_were_planned_and_not_the_template_alone(
    facts, shared, cached, expected
):
    assert counts(hits(WARM, pairs(shared_tokens=shared), {"b": cached}, facts)) == expected


def test_a_target_that_never_hits_has_too_few_hits():
    found = hits(WARM, pairs(), {"a": 0, "b": 0}, TargetFacts(reports_cached_tokens=True))
    assert counts(found) == (0, 1)
    assert found.enough is False


@pytest.mark.parametrize("facts", [CACHED, TargetFacts()])
def test_where_the_target_says_nothing_cache_hits_cannot_be_shown(facts):
    found = hits(WARM, pairs(), {}, facts)
    assert (found.measured, found.enough) == (None, False)
    assert "does not report cached tokens" in found.text
    assert "--set gate.min_cache_hits=0" in found.text


def test_cache_hits_are_measured_only_where_the_scenario_asks():
    h = history("a> a=a / b> b=b", changes=pairs(), cached={"b": 16}, facts=CACHED)
    assert exposure.find(exposure.measure(h, GATE), "cache hits") is None


def test_planned_aborts_are_in_no_denominator():
    for name in ("answered", "echo", "tickets", "overlap"):
        assert counts(measured(history("a> b> c> a^a b=bB c=cC"), name)) == (2, 2)
    assert "1 more were hung up on" in measured(history("a> b> a^ b=b"), "answered").text


def test_windows_of_requests_sent_one_at_a_time_say_so():
    told = measured(history("a> a=aA / b> b=b"), "windows")
    assert (told.measured, "answered after it" in told.text) == (1.0, True)
    mixed = measured(history("a> a=aA / b> b=b | c> d> c=cC d=d"), "windows")
    assert (mixed.measured, "where requests were sent one at a time" in mixed.text) == (2.0, True)


def streamed(*, serial, requests=24, pieces=8, held_back=False):
    """Requests of one window, all sent at once: answered one after another, or together."""
    names = ascii_lowercase[:requests]
    line = " ".join([*(f"{n}>" for n in names), *(f"{n}={n}{n.upper()}" for n in names)])
    h = history(line, gate=replace(GATE, detect=1.0))
    run, step = h._run, 10**9
    seen = []
    for place, each in enumerate(run.seen):
        end = step * (place + 1) if serial else step * requests + place
        first = end - step // 10**4 if held_back else end - step * 8 // 10 if serial else step
        chunks = (*each.chunks, *(Chunk(text=".") for _ in range(pieces - len(each.chunks))))
        times = {"start_ns": place, "first_chunk_ns": first, "end_ns": end}
        seen.append(replace(each, chunks=chunks, **times))
    return histories.build(run.plans, [], seen, provenance=run.provenance, events=run.events)


def test_a_target_that_streams_one_answer_after_another_serves_one_request_at_a_time():
    h = streamed(serial=True)
    assert measured(h, "overlap").enough
    found = measured(h, "generating")
    assert (found.measured.events, found.enough) == (0, False)
    assert "the target seems to serve one request at a time" in found.text
    verdict = analyzer.analyze(h).verdicts[0]
    assert verdict.status == "inconclusive"
    assert any("one request at a time" in reason for reason in verdict.reasons)


def test_answers_that_come_at_the_same_time_were_made_together():
    found = measured(streamed(serial=False), "generating")
    assert (counts(found), found.enough) == ((24, 24), True)


@pytest.mark.parametrize(
    "how", [{"pieces": 2}, {"requests": 4}, {"serial": False, "held_back": True}]
)
def test_with_too_little_streaming_it_is_not_known_whether_they_ran_together(how):
    found = measured(streamed(**{"serial": True} | how), "generating")
    assert found.enough is None
    assert "whether the target ran requests together is not known" in found.text


def test_where_no_overlap_is_asked_for_nobody_asks_when_answers_came():
    gate = replace(GATE, min_overlap=0.0)
    assert exposure.find(exposure.measure(streamed(serial=True), gate), "generating") is None


def test_three_answers_that_came_together_are_enough_to_know():
    found = measured(streamed(serial=False, requests=4), "generating")
    assert (counts(found), found.enough) == ((4, 4), True)
