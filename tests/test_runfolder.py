import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playing import plan, request, run_folder

from leakcheck import runfolder
from leakcheck.errors import HarnessError, RunFolderError, UsageError
from leakcheck.records import (
    SCHEMA,
    Chunk,
    Observation,
    Provenance,
    RunEvent,
    Target,
    TargetFacts,
    TokenLogprob,
    Usage,
)


def observation(request_id="a", **fields):
    return Observation(
        request_id=request_id, worker=0, lane=0, outcome="ok", start_ns=1, end_ns=2, **fields
    )


def shard_with(folder, *request_ids):
    shard = runfolder.Shard(folder, 0)
    for name in request_ids:
        shard.invoke(name, 1, 0, 0, 5)
        shard.observe(observation(name))
    shard.close()
    return shard.path


def test_a_run_folder_is_named_by_time_name_and_seed(tmp_path):
    folder = runfolder.create(tmp_path / "reports", "prefix overlap/x", 7)
    assert re.fullmatch(r"\d{8}T\d{6}Z-prefix-overlap-x-7(-\d+)?", folder.name)


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    assert len({runfolder.create(tmp_path, "x", 7) for _ in range(3)}) == 3


def test_an_unwritable_reports_folder_is_named(tmp_path):
    (tmp_path / "reports").write_text("a file, not a folder")
    with pytest.raises(UsageError, match=r"reports folder .*reports cannot be written"):
        runfolder.create(tmp_path / "reports", "x", 7)


def test_latest_points_to_the_newest_run(tmp_path):
    for seed in (1, 2):
        folder = runfolder.create(tmp_path, "x", seed)
        runfolder.link_latest(folder)
    assert (tmp_path / "latest").resolve() == folder
    assert (tmp_path / "latest").readlink().name == folder.name


def test_a_folder_called_latest_is_not_replaced(tmp_path):
    (tmp_path / "latest").mkdir()
    with pytest.raises(HarnessError, match="latest cannot be made a link"):
        runfolder.link_latest(runfolder.create(tmp_path, "x", 1))
    assert not list(tmp_path.glob(".latest*"))


def test_provenance_comes_back_as_it_was_written(tmp_path):
    written = Provenance(
        schema=SCHEMA,
        leakcheck="0",
        python="3",
        platform="here",
        packages={"aiohttp": "3"},
        command=("leakcheck", "run"),
        started_utc="2026-01-01T00:00:00+00:00",
        seed=7,
        target=Target(base_url="http://127.0.0.1:9/v1", model="m", headers_env={"x": "Y"}),
        facts=TargetFacts(models=("m",), block_tokens=16),
        scenarios=(plan().scenario,),
        engine={"flags": ["--fault", "none"]},
    )
    runfolder.write_provenance(tmp_path, written)
    assert runfolder.read_provenance(tmp_path) == written


def test_a_folder_without_provenance_is_no_run_folder(tmp_path):
    with pytest.raises(RunFolderError, match=r"run\.json cannot be read"):
        runfolder.read_provenance(tmp_path)


def test_provenance_of_another_shape_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": "one"}')
    with pytest.raises(RunFolderError, match=r"run\.json: .*schema"):
        runfolder.read_provenance(tmp_path)


def test_plans_come_back_with_appended_requests(tmp_path):
    first, later = request("a"), request("b", replays="a", window=1_000_000)
    folder = run_folder(tmp_path, first)
    runfolder.append_requests(folder, [later])
    assert runfolder.read_plans(folder) == (plan(first, later),)


def test_a_request_is_found_by_its_place_in_the_plan(tmp_path):
    folder = run_folder(tmp_path, request("a"), request("ü" * 40))
    runfolder.append_requests(folder, [request("c")])
    index = runfolder.index_plans(folder)
    with runfolder.plan_path(folder).open("rb") as file:
        found = [runfolder.request_at(file.fileno(), *place) for place in index.lines.values()]
    assert found == [request("a"), request("ü" * 40), request("c")]
    assert index.loads["tiny"].windows == 1


def test_a_request_that_was_torn_off_while_appending_is_replaced(tmp_path):
    folder = run_folder(tmp_path, request("a"))
    with runfolder.plan_path(folder).open("ab") as file:
        file.write(b'{"request":{"id":"b","scen')
    assert [r.id for r in runfolder.read_plans(folder)[0].requests] == ["a"]
    runfolder.append_requests(folder, [request("c")])
    assert [r.id for r in runfolder.read_plans(folder)[0].requests] == ["a", "c"]


def test_damage_in_a_plan_names_file_and_line(tmp_path):
    folder = run_folder(tmp_path, request("a"), request("b"))
    path = runfolder.plan_path(folder)
    path.write_bytes(path.read_bytes().replace(b'"id":"a"', b'"id":12'))
    with pytest.raises(RunFolderError, match=r"plan\.jsonl:2: .*id"):
        runfolder.read_plans(folder)


def test_a_request_of_no_scenario_is_damage(tmp_path):
    folder = run_folder(tmp_path, request("a"))
    runfolder.append_requests(folder, [request("b", scenario="other")])
    with pytest.raises(RunFolderError, match=r"plan\.jsonl:3"):
        runfolder.read_plans(folder)


