"""Ray Serve: two clients that send one `x-request-id` get each other's answers.

The proxy kept the requests in flight under the id that the client had sent. When two had the same
one, the answers were mixed up, or one of the two was cut off ("a client receives a response that
was intended for another"). It ran with priority P0.

Sources: the report, https://github.com/ray-project/ray/issues/45723 ; the repair, an id of the
proxy's own, https://github.com/ray-project/ray/pull/45761 . 2.24.0 still has the fault, 2.30.0 (the
next release) does not.
"""

import pytest
from museum import harness

pytestmark = [pytest.mark.museum, pytest.mark.timeout(1800)]

SERVICE = harness.EXHIBITS / "ray_request_id" / "service.py"
AROUND = ("starlette==0.37.2", "fastapi==0.111.0", "uvicorn==0.29.0", "aiohttp==3.9.5")
"""Of the time of both releases: Ray names no upper bounds."""
PATIENCE = ("--timeout-s", "15")
"""An answer that the proxy has lost never comes."""


def looked_at(release, out, *flags):
    """What leakcheck makes of a deployment behind a release of Ray Serve."""
    python = harness.environment(f"ray[serve]=={release}", *AROUND)
    with (
        harness.engine(out / "engine.log") as engine,
        harness.serving(python, SERVICE, engine["base_url"], log=out / "service.log") as service,
    ):
        assert service["release"] == release
        return harness.leakcheck(
            service["base_url"], engine["model"], "duplicate-ids", out=out, flags=flags
        )


def test_two_clients_with_one_request_id_get_each_others_answers(tmp_path):
    seen = looked_at("2.23.0", tmp_path, *PATIENCE)
    assert seen.status == "leak", seen.screen
    assert seen.exit_code == 1
    assert "foreign-answer" in seen.anomalies


def test_an_id_of_the_proxys_own_keeps_them_apart(tmp_path):
    seen = looked_at("2.30.0", tmp_path, "--detect", "20%", *harness.FEW, *PATIENCE)
    assert seen.status == "clean", seen.screen
