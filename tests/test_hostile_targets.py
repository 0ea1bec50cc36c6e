"""Whatever a target does: the observation is right, said in one sentence, and nothing hangs.

Each behaviour is one lane against a real socket; what needs whole processes (dead workers, a dead
target, a dead parent) is at the end and in test_runner.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from playing import alive, eventually, observe, play, request, run_folder, target, text, windows

from leakcheck import runfolder
from leakcheck.records import Message, Target
from leakcheck.runner import Runner

KEY = "sk-planted-0123456789"
EXTRA = "team-secret-9876543210"


@pytest.mark.parametrize(
    ("model", "outcome", "status", "error"),
    [
        ("no-such-model", "failed", 404, "refused with status 404: The model `no-such-model` does"),
        ("unauthorized", "failed", 401, "refused with status 401: wrong key: None"),
        ("refuses", "failed", 400, "refused with status 400: this prompt is not allowed"),
        ("busy", "failed", 429, "refused with status 429: slow down"),
        ("overloaded", "failed", 503, "refused with status 503: come again"),
        ("moved", "failed", 308, "redirected to https://elsewhere.example/v1"),
        ("broken", "unknown", 500, "the target answered with status 500: the engine has crashed"),
        ("cut", "unknown", None, "the connection was cut before the answer was complete"),
        ("unfinished", "unknown", None, "cut in the middle: no finish_reason and no [DONE]"),
        ("stream-error", "unknown", None, "the target reported an error: out of blocks"),
        ("invalid", "unknown", None, 'invalid JSON: \'{"choices": [{"delta": SECRET}\''),
        ("latin1", "unknown", None, "bytes that are not UTF-8; they are kept as U+FFFD"),
        ("page", "unknown", None, "invalid JSON: '<!doctype html>"),
        ("not-http", "unknown", None, "something that is not HTTP"),
        ("hangs-up", "unknown", None, "the connection was cut before the answer was complete"),
        ("silent", "unknown", None, "no whole answer within 1 s"),
        ("same", "ok", None, None),
    ],
)
def test_every_behaviour_ends_in_its_outcome_and_one_sentence(
    *, hostile, tmp_path, model, outcome, status, error
):
    (seen,) = observe(tmp_path, target(hostile, model, timeout_s=1.0), request("a"))
    assert (seen.outcome, seen.status) == (outcome, status)
    assert (error or "") in (seen.error or "")
    assert "\n" not in (seen.error or "")


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("cut-json", "the connection was cut before the answer was complete"),
        ("invalid", "the target sent invalid JSON"),
        ("latin1", "bytes that are not UTF-8"),
    ],
)
def test_damage_to_a_reply_that_is_not_streamed_is_seen_too(hostile, tmp_path, model, error):
    (seen,) = observe(tmp_path, target(hostile, model), request("a", stream=False))
    assert seen.outcome == "unknown"
    assert error in seen.error


def test_what_came_before_a_cut_is_kept(hostile, tmp_path):
    (seen,) = observe(tmp_path, target(hostile, "cut"), request("a"))
    assert text(seen) == "alpha beta "
    assert seen.first_chunk_ns is not None


@pytest.mark.parametrize("model", ["invalid", "refuses", "stream-error", "broken"])
def test_the_target_s_own_words_are_kept_to_be_searched(hostile, tmp_path, model):
    (seen,) = observe(tmp_path, target(hostile, model), request("a"))
    said = text(seen, "error")
    assert any(word in said for word in ("SECRET", "not allowed", "out of blocks", "crashed"))


def test_bytes_that_are_not_utf8_are_replaced_and_the_rest_is_kept(hostile, tmp_path):
    (seen,) = observe(tmp_path, target(hostile, "latin1"), request("a"))
    assert text(seen) == "alpha gr\ufffdn"


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_of_50_mb_is_not_read_to_its_end(hostile, tmp_path, stream):
    aim = target(hostile, "huge", max_reply_bytes=500_000, timeout_s=20.0)
    (seen,) = observe(tmp_path, aim, request("a", stream=stream))
    assert seen.outcome == "unknown"
    assert "longer than 500000 bytes" in seen.error
    assert len(text(seen)) == (65_536 if stream else 0)


def test_a_reply_that_never_ends_is_given_up_and_its_beginning_kept(hostile, tmp_path):
    (seen,) = observe(tmp_path, target(hostile, "endless", timeout_s=1.5), request("a"))
    assert (seen.outcome, seen.error) == ("unknown", "no whole answer within 1.5 s")
    assert text(seen).startswith("and so on and so on ")
    assert seen.end_ns - seen.start_ns < 5e9


def test_a_refusal_for_the_moment_is_tried_again_and_every_attempt_is_seen(hostile, tmp_path):
    prompt = request(f"busy {tmp_path}")
    first, second = observe(tmp_path, target(hostile, "busy-once"), prompt, retries=2)
    assert (first.outcome, first.status, first.attempt, first.retry_after_s) == (
        "failed",
        429,
        1,
        0.0,
    )
    assert (second.outcome, second.attempt) == ("ok", 2)
    assert second.start_ns >= first.end_ns


@pytest.mark.parametrize("model", ["busy", "overloaded"])
def test_retries_are_bounded(hostile, tmp_path, model):
    seen = observe(tmp_path, target(hostile, model), request("a"), retries=2)
    assert [each.attempt for each in seen] == [1, 2, 3]
    assert {each.outcome for each in seen} == {"failed"}


@pytest.mark.parametrize("model", ["broken", "cut", "refuses", "hangs-up"])
def test_what_may_have_had_an_effect_or_will_not_help_is_not_tried_again(hostile, tmp_path, model):
    assert len(observe(tmp_path, target(hostile, model), request("a"), retries=2)) == 1


def test_a_dead_target_is_named_in_one_sentence(tmp_path):
    (seen,) = observe(tmp_path, Target(base_url="http://127.0.0.1:9/v1", model="m"), request("a"))
    assert (seen.outcome, seen.status) == ("failed", None)
    assert seen.error == "no connection to http://127.0.0.1:9: Connection refused"


@pytest.mark.parametrize("model", ["parrot-key", "unauthorized"])
def test_keys_never_reach_the_disk_even_where_the_target_repeats_them(
    hostile, tmp_path, monkeypatch, model
):
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("MY_TEAM", EXTRA)
    aim = target(hostile, model, api_key_env="MY_KEY", headers_env={"X-Extra": "MY_TEAM"})
    (seen,) = observe(tmp_path, aim, request("a"))
    if model == "parrot-key":  # in two pieces: offsets stay true, the pieces are masked
        assert text(seen) == "Bearer " + "*" * len(KEY) + "x"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"observe" in written
    for part in (KEY, EXTRA, KEY[:12], KEY[12:]):
        assert part.encode() not in written


# --- whole runs ----------------------------------------------------------------------------------


def test_a_target_that_refuses_everything_is_played_to_the_end(hostile, tmp_path):
    requests = windows(3)
    played, shards = play(tmp_path, target(hostile, "refuses"), *requests, workers=2, lanes=2)
    assert (played.windows_done, played.requests_done, played.target_lost) == (3, 12, None)
    assert {each.outcome for each in shards.observations} == {"failed"}


def test_a_target_that_nobody_can_reach_ends_the_run_after_two_windows(tmp_path):
    aim = Target(base_url="http://127.0.0.1:9/v1", model="m")
    played, shards = play(tmp_path, aim, *windows(5), workers=2, lanes=2)
    assert played.target_lost == (
        "the target was lost: no request of 2 windows in a row reached it "
        "(no connection to http://127.0.0.1:9: Connection refused)"
    )
    assert (played.windows_done, len(shards.observations)) == (2, 8)


def test_a_target_killed_in_mid_run_ends_it_with_what_was_observed(hostile_server, tmp_path):
    server, port = hostile_server()
    requests = windows(40)
    folder = run_folder(tmp_path, *requests)

    def kill(done):
        if done >= 20 and server.poll() is None:
            server.kill()
            server.wait()

    with Runner(target(port, "pause"), folder, 2, 2) as runner:
        played = runner.play(requests, on_progress=kill)
    seen = runfolder.read_shards(folder).observations
    outcomes = [each.outcome for each in seen]
    assert played.target_lost is not None
    assert played.windows_done < 12
    assert outcomes.count("ok") >= 20
    assert outcomes.count("failed") >= 8
    assert played.requests_done == len(seen)


# --- a dead parent -------------------------------------------------------------------------------


@pytest.fixture
def parent():
    """A function that plays a plan in a process group of its own; its process, its workers."""
    started = []

    def start(folder, port, model):
        script = Path(__file__).with_name("playing.py")
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder), str(port), model, "2", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        workers = [int(pid) for pid in process.stdout.readline().split()]
        started.append((process, workers))
        return process, workers

    yield start
    for process, workers in started:
        process.kill()
        process.communicate()
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)


def in_flight(folder, count):
    return lambda: len(runfolder.read_shards(folder).invocations) >= count


def test_workers_end_by_themselves_when_the_parent_is_killed(hostile, tmp_path, parent):
    folder = run_folder(tmp_path, *windows(2))
    process, workers = parent(folder, hostile, "slow")
    eventually(in_flight(folder, 4))
    process.kill()
    eventually(lambda: not any(map(alive, workers)), within_s=10)
    shards = runfolder.read_shards(folder)
    assert shards.torn == ()
    assert {each.outcome for each in shards.observations} == {"unknown"}
    left = runfolder.remaining(windows(2), shards)
    assert [each.window for each in left] == [1] * 4


def test_ctrl_c_ends_a_run_within_seconds_and_keeps_what_came(hostile, tmp_path, parent):
    folder = run_folder(tmp_path, *windows(2))
    process, workers = parent(folder, hostile, "slow")
    eventually(in_flight(folder, 4))
    eventually(lambda: not process.poll())
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent, workers and all
    out, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 8
    assert "interrupted=True" in out, errors
    assert errors == ""
    assert not any(map(alive, workers))
    seen = runfolder.read_shards(folder).observations
    assert [each.outcome for each in seen] == ["unknown"] * 4
    assert {each.error for each in seen} == {"the run was stopped before the answer was complete"}


# --- planned aborts ------------------------------------------------------------------------------


def fate(port, tmp_path, prompt):
    """How the connection of the request with this prompt ended, as the target saw it."""

    def found():
        (seen,) = observe(tmp_path, target(port, "watched"), saying("watch"))
        fates = {each["prompt"]: each for each in json.loads(text(seen))}
        return fates.get(prompt, {}).get("end") == "closed"

    return eventually(found, within_s=5)


def saying(words, **fields):
    return request("a", messages=(Message(role="user", content=words),), **fields)


def test_after_so_many_chunks_the_lane_hangs_up_and_keeps_what_came(hostile, tmp_path):
    sent = saying("0 by chunks", abort_after_chunks=3)
    (seen,) = observe(tmp_path, target(hostile, "watched"), sent, retries=2)
    assert (seen.outcome, seen.error, text(seen)) == ("aborted", None, "slow slow slow ")
    assert seen.start_ns < seen.first_chunk_ns <= seen.end_ns
    assert fate(hostile, tmp_path, "0 by chunks")


@pytest.mark.parametrize("delay_s", [0, 60])
def test_after_so_many_seconds_the_lane_hangs_up_answered_or_not(hostile, tmp_path, delay_s):
    sent = saying(f"{delay_s} by time", abort_after_s=0.2, abort_after_chunks=1_000)
    (seen,) = observe(tmp_path, target(hostile, "watched"), sent, retries=2)
    assert (seen.outcome, seen.error) == ("aborted", None)
    assert 0.2e9 <= seen.end_ns - seen.start_ns < 5e9
    assert bool(text(seen)) == (delay_s == 0)
    assert fate(hostile, tmp_path, f"{delay_s} by time")


def test_whichever_planned_end_comes_first_counts(hostile, tmp_path):
    sent = request("a", abort_after_s=20.0, abort_after_chunks=1)
    (seen,) = observe(tmp_path, target(hostile, "slow"), sent)
    assert (seen.outcome, text(seen)) == ("aborted", "slow ")
    assert seen.end_ns - seen.start_ns < 10e9


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_ends_before_the_planned_abort_is_whole(hostile, tmp_path, stream):
    sent = request("a", abort_after_s=20.0, abort_after_chunks=5, stream=stream)
    (seen,) = observe(tmp_path, target(hostile, "same"), sent)
    assert (seen.outcome, text(seen)) == ("ok", "alpha beta gamma delta ")


def test_a_whole_answer_in_one_piece_is_no_abort(hostile, tmp_path):
    sent = request("a", abort_after_chunks=1, stream=False)
    (seen,) = observe(tmp_path, target(hostile, "same"), sent)
    assert (seen.outcome, text(seen)) == ("ok", "alpha beta gamma delta ")


def test_what_is_refused_before_the_planned_abort_is_refused(hostile, tmp_path):
    sent = request("a", abort_after_s=20.0)
    seen = observe(tmp_path, target(hostile, "busy"), sent, retries=1)
    assert [each.outcome for each in seen] == ["failed"] * 2


def test_a_time_limit_before_the_planned_abort_is_no_abort(hostile, tmp_path):
    sent = request("a", abort_after_s=20.0)
    (seen,) = observe(tmp_path, target(hostile, "silent", timeout_s=0.2), sent)
    assert (seen.outcome, seen.error) == ("unknown", "no whole answer within 0.2 s")


def test_the_next_request_of_the_lane_has_a_connection_of_its_own(hostile, tmp_path):
    requests = [
        request("0 first", messages=(Message(role="user", content="0 first"),)),
        request("then", messages=(Message(role="user", content="watch"),)),
    ]
    requests[0] = replace(requests[0], abort_after_chunks=1)
    played, shards = play(tmp_path, target(hostile, "watched"), *requests)
    assert (played.requests_done, played.target_lost) == (2, None)
    seen = {each.request_id: each for each in shards.observations}
    assert [seen[each.id].outcome for each in requests] == ["aborted", "ok"]
    assert len(shards.invocations) == 2
    before = [f for f in json.loads(text(seen["then"])) if f["prompt"] == "0 first"]
    assert [f["end"] for f in before] == ["closed"]


def test_a_run_of_planned_aborts_goes_on(hostile, tmp_path):
    requests = [replace(each, abort_after_s=0.05) for each in windows(4)]
    played, shards = play(tmp_path, target(hostile, "silent"), *requests, workers=2, lanes=2)
    assert (played.windows_done, played.requests_done, played.target_lost) == (4, 16, None)
    assert {each.outcome for each in shards.observations} == {"aborted"}
