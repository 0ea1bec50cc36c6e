"""A restart after which the planned request is the first that the target generates."""

import http.server
import threading
from contextlib import contextmanager

import pytest

from leakcheck import scenario
from leakcheck.errors import TargetError
from leakcheck.records import Target
from leakcheck.run import lifetimes


@contextmanager
def recording(status=200):
    """A server that answers everything with this status, and what it was asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.command, self.path))
            body = b'{"data": []}'
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_):
            """Nobody reads it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Target(base_url=f"http://127.0.0.1:{server.server_port}/v1", model="m"), asked
        server.shutdown()


def test_a_target_that_is_to_stay_untouched_is_asked_for_its_models_and_nothing_else():
    with recording() as (target, asked):
        lifetimes.wait_until_back(target, ask=lifetimes.listening)
    assert asked == [("GET", "/v1/models")]


def test_a_target_without_a_list_of_models_is_there_all_the_same():
    with recording(status=404) as (target, asked):
        lifetimes.listening(target)
    assert len(asked) == 1


def test_a_target_that_still_loads_its_model_is_waited_for():
    with recording(status=503) as (target, _), pytest.raises(TargetError, match="503"):
        lifetimes.wait_until_back(target, 0.0, ask=lifetimes.listening)


def test_nobody_there_is_a_target_error():
    with recording() as (target, _):
        pass
    with pytest.raises(TargetError, match="nobody answers"):
        lifetimes.listening(target)


def test_a_target_without_an_address_of_its_own_needs_no_waiting():
    lifetimes.listening(Target(base_url="module:function", model="m", backend="callable"))


def test_only_scenarios_with_a_check_that_may_want_it_are_asked(tmp_path):
    plain = scenario.read(scenario.find("sequential-carry-over"))
    assert not lifetimes.wanted(tmp_path, plain)
