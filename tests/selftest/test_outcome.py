"""What a verdict says about a fault, and whether the plan on disk agrees with the report."""

import json
from dataclasses import replace

import pytest
from selftest.made import BENIGN, LEAKING, SUBTLE

from leakcheck import evidence
from leakcheck.records import Finding, Verdict
from leakcheck.selftest.outcome import agrees, letters, outcome, owners

PLAN = [
    json.dumps({"plan": {"seed": 1}}),
    json.dumps({"request": {"id": "r1", "passphrase": {"words": ["amber", "Crane"]}}}),
    json.dumps({"request": {"id": "r2", "ticket": {"words": ["basalt", "dune"]}}}),
    json.dumps({"request": {"id": "r3", "ticket": {"words": ["basalt", "dune"]}, "twin": "r2"}}),
]
LEAK = Finding(
    check="own_answer",
    anomaly="foreign-answer",
    severity="leak",
    scenario="broad",
    window=0,
    recipient="r1",
    source="r2",
    excerpt="it says: basalt, DUNE!",
    mark=(9, 21),
)


def verdict(status, *findings):
    return Verdict(
        scenario="broad",
        version=1,
        status=status,
        reasons=("because",),
        windows_planned=3,
        leak_rate=evidence.rate(0, 3),
        bound=None,
        false_match_bound=0.0,
        findings=findings,
    )


def test_owners_are_read_from_the_plan_as_bare_letters():
    assert owners(PLAN) == {"ambercrane": {"r1"}, "basaltdune": {"r2", "r3"}}


def test_letters_leave_out_everything_else():
    assert letters("It's 4 O'Clock\n") == "its4oclock"


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({}, True),
        ({"source": "r3"}, True),
        ({"source": "r1"}, False),
        ({"recipient": "r3"}, False),
        ({"mark": (0, 5)}, None),
        ({"mark": None}, None),
        ({"severity": "note"}, None),
    ],
)
def test_source_and_recipient_are_held_against_the_plan(changed, right):
    assert agrees(replace(LEAK, **changed), owners(PLAN)) is right


def test_an_expected_anomaly_under_a_verdict_is_a_detection():
    found = outcome(verdict("leak", LEAK), LEAKING, PLAN)
    assert (found.detected, found.anomaly, found.status) == (True, "foreign-answer", "leak")
    assert (found.sources, found.sources_right) == (1, 1)
    assert found.reason == "because"


def test_another_anomaly_is_no_detection_and_is_told():
    found = outcome(verdict("leak", LEAK), SUBTLE, PLAN)
    assert (found.detected, found.anomaly) == (False, None)
    assert found.anomalies == ("foreign-answer",)


def test_a_finding_that_the_verdict_does_not_stand_on_is_no_detection():
    assert not outcome(verdict("inconclusive", LEAK), LEAKING, PLAN).detected


def test_a_note_is_no_detection():
    note = replace(LEAK, severity="note")
    found = outcome(verdict("corruption", note), LEAKING, PLAN)
    assert not found.detected
    assert found.anomalies == ()


def test_corruption_without_a_phrase_has_no_source_to_check():
    lost = replace(LEAK, anomaly="lost-answer", severity="corruption", source=None, mark=None)
    found = outcome(verdict("corruption", lost), SUBTLE, PLAN)
    assert found.detected
    assert (found.sources, found.sources_right) == (0, 0)


def test_a_benign_fault_is_never_detected():
    found = outcome(verdict("leak", LEAK), BENIGN, PLAN)
    assert not found.detected
    assert found.status == "leak"
