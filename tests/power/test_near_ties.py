"""An honest engine whose rounding follows the batch is not accused of losing tickets.

With this seed both scenarios were: requests whose ticket is nearly tied with another token kept it
alone and lost it in company, every time.
"""

import subprocess
import sys

import orjson
import pytest

pytestmark = [pytest.mark.power, pytest.mark.timeout(900)]


@pytest.mark.parametrize("scenario", ["rare-token-passphrase", "control-group"])
def test_noise_that_follows_the_batch_is_no_corruption(tmp_path, scenario):
    command = [sys.executable, "-m", "leakcheck.cli", "run", scenario, "--fault", "batch-noise"]
    command += ["--seed", "11", "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = orjson.loads((tmp_path / "latest" / "report.json").read_bytes())
    findings = [found for verdict in report["verdicts"] for found in verdict["findings"]]
    lost = [found for found in findings if found["anomaly"] == "lost-answer"]
    assert {found["severity"] for found in lost} == {"note"}, done.stdout
    assert report["status"] == "clean", done.stdout
    assert any(found["evidence"]["lost_hot"] > 1 for found in lost), "no near-tie was tried"
