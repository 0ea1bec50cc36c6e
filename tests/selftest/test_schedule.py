"""Which trials are played: decided by what there is, and by nothing else."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from selftest.made import BENIGN, FAULTS, LEAKING, MUTE, SCENARIOS, SUBTLE, scenario

from leakcheck.selftest.schedule import FAST, FULL, claims, jobs, looks
from leakcheck.selftest.values import HEALTHY

EFFORT = replace(FAST, seeds=3, also_seeds=2, benign_seeds=2, healthy_seeds=4)


def of(kind, *, effort=EFFORT, faults=FAULTS, seed=0):
    return [job for job in jobs(faults, SCENARIOS, effort, seed=seed) if job.kind == kind]


def test_the_first_scenario_is_the_one_that_names_the_fault_earliest():
    assert [each.name for each in claims("shift", SCENARIOS)] == ["narrow", "broad"]
    assert [each.name for each in claims("swap", SCENARIOS)] == ["broad"]
    assert claims("slow", SCENARIOS) == ()


def test_a_leaking_fault_is_played_in_the_scenarios_that_claim_it():
    caught = [(job.fault.name, job.scenario, job.seed) for job in of("caught")]
    also = [(job.fault.name, job.scenario, job.seed) for job in of("also")]
    assert caught == [("swap", "broad", n) for n in range(3)] + [
        ("shift", "narrow", n) for n in range(3)
    ]
    assert also == [("shift", "broad", n) for n in range(2)]


def test_seeds_count_from_the_one_given():
    assert [job.seed for job in of("caught", faults=[LEAKING], seed=7)] == [7, 8, 9]


def test_a_leaking_trial_may_last_as_long_as_its_scenario():
    assert {job.windows for job in of("caught", effort=FULL)} == {40}
    assert {job.windows for job in of("caught", effort=replace(EFFORT, windows=12))} == {12}


def test_the_healthy_engine_is_played_in_every_scenario():
    places = {(job.scenario, job.seed) for job in of("healthy")}
    assert places == {(each.name, seed) for each in SCENARIOS for seed in range(4)}


def test_benign_faults_take_turns_at_the_scenarios_when_there_is_little_time():
    effort = replace(EFFORT, benign_scenarios=1, benign_seeds=1)
    places = [(job.fault.name, job.scenario) for job in of("benign", effort=effort)]
    assert [fault for fault, _ in places] == [BENIGN.name, MUTE.name]
    assert len({name for _, name in places}) == 2
    everywhere = of("benign", effort=replace(effort, benign_scenarios=None))
    assert len(everywhere) == 2 * len(SCENARIOS)


def test_the_matrix_holds_what_nobody_claims_and_comes_last():
    effort = replace(EFFORT, matrix_seeds=2, matrix_windows=6)
    found = jobs(FAULTS, SCENARIOS, effort, seed=0)
    matrix = [job for job in found if job.kind == "matrix"]
    assert found[-len(matrix) :] == tuple(matrix)
    assert {(job.fault.name, job.scenario) for job in matrix} == {
        ("swap", "narrow"),
        ("swap", "idle"),
        ("shift", "idle"),
    }
    assert {job.windows for job in matrix} == {6}
    assert [job.seed for job in matrix] == [0, 0, 0, 1, 1, 1]


def test_chosen_quiet_targets_are_played_at_full_length_with_seeds_of_their_own():
    effort = replace(
        EFFORT, long_seeds=2, long_faults=(HEALTHY, "slow"), long_scenarios=("broad", "idle")
    )
    found = [
        (job.fault.name, job.scenario, job.seed, job.windows) for job in of("long", effort=effort)
    ]
    assert found == [
        (name, place, seed, 40)
        for name in (HEALTHY, "slow")
        for place in ("broad", "idle")
        for seed in (4, 5)
    ]
    assert of("long") == []


def test_no_trial_is_played_twice():
    effort = replace(FULL, matrix_seeds=2, long_faults=(HEALTHY, "slow"), long_scenarios=("idle",))
    found = jobs(FAULTS, SCENARIOS, effort, seed=0)
    assert len({(job.fault.name, job.scenario, job.seed) for job in found}) == len(found)


def test_a_fault_that_nobody_claims_is_played_nowhere_but_in_the_matrix():
    bare = [scenario("idle")]
    found = jobs([SUBTLE], bare, replace(FAST, matrix_seeds=1), seed=0)
    assert {job.kind for job in found} == {"healthy", "matrix"}


@given(st.integers(1, 200))
def test_a_trial_is_judged_ever_more_rarely_and_at_its_end(windows):
    found = looks(windows)
    assert found[-1] == windows
    assert list(found) == sorted(set(found))
    assert found[: min(windows, 4)] == tuple(range(1, min(windows, 4) + 1))
    assert all(after <= before + max(1, before // 3) for before, after in itertools.pairwise(found))
