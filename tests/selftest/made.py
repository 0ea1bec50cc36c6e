"""Faults, scenarios and trials for the tests of the self-test's pure core."""

from leakcheck.records import Gate, Load, PlugIn, Scenario
from leakcheck.selftest.values import FaultRow, Trial

LEAKING = FaultRow(
    name="swap",
    layer="output",
    anomalies=("foreign-answer", "foreign-passphrase"),
    trigger="two answers at once",
)
SUBTLE = FaultRow(name="shift", layer="attention", anomalies=("lost-answer",), trigger="company")
BENIGN = FaultRow(name="slow", layer="benign")
MUTE = FaultRow(name="mute", layer="benign")
FAULTS = (LEAKING, SUBTLE, BENIGN, MUTE)


def scenario(name, *catches, windows=40):
    return Scenario(
        name=name,
        version=1,
        summary="",
        load=Load(windows=windows),
        traffic=PlugIn(name="concurrent"),
        checks=(PlugIn(name="foreign_passphrase"),),
        gate=Gate(),
        digest="",
        path=f"{name}.toml",
        catches=catches,
    )


SCENARIOS = (scenario("broad", "swap", "shift"), scenario("narrow", "shift"), scenario("idle"))


def trial(fault, name, seed, **fields):
    found = fields.get("detected", False)
    given = {
        "kind": "caught",
        "fault": fault,
        "scenario": name,
        "seed": seed,
        "windows": 3,
        "budget": 40,
        "detected": found,
        "status": "leak" if found else "clean",
        "anomaly": "foreign-answer" if found else None,
        "anomalies": ("foreign-answer",) if found else (),
        "reason": "an answer shows another's" if found else "nothing was seen",
    }
    return Trial(**(given | fields))
