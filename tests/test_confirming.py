"""Who is accused by chance, and who is caught: the rule by itself, and whole confirmations.

Every run is independent and has a seed of its own. The errors are exact: none accused of 299 runs
says, with an error of 5 %, that less than 1 % are (0.99 ** 299 = 0.0495); all of 29 caught says as
surely that more than 90 % are.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pretending
import pytest
from pretending import FACTS, Reply

from leakcheck import history as histories
from leakcheck.analyzer.confirm import confirmations
from leakcheck.checks import own_answer
from leakcheck.checks.own_answer import Replays

HONEST, FAULTY = 299, 29
SUSPECTS, SCENARIOS = 12, 12
NEAR_TIE = 0.438
"""How often the other token of two a quarter of a nat apart is drawn at temperature 1."""


# --- the rule by itself: a run is twelve scenarios with twelve suspects each ----------------------


def accused_runs(alone, hot, window, *, suspects=SUSPECTS * SCENARIOS, runs=HONEST):
    """How many of the runs accuse a target that loses these shares of each kind of replay."""
    draws = np.random.default_rng(7)
    shape = (runs, suspects)
    kept = own_answer.ALONE_REPLAYS - draws.binomial(own_answer.ALONE_REPLAYS, alone, shape)
    lost_hot = draws.binomial(own_answer.HOT_REPLAYS, hot, shape)
    lost_again = draws.binomial(own_answer.WINDOW_REPLAYS, window, shape)
    cells = np.stack([kept, lost_hot, lost_again], axis=-1)
    return sum(any(decided(*of) for of in run) for run in cells.tolist())


def decided(kept, lost_hot, lost_again):
    """What the rule says of one suspect whose replays were all sent and answered."""
    return Replays(
        alone=own_answer.ALONE_REPLAYS,
        kept_alone=kept,
        hot=own_answer.HOT_REPLAYS,
        lost_hot=lost_hot,
        again=own_answer.WINDOW_REPLAYS,
        lost_again=lost_again,
    ).confirmed


@pytest.mark.parametrize(
    ("alone", "hot", "window"),
    [(0.0, NEAR_TIE, 1.0), (0.0, NEAR_TIE, 0.5), (0.1, 0.1, 0.1), (0.03, 0.03, 0.03)],
)
def test_the_rule_accuses_an_honest_target_in_less_than_one_run_of_a_hundred(alone, hot, window):
    assert accused_runs(alone, hot, window) == 0


def test_the_rule_catches_one_suspect_of_a_fault_in_nine_runs_of_ten():
    assert accused_runs(0.0, 0.01, 1.0, suspects=1, runs=1000) > 930


# --- whole confirmations: what is sent, answered and judged ---------------------------------------

FOLLOWS = replace(FACTS, samples=True)
PLANS = [
    pretending.plan("rare-token-passphrase", 4, seed=seed, load__requests=3, load__phantoms=0)
    for seed in range(4)
]


def drawn(*what):
    return random.Random("/".join(map(str, what))).random()


def sticky_near_tie(seed, request, company):
    """Half of the requests are nearly tied: company decides, the same way every time."""
    if drawn(seed, request.replays or request.id) > 0.5:
        return 0.0
    return NEAR_TIE if request.sampling.temperature else float(bool(company))


def careless(_seed, _request, _company):
    return 0.1


def broken_in_company(seed, request, company):
    """Half of the requests lose their ticket in company; hot they slip once in a hundred."""
    if company:
        return float(drawn(seed, request.replays or request.id) < 0.5)
    return 0.01 if request.sampling.temperature else 0.0


def accused(target, seed):
    """Whether a run that came to its end says corruption of this target."""
    draws = random.Random(seed)

    def model(request, company):
        lost = draws.random() < target(seed, request, company)
        return Reply(text="So it goes on." if lost else f"Ticket: {request.ticket.text}.")

    of = PLANS[seed % len(PLANS)]
    h = pretending.played(of, model, facts=FOLLOWS)
    while more := confirmations(h):
        again = pretending.played(replace(of, requests=more), model, facts=FOLLOWS)
        of = replace(of, requests=(*of.requests, *more))
        seen = [*h._run.seen, *again._run.seen]
        h = histories.build([of], [], seen, provenance=h.provenance, events=h.events)
    return any(f.severity == "corruption" for f in own_answer.check(h).findings)


@pytest.mark.power
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", [sticky_near_tie, careless])
def test_an_honest_noisy_target_is_accused_in_less_than_one_run_of_a_hundred(target):
    assert sum(accused(target, seed) for seed in range(HONEST)) == 0


def test_a_fault_that_always_strikes_in_company_is_confirmed_in_nine_runs_of_ten():
    assert sum(accused(broken_in_company, seed) for seed in range(FAULTY)) == FAULTY
