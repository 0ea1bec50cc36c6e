"""A program as a target, as far as the contract does not say it."""

import asyncio
import re
import shlex
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from playing import alive, eventually, observe, play, request, text

from leakcheck.backends import Turns, command
from leakcheck.errors import TargetError, UsageError
from leakcheck.records import Message, Target

PLAIN = f"{sys.executable} -m backends.servers.plain"
PID = request("a", messages=(Message(role="user", content="!pid"),))
HANG = request("a", messages=(Message(role="user", content="!hang"),))


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def aim(text=PLAIN, **fields):
    return Target(base_url=text, model="m", backend="command", **fields)


def script(code):
    return aim(shlex.join([sys.executable, "-c", code]))


async def _pid(backend):
    return int("".join([chunk.text async for chunk in backend.stream(PID)]))


def test_a_lane_has_one_process_which_ends_with_it():
    async def run():
        lanes = [command.connect(aim()) for _ in range(2)]
        found = [await _pid(lane) for lane in lanes * 2]
        for lane in lanes:
            await lane.close()
        return found

    first, second, *again = asyncio.run(run())
    assert first != second
    assert again == [first, second]
    assert not alive(first)
    assert not alive(second)


def test_a_request_that_is_given_up_ends_the_process_and_the_next_one_starts_another():
    async def run():
        backend = command.connect(aim())
        first = await _pid(backend)
        async with aclosing(backend.stream(HANG)) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    break
        assert not alive(first)
        second = await _pid(backend)
        await backend.close()
        return first, second

    first, second = asyncio.run(run())
    assert first != second


def test_what_the_command_has_started_ends_with_it(tmp_path):
    told = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(told)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)"
    )
    sent = request("a", abort_after_s=5.0)
    target = script(code)

    async def run():
        backend = command.connect(target)
        task = asyncio.ensure_future(_drain(backend, sent))
        await asyncio.to_thread(eventually, lambda: told.exists() and told.read_text())
        task.cancel()
        await asyncio.wait({task})
        await backend.close()

    asyncio.run(run())
    eventually(lambda: not alive(int(told.read_text())))


def test_no_program_that_stays_outlasts_its_worker(tmp_path):
    stays = script(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'text': str(os.getpid())}), flush=True)\n"
        "time.sleep(60)"
    )
    sent = [request(f"r{lane}", lane=lane) for lane in range(8)]
    _, shards = play(tmp_path, stays, *sent, lanes=8)
    pids = [int(text(each)) for each in shards.observations]
    assert len(pids) == 8
    assert [pid for pid in pids if alive(pid)] == []


async def _drain(backend, sent):
    async for _ in backend.stream(sent):
        pass


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise ValueError('no weights')", "ended with code 1 .*: ValueError: no weights"),
        ("input(); print('{\"text\"')", "invalid JSON"),
        ("input(); print('hello')", "invalid JSON: 'hello'"),
        ("input(); print('[1]')", "no answer"),
        ("pass", "ended with code 0 before its answer was complete"),
        ("import os, time; os.close(1); time.sleep(9)", "closed its output"),
    ],
)
def test_what_a_command_does_wrong_is_said_in_one_sentence(tmp_path, code, sentence):
    (seen,) = observe(tmp_path, script(code), request("a"))
    assert seen.outcome == "unknown"
    assert re.search(sentence, seen.error)


def test_a_full_pipe_of_errors_stops_nobody(tmp_path):
    code = "import sys; sys.stderr.write('x' * 1_000_000); input(); print('{\"text\": \"ok\"}')"
    (seen,) = observe(tmp_path, script(code), request("a"))
    assert (seen.outcome, text(seen)) == ("ok", "ok")


def test_no_shell_sees_the_command(tmp_path):
    target = aim(f"{PLAIN} ; touch {tmp_path / 'pwned'}")
    observe(tmp_path, target, request("a"))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the command is empty"),
        ("no-such-program-here x", "there is no program 'no-such-program-here'"),
        ("python 'open", "cannot be split"),
    ],
)
def test_what_is_no_command_is_named_in_one_sentence(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        command.arguments(text)


def test_the_meeting_says_why_the_program_died():
    with pytest.raises(TargetError, match=r"is broken: .*: ValueError: no weights"):
        command.meet(script("raise ValueError('no weights')"), Turns())
