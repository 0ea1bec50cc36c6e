"""From trials to figures, and to what did not behave."""

import pytest
from selftest.made import BENIGN, FAULTS, LEAKING, MUTE, SCENARIOS, SUBTLE, scenario, trial

from leakcheck.selftest.aggregate import cells, failures, quiet
from leakcheck.selftest.values import HEALTHY

NAMES = [fault.name for fault in FAULTS]


def caught(fault, name, count, of, **fields):
    return [trial(fault, name, seed, detected=seed < count, **fields) for seed in range(of)]


def quiets(fault, seeds=3, *, accused=(), **fields):
    return [
        trial(
            fault,
            each.name,
            seed,
            kind="benign",
            **({"status": "leak", "anomalies": ("foreign-answer",)} if seed in accused else {}),
            **fields,
        )
        for each in SCENARIOS
        for seed in range(seeds)
    ]


ALL_WELL = [
    *caught("swap", "broad", 20, 20, sources=2, sources_right=2),
    *caught("shift", "narrow", 19, 20, anomaly="lost-answer"),
    *quiets(HEALTHY),
    *quiets("slow"),
    *quiets("mute", status="inconclusive"),
]


def sentences(trials, faults=FAULTS, scenarios=SCENARIOS):
    return failures(trials, faults, scenarios, NAMES)


def test_a_cell_counts_with_exact_bounds():
    mine = [
        trial("swap", "broad", 0, detected=True, windows=1, sources=3, sources_right=3),
        trial("swap", "broad", 1, detected=True, windows=5, sources=2, sources_right=1),
        trial("swap", "broad", 2, detected=True, windows=9),
        trial("swap", "broad", 3, windows=40),
    ]
    (cell,) = cells(mine, FAULTS, SCENARIOS)
    assert (cell.detected.events, cell.detected.trials) == (3, 4)
    assert cell.detected.low == pytest.approx(0.19412, abs=1e-5)
    assert (cell.right.events, cell.right.trials) == (2, 4)
    assert cell.median_windows == 5
    assert (cell.sources, cell.sources_right) == (5, 4)
    assert cell.anomalies == {"foreign-answer": 3}
    assert cell.statuses == {"clean": 1, "leak": 3}
    assert (cell.claimed, cell.windows, cell.budget) == (True, 55, 40)
    assert cell.missed == "nothing was seen"


def test_cells_are_in_the_order_of_faults_with_claims_first_whatever_the_order_of_trials():
    mine = [
        trial("shift", "idle", 0),
        trial("shift", "broad", 0),
        trial("shift", "narrow", 0),
        trial("swap", "idle", 0),
        trial("swap", "broad", 0),
    ]
    places = [(cell.fault, cell.scenario) for cell in cells(mine, FAULTS, SCENARIOS)]
    assert places == [
        ("swap", "broad"),
        ("swap", "idle"),
        ("shift", "narrow"),
        ("shift", "broad"),
        ("shift", "idle"),
    ]
    assert cells(mine[::-1], FAULTS, SCENARIOS) == cells(mine, FAULTS, SCENARIOS)


def test_nothing_detected_has_no_median():
    (cell,) = cells([trial("swap", "broad", 0)], FAULTS, SCENARIOS)
    assert cell.median_windows is None


def test_none_of_thirty_seeds_proves_at_most_nine_and_a_half_per_cent():
    whole = quiet(quiets(HEALTHY, 30), FAULTS, SCENARIOS)[0]
    assert (whole.fault, whole.scenario) == (HEALTHY, "")
    assert (whole.accused.events, whole.accused.trials) == (0, 30)
    assert whole.accused.upper == pytest.approx(0.0950, abs=1e-4)
    assert whole.windows == 30 * len(SCENARIOS) * 3


def test_a_seed_that_is_accused_in_two_scenarios_counts_once():
    rows = quiet(quiets("slow", 4, accused=[2]), FAULTS, SCENARIOS)
    assert (rows[0].accused.events, rows[0].accused.trials) == (1, 4)
    assert [row.accused.events for row in rows[1:]] == [1, 1, 1]


