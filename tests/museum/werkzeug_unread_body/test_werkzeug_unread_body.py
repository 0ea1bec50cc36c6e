"""Werkzeug: what a view left unread of a body begins the next request on that connection.

Werkzeug 2.1 turned on keep-alive connections in its own server, which is Python's `http.server` and
does not read away what is left of a body. After an early answer (a 404, a missing key) the body
stood before the next request line: whoever used the connection next, such as another user behind
the same gateway, got an error for a request that was not theirs, and it quotes what came before.

Sources: https://github.com/pallets/werkzeug/issues/2380 (the report),
https://github.com/pallets/werkzeug/issues/2397 (the repair: no keep-alive), CVE-2022-29361
(disputed: not a server for production). 2.1.0 and 2.1.1 have the fault, 2.1.2 does not.
"""

import pytest
from museum import harness

pytestmark = [pytest.mark.museum, pytest.mark.timeout(900)]

SERVICE = harness.EXHIBITS / "werkzeug_unread_body" / "service.py"


def looked_at(release, out, *flags):
    """What leakcheck makes of a model server on a release of Werkzeug."""
    python = harness.environment(f"werkzeug=={release}", "markupsafe==2.1.5")
    with (
        harness.engine(out / "engine.log") as engine,
        harness.serving(python, SERVICE, engine["base_url"], log=out / "service.log") as service,
    ):
        assert service["release"] == release
        return harness.leakcheck(
            service["base_url"], engine["model"], "connections", out=out, flags=flags
        )


def test_the_next_request_on_a_connection_reads_the_body_of_the_one_before(tmp_path):
    seen = looked_at("2.1.1", tmp_path)
    assert seen.status == "leak", seen.screen
    assert seen.exit_code == 1


def test_a_server_that_closes_its_connections_is_not_accused(tmp_path):
    seen = looked_at("2.1.2", tmp_path, "--windows", "12")
    assert seen.status == "inconclusive", seen.screen
    assert any("closed every connection" in reason for reason in seen.reasons), seen.screen
