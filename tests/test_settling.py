"""When a scenario has seen enough: counts that add up, and what they decide."""

from dataclasses import replace
from string import ascii_lowercase

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shorthand import FINISHED, history

from leakcheck import analyzer, evidence
from leakcheck.analyzer import exposure, settling
from leakcheck.analyzer.settling import State, Tier
from leakcheck.checks import altered
from leakcheck.records import Gate, Load, Look, RunEvent
from leakcheck.run import watching

GATE = Gate(detect=0.5, min_windows=2, min_echo=0.1, min_overlap=0.1)
PAIRS = list(zip(ascii_lowercase[::2], ascii_lowercase[1::2], strict=True))


def scenario(**gate):
    plan = history("a.").plans[0]
    return replace(plan.scenario, gate=replace(GATE, **gate))


def run(shown):
    """Two requests a window; `shown` says of each second one what it is answered with."""
    return " | ".join(
        f"{x}> {y}> {x}={x}{x.upper()} {y}={y}{text.format(x=x.upper(), y=y.upper())}"
        for (x, y), text in zip(PAIRS, shown, strict=False)
    )


ANSWERS = st.lists(st.sampled_from(["", "{y}", "{x}", "A"]), min_size=1, max_size=8)


def looks(windows, e_values=(2.0, 0.5)):
    return [
        Look(tier=tier, window=window, e_values=e_values, sources=3, planted_hits=1,
             phantoms=90, phantom_hits=window)
        for window in range(windows) for tier in ("encoded", "topic")
    ]  # fmt: skip


def rounded(state):
    """Sums of logarithms differ in their last digit with the order."""
    tiers = {
        name: replace(tier, logs=tuple(round(each, 9) for each in tier.logs))
        for name, tier in state.tiers.items()
    }
    return replace(state, tiers=tiers)


@settings(deadline=None, max_examples=25)
@given(ANSWERS, st.randoms(use_true_random=False))
def test_windows_added_one_by_one_in_any_order_are_the_whole_history(shown, rng):
    h, seen = history(run(shown)), looks(len(shown))
    whole = settling.after(State(), h.scenario("tiny"), GATE, looks=seen)
    state = State()
    windows = list(range(len(shown)))
    rng.shuffle(windows)
    for window in windows:
        state = settling.after(state, h.scenario("tiny"), GATE, looks=seen, only={window})
    assert rounded(state) == rounded(whole)
    assert (whole.windows, whole.trials) == (len(shown), len(shown))


@settings(deadline=None, max_examples=25)
@given(ANSWERS)
def test_the_counts_are_those_of_the_verdict(shown):
    h = history(run(shown), gate=GATE)
    state = settling.after(State(), h.scenario("tiny"), GATE)
    (found,) = analyzer.analyze(h).verdicts
    assert (state.leaks, state.trials) == (found.leak_rate.events, found.leak_rate.trials)
    assert settling.bound(state) == found.bound
    assert settling.sensitivity(state) == found.evidence.sensitivity


def test_replays_are_in_no_count():
    base = history("a> b> a=aA b=bB")
    again = history("a> b> a=aA b=bB | z> z=A", changes={"z": {"replays": "b"}})
    states = [settling.after(State(), h.scenario("tiny"), GATE) for h in (base, again)]
    assert states[0] == states[1]


@given(st.integers(0, 400), st.integers(0, 3), st.floats(0.01, 0.6))
def test_a_certificate_of_25_and_a_bound_within_the_gate_are_the_same_thing(n, leaks, detect):
    leaks = min(leaks, n)
    state = State(
        windows=n, trials=n, leaks=leaks, recipients=10, asked=7, rates={"echo": (90, 100)}
    )
    if leaks:
        assert settling.certificate(state, detect) == 0.0
        assert settling.bound(state) is None
    elif abs(settling.certificate(state, detect) - 25) > 1e-6:
        assert settling.certified(state, detect) == (settling.certificate(state, detect) >= 25)


def clean(trials, **more):
    fields = {
        "windows": trials,
        "trials": trials,
        "recipients": 2 * trials,
        "asked": 2 * trials,
        "rates": dict.fromkeys(("echo", "overlap", "tickets"), (9 * trials, 9 * trials)),
    }
    fields["rates"] |= more.pop("rates", {})
    return State(**fields | more)


def test_windows_end_when_the_rate_of_the_gate_is_excluded_and_not_before():
    one = scenario(detect=0.05, min_windows=1)
    needed = settling.trials_needed(clean(61), 0.05)
    assert settling.decision(clean(50), one) is None
    assert settling.decision(clean(needed + 1), one) == "certificate"


@pytest.mark.parametrize(
    ("gate", "more"),
    [
        ({"min_windows": 500}, {}),
        ({"min_overlap": 0.5}, {"rates": {"overlap": (3, 900)}}),
        ({"min_echo": 0.9}, {"rates": {"echo": (600, 900)}}),
        ({"min_echo": 0.9}, {"rates": {"tickets": (600, 900)}}),
        ({"min_cache_hits": 0.5}, {}),
    ],
)
def test_no_certificate_without_what_the_gate_asks_for(gate, more):
    assert settling.decision(clean(100), scenario()) == "certificate"
    assert settling.decision(clean(100, **more), scenario(**gate)) is None


def test_exposures_hold_by_a_bound_that_allows_for_all_looks():
    gate = scenario(min_overlap=0.5)
    exact = {"overlap": (59, 100)}  # at least 0.503 at one look, 0.46 at all of them
    assert evidence.lower_bound(*exact["overlap"]) > 0.5
    assert settling.decision(clean(100, rates=exact), gate) is None
    assert settling.decision(clean(100, rates={"overlap": (70, 100)}), gate) == "certificate"