def test_all_well_says_nothing():
    assert sentences(ALL_WELL) == ()


def test_a_fault_below_the_goal_is_named_with_its_best_rate_and_the_reason():
    mine = [
        *caught("shift", "narrow", 18, 20),
        *caught("shift", "broad", 1, 4),
    ]
    (said,) = sentences(mine, [SUBTLE])
    assert said.startswith("shift: caught with the right source and recipient in 18 of 20 seeds")
    assert "by narrow, its best" in said
    assert said.endswith("in the others: nothing was seen")


def test_one_scenario_that_reaches_the_goal_with_all_seeds_is_enough():
    mine = [*caught("shift", "narrow", 0, 20), *caught("shift", "broad", 19, 20)]
    assert sentences(mine, [SUBTLE]) == ()


def test_a_scenario_that_was_played_with_fewer_seeds_than_the_first_is_not_enough():
    mine = [*caught("shift", "narrow", 18, 20), *caught("shift", "broad", 4, 4)]
    (said,) = sentences(mine, [SUBTLE])
    assert said.startswith("shift: caught with the right source and recipient in 18 of 20 seeds")


def test_what_could_not_be_played_is_named_and_counts_nowhere():
    gone = trial("slow", "idle", 7, status="error", broken=True, reason="OSError: disk is full")
    (said,) = sentences([*quiets("slow"), gone], [BENIGN])
    assert said == "slow in idle, seed 7: the trial could not be played: OSError: disk is full"
    assert quiet([*quiets("slow"), gone], FAULTS, SCENARIOS)[0].accused.trials == 3


def test_trials_at_full_length_have_rows_of_their_own_at_the_end():
    long = [trial(HEALTHY, "idle", seed, kind="long", windows=40) for seed in (30, 31)]
    rows = quiet([*long, *quiets(HEALTHY), *quiets("slow")], FAULTS, SCENARIOS)
    assert [row.full_length for row in rows] == [False] * 8 + [True] * 2
    assert [(row.windows, row.accused.trials) for row in rows[-2:]] == [(80, 2), (80, 2)]


def test_a_wrong_source_does_not_count_as_caught():
    mine = caught("swap", "broad", 20, 20, sources=2, sources_right=1)
    (said,) = sentences(mine, [LEAKING])
    assert "in 0 of 20 seeds" in said
    assert "detected in 20; 20 of 40 sources wrong" in said


def test_detection_where_nobody_claims_it_does_not_help():
    mine = [*caught("swap", "broad", 0, 2), *caught("swap", "idle", 2, 2)]
    assert len(sentences(mine, [LEAKING])) == 1


def test_a_fault_that_no_scenario_claims_is_named():
    (said,) = sentences([], [SUBTLE], [scenario("idle")])
    assert said == "shift: no scenario says that it catches this fault"


def test_a_claim_to_catch_what_does_not_exist_is_named():
    (said,) = sentences([], [BENIGN], [scenario("idle", "swpa")])
    assert "'swpa', and there is no such fault" in said


@pytest.mark.parametrize("fault", [HEALTHY, "slow"])
def test_a_leak_of_what_has_none_is_named_with_its_seed(fault):
    mine = quiets(fault, accused=[1])
    said = sentences(mine, [BENIGN])
    assert len(said) == len(SCENARIOS)
    assert "seed 1: called leak (foreign-answer)" in said[0]


@pytest.mark.parametrize("status", ["clean", "error"])
def test_a_mute_target_must_be_inconclusive(status):
    mine = quiets("mute", 1, status=status)
    said = sentences(mine, [MUTE])
    assert len(said) == len(SCENARIOS)
    assert f"was called {status}, not inconclusive" in said[0]


@pytest.mark.parametrize("status", ["inconclusive", "error"])
def test_other_benign_faults_may_be_inconclusive_or_broken(status):
    assert sentences(quiets("slow", status=status), [BENIGN]) == ()
