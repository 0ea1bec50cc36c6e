"""What a model echoes is measured: SmolLM2 repeats nothing in a chat until its answer is begun."""

from dataclasses import replace

import pytest
from real import environments
from real.engines import llama_cpp
from real.running import run
from real.serving import served

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

ENGINE = replace(llama_cpp.ENGINES[0], flags=())
"""In a chat, which is the default."""
SCENARIO = "rare-token-passphrase"


def test_a_small_model_is_tested_in_a_chat_as_its_echoes_are_measured_first(
    tmp_path, record_property
):
    there = environments.found(ENGINE.environment)
    if isinstance(there, environments.Missing):
        pytest.skip(f"{ENGINE.name}: {there.reason}")
    with served(ENGINE, there, tmp_path) as server:
        done = run(
            ENGINE, server, tmp_path, SCENARIO, "--seed", "1", "--windows", "1", "--requests", "5",
            "--style", "auto", "--fresh",
        )  # fmt: skip
    facts = done.report["provenance"]["facts"]
    told = (f"{done.took_s:.0f}", f"{done.cpu_s:.0f}")
    chosen = f"chat: {facts['phrasing']}, {facts['style']}"
    attempts = done.report["requests"]["attempts"]
    record_property("run", (ENGINE.name, chosen, done.report["status"], attempts, *told))
    assert not done.found("leak", "corruption", "error")
    assert sum(each["asked"] for each in facts["echoes"]) <= 60
    rates = {
        (each["style"], each["phrasing"]): each["both"] / each["asked"]
        for each in facts["echoes"]
        if each["asked"]
    }
    assert {phrasing for _, phrasing in rates} >= {"asked", "exactly", "records", "begun"}
    best = rates[facts["style"], facts["phrasing"]]
    assert best >= 0.5
    assert best > max(rate for (_, phrasing), rate in rates.items() if phrasing == "asked")