TEXT = st.text(max_size=20)
CHUNK = st.builds(
    Chunk,
    text=TEXT,
    field=st.sampled_from(["content", "reasoning", "tool", "error", "content[1]"]),
    logprobs=st.tuples()
    | st.tuples(
        st.builds(
            TokenLogprob,
            token=TEXT,
            logprob=st.floats(-50, 0),
            top=st.tuples(st.tuples(TEXT, st.floats(-50, 0))),
        )
    ),
    finish_reason=st.none() | TEXT,
    usage=st.none() | st.builds(Usage, prompt_tokens=st.none() | st.integers(0, 2**53)),
)
OBSERVATION = st.builds(
    observation,
    request_id=TEXT,
    chunks=st.lists(CHUNK, max_size=4).map(tuple),
    error=st.none() | TEXT,
    status=st.none() | st.integers(100, 599),
    retry_after_s=st.none() | st.floats(0, 100),
)


@given(seen=st.lists(OBSERVATION, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_observations_come_back_unaltered(tmp_path, seen):
    for old in tmp_path.glob("*.jsonl"):
        old.unlink()
    shard = runfolder.Shard(tmp_path, 3)
    for each in seen:
        shard.invoke(each.request_id, 1, 3, 2, 10)
        shard.observe(each)
    shard.close()
    read = runfolder.read_shards(tmp_path)
    assert list(read.observations) == seen
    assert [i.request_id for i in read.invocations] == [each.request_id for each in seen]
    assert read.torn == ()


def test_a_record_is_on_disk_as_soon_as_it_is_written(tmp_path):
    shard = runfolder.Shard(tmp_path, 0)
    shard.invoke("a", 1, 0, 4, 10)
    (found,) = runfolder.read_shards(tmp_path).invocations
    assert (found.request_id, found.attempt, found.lane, found.at_ns) == ("a", 1, 4, 10)
    shard.close()
    shard.close()


def test_a_worker_that_starts_again_writes_a_new_shard(tmp_path):
    names = [shard_with(tmp_path, name).name for name in "abc"]
    assert names == [
        "observations-w00.jsonl",
        "observations-w00-1.jsonl",
        "observations-w00-2.jsonl",
    ]
    assert [o.request_id for o in runfolder.read_shards(tmp_path).observations] == ["a", "b", "c"]


@given(cut=st.integers(1, 300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_torn_last_line_is_reported_and_costs_nothing_else(tmp_path, cut):
    for old in tmp_path.glob("*.jsonl"):
        old.unlink()
    path = shard_with(tmp_path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    lines = whole[:-cut].count(b"\n")
    read = runfolder.read_shards(tmp_path)
    assert len(read.invocations) + len(read.observations) == lines
    assert len(read.torn) == (not whole[:-cut].endswith(b"\n") and cut < len(whole))
    assert all("observations-w00.jsonl" in sentence for sentence in read.torn)


@pytest.mark.parametrize("line", [b"garbage\n", b"{}\n", b'{"observe":{"lane":0}}\n', b"\xff\n"])
def test_damage_in_the_middle_of_a_shard_names_file_and_line(tmp_path, line):
    path = shard_with(tmp_path, "a", "b")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    with pytest.raises(RunFolderError, match=r"observations-w00\.jsonl:3: "):
        runfolder.read_shards(tmp_path)


def test_a_full_disk_is_said_in_one_sentence(tmp_path):
    shard = runfolder.Shard(tmp_path, 0)
    os.dup2(full := os.open("/dev/full", os.O_WRONLY), shard._file)
    os.close(full)
    with pytest.raises(HarnessError, match=r"observations-w00.jsonl cannot be written: No space"):
        shard.observe(observation())
    shard._dirty = False
    shard.close()


def test_resume_leaves_out_whatever_was_sent(tmp_path):
    requests = [request(name) for name in "abcd"]
    shard = runfolder.Shard(tmp_path, 0)
    shard.invoke("a", 1, 0, 0, 1)
    shard.observe(observation("a"))
    shard.invoke("c", 1, 0, 0, 1)  # never observed: it may have had an effect
    shard.close()
    left = runfolder.remaining(requests, runfolder.read_shards(tmp_path))
    assert [each.id for each in left] == ["b", "d"]


def test_events_are_read_in_the_order_they_happened(tmp_path):
    assert runfolder.read_events(tmp_path) == ()
    events = (RunEvent(kind="resumed", at_ns=1), RunEvent(kind="finished", at_ns=2, detail="all"))
    for event in events:
        runfolder.append_event(tmp_path, event)
    assert runfolder.read_events(tmp_path) == events


def test_an_event_after_a_torn_one_can_be_read(tmp_path):
    runfolder.append_event(tmp_path, RunEvent(kind="resumed", at_ns=1))
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind":"fini')
    runfolder.append_event(tmp_path, RunEvent(kind="finished", at_ns=2))
    assert [event.kind for event in runfolder.read_events(tmp_path)] == ["resumed", "finished"]


def test_one_run_folder_is_sent_by_one_leakcheck_at_a_time(tmp_path):
    refused = pytest.raises(UsageError, match="being sent by another")
    with runfolder.locked(tmp_path), refused, runfolder.locked(tmp_path):
        pass
    with runfolder.locked(tmp_path):
        pass
