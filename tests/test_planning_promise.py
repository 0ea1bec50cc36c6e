"""What `leakcheck plan` says a certificate takes is what a run keeps, by the rule of a run."""

import itertools
from functools import cache

import numpy as np
import pytest
from pretending import obedient, played

from leakcheck import planning, scenario
from leakcheck.analyzer import settling
from leakcheck.analyzer.settling import State
from leakcheck.evidence import rate
from leakcheck.passphrase import load_words
from leakcheck.records import TargetFacts

RUNS, SEED = 200, 11
POOL, LARGE_POOL = 500, 1000
MANY = 1_000_000
"""Owners of an earlier run, so many that its echo rate is known."""
FACTS = TargetFacts(block_tokens=16, overhead_tokens=2)
SHIPPED = {path.stem: path for path in scenario.shipped_files()}
CLAIMING = [name for name, path in SHIPPED.items() if scenario.read(path).gate.detect < 1]
"""Those that exclude a rate of leaks: all but first-request, whose unit is a lifetime."""
KINDS = ("control-group", "duplicate-ids", "concurrency-sweep", "mixed-batch-differential")


def known(echo):
    """Nothing but echo, as of a run of other scenarios."""
    return planning.Seen(
        where="that run", echo=rate(round(echo * MANY), MANY), asked=0, recipients=0, trials=0,
        planted=0, requests_per_s=None, told=0, prompt_tokens=None, answer_tokens=None,
    )  # fmt: skip


@cache
def windows(name, echo=None):
    """What is said to be enough to exclude; without an echo rate, with what is assumed."""
    seen = None if echo is None else known(echo)
    of = scenario.read(SHIPPED[name])
    return planning.bill(of, planning.Terms(), seen=seen, facts=FACTS).needs[-1].windows


@cache
def pool(name):
    """Trials, recipients, those asked, and owners that ask, of windows that planning did not see:
    those of the planted arm, and those of the control arm.
    """
    of, words, ids = scenario.read(SHIPPED[name]), load_words(), itertools.count()
    rows = {"planted": [], "control": []}
    few = of.traffic.name == "mixed_batch"  # draws who is asked only four times a window
    for index in range(LARGE_POOL if few else POOL):
        made = scenario.plan_window(
            of, index, seed=SEED, facts=FACTS, words=words, style="phrase", ids=ids
        )
        sent = [r for r in made if r.abort_after_s is None and r.abort_after_chunks is None]
        company = [r.phase for r in made]
        recipients = [r for r in sent if r.role == "recipient" and company.count(r.phase) > 1]
        asked = sum(r.ask == "eliciting" for r in recipients)
        asking = [r for r in sent if r.ask == "eliciting" and r.passphrase is not None]
        owners = len({r.twin or r.id for r in asking})
        trial = made[0].arm == "planted" and any(r.passphrase for r in made) and len(made) > 1
        rows[made[0].arm].append((trial, len(recipients), asked, owners))
    return {arm: np.array(found) for arm, found in rows.items() if found}


def drawn(rng, name, count):
    """Running sums of the counts of a run: one row a window."""
    of, rows = scenario.read(SHIPPED[name]), pool(name)
    control = rng.random(count) < of.load.control
    arms = {arm: found[rng.integers(len(found), size=count)] for arm, found in rows.items()}
    picked = np.where(control[:, None], arms.get("control", arms["planted"]), arms["planted"])
    return np.cumsum(np.column_stack([picked, control]), axis=0)


def certified(rng, name, echo, looks):
    """Whether a run without a leak has ended with a certificate at one of these windows."""
    of, sums = scenario.read(SHIPPED[name]), drawn(rng, name, max(looks))
    echoed = np.cumsum(rng.binomial(np.diff(sums[:, 3], prepend=0), echo))
    for windows in looks:
        trials, recipients, asked, owners, control = (int(n) for n in sums[windows - 1])
        state = State(
            windows=windows,
            trials=trials,
            planted=windows - control,
            control=control,
            recipients=recipients,
            asked=asked,
            rates={
                "echo": (int(echoed[windows - 1]), owners),
                **dict.fromkeys(("overlap", "tickets", "cache hits"), (recipients, recipients)),
            },
        )
        if settling.decision(state, of) == "certificate":
            return True
    return False


@pytest.mark.parametrize("echo", [1.0, 0.97, 0.9])
@pytest.mark.parametrize("name", KINDS)
def test_a_run_certifies_after_the_windows_it_was_told_and_not_long_before(name, echo):
    rng, enough = np.random.default_rng(SEED), windows(name, echo)
    early = int(0.85 * enough)
    before = range(int(0.7 * enough), early + 1, 5)
    assert sum(certified(rng, name, echo, [enough]) for _ in range(RUNS)) >= 0.9 * RUNS
    assert sum(certified(rng, name, echo, [*before, early]) for _ in range(RUNS)) < 0.5 * RUNS


@pytest.mark.parametrize("name", KINDS)
def test_without_a_run_to_go_by_an_echo_of_nine_in_ten_is_enough(name):
    rng, enough = np.random.default_rng(SEED), windows(name)
    assert sum(certified(rng, name, planning.ECHO, [enough]) for _ in range(RUNS)) >= 0.9 * RUNS


@pytest.mark.parametrize("name", CLAIMING)
def test_the_budget_of_a_shipped_scenario_suffices_for_one_percent_and_what_is_assumed(name):
    of = scenario.read(SHIPPED[name])
    assert (of.gate.detect, planning.ECHO) <= (0.01, 0.93)
    assert windows(name) <= of.load.windows


@pytest.mark.parametrize("name", SHIPPED)
def test_the_counts_of_planned_windows_are_those_that_a_run_decides_by(name):
    of = scenario.read(SHIPPED[name], {"load.windows": 8, "load.phantoms": 9})
    sampled = planning.sample(of, FACTS, 8)
    plan = scenario.plan(of, seed=0, facts=FACTS, words=load_words(), style="phrase")
    state = settling.after(State(), played(plan, obedient).scenario(of.name), of.gate)
    assert (sampled.testable, sampled.recipients) == (state.trials, state.recipients)
    assert (sampled.asked, sampled.owners) == (state.asked, state.rates["echo"][1])
