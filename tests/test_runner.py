import itertools
import os
import resource
import signal
import time

import pytest
from playing import alive, play, request, run_folder, target, text, windows

from leakcheck import runfolder
from leakcheck.errors import HarnessError
from leakcheck.runner import Runner


def by_id(shards):
    return {each.request_id: each for each in shards.observations}


def span(observations):
    return min(o.start_ns for o in observations), max(o.end_ns for o in observations)


def test_everything_is_sent_once_over_the_worker_and_lane_of_the_plan(hostile, tmp_path):
    requests = windows(3)
    played, shards = play(tmp_path, target(hostile, "echo"), *requests, workers=2, lanes=2)
    assert (played.windows_done, played.requests_done, played.interrupted) == (3, 12, False)
    assert (played.workers_died, played.target_lost) == ((), None)
    seen = by_id(shards)
    assert len(shards.observations) == len(shards.invocations) == 12
    for each in requests:
        assert (seen[each.id].worker, seen[each.id].lane) == (each.worker, each.lane)
        assert text(seen[each.id]) == f"this is {each.id} "


def test_a_request_is_journalled_before_it_is_sent(hostile, tmp_path):
    _, shards = play(tmp_path, target(hostile, "echo"), request("a"))
    (invoked,), (seen,) = shards.invocations, shards.observations
    assert (invoked.request_id, invoked.attempt, invoked.at_ns) == ("a", 1, seen.start_ns)


def test_phases_of_a_window_do_not_overlap_and_their_requests_do(hostile, tmp_path):
    requests = [
        request(f"{phase}-{worker}{lane}", phase=phase, worker=worker, lane=lane)
        for phase in (1, 0)  # the number counts, not the place in the list
        for worker in range(2)
        for lane in range(2)
    ]
    _, shards = play(tmp_path, target(hostile, "pause"), *requests, workers=2, lanes=2)
    first, second = (
        [o for o in shards.observations if o.request_id.startswith(f"{phase}-")] for phase in (0, 1)
    )
    assert span(first)[1] <= span(second)[0]
    for phase in (first, second):
        assert max(o.start_ns for o in phase) < min(o.end_ns for o in phase)


def test_workers_can_move_on_to_another_run(hostile, tmp_path):
    first, second = windows(1), windows(2)
    folders = [run_folder(tmp_path, *requests) for requests in (first, second)]
    with Runner(target(hostile, "echo"), folders[0], 2, 2) as runner:
        runner.play(first)
        pids = runner.pids
        runner.move(target(hostile, "pause"), folders[1])
        runner.play(second)
        assert runner.pids == pids
        runner.move(target(hostile, "echo"), folders[0])
        runner.play(first)
    assert len(runfolder.read_shards(folders[0]).observations) == 2 * len(first)
    assert len(runfolder.read_shards(folders[1]).observations) == len(second)


def test_dead_workers_do_not_move(hostile, tmp_path):
    requests = windows(1)
    folder = run_folder(tmp_path, *requests)
    with Runner(target(hostile, "echo"), folder, 2, 2) as runner:
        os.kill(runner.pids[1], signal.SIGKILL)
        with pytest.raises(HarnessError, match="worker 1 ended"):
            runner.play(requests)
        with pytest.raises(HarnessError, match="worker 1 has died"):
            runner.move(target(hostile, "echo"), folder)


def test_requests_of_one_lane_follow_each_other_on_one_connection(hostile, tmp_path):
    requests = [request(f"{n}", lane=n % 2) for n in range(6)]
    _, shards = play(tmp_path, target(hostile, "connection"), *requests, lanes=2)
    lanes = [[o for o in shards.observations if o.lane == lane] for lane in (0, 1)]
    for lane in lanes:
        assert len({text(o) for o in lane}) == 1
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(lane))
    assert text(lanes[0][0]) != text(lanes[1][0])


def test_requests_start_at_their_offset_from_the_start_of_the_phase(hostile, tmp_path):
    requests = [request("now"), request("later", lane=1, start_offset_s=0.3)]
    _, shards = play(tmp_path, target(hostile, "echo"), *requests, lanes=2)
    seen = by_id(shards)
    assert 0.25e9 < seen["later"].start_ns - seen["now"].start_ns < 5e9


