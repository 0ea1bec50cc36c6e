"""The embedded target as a process: it comes up, it goes away, and it can be killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from playing import alive, eventually

from leakcheck.errors import UsageError
from leakcheck.run import embedded


def test_it_listens_inside_the_block_and_is_gone_after_it():
    with embedded.start(["--model=witness"]) as engine:
        url = engine.ready["base_url"] + "/models"
        with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 - our own server
            assert json.load(reply)["data"][0]["id"] == "witness"
        pid = engine.process.pid
    assert not alive(pid)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--fault=no-such", "prefix-length-only"),
        ("--blocks=0", "--blocks must be at least 1"),
        ("--model=./nowhere", "nowhere"),
    ],
)
def test_a_wrong_flag_is_refused_with_the_engines_own_words(flag, said):
    with pytest.raises(UsageError, match=said), embedded.start([flag]):
        pass


def models_at(url):
    with urllib.request.urlopen(url + "/models", timeout=10) as reply:  # noqa: S310 - our own
        return [model["id"] for model in json.load(reply)["data"]]


def ask(url, text, **fields):
    """The answer to one greedy request, and its usage."""
    body = {"model": "witness", "messages": [{"role": "user", "content": text}], "max_tokens": 24}
    request = urllib.request.Request(  # noqa: S310 - our own server
        url + "/chat/completions",
        json.dumps(body | fields).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310 - our own
        answer = json.load(reply)
    return answer["choices"][0]["message"]["content"], answer["usage"]


def resident_bytes(pid):
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def engine():
    with embedded.start(["--model=witness"]) as started:
        yield started


def test_a_lifetime_has_its_own_flags_and_address_in_the_same_process(engine):
    before = dict(engine.ready)
    after = engine.restart(["--fault=response-swap", "--blocks=64", "--seed=5"])
    assert (after["fault"], after["blocks"], after["seed"]) == ("response-swap", 64, 5)
    assert after["pid"] == before["pid"]
    assert models_at(after["base_url"]) == ["witness"]
    with pytest.raises(urllib.error.URLError):
        models_at(before["base_url"])


def test_a_lifetime_starts_with_empty_caches_and_answers_like_the_one_before(engine):
    text = "please note that the harbour is open until nine and the market is closed " * 3
    answers, cached = [], []
    for _ in range(2):
        url = engine.restart([])["base_url"]
        for _ in range(2):
            answer, usage = ask(url, text)
            answers.append(answer)
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert len(set(answers)) == 1
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0


def test_a_fault_ends_with_its_lifetime(engine):
    long, short = "the harbour is open until nine tomorrow and the market is closed " * 4, "go on"
    url = engine.restart([])["base_url"]
    healthy = ask(url, short)
    engine.restart(["--fault=prefix-length-only"])
    ask(engine.ready["base_url"], long)
    url = engine.restart([])["base_url"]
    ask(url, long)
    assert ask(url, short) == healthy


def test_the_end_of_a_lifetime_cuts_what_is_in_flight(engine):
    url = engine.restart([])["base_url"]
    outcome = []

    def client():
        try:
            outcome.append(ask(url, "go on", max_tokens=300, n=16, ignore_eos=True))
        except urllib.error.HTTPError as error:
            with error:
                outcome.append(error.read().decode())

    thread = threading.Thread(target=client)
    thread.start()
    eventually(lambda: running(url) == 16)
    engine.restart([])
    thread.join(timeout=10)
    assert "stopped before the answer was complete" in outcome[0]
    assert running(engine.ready["base_url"]) == 0


def running(url):
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10) as reply:  # noqa: S310 - our own
        text = reply.read().decode()
    return int(float(text.partition("\nleakcheck_engine_running ")[2].split()[0]))


def test_the_memory_of_a_lifetime_is_freed(engine):
    flags = ["--blocks=4000"]
    kv_bytes = engine.restart(flags)["kv_bytes"]
    after_one = resident_bytes(engine.ready["pid"])
    for _ in range(4):
        engine.restart(flags)
    assert resident_bytes(engine.ready["pid"]) < after_one + kv_bytes


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--model=smollm2-135m", "has loaded the model 'witness'; for 'smollm2-135m' start"),
        ("--blocks=0", "--blocks must be at least 1"),
    ],
)
def test_a_lifetime_that_cannot_be_is_refused_with_the_engines_own_words(flag, said):
    with embedded.start([]) as engine, pytest.raises(UsageError, match=said):
        engine.restart([flag])


def test_a_line_that_is_no_list_of_flags_is_named():
    with embedded.start([]) as engine:
        engine.process.stdin.write(b"--blocks=3\n")
        with pytest.raises(UsageError, match="a JSON array of flags"):
            engine.restart([])


def run_embedded(tmp_path, *flags):
    command = [
        sys.executable, "-m", "leakcheck.cli", "run", "rare-token-passphrase", "--embedded",
        "--windows", "200", "--phantoms", "9", "--out", str(tmp_path), *flags,
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def engine_pid(tmp_path):
    (origin,) = tmp_path.glob("2*/run.json")
    return json.loads(origin.read_text())["engine"]["pid"]


def windows_are_running(tmp_path):
    return sum(p.stat().st_size for p in tmp_path.glob("2*/observations-w03.jsonl")) > 20_000


def test_an_engine_killed_in_mid_run_ends_the_run_with_a_report(tmp_path):
    process = run_embedded(tmp_path)
    eventually(lambda: windows_are_running(tmp_path), within_s=120)
    os.kill(engine_pid(tmp_path), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 4, (out, err)
    assert "the target was lost after" in out


def test_a_killed_parent_leaves_no_engine(tmp_path):
    process = run_embedded(tmp_path)
    eventually(lambda: windows_are_running(tmp_path), within_s=120)
    pid = engine_pid(tmp_path)
    process.kill()
    process.communicate()
    eventually(lambda: not alive(pid), within_s=30)
