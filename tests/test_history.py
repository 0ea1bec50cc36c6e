"""Tables over tiny histories: outcomes, company, matches, windows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shorthand import STEP_NS, history, passphrase, provenance, ticket, with_chunks

from leakcheck import history as histories
from leakcheck import runfolder
from leakcheck.analyzer import echoes
from leakcheck.checks import foreign_passphrase
from leakcheck.errors import RunFolderError
from leakcheck.history import overlap, scan
from leakcheck.passphrase import phantoms
from leakcheck.records import PROMPT, Chunk, Message, Observation, RunEvent, TokenLogprob


def outcomes(h):
    return dict(zip(h.requests["id"], h.requests["outcome"], strict=True))


def row(h, table, **wanted):
    found = getattr(h, table)
    for column, value in wanted.items():
        found = found[found[column] == value]
    assert len(found) == 1, found
    return found.iloc[0]


def whole(h):
    """Everything that went into a small history, to be changed and built again."""
    run = h._run
    return run.plans, list(run.seen)


def build(plans, observations, invocations=()):
    return histories.build(plans, invocations, observations, provenance=provenance(*plans))


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("a> a=a", "ok"),
        ("a> a-", "failed"),
        ("a> a!", "unknown"),
        ("a> b> b=b", "unknown"),
        ("a.", "unsent"),
        ("a> a- a> a=a", "ok"),
        ("a> a! a> a-", "unknown"),
        ("a> a! a> a=a", "ok"),
        ("a> a^a", "aborted"),
        ("a> a- a> a^", "aborted"),
    ],
)
def test_the_final_outcome_of_a_request_is_what_all_its_attempts_leave_certain(line, outcome):
    assert outcomes(history(line))["a"] == outcome


def test_an_attempt_that_never_came_back_lasts_until_the_end_of_the_run():
    seen = row(history("a> b> b=b c> c=c"), "observations", request_id="a")
    assert (seen["outcome"], seen["end_ns"]) == ("unknown", 5 * STEP_NS)
    assert not seen["observed"]
    assert "nothing came back" in seen["error"]


def test_a_secret_of_a_request_that_never_came_back_is_still_recognised():
    h = history("a> b> b=bA")
    match = row(h, "matches", owner="foreign")
    assert (match["source"], match["recipient"], match["kind"]) == ("a", "b", "passphrase")


@pytest.mark.parametrize("line", ["a> a- b> b=bA", "a> a! b> b=bA", "a. b> b=bA"])
def test_secrets_of_requests_without_an_answer_count(line):
    assert row(history(line), "matches", owner="foreign")["source"] == "a"


@pytest.mark.parametrize(
    ("line", "relation", "seconds"),
    [
        ("a> b> a=aA b=bA", "concurrent", 0.1),
        ("a> a=aA b> b=bA", "sequential", 0.1),
        ("a> b> a! b=bA", "concurrent", 0.1),
        ("a> a! b> b=bA", "sequential", 0.1),
        ("a> b> b=bA", "unknown", None),
        ("b> a> b=bA", "concurrent", None),
        ("a> a! a> b> b=bA", "unknown", None),
        ("a> a! b> a> b=bA", "concurrent", None),
        ("b> a> a- b=bA a> a=aA", "concurrent", 0.1),
        ("a> a- a> a=aA b> b=bA", "sequential", 0.1),
        ("a> b> a- a> b=bA a=aA", "concurrent", 0.1),
        ("a> a- b> b=bA", "sequential", 0.1),
        ("b> b=bA a> a=aA", "unknown", None),
        ("a. b> b=bA", "unknown", None),
    ],
)
def test_relation_of_source_and_recipient(line, relation, seconds):
    timing = history(line).timing("a", "b")
    assert timing.relation == relation == history(line).relation("a", "b")
    assert timing.seconds == (None if seconds is None else pytest.approx(seconds))


def test_the_attempt_that_shows_the_match_is_the_recipient():
    h = history("a> b> b- a=aA b> b=bA")
    match = row(h, "matches", owner="foreign")
    timing = h.timing("a", "b", observation=int(match["observation"]))
    assert (timing.relation, timing.seconds) == ("sequential", pytest.approx(0.1))
    assert h.relation("a", "b") == "concurrent"


def test_company_counts_the_request_itself_and_whoever_ran_meanwhile():
    company = history("a> b> c> a=a b=b c=c d> d=d").overlaps.set_index("request_id")
    assert company["peak"].to_dict() == {"a": 3, "b": 3, "c": 3, "d": 1}
    assert company["with_any"].to_dict() == {"a": True, "b": True, "c": True, "d": False}


def test_a_request_that_touches_another_is_not_its_company():
    company = overlap.company(np.array([0, 10]), np.array([10, 20]), np.array([True, True]))
    assert company.peak.tolist() == [1, 1]
    assert company.with_any.tolist() == [False, False]


@pytest.mark.parametrize("line", ["a> b> a- b=b", "a> b> b=b"])
def test_refused_requests_and_those_whose_end_nobody_saw_are_no_company(line):
    company = row(history(line), "overlaps", request_id="b")
    assert (company["peak"], bool(company["with_any"])) == (1, False)


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.booleans()), max_size=30)


@given(INTERVALS)
def test_the_sweep_agrees_with_counting_every_pair_at_every_moment(intervals):
    starts = np.array([s for s, _, _ in intervals], np.int64)
    ends = np.array([s + n for s, n, _ in intervals], np.int64)
    counts = np.array([c for _, _, c in intervals], bool)
    spans = [(s, s + max(n, 1), c) for s, n, c in intervals]
    company = overlap.company(starts, ends, counts)
    for i, (start, end, _) in enumerate(spans):
        others = [x for j, x in enumerate(spans) if j != i and x[2]]
        together = [sum(o[0] <= t < o[1] for o in others) for t in range(start, end)]
        assert company.peak[i] == 1 + max(together)
        assert company.with_any[i] == any(o[0] < end and start < o[1] for o in others)


def test_a_match_tells_own_from_foreign_and_where_it_stands():
    h = history("a> b> a=aA b=_bA")
    match = row(h, "matches", owner="foreign")
    assert match["kind"] == "passphrase"
    assert h.text("b")[match["start"] : match["end"]] == passphrase("a")
    assert (match["field"], match["variant"], match["window"]) == ("content", "exact", 0)
    assert len(h.matches.query("owner == 'own'")) == 3


def test_a_withheld_passphrase_is_found_though_it_was_never_sent():
    match = row(history("a> a=a~a", control="a"), "matches", kind="withheld")
    assert (match["source"], match["owner"]) == ("a", "own")


@pytest.mark.parametrize("field", ["reasoning", "tool", "error", "content[1]"])
def test_every_field_is_searched(field):
    pieces = [Chunk(text=piece, field=field) for piece in passphrase("a").partition(" ")]
    h = with_chunks(history("a> b> a=a b=b"), "b", *pieces)
    assert row(h, "matches", owner="foreign")["field"] == field


def test_token_strings_of_logprobs_are_searched_where_they_differ_from_the_content():
    tokens = tuple(TokenLogprob(token=f" {w}", logprob=-1.0) for w in passphrase("a").split())
    h = with_chunks(history("a> b> a=a b=b"), "b", Chunk(text=ticket("b"), logprobs=tokens))
    assert row(h, "matches", owner="foreign")["field"] == "logprobs"


def test_logprobs_that_repeat_the_content_are_not_searched_twice():
    text = passphrase("a")
    tokens = (TokenLogprob(token=text, logprob=-1.0),)
    h = with_chunks(history("a> b> a=a b=b"), "b", Chunk(text=text, logprobs=tokens))
    assert row(h, "matches", owner="foreign")["field"] == "content"


def test_error_messages_are_searched():
    h = with_chunks(history("a> b> a=a b!"), "b", error=f"500: {passphrase('a')}")
    assert row(h, "matches", owner="foreign")["field"] == "error message"


def test_the_answer_of_an_attempt_that_failed_is_searched_too():
    h = history("a> b> b!A b> b=bB a=a")
    match = row(h, "matches", owner="foreign")
    assert h.observations.loc[match["observation"], "attempt"] == 1
    assert h.text("b") == f"{ticket('b')}. {passphrase('b')}"


def test_twins_and_replays_own_the_phrases_of_their_payload():
    h = history("a> a=aA / b> b=aA / c> c=aA", changes=twins())
    assert set(h.matches["owner"]) == {"own"}
    assert h.owners("b") == ("a", "b", "c")


def twins():
    a = history("a.").by_id("a")
    same = {"ticket": a.ticket, "passphrase": a.passphrase}
    return {"b": same | {"twin": "a"}, "c": same | {"replays": "b"}}


def test_of_several_owners_the_one_that_ran_with_the_recipient_is_the_source():
    h = history("a> a=aA / b> b=aA / c> d> c=aA d=dA", changes=twins())
    assert row(h, "matches", owner="foreign")["source"] == "c"


def test_of_several_owners_the_one_that_ran_with_the_attempt_that_shows_it_is_the_source():
    h = history("a> d> d- a=aA / b> d> b=aA d=dA / c.", changes=twins())
    assert row(h, "matches", owner="foreign")["source"] == "b"


def test_of_several_owners_before_the_recipient_the_last_is_the_source():
    h = history("a> a=aA / b> b=aA / d> d=dA / c.", changes=twins())
    assert row(h, "matches", owner="foreign")["source"] == "b"


def test_two_payloads_with_one_phrase_are_refused():
    one = {"b": {"passphrase": history("a.").by_id("a").passphrase}}
    with pytest.raises(RunFolderError, match="a and b own the same phrase"):
        _ = history("a> b> a=a b=b", changes=one).matches


@pytest.mark.parametrize(("many", "at_once"), [(1_000_000, 20), (1, 20), (1, 1000)])
def test_a_phantom_is_looked_for_in_its_own_window_only(monkeypatch, many, at_once):
    monkeypatch.setattr(scan, "MANY_PHRASES", many)
    monkeypatch.setattr(scan, "PHRASES_AT_ONCE", at_once)
    h = history("a> a=a | b> b=b")
    plan = h.plans[0]
    drawn = phantoms(plan.seed, "tiny", 1, plan.words, plan.scenario.load.passphrase_words, 20)
    for name, found in (("a", 0), ("b", 1)):
        changed = with_chunks(h, name, Chunk(text=drawn[3]))
        assert (changed.matches["kind"] == "phantom").sum() == found
    assert h.phantoms == 40


def test_a_phantom_that_stands_in_a_payload_is_no_control():
    plan = history("a> a=a | b> b=b").plans[0]
    drawn = phantoms(plan.seed, "tiny", 1, plan.words, plan.scenario.load.passphrase_words, 20)
    messages = (Message(role="user", content=f"say {drawn[3].title()}!"),)
    h = history("a> a=a | b> b=b", changes={"a": {"messages": messages}})
    shown = [with_chunks(h, "b", Chunk(text=drawn[number])) for number in (3, 4)]
    assert [(each.matches["kind"] == "phantom").sum() for each in shown] == [0, 1]


def test_a_window_is_a_trial_when_two_answered_requests_of_the_planted_arm_ran_together():
    line = "a> a=a b> b=b | c> d> c=c d=d | e> f> e=e f! | g> h> g=g h=h | i."
    windows = history(line, control="gh").windows
    assert windows["trial"].tolist() == [False, True, False, False, False]
    assert windows["overlapping"].tolist() == [False, True, False, True, False]
    assert windows["answered"].tolist() == [2, 2, 1, 2, 0]
    assert windows["peak"].tolist() == [1, 2, 2, 2, 0]


@pytest.mark.parametrize(
    ("line", "trial"),
    [
        ("a> a=a / b> b=b", True),
        ("a> a^a / b> b=b", True),
        ("a> a! / b> b=b", True),
        ("a> a- / b> b=b", False),
        ("b> b=b / a> a=a", False),
        ("a> a=a / b> b^b", False),
        ("a> a=a / b.", False),
        ("a> a=a / b> b=b c> c=c", False),
    ],
)
def test_of_requests_that_are_planned_one_at_a_time_a_trial_has_the_passphrase_first(line, trial):
    windows = history(line, changes={"b": NOTHING, "c": NOTHING}).windows
    assert windows["trial"].tolist() == [trial]
    assert windows["alone"].tolist() == ["c>" not in line]


def test_an_aborted_request_is_company_and_its_passphrase_was_in_the_target():
    h = history("a> b> c> a^ b=b c=c", changes={"b": NOTHING, "c": NOTHING})
    assert h.windows["trial"].tolist() == [True]
    assert h.windows["answered"].tolist() == [2]
    assert row(history("a> b> a^ b=b"), "overlaps", request_id="b")["with_any"]


NOTHING = {"passphrase": None}


@pytest.mark.parametrize(
    ("line", "changes", "trial"),
    [
        ("a> b> a=a b=b", {"a": NOTHING, "b": NOTHING}, False),
        ("a> b> a=a b=b", {"a": NOTHING}, True),
        ("a> b> c> c- a=a b=b", {"a": NOTHING, "b": NOTHING}, False),
        ("a> b> c> c! a=a b=b", {"a": NOTHING, "b": NOTHING}, True),
        ("a> b> c> a=a b=b", {"a": NOTHING, "b": NOTHING}, True),
        ("a> b> a=a b=b c> c=c", {"a": NOTHING, "b": NOTHING}, False),
        ("a> b> a=a b=b / c.", {"a": NOTHING, "b": NOTHING}, False),
        ("c> c- a> b> a=a b=b c> c=c", {"a": NOTHING, "b": NOTHING}, False),
        ("c> c! a> b> a=a b=b c> c=c", {"a": NOTHING, "b": NOTHING}, True),
    ],
)
def test_a_trial_had_a_passphrase_in_the_target_before_somebody_else_was_answered(
    line, changes, trial
):
    assert history(line, changes=changes).windows["trial"].tolist() == [trial]


def test_a_passphrase_that_only_its_own_payload_could_show_makes_no_trial():
    twin = {"a": {"ticket": None}, "b": {"ticket": None, "twin": "a"} | _only_passphrase("a")}
    assert history("a> b> a= b=", changes=twin).windows["trial"].tolist() == [False]


def _only_passphrase(name):
    return {"passphrase": history(f"{name}.").by_id(name).passphrase}


def test_a_replayed_window_is_no_trial():
    again = {"c": {"replays": "a", **_same("a")}, "d": {"replays": "b", **_same("b")}}
    windows = history("a> b> a=a b=b | c> d> c=a d=b", changes=again).windows
    assert windows["trial"].tolist() == [True, False]


def _same(name):
    request = history(f"{name}.").by_id(name)
    return {"ticket": request.ticket, "passphrase": request.passphrase}


def test_a_history_of_one_scenario_still_knows_sources_of_the_others():
    first, second = history("a> a=aA", scenario="one"), history("b> b=bA", scenario="two")
    h = build([*first.plans, *second.plans], [*whole(first)[1], *whole(second)[1]])
    assert h.scenarios() == ("one", "two")
    part = h.scenario("two")
    assert part.scenarios() == ("two",)
    assert part.requests["id"].tolist() == ["b"]
    assert part.overlaps["request_id"].tolist() == ["b"]
    assert row(part, "matches", owner="foreign")["source"] == "a"
    assert part.by_id("a").scenario == "one"


def test_a_run_without_any_observation_has_empty_tables():
    h = history("a. b.")
    assert [len(t) for t in (h.observations, h.overlaps, h.matches)] == [0, 0, 0]
    assert h.windows["answered"].tolist() == [0]
    assert h.text("a") == ""


def test_an_answer_to_no_request_is_damage():
    plans, seen = whole(history("a> a=a"))
    with pytest.raises(RunFolderError, match="z was sent and is in no plan"):
        build(plans, [replace(seen[0], request_id="z")])


def test_a_link_to_no_request_is_damage():
    with pytest.raises(RunFolderError, match="a is linked to z, which is in no plan"):
        _ = history("a> a=a", changes={"a": {"twin": "z"}}).matches


def test_two_requests_with_one_id_are_damage():
    plans, seen = whole(history("a> a=a"))
    with pytest.raises(RunFolderError, match="two requests with one id"):
        build([replace(plans[0], requests=plans[0].requests * 2)], seen)


def test_a_run_folder_reads_back_as_the_history_it_was(tmp_path):
    h = history("a> b> c> a=aA b=bA")
    runfolder.write_plans(tmp_path, h.plans)
    runfolder.write_provenance(tmp_path, h.provenance)
    event = RunEvent(kind="finished", at_ns=9)
    runfolder.append_event(tmp_path, event)
    shard = runfolder.Shard(tmp_path, 0)
    for o in h._run.seen:
        shard.invoke(o.request_id, o.attempt, o.worker, o.lane, o.start_ns)
        if o.request_id != "c":
            shard.observe(o)
    shard.close()
    again = histories.read(tmp_path)
    assert again.matches.equals(h.matches)
    assert again.requests.equals(h.requests)
    assert again.observations.equals(h.observations)
    assert again.events == (event,)
    assert again.torn == ()


def test_ten_thousand_requests_make_tables_in_seconds():
    base = history("a.")
    plan, request = base.plans[0], base.by_id("a")
    secret = request.passphrase
    requests, observations = [], []
    for n in range(10_000):
        words = tuple(f"{word}{n:05}q" for word in secret.words)
        own = replace(secret, words=words)
        requests.append(
            replace(request, id=f"r{n:05}", window=n // 16, passphrase=own, ticket=None)
        )
        observations.append(
            Observation(
                request_id=f"r{n:05}",
                worker=0,
                lane=0,
                outcome="ok",
                start_ns=n // 16 * 100 + n % 16,
                end_ns=n // 16 * 100 + 50,
                chunks=(Chunk(text=f"Passphrase: {own.text}."),),
            )
        )
    load = replace(plan.scenario.load, phantoms=0)
    plan = replace(plan, scenario=replace(plan.scenario, load=load), requests=tuple(requests))
    h = build([plan], observations)
    assert len(h.matches) == 10_000
    assert (h.matches["owner"] == "own").all()
    assert (h.overlaps["peak"] == 16).all()
    assert h.windows["trial"].all()


def test_the_own_passphrase_in_a_prompt_that_is_said_again_is_neither_echo_nor_match():
    sent = Chunk(text=f"system {passphrase('a')} {ticket('a')} assistant", field=PROMPT)
    h = with_chunks(history("a> a=_"), "a", Chunk(text="The weather is fine."), sent)
    assert len(h.matches) == 0
    assert echoes.rate(h).events == 0


def test_a_foreign_passphrase_in_a_prompt_that_is_said_again_is_a_leak():
    prompt = Chunk(text=f"system {passphrase('a')} assistant", field=PROMPT)
    h = with_chunks(history("a> b> a=a b=b"), "b", Chunk(text=ticket("b")), prompt)
    found = row(h, "matches", owner="foreign")
    assert (found["recipient"], found["source"], found["field"]) == ("b", "a", PROMPT)
    assert [each.anomaly for each in foreign_passphrase.check(h).findings] == ["foreign-passphrase"]
