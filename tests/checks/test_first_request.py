"""Answers that follow the temperature of what came first, and targets that only look alike."""

import random
import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretending import Reply, built, obedient, plan, say
from shorthand import provenance

from leakcheck import history as histories
from leakcheck.analyzer import judge
from leakcheck.checks import _replay, first_request
from leakcheck.records import Chunk, Observation, RunEvent, Usage
from leakcheck.runfolder import Invocation

NAME, WINDOWS, SEED = "first-request", 14, 3
STEP_NS = 1_000_000_000
TELL = "--restart COMMAND would tell"


def cold(request):
    return replace(request.sampling, temperature=0.0)


def follows_itself(request, _first):
    return say(request, request.sampling)


def follows_the_first(request, first):
    """What the sampler was built with serves all; seeds are everybody's own."""
    heat = replace(
        request.sampling,
        temperature=first.sampling.temperature,
        seed=request.sampling.seed or int(request.id[1:]),
    )
    return say(request, heat)


def ignores_temperature(request, _first):
    return say(request, cold(request))


def always_hot(request, _first):
    return say(request, replace(request.sampling, temperature=1.0, seed=int(request.id[1:])))


def ignores_seeds(request, _first):
    return say(request, replace(request.sampling, seed=int(request.id[1:])))


def has_a_seed_of_its_own(request, _first):
    return say(request, replace(request.sampling, seed=1))


def noisy(request, _first):
    """Half of the greedy answers come out otherwise, whatever came first."""
    reply = say(request, request.sampling)
    flips = random.Random(request.id).random() < 0.5
    return replace(reply, text=f"{reply.text} or so") if flips else reply


def lived(model, *, restarts=True, windows=WINDOWS, seed=SEED, kind="restarted"):
    """A run in which each window from the third on begins a lifetime, whose first request the model
    is told; without `restarts` there is one lifetime, which a greedy request began.
    """
    of = plan(NAME, windows, seed=seed, load__phantoms=0)
    survey = replace(of.requests[0], sampling=replace(of.requests[0].sampling, temperature=0.0))
    seen, events, first = [], [], survey
    for number, request in enumerate(of.requests):
        at_ns = (number + 1) * STEP_NS
        if restarts and request.window >= 2 and request.phase == 0:
            first = request
            events.append(
                RunEvent(kind=kind, at_ns=at_ns - 1, detail=f"{NAME}: window {request.window + 1}")
            )
        reply = model(request, first)
        seen.append(
            Observation(
                request_id=request.id, worker=0, lane=0, outcome=reply.outcome, start_ns=at_ns,
                end_ns=at_ns + STEP_NS // 2, chunks=(Chunk(text=reply.text),),
                usage=Usage(completion_tokens=reply.tokens), finish_reason=reply.finish, status=200,
            )
        )  # fmt: skip
    sent = [
        Invocation(request_id=o.request_id, attempt=1, worker=0, lane=0, at_ns=o.start_ns)
        for o in seen
    ]
    events.append(RunEvent(kind="finished", at_ns=10**15))
    return histories.build([of], sent, seen, provenance=provenance(of), events=events)


def test_a_target_whose_first_request_serves_all_is_found_guilty_and_the_mechanism_is_named():
    result = first_request.check(lived(follows_the_first))
    assert [f.severity for f in result.findings] == ["corruption"] * 2
    assert {f.anomaly for f in result.findings} == {"foreign-parameters"}
    assert {f.evidence["aspect"] for f in result.findings} == {"greedy answers", "hot answers"}
    for found in result.findings:
        assert found.explanation.startswith(
            "answers follow the temperature of the first request after the start, not their own"
        )
        assert found.evidence["p"] <= 0.0005
        assert found.relation == "sequential"


def test_its_verdict_is_corruption():
    of = lived(follows_the_first)
    verdict = judge(of, of.plans[0])
    assert verdict.status == "corruption"
    assert any("first request after the start" in reason for reason in verdict.reasons)


def test_source_and_recipient_have_unlike_temperatures_and_lie_in_one_window():
    of = lived(follows_the_first)
    for found in first_request.check(of).findings:
        source, recipient = of.by_id(found.source), of.by_id(found.recipient)
        assert source.window == recipient.window >= 2
        assert (source.sampling.temperature > 0) != (recipient.sampling.temperature > 0)


