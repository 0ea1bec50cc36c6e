"""transformers serve: one kept cache for all clients.

The server kept the messages of the request that came last and the cache of the one that ended last,
each for all clients together. A request that began with those messages was taken for its next turn
and computed on that cache. Where two clients had asked at one time, and the one that came last was
not the last to end, the next turn of its conversation was answered from the other client's.

Read in the wheels, and found by what they do: 4.57.1 to 5.4.0 keep `last_kv_cache` and
`last_messages` (transformers/commands/serving.py, later transformers/cli/serve.py); 5.5.0 does not.
"""

import pytest
from museum import harness

pytestmark = [pytest.mark.museum, pytest.mark.timeout(1800)]

SERVICE = harness.EXHIBITS / "transformers_kept_cache" / "service.py"
MODEL = harness.ROOT / "leakcheck" / "engine" / "witness"


def looked_at(release, out, *flags):
    """What leakcheck makes of `transformers serve` of a release."""
    # release 5 imports requests and does not ask for it
    pins = f"transformers[serving]=={release}", "requests"
    python = harness.environment(*pins, first=("torch==2.13.0",))
    with harness.serving(python, SERVICE, MODEL, out / "model", log=out / "service.log") as service:
        assert service["release"] == release
        return harness.leakcheck(
            service["base_url"], service["model"], "multi-turn", out=out, flags=flags
        )


@pytest.mark.parametrize("release", ["4.57.1", "5.0.0"])
def test_the_next_turn_of_one_client_goes_on_with_the_conversation_of_another(tmp_path, release):
    seen = looked_at(release, tmp_path)
    assert seen.status == "leak", seen.screen
    assert seen.exit_code == 1
    assert "foreign-passphrase" in seen.anomalies


def test_without_a_kept_cache_every_turn_goes_on_with_its_own(tmp_path):
    # 5.5.0 serves one request at a time, so nothing is in company: 0 of 32 answers in 31 windows
    seen = looked_at("5.5.0", tmp_path, "--windows", "20", "--detect", "20%", *harness.FEW)
    assert seen.status in {"clean", "inconclusive"}, seen.screen
    assert not seen.anomalies & {"foreign-passphrase", "foreign-answer"}
