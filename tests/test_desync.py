"""The connections scenario against raw servers that frame HTTP wrongly, and against honest ones."""

import asyncio
import itertools

import desync
import pretending
import pytest

from leakcheck import backends, runfolder, scenario
from leakcheck.analyzer import judge
from leakcheck.checks import reuse
from leakcheck.passphrase import load_words
from leakcheck.records import Target
from leakcheck.runner.lane import Job, Lane

WINDOWS = 14


def plan(windows=WINDOWS, **overrides):
    path = scenario.find("connections")
    given = {"load.windows": windows, "load.requests": 3, "load.workers": 1, "load.lanes": 3}
    read = scenario.read(path, given | overrides)
    facts = pretending.FACTS
    return scenario.plan(read, seed=1, facts=facts, words=load_words(), style="phrase")


def play(of, fault, tmp_path, *, timeout_s=0.5, **fields):
    """The run of a plan over real connections: its verdict, what the server saw, the history."""

    async def run():
        shard = runfolder.Shard(tmp_path, 0)
        async with desync.served(fault) as (server, port):
            aim = Target(
                base_url=f"http://127.0.0.1:{port}/v1", model="m", timeout_s=timeout_s, **fields
            )
            connect = backends.load("openai")
            lanes = [
                Lane(worker=0, lane=n, target=aim, backend=connect(aim), shard=shard)
                for n in range(3)
            ]
            for _, window in itertools.groupby(of.requests, key=lambda each: each.window):
                await asyncio.gather(*(chain(lanes, part) for part in by_lane(window)))
            for lane in lanes:
                await lane.close()
        shard.close()
        return server

    async def chain(lanes, requests):
        for request in requests:
            await lanes[request.lane].run(
                Job(request=request, at_ns=0, retries=0, timeout_s=timeout_s)
            )

    server = asyncio.run(run())
    seen = runfolder.read_shards(tmp_path).observations
    history = pretending.built(of, seen).scenario("connections")
    return judge(history, of), server, history


def by_lane(window):
    chains = {}
    for request in window:
        chains.setdefault(request.lane, []).append(request)
    return chains.values()


def leaks(verdict):
    return [each for each in verdict.findings if each.severity == "leak"]


@pytest.mark.parametrize("fault", ["expect", "extra"])
def test_replies_one_behind_are_a_leak_over_the_same_connection(fault, tmp_path):
    verdict, _, _ = play(plan(2), fault, tmp_path)
    assert verdict.status == "leak"
    assert {each.anomaly for each in leaks(verdict)} == {"foreign-answer", "foreign-passphrase"}
    assert {each.evidence["boundary"] for each in leaks(verdict)} == {"same connection"}
    assert "over one connection" in leaks(verdict)[0].explanation


def test_a_body_read_as_the_next_request_shows_in_its_refusal(tmp_path):
    verdict, server, _ = play(plan(2), "unread", tmp_path)
    assert any("messages" in line for line in server.lines)  # a body, read as a request line
    assert verdict.status == "leak"
    sources = {each.source for each in leaks(verdict)}
    assert sources <= {each.id for each in plan(2).requests if each.sent == "misdirected"}


@pytest.mark.parametrize("fault", ["", "closes", "abrupt"])
def test_an_honest_server_is_accused_of_nothing(fault, tmp_path):
    verdict, _, _ = play(plan(), fault, tmp_path)
    assert verdict.status == "inconclusive"  # too few windows for clean
    assert [f.anomaly for f in verdict.findings if f.severity != "note"] == []


def test_a_server_that_never_sends_a_100_gets_the_body_after_a_second(tmp_path):
    verdict, _, history = play(plan(1), "no-continue", tmp_path, timeout_s=5.0)
    assert set(history.requests["outcome"]) == {"ok", "rejected"}
    assert not leaks(verdict)


def test_a_connection_that_hangs_after_a_refusal_is_broken(tmp_path):
    verdict, _, _ = play(plan(12, **{"load.requests": 1}), "hangs", tmp_path)
    assert verdict.status == "corruption"
    (found,) = [each for each in verdict.findings if each.severity == "corruption"]
    assert found.anomaly == "broken-connection"
    assert "refused with its body unread" in found.explanation


def test_a_refused_request_is_as_planned_and_no_missing_answer(tmp_path):
    verdict, _, history = play(plan(3), "", tmp_path)
    outcomes = history.requests.groupby("cell")["outcome"].unique()
    assert list(outcomes["misdirected"]) == ["rejected"]
    assert list(outcomes["after misdirected"]) == ["ok"]
    answered = next(each for each in verdict.exposure if each.name == "answered")
    assert answered.measured.events == answered.measured.trials
    assert "9 more were misdirected and refused, as planned" in answered.text


def test_the_whole_chain_uses_one_connection(tmp_path):
    _, server, history = play(plan(4), "", tmp_path)
    assert server.connections == 3
    cells = [each.cell for each in reuse.followers(history)]
    assert cells.count("after misdirected") == cells.count("after expect") == 12


def test_without_keep_alive_every_request_has_its_own_connection_and_nothing_is_tested(tmp_path):
    verdict, server, history = play(plan(2), "", tmp_path, keep_alive=False)
    assert server.connections == len(history.requests)
    assert any("keep-alive is off" in reason for reason in verdict.reasons)


def test_a_body_waits_for_the_100(tmp_path):
    _, server, _ = play(plan(1), "", tmp_path)
    assert sum("expect: 100-continue" in head for head in server.heads) == 3
