"""transformers serve with continuous batching is found guilty, and its healthy model is not.

It takes the sampling parameters of the first request after its start for those of all. Where the
model's generation_config.json has `do_sample: true`, greedy requests come out at random when the
first one was hot, and hot ones greedily when it was not. And an X-Request-Id is its own
key: of two requests with one id at a time, one is never answered, or the engine dies. Nothing in
leakcheck knows of that engine.
"""

import json
import shlex
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress

import pytest
from real import environments
from real.engine import Places
from real.engines import transformers_serve
from real.running import run
from real.servers import restart
from real.serving import Server, environ, free_port, served

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

(ENGINE,) = transformers_serve.ENGINES
SCENARIO = "first-request"
QUICK = ("--set", "traffic.tokens=8", "--set", "traffic.copies=2", "--max-tokens", "16")
"""Most of the time goes into the starts of the server."""
TELL = "--restart COMMAND would tell"


@pytest.fixture(scope="module")
def python():
    there = environments.found(ENGINE.environment)
    if isinstance(there, environments.Missing):
        pytest.skip(f"{ENGINE.name}: {there.reason}")
    return there


@pytest.fixture(scope="module")
def sampling(python, tmp_path_factory):
    """The folder that has in it a model like the usual one, but for `do_sample: true`."""
    del python  # where it is missing, no model has to be made
    usual, parent = environments.folder(), tmp_path_factory.mktemp("sampling")
    mine = parent / transformers_serve.NAME
    mine.mkdir()
    for file in usual.iterdir():
        (mine / file.name).symlink_to(file)
    config = mine / "generation_config.json"
    settings = json.loads(config.read_text())
    config.unlink()
    config.write_text(json.dumps(settings | {"do_sample": True}))
    return parent


def command(parent):
    return lambda places: transformers_serve.command(places, parent)


def first(server, temperature):
    """What somebody else sends before leakcheck does."""
    fields = {"model": ENGINE.model, "prompt": "The sea", "max_tokens": 4}
    request = urllib.request.Request(  # noqa: S310 - a local server
        f"{server.url}/v1/completions",
        data=json.dumps(fields | {"temperature": temperature}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as reply:  # noqa: S310 - as above
        reply.read()


@contextmanager
def restartable(python, scratch, monkeypatch, parent):
    """A running server, and the command that restarts it at the same address."""
    port = free_port()
    places = Places(
        python=python, port=port, scratch=scratch, gguf=environments.gguf,
        folder=environments.folder,
    )  # fmt: skip
    pid_file, log = scratch / "pid", scratch / "server.log"
    for name, value in environ(ENGINE).items():
        monkeypatch.setenv(name, value)
    start = [sys.executable, restart.__file__, str(pid_file), str(log)]
    start += transformers_serve.command(places, parent)
    process = restart.start(pid_file, log, transformers_serve.command(places, parent))
    try:
        url = f"http://127.0.0.1:{port}"
        answers(url + "/v1/models", ENGINE.patience_s)
        yield Server(url=url, group=int(pid_file.read_text())), shlex.join(start)
    finally:
        restart.end(pid_file)
        process.wait()


def answers(url, patience_s):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - a local server
            return
        time.sleep(0.2)
    pytest.fail(f"nobody answers at {url} after {patience_s:g} s")


def told(record_property, what, done):
    counts = done.report["requests"]
    took = (f"{done.took_s:.0f}", "-")  # with restarts it is not one server that took it
    row = (ENGINE.name, what, done.report["status"], counts["attempts"], *took)
    record_property("run", row)


def test_the_first_request_serves_all_and_the_report_says_so(
    python, sampling, tmp_path, monkeypatch, record_property
):
    with restartable(python, tmp_path, monkeypatch, sampling) as (server, again):
        done = run(ENGINE, server, tmp_path, SCENARIO, "--seed", "1", *QUICK, "--restart", again)
        told(record_property, "guilty: the first request serves all", done)
        behind_hot, behind_greedy = replayed(done.folder / "replay.sh")
    assert (done.code, done.report["status"]) == (1, "corruption")
    found = done.found("corruption")
    assert {each["anomaly"] for each in found} == {"foreign-parameters"}
    assert {each["evidence"]["aspect"] for each in found} == {"greedy answers", "hot answers"}
    for each in found:
        assert each["evidence"]["p"] <= 0.0005
        assert (
            "the temperature of the first request after the start, not their own"
            in (each["explanation"])
        )
    assert {cell: len(texts) for cell, texts in behind_hot.items()} == {"greedy": 2, "hot": 2}
    assert behind_hot.keys() == behind_greedy.keys()
    for cell, texts in behind_hot.items():
        assert len(set(texts)) == 2, "two answers at random"
        assert len(set(behind_greedy[cell])) == 1, "one answer twice"


def replayed(script):
    """The answers to the copies, by cell, of each lifetime that the script begins."""
    shown = subprocess.run(["/bin/sh", str(script)], capture_output=True, text=True, check=True)
    for lifetime in shown.stdout.split("--- lifetime")[1:]:
        of, cell = {}, None
        for line in lifetime.splitlines():
            if line.startswith("temperature "):
                cell = line.partition("(")[2].partition(")")[0]
            elif line.startswith("{") and cell != "first":
                of.setdefault(cell, []).append(json.loads(line)["choices"][0]["text"])
        yield of


SAID = {
    1.8: "greedy requests are answered at random",
    0.0: "hot requests are answered greedily",
}


@pytest.mark.parametrize("temperature", SAID)
def test_without_restarts_it_is_said_what_would_tell(
    python, sampling, tmp_path, record_property, temperature
):
    with served(ENGINE, python, tmp_path, command(sampling)) as server:
        first(server, temperature)
        done = run(ENGINE, server, tmp_path, SCENARIO, "--seed", "2", *QUICK, "--windows", "3")
    told(record_property, f"first at {temperature:g}, no restarts", done)
    assert (done.code, done.report["status"]) == (3, "inconclusive")
    assert not done.found("leak", "corruption", "error")
    (reason,) = [r for r in done.verdicts[SCENARIO]["reasons"] if TELL in r]
    assert SAID[temperature] in reason


def test_a_model_that_never_samples_is_not_accused(python, tmp_path, monkeypatch, record_property):
    """The same engine with the model as it is: greedy whatever is asked for and whoever came."""
    usual = environments.folder().parent
    with restartable(python, tmp_path, monkeypatch, usual) as (server, again):
        done = run(ENGINE, server, tmp_path, SCENARIO, "--seed", "3", *QUICK, "--restart", again)
    told(record_property, "never samples, with restarts", done)
    assert not done.found("leak", "corruption", "error")
    assert any("nobody else's doing" in note for note in done.notes(SCENARIO))


def test_two_requests_with_one_id_cost_an_answer_and_the_target_is_not_called_clean(
    python, tmp_path, record_property
):
    with served(ENGINE, python, tmp_path) as server:
        done = run(
            ENGINE, server, tmp_path, "duplicate-ids", "--seed", "1", "--windows", "1",
            "--requests", "5", "--timeout-s", "60", "--set", "load.timeout_s=60.0",
        )  # fmt: skip
    told(record_property, "duplicate-ids", done)
    assert done.code in {3, 4}
    assert done.report["status"] in {"inconclusive", "error"}
    assert done.report["requests"]["unknown"] > 0
    assert not done.found("leak", "corruption")
