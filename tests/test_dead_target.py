"""A target that dies in mid-run ends the run soon, and is named with what it was asked last."""

import os
import re
import signal
import threading

import pytest
from answering import MODELS, answering, refused, said
from hypothesis import given
from hypothesis import strategies as st
from playing import play, run_folder, windows

from leakcheck import runfolder
from leakcheck.backends import CUT
from leakcheck.records import Caps, Observation, Target
from leakcheck.run import lost, session
from leakcheck.runner import Governor, Runner, pulse
from leakcheck.runner.pulse import LEAST, Streak


def seen(name="a", start_s=0, end_s=1, **fields):
    given = {"outcome": "ok", "worker": 0, "lane": 0, "start_ns": start_s, "end_ns": end_s}
    return Observation(request_id=name, **(given | fields))


REFUSED = {"outcome": "failed", "error": "no connection to 127.0.0.1:9: Connection refused"}
BROKEN = {"outcome": "unknown", "status": 503, "error": "the target answered with status 503: dead"}


@pytest.mark.parametrize(
    ("fields", "alive"),
    [
        ({}, True),
        ({"outcome": "failed", "status": 400}, True),
        ({"outcome": "failed", "status": 429}, True),
        ({"outcome": "failed", "status": 503, "retry_after_s": 1.0}, True),
        ({"outcome": "aborted", "first_chunk_ns": 1}, True),
        ({"outcome": "aborted"}, None),
        ({"outcome": "unknown", "error": "no whole answer within 60 s"}, None),
        (REFUSED, False),
        (BROKEN, False),
        ({"outcome": "unknown", "error": CUT}, False),
    ],
)
def test_what_shows_that_somebody_serves_there(fields, alive):
    assert pulse.alive(seen(**fields)) is alive


def test_a_streak_is_long_over_several_windows_or_lanes_and_ends_with_a_sign_of_life():
    streak = Streak()
    streak.add(living=0, dead=LEAST, window=0, lanes={(0, 0)})
    assert not streak.long
    streak.add(living=0, dead=1, window=1, lanes={(0, 0)})
    assert streak.long
    streak.add(living=1, dead=LEAST - 1, window=2, lanes={(0, 0), (1, 0)})
    assert not streak.long
    streak.add(living=0, dead=1, window=2, lanes={(0, 0)})
    assert streak.long
    streak.forget()
    assert not streak.long


@given(st.lists(st.sampled_from("ad?"), max_size=30))
def test_those_since_the_last_sign_of_life_are_dead_and_in_order(letters):
    kinds = {"a": {}, "d": BROKEN, "?": {"outcome": "unknown"}}
    every = [seen(str(n), n, n + 1, **kinds[each]) for n, each in enumerate(letters)]
    last = "".join(letters).rfind("a")
    expected = [str(n) for n, each in enumerate(letters) if each == "d" and n > last]
    assert [each.request_id for each in lost.since(every[::-1])] == expected


# --- played --------------------------------------------------------------------------------------


class Dying:
    """Answers so many requests; from then on every one with 503, or so many of them."""

    def __init__(self, after, *, for_many=10**9):
        self.after, self.for_many = after, for_many
        self.lock, self.came = threading.Lock(), 0

    def __call__(self, _method, path, body):
        if path == "/v1/models":
            return 200, MODELS
        with self.lock:
            self.came += 1
            if self.after < self.came <= self.after + self.for_many:
                return 500, refused("worker is dead")
        return 200, said(body["messages"][-1]["content"])


def sent(root, url, requests, *, monkeypatch, governor=None, kill_in=None):
    """Sent as a scenario of a run is: what ended it, and the run folder. Worker 0 is killed after
    the window `kill_in`.
    """

    def told(window):
        if window == kill_in:
            os.kill(runner.pids[0], signal.SIGKILL)
        return False

    monkeypatch.setattr(lost, "PAUSE_S", 0.1)
    folder = run_folder(root, *requests)
    target = Target(base_url=url, model="m")
    opened = session.Opened(target=target, engine=None)
    origin = session.provenance(session.Setup(target=target), opened, ())
    runfolder.write_provenance(folder, origin)
    with Runner(target, folder, 2, 2, governor) as runner:
        live = session.Session(
            folder=folder,
            opened=opened,
            runner=runner,
            watch=lambda *_: None,
            governor=governor,
        )
        ended = live.send("tiny", requests, told, until_dead=True)
    return ended, folder