def test_retries_and_time_limits_come_from_the_scenario_s_load(hostile, tmp_path):
    _, shards = play(tmp_path, target(hostile, "busy"), request("a"), retries=1)
    assert [o.attempt for o in shards.observations] == [1, 2]
    assert [i.attempt for i in shards.invocations] == [1, 2]
    _, shards = play(tmp_path, target(hostile, "silent"), request("a"), timeout_s=0.2)
    assert shards.observations[0].error == "no whole answer within 0.2 s"


def test_requests_appended_to_the_plan_can_be_played_by_the_same_workers(hostile, tmp_path):
    folder = run_folder(tmp_path, request("a"))
    again = request("b", window=1_000_000, replays="a")
    done = []
    with Runner(target(hostile, "echo"), folder, 1, 1) as runner:
        runner.play([request("a")], on_progress=done.append)
        runfolder.append_requests(folder, [again])
        played = runner.play([again])
    assert (played.windows_done, played.requests_done) == (1, 1)
    assert sorted(by_id(runfolder.read_shards(folder))) == ["a", "b"]
    assert done[-1] == 1


def test_a_resumed_run_writes_new_shards_and_sends_the_rest(hostile, tmp_path):
    requests = windows(2)
    folder = run_folder(tmp_path, *requests)
    for part in (requests[:4], None):
        left = part or runfolder.remaining(requests, runfolder.read_shards(folder))
        with Runner(target(hostile, "echo"), folder, 2, 2) as runner:
            runner.play(left)
    assert sorted(by_id(runfolder.read_shards(folder))) == sorted(each.id for each in requests)
    assert (folder / "observations-w01-1.jsonl").exists()


def test_a_caller_can_stop_a_run_and_what_was_in_flight_is_unknown(hostile, tmp_path):
    requests = windows(3)
    folder = run_folder(tmp_path, *requests)
    with Runner(target(hostile, "slow"), folder, 2, 2) as runner:
        played = runner.play(
            requests, should_stop=lambda: len(runfolder.read_shards(folder).invocations) == 4
        )
        assert (played.interrupted, played.windows_done, played.requests_done) == (True, 0, 4)
        assert runner.workers_died == ()
    seen = runfolder.read_shards(folder).observations
    assert [o.outcome for o in seen] == ["unknown"] * 4
    assert all(text(o).startswith("slow ") or not o.chunks for o in seen)


def test_a_request_that_is_not_in_the_plan_is_not_sent(hostile, tmp_path):
    folder = run_folder(tmp_path, request("a"))
    with (
        Runner(target(hostile, "echo"), folder, 1, 1) as runner,
        pytest.raises(HarnessError, match="request b is not in the plan"),
    ):
        runner.play([request("b")])


def test_a_request_for_a_worker_that_is_not_there_is_not_sent(hostile, tmp_path):
    folder = run_folder(tmp_path, sent := request("a", worker=4))
    with (
        Runner(target(hostile, "echo"), folder, 1, 1) as runner,
        pytest.raises(HarnessError, match="request a wants worker 4"),
    ):
        runner.play([sent])


def test_a_worker_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "")
    folder = run_folder(tmp_path, request("a"))
    aim = target(9, "m", api_key_env="MY_KEY")
    with Runner(aim, folder, 1, 1) as runner, pytest.raises(HarnessError, match="MY_KEY"):
        runner.play([request("a")])


def test_a_backend_of_one_s_own_is_any_importable_module_and_may_break(tmp_path, monkeypatch):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.py").write_text(
        "from leakcheck.records import Chunk\n"
        "class Mine:\n"
        "    async def stream(self, request):\n"
        "        yield Chunk(text='half an ans')\n"
        "        raise ZeroDivisionError('of all\\nthings')\n"
        "    async def close(self): pass\n"
        "def connect(target): return Mine()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    _, shards = play(tmp_path, target(9, "m", backend="shop.mine"), request("a"))
    (seen,) = shards.observations
    assert (seen.outcome, text(seen)) == ("unknown", "half an ans")
    assert seen.error == "the backend failed with ZeroDivisionError: of all things"


