"""A target that asks to be left alone is left alone: by every lane, without any flag."""

import asyncio
import email.utils
import itertools
import threading
import time

import pytest
from answering import MODELS, answering, refused, said
from playing import play, windows

from leakcheck import doctor
from leakcheck.backends import Refused, Turns, openai
from leakcheck.errors import TargetError
from leakcheck.records import Target
from leakcheck.report import diagnosis
from leakcheck.run.session import Setup
from leakcheck.runner.breaker import REFUSALS
from leakcheck.runner.hold import Patience
from leakcheck.survey.asking import Asker

GRACE_S = 0.25
"""For what was in flight, or on its way to the other workers, when the refusal came."""


class Busy:
    """Refuses some of the requests, by their numbers, and notes when each came."""

    def __init__(self, status, wait_s, *, of):
        self.status, self.wait_s, self.of = status, wait_s, of
        self.came_s, self.refused_s = [], []
        self.lock = threading.Lock()

    def __call__(self, _method, path, body):
        with self.lock:
            self.came_s.append(time.monotonic())
            number = len(self.came_s)
            if number in self.of:
                self.refused_s.append(time.monotonic())
                return self.status, refused("slow down"), {"retry-after": str(self.wait_s)}
        if path == "/v1/models":
            return 200, MODELS
        if path != "/v1/chat/completions":
            return 404, refused("Not Found")
        return 200, said(body["messages"][-1]["content"])

    def too_early(self):
        """The requests that came while it was to be left alone."""
        return [
            came - begin
            for begin, came in itertools.product(self.refused_s, self.came_s)
            if GRACE_S < came - begin < self.wait_s - 0.05
        ]


@pytest.mark.parametrize("status", [429, 503])
def test_all_lanes_of_all_workers_wait_as_long_as_the_target_asks(status, tmp_path):
    busy = Busy(status, 1.5, of={6})
    with answering(busy) as (url, _):
        target = Target(base_url=url, model="m")
        played, shards = play(tmp_path, target, *windows(6), workers=2, lanes=2, retries=1)
    assert played.windows_done == 6
    assert len(busy.came_s) == len(shards.invocations) == 6 * 4 + 1
    assert {each.outcome for each in shards.observations if each.attempt == 2} == {"ok"}
    assert busy.too_early() == []


def test_a_request_that_has_no_retries_holds_the_others_back_too(tmp_path):
    busy = Busy(429, 1.5, of={6})
    with answering(busy) as (url, _):
        target = Target(base_url=url, model="m")
        play(tmp_path, target, *windows(3), workers=2, lanes=2, retries=0)
    assert len(busy.came_s) == 3 * 4
    assert busy.too_early() == []


def test_a_pause_beyond_all_patience_ends_the_run(tmp_path):
    busy = Busy(429, 3600, of=range(6, 999))
    with answering(busy) as (url, _):
        target = Target(base_url=url, model="m")
        played, shards = play(tmp_path, target, *windows(6), workers=2, lanes=2, retries=3)
    kind, detail = played.ended
    assert kind == "told-to-wait"
    assert "left alone for 3600 s, and the run waits at most 120 s (--max-wait-s)" in detail
    assert len(busy.came_s) == len(shards.observations) <= 5 + 4


def test_a_pause_beyond_all_measure_ends_the_run_as_any_other(tmp_path):
    busy = Busy(429, "1e300", of=range(1, 999))
    with answering(busy) as (url, _):
        target = Target(base_url=url, model="m")
        played, _ = play(tmp_path, target, *windows(2), workers=2, lanes=2)
    assert played.ended[0] == "told-to-wait"
    assert played.workers_died == ()


def test_a_page_that_names_the_moment_to_come_again_is_left_alone_until_then():
    came_s = []

    def answer(_method, _path, _body):
        came_s.append(time.time())
        until = email.utils.formatdate(int(came_s[0]) + 3, usegmt=True)
        return 429, refused("slow down"), {"retry-after": until}

    async def ask(url):
        asker = Asker(Target(base_url=url, model="m"), Turns())
        try:
            return await asker.page("GET", asker.http.url("models"))
        finally:
            await asker.close()

    with answering(answer) as (url, _):
        asyncio.run(ask(url))
    assert came_s[1] >= int(came_s[0]) + 3 - 0.05


def test_pauses_that_help_nothing_end_the_run_and_those_that_help_do_not():
    ends = []
    for answered in (False, True):
        patience = Patience(60.0)
        for n in range(2 * REFUSALS):
            patience.refused(n + 1, sent_ns=n + 1, wait_s=1e-9, answered=answered)
        ends.append(patience.ended and patience.ended[0])
    assert ends == ["told-to-wait", None]


def test_refusals_of_what_was_in_flight_together_are_one_round():
    patience = Patience(60.0)
    for n in range(2 * REFUSALS):
        patience.refused(1_000 + n, sent_ns=n, wait_s=1.0, answered=False)
    assert patience.ended is None


@pytest.mark.parametrize("first", [2, 3, 5, 20, 60])
def test_an_examination_that_is_told_to_wait_says_so_and_ends(first, monkeypatch):
    monkeypatch.setattr("leakcheck.survey.audition.most", lambda _cap: 24)
    busy = Busy(429, 3600, of=range(first, 9999))
    with answering(busy) as (url, _):
        setup = Setup(target=Target(base_url=url, model="m"), seed=7)
        try:
            found = doctor.examine(setup, lambda *_: None)
        except TargetError as error:
            text = str(error)
        else:
            assert found.exit_code in (3, 4)
            assert found.ended[0] == "told-to-wait"
            text = " ".join(diagnosis.render(found).split())
            assert "left alone for 3600 s" in text
    assert "status 429" in text or "left alone" in text
    assert "leakcheck-doctor-" not in text
    assert len(busy.came_s) < first + 8


def test_a_target_that_is_met_is_left_alone_as_it_asks():
    busy = Busy(429, 1, of={2})
    with answering(busy) as (url, _):
        openai.meet(Target(base_url=url, model="m"), Turns())
    assert busy.too_early() == []
    for first in (2, 3):  # of the tiny request, and of that with all fields
        busy = Busy(429, 3600, of=range(first, 99))
        with answering(busy) as (url, _), pytest.raises(TargetError, match="status 429"):
            openai.meet(Target(base_url=url, model="m"), Turns())
        assert len(busy.came_s) == first


def test_what_a_function_asks_for_is_kept_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", __file__.rpartition("/")[0])
    target = Target(base_url="test_told_to_wait:at_first", model="m", backend="callable")
    _, shards = play(tmp_path, target, *windows(1, size=1, workers=1), retries=1)
    first, second = shards.observations
    assert (first.status, second.outcome) == (429, "ok")
    assert second.start_ns - first.end_ns > 0.9e9


def at_first(_asked, calls=[]):  # noqa: B006 - it is to remember
    """A function that refuses the first of its calls."""
    calls.append(1)
    if len(calls) == 1:
        raise Refused("slow down", status=429, retry_after_s=1.0)
    return "well"