@pytest.mark.parametrize(
    "model",
    [follows_itself, ignores_temperature, always_hot, ignores_seeds, has_a_seed_of_its_own, noisy],
    ids=lambda model: model.__name__,
)
@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_who_is_not_guilty_is_not_accused(model, restarts, seed):
    result = first_request.check(lived(model, restarts=restarts, seed=seed))
    assert result.findings == ()


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (follows_the_first, "hot requests are answered greedily (in 14 of 14 windows)"),
        (ignores_temperature, "hot requests are answered greedily (in 14 of 14 windows)"),
        (always_hot, "greedy requests are answered at random (in 14 of 14 windows)"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_without_restarts_it_is_said_what_would_tell(model, what):
    of = lived(model, restarts=False)
    result = first_request.check(of)
    (untested,) = result.untested
    assert what in untested
    assert TELL in untested
    verdict = judge(of, of.plans[0])
    assert verdict.status == "inconclusive"
    assert any(TELL in reason for reason in verdict.reasons)


def test_with_restarts_a_target_that_ignores_temperature_is_cleared_of_it():
    result = first_request.check(lived(ignores_temperature))
    assert result.untested == ()
    assert "the target ignores temperature, which is nobody else's doing" in result.notes[0]


def test_few_lifetimes_are_said_to_be_too_few():
    result = first_request.check(lived(follows_the_first, windows=8))
    assert result.findings == ()
    assert "6 lifetimes of the target are too few" in result.untested[0]


def test_an_obedient_target_needs_no_restarts_and_is_clean():
    of = lived(follows_itself, restarts=False)
    assert not first_request.wants_restarts(of)
    assert judge(of, of.plans[0]).status == "clean"


@pytest.mark.parametrize("model", [follows_the_first, ignores_temperature, always_hot])
def test_who_does_not_follow_its_own_temperature_makes_restarts_worth_their_time(model):
    assert first_request.wants_restarts(lived(model, restarts=False, windows=2))


def test_a_temperature_left_behind_within_one_lifetime_is_found_without_restarts():
    of = plan(NAME, 40, seed=SEED, load__phantoms=0)
    firsts = {r.window: r for r in of.requests if r.phase == 0}
    seen = [
        Observation(
            request_id=r.id, worker=0, lane=0, outcome="ok", start_ns=n * STEP_NS,
            end_ns=n * STEP_NS + 9, status=200, finish_reason="stop",
            chunks=(Chunk(text=follows_the_first(r, firsts[r.window]).text),),
        )
        for n, r in enumerate(of.requests)
    ]  # fmt: skip
    result = first_request.check(built(of, seen))
    assert len(result.findings) == 2
    assert "of the request sent before them" in result.findings[0].explanation


def test_windows_whose_first_request_was_not_answered_do_not_count():
    def refuses_some(request, first):
        reply = follows_the_first(request, first)
        refused = request.cell == "first" and request.window % 2 == 0
        return Reply(outcome="failed", text="") if refused else reply

    windows = first_request.seen(lived(refuses_some))
    assert {each.window % 2 for each in windows} == {1}


# --- the test ------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=4, max_size=14))
def test_a_perfect_split_has_the_chance_of_one_fall_of_the_coins(coins):
    p = first_request.p_value(coins, [float(coin) for coin in coins])
    enough = min(sum(coins), len(coins) - sum(coins)) >= 2
    assert p == (2.0 ** -len(coins) if enough else 1.0)


@given(st.lists(st.booleans(), min_size=0, max_size=20), st.sampled_from([0.0, 0.5, 1.0]))
def test_answers_that_are_always_the_same_say_nothing(coins, share):
    assert first_request.p_value(coins, [share] * len(coins)) > 0.3


def test_honest_targets_are_accused_no_more_often_than_the_level_says():
    draws = random.Random(7)
    rejected = 0
    for _ in range(400):
        shares = [draws.choice([0.0, 0.5, 1.0]) for _ in range(12)]
        coins = [draws.random() < 0.5 for _ in range(12)]
        rejected += first_request.p_value(coins, shares) <= 0.05
    assert rejected <= 34  # 20 expected; 34 or fewer in 99.9 %


# --- the replay ----------------------------------------------------------------------------------


def test_a_finding_has_a_script_that_is_valid_shell_and_restarts_before_each_first_request():
    (greedy, _) = first_request.check(lived(follows_the_first)).findings
    script = greedy.evidence["replay"]
    subprocess.run(["/bin/sh", "-n"], input=script, text=True, check=True)
    assert script.count("\nrestart\n") == 2
    assert script.count("curl -sS") == 14
    hot, cold_half = script.split("--- lifetime 2")
    assert "temperature 2 (first)" in hot
    assert "temperature 0 (first)" in cold_half


def test_a_replay_names_the_variable_with_the_key_and_the_command_that_restarts():
    of = plan(NAME, 2, load__phantoms=0)
    origin = provenance(of)
    target = replace(origin.target, base_url="https://host.example/v1", api_key_env="SOME_KEY")
    origin = replace(origin, target=target, restart="restart-it --now 'a b'")
    script = _replay.script(origin, [[of.requests[0]]])
    assert '"Authorization: Bearer ${SOME_KEY}"' in script
    assert shlex.join(["restart-it", "--now", "a b"]) in script


def test_what_is_no_http_target_has_no_script():
    of = plan(NAME, 2, load__phantoms=0)
    origin = provenance(of)
    target = replace(origin.target, base_url="module:function")
    assert _replay.script(replace(origin, target=target), [[of.requests[0]]]) is None


def test_an_obedient_model_that_is_played_as_a_run_is_not_accused():
    of = plan(NAME, 6, load__phantoms=0)
    seen = [
        Observation(
            request_id=r.id, worker=0, lane=0, outcome="ok", start_ns=n, end_ns=n, status=200,
            chunks=(Chunk(text=obedient(r, ()).text),),
        )
        for n, r in enumerate(of.requests)
    ]  # fmt: skip
    assert first_request.check(built(of, seen)).findings == ()