def test_a_killed_worker_is_reported_and_the_rest_of_the_run_goes_on(hostile, tmp_path):
    requests = windows(6)
    folder = run_folder(tmp_path, *requests)
    with Runner(target(hostile, "pause"), folder, 2, 2) as runner:
        killed = []

        def kill(done):
            shards = runfolder.read_shards(folder)
            flying = {i.request_id for i in shards.invocations} - set(by_id(shards))
            if done >= 4 and not killed and any(name.endswith(("1", "3")) for name in flying):
                killed.append(runner.pids[1])
                os.kill(runner.pids[1], signal.SIGKILL)

        played = runner.play(requests, on_progress=kill)
    assert (played.workers_died, played.windows_done, played.interrupted) == ((1,), 6, False)
    (event,) = runfolder.read_events(folder)
    assert (event.kind, event.detail) == ("worker-died", "worker 1 was killed by SIGKILL")
    shards = runfolder.read_shards(folder)
    seen = by_id(shards)
    flying = {i.request_id for i in shards.invocations} - set(seen)
    assert flying  # invoked and never observed: unknown
    for each in requests:
        if each.worker == 0:
            assert seen[each.id].outcome == "ok"
    unsent = runfolder.remaining(requests, shards)
    assert {each.worker for each in unsent} == {1}
    assert {each.window for each in unsent} >= {4, 5}


def test_a_run_without_workers_ends_and_keeps_what_was_observed(hostile, tmp_path):
    requests = windows(40)
    folder = run_folder(tmp_path, *requests)
    with Runner(target(hostile, "pause"), folder, 2, 2) as runner:
        pids = set(runner.pids)

        def kill(done):
            while done >= 4 and pids:
                os.kill(pids.pop(), signal.SIGKILL)

        started = time.monotonic()
        with pytest.raises(HarnessError, match="every worker process has died"):
            runner.play(requests, on_progress=kill)
        assert runner.workers_died == (0, 1)
    assert time.monotonic() - started < 20
    assert len(runfolder.read_shards(folder).observations) >= 4
    assert [e.kind for e in runfolder.read_events(folder)] == ["worker-died"] * 2


def test_a_worker_that_hangs_is_killed_and_reported(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr("leakcheck.runner._SILENT_S", 1.5)
    requests = windows(1)
    folder = run_folder(tmp_path, *requests)
    with Runner(target(hostile, "slow", timeout_s=4.0), folder, 2, 2) as runner:
        stopped = []

        def stop(_done):
            if not stopped and len(runfolder.read_shards(folder).invocations) == 4:
                stopped.append(runner.pids[0])
                os.kill(runner.pids[0], signal.SIGSTOP)

        played = runner.play(requests, on_progress=stop)
    assert played.workers_died == (0,)
    seen = runfolder.read_shards(folder).observations
    assert [(o.worker, o.outcome) for o in seen] == [(1, "unknown")] * 2


def test_a_play_ends_after_the_window_that_is_enough(hostile, tmp_path):
    requests = (*windows(5), request("late", window=1, phase=1))
    folder = run_folder(tmp_path, *requests)
    told = []

    def over(window):
        told.append((window, len(runfolder.read_shards(folder).observations)))
        return window == 1

    with Runner(target(hostile, "echo"), folder, 2, 2) as runner:
        played = runner.play(requests, on_window=over)
        again = runner.play(requests[8:9])
    assert told == [(0, 4), (1, 9)]  # each when its last phase was over and on disk
    assert (played.windows_done, played.requests_done) == (2, 9)
    assert (played.interrupted, played.target_lost) == (False, None)
    assert again.requests_done == 1


def test_workers_are_gone_after_the_run(hostile, tmp_path):
    folder = run_folder(tmp_path, request("a"))
    with Runner(target(hostile, "echo"), folder, 2, 1) as runner:
        pids = runner.pids
        runner.play([request("a")])
    assert not any(map(alive, pids))


def test_a_full_disk_ends_the_run_with_a_sentence(hostile, tmp_path):
    requests = windows(40)
    folder = run_folder(tmp_path, *requests)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))  # inherited by the workers
    try:
        with Runner(target(hostile, "echo"), folder, 2, 2) as runner:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            with pytest.raises(HarnessError, match=r"worker \d cannot go on: .*File too large"):
                runner.play(requests)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    shards = runfolder.read_shards(folder)
    assert shards.torn  # the record that did not fit
    assert shards.observations
