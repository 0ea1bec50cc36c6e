"""What fuzzy evidence makes of findings: leaks with a source, or a leak that nobody can place."""

from dataclasses import replace
from string import ascii_lowercase

import pytest
from shorthand import history

from leakcheck import evidence
from leakcheck.analyzer import settling, verdict
from leakcheck.analyzer.case import Weighed, case, weigh
from leakcheck.analyzer.settling import Tier
from leakcheck.records import CheckResult, Finding, Gate

GATE = Gate(detect=0.5, min_windows=2, min_echo=0.1, min_overlap=0.1)
PAIRS = list(zip(ascii_lowercase[:20:2], ascii_lowercase[1:20:2], strict=True))
LINE = " | ".join(f"{x}> {y}> {x}={x}{x.upper()} {y}={y}{y.upper()}" for x, y in PAIRS)


def finding(recipient, source, tier=None, **more):
    fields = {
        "check": "altered",
        "anomaly": "altered-passphrase",
        "severity": "note",
        "scenario": "tiny",
        "window": PAIRS.index((source, recipient)),
        "recipient": recipient,
        "source": source,
        "excerpt": "",
        "explanation": f"{recipient} shows something of {source}.",
        "evidence": {} if tier is None else {"tier": tier},
    }
    return Finding(**fields | more)


def accused(*findings, log=12.0, tiers=("fragment",), gate=GATE):
    """The case of ten windows whose tiers have an e-value of exp(log) each."""
    weighed = weigh(history(LINE, gate=gate).scenario("tiny"), history(LINE, gate=gate).plans[0])
    known = Tier(
        logs=(log,), windows=10, sources=400, planted_hits=12, phantoms=8000, phantom_hits=80
    )
    state = replace(weighed.state, tiers=dict.fromkeys(tiers, known))
    results = (*weighed.results, CheckResult(check="altered", findings=findings))
    whole = Weighed(history=weighed.history, plan=weighed.plan, results=results, state=state)
    return case(whole, state.e_value)


def test_a_fragment_becomes_a_leak_with_a_source():
    its = accused(finding("b", "a", "fragment"))
    status, reasons = verdict.decide(its)
    assert (status, its.leak_rate.events) == ("leak", 1)
    assert reasons[0].startswith("1 answer shows")
    assert "the first source is a" in reasons[2]


def test_alternatives_accuse_and_name_nobody():
    its = accused(
        finding("b", "a", "alternatives"), finding("d", "c", "alternatives"), tiers=["alternatives"]
    )
    status, reasons = verdict.decide(its)
    assert (status, its.leak_rate.events, its.having("leak")) == ("leak", 0, [])
    told = " ".join(reasons)
    assert "12 of 400 that were sent show (3 %), 80 of 8000 that were not (1 %)" in told
    assert "which of the alternatives came from a leak cannot be told" in told
    assert "first source" not in told
    assert "answers show somebody" not in told
    assert verdict.settles(its)


def test_alternatives_beside_fragments_are_no_witnesses():
    its = accused(
        finding("b", "a", "alternatives"),
        finding("d", "c", "fragment"),
        tiers=["fragment", "alternatives"],
    )
    _, reasons = verdict.decide(its)
    assert [f.recipient for f in its.having("leak")] == ["d"]
    assert (its.leak_rate.events, reasons[0][:14]) == (1, "1 answer shows")
    assert "the first source is c; which of the alternatives" in reasons[2]


@pytest.mark.parametrize(
    "found",
    [
        finding("b", "a", "fragment"),
        finding("b", "a", anomaly="foreign-cache-hit", severity="leak", check="metadata"),
        finding("b", "a", anomaly="foreign-passphrase", severity="leak", window=1_000_000),
    ],
)
def test_nothing_is_certified_beside_a_leak_of_any_kind(found):
    fuzzy = found.severity == "note"
    clean, its = accused(log=0.0), accused(found, log=12.0 if fuzzy else 0.0)
    assert clean.bound is not None
    assert clean.evidence.certificate > 25
    assert (its.bound, its.evidence.certificate) == (None, 0.0)
    assert verdict.decide(its)[0] == "leak"


def test_an_exposure_that_holds_at_one_look_only_does_not_settle():
    lower = evidence.lower_bound(20, 20), evidence.running_lower_bound(20, 20)
    between = sum(lower) / 2
    its = accused(log=0.0, gate=replace(GATE, min_echo=between))
    assert lower[1] < between < lower[0]
    assert not verdict.settles(its)
    assert settling.decision(its.state, its.plan.scenario) is None
    assert "by the lower bound that holds after every window" in verdict.decide(its)[1][0]