def test_the_two_errors_of_a_certificate_are_five_percent_together():
    errors = (1 - settling.SURE) + (1 - settling.EXCLUDED)
    least = settling.CERTAIN
    assert (errors, least) == pytest.approx((0.05, 25))


def test_a_leak_that_is_no_trial_leaves_nothing_to_certify():
    state = replace(clean(400), leaks_elsewhere=1)
    assert settling.certificate(state, 0.5) == 0.0
    assert settling.bound(state) is None
    assert settling.trials_needed(state, 0.5) is None


def test_recipients_sent_alone_to_be_compared_with_are_in_no_share_of_the_asked():
    twin = {"b": {"twin": "a", "ask": "neutral"}, "c": {"ask": "neutral"}}
    h = history("a> a=aA / b> c> d> b=b c=c d=dD | e> e=eE / f> f=fF", changes=twin)
    state = settling.after(State(), h.scenario("tiny"), GATE)
    # b, c, d in company; e and f in a window that is sent one at a time
    assert (state.asked, state.recipients) == (3, 5)
    assert exposure.asked_share(h) == pytest.approx(3 / 5)


def test_a_foreign_phrase_ends_the_windows_at_once():
    assert settling.decision(State(windows=1, trials=1, leaks=1), scenario()) == "leak"
    assert settling.decision(State(windows=1, leaks_elsewhere=1), scenario()) == "leak"


def test_fuzzy_evidence_must_reach_the_limit_in_the_scenario_and_over_the_run():
    strong = State(windows=1, tiers={"encoded": Tier(logs=(8.0,))})
    assert strong.e_value == pytest.approx(0.35 * 2980.958 + 0.65)
    assert settling.decision(strong, scenario(), others=[1.0] * 5) == "evidence"
    assert settling.decision(strong, scenario(), others=[1.0] * 11) is None
    assert settling.decision(State(), scenario(), others=[1e6]) is None


def test_the_e_value_of_a_tier_is_the_mean_over_bets_of_their_products():
    values = [(3.0, 0.5), (0.25, 4.0), (7.0, 1.0)]
    state = State()
    for window, each in enumerate(values):
        (look,) = (one for one in looks(window + 1, each) if one.window == window and one.tier == "topic")  # fmt: skip # noqa: E501
        h = history(run([""] * 3)).scenario("tiny")
        state = settling.after(state, h, GATE, looks=[look], only={window})
    assert state.tiers["topic"].e_value == pytest.approx(evidence.merge(values))
    assert state.tiers["topic"].windows == 3


def test_huge_evidence_stays_a_number():
    state = State(tiers={"encoded": Tier(logs=(5000.0, -5000.0))})
    assert state.e_value == pytest.approx(evidence.LARGEST, rel=0.7)
    assert orjson.loads(watching.dump({"one": state}))["e_value"] < float("inf")


def test_a_state_survives_its_file():
    h = history(run(["{y}", ""]))
    state = settling.after(State(), h.scenario("tiny"), GATE, looks=looks(2))
    assert watching.load(watching.dump({"tiny": state})) == {"tiny": state}


# --- the verdict ---------------------------------------------------------------------------------

SETTLED = (RunEvent(kind="settled", at_ns=1, detail="tiny"), *FINISHED)


def test_windows_that_a_settled_scenario_left_out_are_neither_unsent_nor_lost():
    line = f"{run(['{y}'] * 4)} | y. z."
    load = Load(windows=5, phantoms=9)
    assert analyzer.analyze(history(line, load=load)).status == "inconclusive"
    report = analyzer.analyze(history(line, load=load, events=SETTLED))
    assert report.status == "clean", report.verdicts[0].reasons
    assert (report.requests["planned"], report.requests["unsent"]) == (8, 0)
    assert report.verdicts[0].windows_planned == 5
    assert report.verdicts[0].evidence.settled == "certificate"


def test_requests_missing_before_the_last_window_of_a_settled_scenario_are_still_lost():
    report = analyzer.analyze(history(f"y. z. | {run(['{y}'] * 9)}", events=SETTLED))
    assert report.requests["unsent"] == 2
    assert "a shard is missing" in report.verdicts[0].reasons[0]


def test_the_rate_of_a_scenario_that_stopped_at_its_leak_is_marked_as_no_estimate():
    h = history(run(["", "{x}"]), events=SETTLED)
    (found,) = analyzer.analyze(h).verdicts
    assert (found.status, found.evidence.settled) == ("leak", "leak")
    assert "no estimate of how often it happens" in found.reasons[-1]
    assert found.curves
    assert all("no estimate" in curve.title for curve in found.curves)
    (played,) = analyzer.analyze(history(run(["", "{x}"]))).verdicts
    assert not any("no estimate" in curve.title for curve in played.curves)
    assert not any("no estimate" in reason for reason in played.reasons)


def test_the_e_value_of_a_run_keeps_what_it_had_reached():
    class Part:
        def __init__(self, log):
            self.state = State(tiers={name: Tier(logs=(log,)) for name in altered.WEIGHTS})
            self.plan = history("a.").plans[0]

    first, second = Part(6.0), Part(-5.0)
    alone = analyzer.run_e_value([first])
    assert analyzer.run_e_value([first, second]) == pytest.approx((alone + 1) / 2)
    assert analyzer.run_e_value([second, first]) < analyzer.run_e_value([first, second])


def test_a_report_with_evidence_survives_json():
    report = analyzer.analyze(history(run(["{y}", "{x}"])))
    assert msgspec.json.decode(orjson.dumps(report), type=type(report)) == report