def test_a_target_that_dies_ends_the_run_and_is_named_with_what_was_in_flight(
    tmp_path, monkeypatch
):
    dying = Dying(22)
    with answering(dying) as (url, _):
        ended, folder = sent(tmp_path, url, windows(200), monkeypatch=monkeypatch)
    assert ended.kind == "target-lost"
    assert dying.came < 22 + LEAST + 3 * 4
    # of window 5, or of the next where an answer of window 5 came after the first failure
    first = ended.detail.partition(" is the first that got no answer")[0]
    assert re.search(r"\bw[56]-", first), first
    assert "nor one sent alone 0.1 s later" in ended.detail
    assert ended.detail.endswith("most often: the target answered with status 500: worker is dead")
    assert [e.kind for e in runfolder.read_events(folder)] == ["target-lost"]
    last = max(runfolder.read_shards(folder).observations, key=lambda each: each.start_ns)
    assert last.request_id.endswith("-knock-1")


def test_a_target_that_answers_when_it_is_asked_once_more_is_played_to_the_end(
    tmp_path, monkeypatch
):
    dying = Dying(6, for_many=LEAST + 2)
    requests = windows(20)
    with answering(dying) as (url, _):
        ended, folder = sent(tmp_path, url, requests, monkeypatch=monkeypatch)
    assert ended is None
    names = {each.request_id for each in runfolder.read_shards(folder).observations}
    assert names >= {each.id for each in requests}
    assert len(names) == len(requests) + 1


def test_what_a_killed_worker_leaves_unsent_is_not_played_after_a_knock(tmp_path, monkeypatch):
    dying, requests = Dying(12, for_many=LEAST), windows(40)
    governor = Governor(Caps(requests=1_000), None)
    with answering(dying) as (url, _):
        ended, folder = sent(
            tmp_path, url, requests, monkeypatch=monkeypatch, governor=governor, kill_in=2
        )
    assert ended is None
    knocks = [e for e in runfolder.read_shards(folder).observations if "-knock-" in e.request_id]
    assert [each.worker for each in knocks] == [1]


def test_a_target_that_dies_after_a_worker_is_lost_as_well(tmp_path, monkeypatch):
    with answering(Dying(12)) as (url, _):
        ended, folder = sent(tmp_path, url, windows(40), monkeypatch=monkeypatch, kill_in=2)
    assert ended.kind == "target-lost"
    assert [e.kind for e in runfolder.read_events(folder)] == ["worker-died", "target-lost"]


def test_windows_that_are_sent_one_by_one_count_together(tmp_path):
    dying, requests = Dying(4), windows(40)
    folder = run_folder(tmp_path, *requests)
    with answering(dying) as (url, _), Runner(Target(base_url=url, model="m"), folder, 2, 2) as it:
        silent = [it.play(requests[n : n + 4], until_silent=True).silent for n in range(0, 60, 4)]
        it.move(Target(base_url=url, model="m"), folder)
        again = it.play(requests[60:64], until_silent=True).silent
    assert silent.index(True) == 10
    assert not again, "a target that was restarted begins anew"


def test_what_only_some_requests_meet_is_no_death(tmp_path):
    def sick(_method, path, body):
        if path == "/v1/models":
            return 200, MODELS
        words = body["messages"][-1]["content"]
        return (500, refused("poison")) if not words.endswith("-3") else (200, said(words))

    with answering(sick) as (url, _):
        aim, requests = Target(base_url=url, model="m"), windows(40)
        folder = run_folder(tmp_path, *requests)
        with Runner(aim, folder, 2, 2) as runner:
            played = runner.play(requests, until_silent=True)
    assert (played.silent, played.windows_done) == (False, 40)


def test_a_caller_that_does_not_ask_is_not_told(tmp_path):
    with answering(Dying(4)) as (url, _):
        played, _ = play(
            tmp_path, Target(base_url=url, model="m"), *windows(15), workers=2, lanes=2
        )
    assert (played.silent, played.windows_done) == (False, 15)
