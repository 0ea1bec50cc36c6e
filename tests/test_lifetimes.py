"""Several lifetimes of the target in one run."""

import contextlib
import http.server
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from answering import answering, said
from hypothesis import given
from hypothesis import strategies as st
from playing import run_folder, windows
from shorthand import FINISHED, STEP_NS, history

from leakcheck import cli, runfolder, scenario
from leakcheck import history as histories
from leakcheck.analyzer import judge
from leakcheck.analyzer.lifetimes import COLUMNS, TITLE
from leakcheck.budget import spending
from leakcheck.errors import HarnessError, TargetError, UsageError
from leakcheck.records import Caps, Load, Plan, RunEvent, Target, TargetFacts
from leakcheck.run import gauges, lifetimes, session, signs

# --- how large a block is ------------------------------------------------------------------------


def plan(windows, **overrides):
    path = scenario.find("rare-token-passphrase")
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    read = scenario.read(path, {"load.windows": windows, **keys})
    return Plan(scenario=read, seed=0, words=(), style="phrase", requests=())


@given(st.integers(1, 500), st.integers(1, 9))
def test_blocks_of_a_run_that_plays_all_divide_the_budget(windows, count):
    size = lifetimes.block_size(plan(windows), count, TargetFacts(), play_all=True)
    assert size * count <= windows < size * count + count or size == 1


def test_blocks_divide_the_windows_that_show_a_leak_where_the_budget_is_larger():
    small = lifetimes.block_size(plan(9000, gate__detect=0.05), 3, TargetFacts())
    large = lifetimes.block_size(plan(9000, gate__detect=0.01), 3, TargetFacts())
    assert 25 < small < 40  # 96 windows at 5 %
    assert 140 < large < 180  # 485 at 1 %


def test_blocks_never_need_more_windows_than_there_are():
    assert lifetimes.block_size(plan(10), 5, TargetFacts()) == 2
    assert lifetimes.block_size(plan(2), 5, TargetFacts()) == 1


# --- a command that restarts ---------------------------------------------------------------------


def python(code):
    return shlex.join([sys.executable, "-c", code])


def test_the_command_is_run_without_a_shell(tmp_path):
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    place = tmp_path / "said"
    lifetimes.order(f"{python(code)} {place} '$HOME; echo'")
    assert place.read_text() == "$HOME; echo"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("/no/such/command --now", "cannot be run (No such file or directory)"),
        ("'unclosed", "cannot be run (No closing quotation)"),
        (python("import sys; sys.exit('line\\nit is stuck')"), "exit code 1: it is stuck"),
        (python("raise SystemExit(3)"), "ended with exit code 3"),
    ],
)
def test_a_command_that_fails_is_one_sentence(command, sentence):
    with pytest.raises(UsageError) as refused:
        lifetimes.order(command)
    assert str(refused.value).startswith("--restart: ")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value).removeprefix(f"--restart: {command!r}")


def test_a_command_that_stays_is_ended_and_told_how_to():
    with pytest.raises(UsageError, match=r"did not end within 0.2 s; it is to return while"):
        lifetimes.order(python("import time; time.sleep(60)"), patience_s=0.2)


def test_a_server_that_the_command_leaves_behind_is_not_waited_for(tmp_path):
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
    lifetimes.order(python(child), patience_s=20)
    del tmp_path


SLEEP = "import time; time.sleep(25)"


WAITS = """
import os, sys, time
place, child = sys.argv[1], os.fork()
if child:
    open(place + ".part", "w").write(f"{os.getpid()} {child}")
    os.replace(place + ".part", place)
time.sleep(60)
"""
ORDERS = """
import signal, sys
from leakcheck.run import lifetimes
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    lifetimes.order(sys.argv[1])
except KeyboardInterrupt:
    sys.exit(130)
"""
LEAVES = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(left.pid))
"""


def eventually(condition, patience_s=60):
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def lives(pid):
    """Whether a process runs; one that has ended and is waited for does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc who lives")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_wait_kills_the_command_and_what_it_started(tmp_path, number):
    place = tmp_path / "pids"
    process = subprocess.Popen([sys.executable, "-c", ORDERS, f"{python(WAITS)} {place}"])
    eventually(place.exists)
    process.send_signal(number)
    assert process.wait(30) == 130
    pids = place.read_text().split()
    eventually(lambda: not any(map(lives, pids)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc who lives")
def test_what_a_command_leaves_running_when_it_returns_stays(tmp_path):
    place = tmp_path / "pid"
    lifetimes.order(f"{python(LEAVES)} {place}")
    pid = int(place.read_text())
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)


# --- whether it restarted ------------------------------------------------------------------------


def test_a_connection_that_is_refused_in_between_shows_a_restart():
    port = free_port()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Tiny)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with signs.watched(Target(base_url=f"http://127.0.0.1:{port}/v1", model="m"), None) as seen:
        server.shutdown()
        server.server_close()
        seen.wait(30)
        assert seen.seen() == "a connection was refused in between"
    thread.join()


def test_a_target_that_listens_all_the_time_shows_none(hostile):
    target = Target(base_url=f"http://127.0.0.1:{hostile}/v1", model="m")
    with signs.watched(target, None) as seen:
        seen.wait(0.3)
        assert seen.seen() is None


def test_a_target_that_nobody_reached_before_shows_none():
    target = Target(base_url=f"http://127.0.0.1:{free_port()}/v1", model="m")
    with signs.watched(target, None) as seen:
        seen.wait(30)
        assert seen.seen() is None


BORN = "process_start_time_seconds"


@pytest.mark.parametrize(
    ("before", "after", "sign"),
    [
        ({BORN: 5.0, "a_total": 9.0}, {BORN: 6.0, "a_total": 9.0}, f"its {BORN} changed"),
        ({"a_total": 9.0, "b_total": 1.0}, {"a_total": 3.0, "b_total": 1.0}, "its counter a_total"),
        ({BORN: 5.0, "a_total": 9.0}, {BORN: 5.0, "a_total": 12.0}, None),
        ({"a_total": 9.0}, {}, None),
        (None, {"a_total": 9.0}, None),
        ({"a_total": 9.0}, None, None),
    ],
)
def test_counters_that_begin_anew_show_a_restart(before, after, sign):
    said = signs.newer(before, after)
    assert said is None if sign is None else said.startswith(sign)


PAGE = """# TYPE process_start_time_seconds gauge
process_start_time_seconds {born}
# TYPE served_total counter
served_total{{model="a"}} {served}
served_total{{model="b"}} 1
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 7
"""


class Metrics(http.server.BaseHTTPRequestHandler):
    """A page whose figures are of the class."""

    born, served = 1000, 5

    def do_GET(self):
        body = PAGE.format(born=self.born, served=self.served).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing on the screen."""


@pytest.mark.parametrize(
    ("attribute", "value", "sign"),
    [("born", 2000, f"its {BORN} changed"), ("served", 2, "its counter served_total fell"),
     ("served", 9, None)],
)  # fmt: skip
def test_the_page_of_metrics_shows_a_restart_behind_a_listener_that_stays(attribute, value, sign):
    class Kept(Metrics):
        """Its figures can be changed while it runs."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kept) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        target = Target(base_url=f"{base}/v1", model="m")
        with signs.watched(target, gauges.Source(url=f"{base}/metrics")) as seen:
            setattr(Kept, attribute, value)
            assert seen.seen() == sign
        server.shutdown()
        thread.join()


# --- until it is back ----------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_target_that_stays_away_is_one_sentence():
    target = Target(base_url=f"http://127.0.0.1:{free_port()}/v1", model="m", timeout_s=2)
    with pytest.raises(TargetError, match=r"it did not answer within 0 s after --restart \(no con"):
        lifetimes.wait_until_back(target, patience_s=0)


class Tiny(http.server.BaseHTTPRequestHandler):
    """As much of the API as is asked before a run."""

    def do_GET(self):
        self.reply({"data": [{"id": "m"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "hello"}
        self.reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def reply(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing on the screen."""


def test_a_target_that_comes_back_later_is_waited_for():
    port, servers = free_port(), []

    def begin():
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", port), Tiny))
        servers[0].serve_forever(0.01)

    later = threading.Timer(1.2, begin)
    later.start()
    target = Target(base_url=f"http://127.0.0.1:{port}/v1", model="m", timeout_s=5)
    lifetimes.wait_until_back(target, patience_s=30)
    servers[0].shutdown()
    later.join()
    servers[0].server_close()


@contextlib.contextmanager
def live(root, url, caps, **fields):
    """A run against a target there, which `restart` can be asked for, and how."""
    target = Target(base_url=url, model="m", **fields)
    opened = session.Opened(target=target, engine=None)
    setup = session.Setup(target=target, caps=caps)
    folder = run_folder(root, *windows(1))
    load = Load(windows=1, workers=1, lanes=1)
    with session.started(folder, opened, [load], lambda *_: None, caps=caps) as its:
        yield its, session.provenance(setup, opened, ())


@pytest.mark.parametrize("most", [0, 2, 9])
def test_whether_a_target_is_back_is_asked_within_the_budget(most, tmp_path, monkeypatch):
    monkeypatch.setattr(lifetimes, "SHOW_S", 0.0)
    asked = []

    def answer(method, _path, _body):
        asked.append(method)
        return 200, said("hello") | {"data": [{"id": "m"}]}

    with answering(answer) as (url, _), live(tmp_path, url, Caps(requests=most)) as (its, origin):
        lifetimes.restart(its, replace(origin, restart="true"), "now")
        assert its.governor.purse.used.requests <= most
        assert spending.used(its.folder).requests == its.governor.purse.used.requests
    assert asked.count("POST") <= most


def test_what_a_restart_says_gives_no_key_of_the_target_away(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_PASS", "planted-7Qm2xV9bLr4TzW")  # no name of a secret
    code = "import os, sys; sys.exit(os.environ['MY_PASS'])"
    with (
        answering(lambda *_: (200, {})) as (url, _),
        live(tmp_path, url, Caps(), api_key_env="MY_PASS") as (its, origin),
        pytest.raises(HarnessError, match=r"exit code 1: \*+$"),
    ):
        lifetimes.restart(its, replace(origin, restart=python(code)), "now")


# --- the report ----------------------------------------------------------------------------------

LINE = "a> b> a=aA b=bB | c> d> c=cC d=dC | e> f> e=eE f=fF"
"""Three windows of four steps, one of them with a leak; steps 5 and 10 are in between."""


def lived(*steps, engine=None, kind="restarted"):
    events = [RunEvent(kind=kind, at_ns=step * STEP_NS) for step in steps]
    h = history(LINE, events=(*events, *FINISHED), engine=engine).scenario("tiny")
    return judge(h, h.plans[0])


def test_leaks_are_counted_by_lifetime():
    verdict = lived(5, 10)
    assert verdict.tables[TITLE][0] == COLUMNS
    assert [row[:4] for row in verdict.tables[TITLE][1:]] == [
        (1, 1, 1, 0),
        (2, 1, 1, 1),
        (3, 1, 1, 0),
    ]


def test_the_report_says_how_many_lifetimes_a_scenario_saw():
    (found,) = [each for each in lived(5).exposure if each.name == "lifetimes"]
    assert (found.measured, found.enough) == (2.0, None)
    assert found.text == "windows were sent to 2 lifetimes of the target, restarted in between"


def both(*, seen, unseen):
    events = [RunEvent(kind="restarted", at_ns=step * STEP_NS) for step in seen]
    events += [RunEvent(kind="restart-unseen", at_ns=step * STEP_NS) for step in unseen]
    h = history(LINE, events=(*events, *FINISHED)).scenario("tiny")
    verdict = judge(h, h.plans[0])
    (found,) = [each for each in verdict.exposure if each.name == "lifetimes"]
    return verdict, found


def test_a_restart_that_was_not_seen_begins_no_lifetime():
    verdict, found = both(seen=[], unseen=[5])
    assert TITLE not in verdict.tables
    assert found.measured == 1.0
    assert found.text == (
        "windows were sent to 1 lifetime of the target, by the restarts that were seen; once the "
        "command returned 0, and whether the target restarted was not seen"
    )


def test_restarts_that_were_seen_and_those_that_were_not_are_told_apart():
    verdict, found = both(seen=[5], unseen=[10])
    assert [row[:2] for row in verdict.tables[TITLE][1:]] == [(1, 1), (2, 2)]
    assert found.measured == 2.0
    assert found.text == (
        "windows were sent to 2 lifetimes of the target, restarted in between, by the restarts "
        "that were seen; once more the command returned 0, and whether the target restarted was "
        "not seen"
    )


def test_a_lifetime_that_the_scenario_never_saw_is_not_counted():
    (found,) = [each for each in lived(0, 5, 100).exposure if each.name == "lifetimes"]
    assert found.measured == 2.0


def test_a_run_of_one_lifetime_has_no_table():
    verdict = lived()
    assert TITLE not in verdict.tables
    assert all(each.name != "lifetimes" for each in verdict.exposure)


@pytest.mark.parametrize(("engine", "lives"), [({"flags": []}, 2), (None, 0)])
def test_a_resumed_run_has_started_its_embedded_engine_anew(engine, lives):
    verdict = lived(5, engine=engine, kind="resumed")
    assert len(verdict.tables.get(TITLE, [()])) - 1 == lives


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--target", "http://127.0.0.1:9/v1", "--model", "m", "--lifetimes", "3"],
         "for 3 lifetimes of http://127.0.0.1:9/v1, name the command that restarts it"),
        (["--embedded", "--restart", "true"], "leakcheck restarts the embedded engine itself"),
        (["--target", "http://127.0.0.1:9/v1", "--model", "m", "--restart", " "], "empty"),
        (["--embedded", "--lifetimes", "9999", "--windows", "4"],
         "9999 lifetimes need a window each, and abort-storm has 4 (load.windows)"),
        (["--target", "http://127.0.0.1:9/v1", "--model=m", "--restart=true", "--windows", "1"],
         "2 lifetimes need a window each, and abort-storm has 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_restarted_is_refused(flags, sentence, capsys):
    assert cli.main(["run", *flags]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("'unterminated", "cannot be split (No closing quotation)"),
        ("no-such-program-xyz --now", "there is no program 'no-such-program-xyz'"),
        ("./not/here", "there is no program './not/here'"),
        (__file__, "there is no program"),  # a file that nobody may execute
        ("# comment", "there is no program '#'"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_before_anything_is_sent(command, sentence, capsys):
    asked = []
    with answering(lambda *of: asked.append(of) or (200, said("x"))) as (url, _):
        flags = ("--target", url, "--model", "m", "--restart", command)
        assert cli.main(["run", "control-group", *flags]) == 2
    complaint = capsys.readouterr().err
    assert "--restart: " in complaint
    assert sentence in complaint
    assert asked == []


ECHO = ("--model", "echo", "--style", "phrase")
TINY = """
schema = 1
name = "tiny"
version = 1
summary = "A few small windows."
[load]
windows = 7
requests = 4
workers = 2
lanes = 2
phantoms = 9
[traffic]
use = "concurrent"
[checks.foreign_passphrase]
[gate]
min_windows = 3
min_echo = 0.2
"""


@pytest.mark.slow
def test_the_embedded_engine_lives_several_times_in_one_run(tmp_path, capsys):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    flags = ["--lifetimes", "3", "--play-all", "--seed", "5", "--set", "gate.detect=0.9"]
    assert cli.main(["run", str(path), "--out", str(tmp_path / "runs"), *flags]) == 0
    folder = tmp_path / "runs" / "latest"
    report = json.loads((folder / "report.json").read_text())
    (verdict,) = report["verdicts"]
    assert [row[:2] for row in verdict["tables"][TITLE][1:]] == [[1, 2], [2, 2], [3, 3]]
    assert [e["detail"] for e in report["events"] if e["kind"] == "restarted"] == [
        "tiny: lifetime 2 of 3",
        "tiny: lifetime 3 of 3",
    ]
    assert report["requests"]["ok"] == report["requests"]["planned"]
    assert report["provenance"]["lifetimes"] == 3
    capsys.readouterr()
    # prefix caches die with a lifetime, and the address is a new one: the sampler followed
    spans = [e["at_ns"] for e in report["events"] if e["kind"] == "restarted"]
    assert spans == sorted(spans)


def test_a_target_of_the_users_is_restarted_by_its_command(tmp_path, hostile, capsys):
    path, log = tmp_path / "tiny.toml", tmp_path / "restarts"
    path.write_text(TINY)
    command = python(f"open({str(log)!r}, 'a').write('x')")
    base = ["--target", f"http://127.0.0.1:{hostile}/v1", *ECHO, "--play-all"]
    out = ["--out", str(tmp_path / "runs")]
    cli.main(["run", str(path), *base, *out, "--restart", command])
    capsys.readouterr()
    assert log.read_text() == "x"
    events = runfolder.read_events(tmp_path / "runs" / "latest")
    assert [e.detail for e in events if e.kind == "restart-unseen"] == [
        "tiny: lifetime 2 of 2: the command returned 0; whether the target restarted was not seen"
    ]
    assert not [e for e in events if e.kind == "restarted"]
    report = json.loads((tmp_path / "runs" / "latest" / "report.json").read_text())
    (found,) = [e for e in report["verdicts"][0]["exposure"] if e["name"] == "lifetimes"]
    assert found["measured"] == 1.0


def test_a_target_that_cannot_be_restarted_ends_the_run_in_one_sentence(tmp_path, hostile, capsys):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    base = ["--target", f"http://127.0.0.1:{hostile}/v1", *ECHO, "--play-all"]
    out = ["--out", str(tmp_path / "runs")]
    assert cli.main(["run", str(path), *base, *out, "--restart", "false"]) == 4
    screen = capsys.readouterr()
    assert "Traceback" not in screen.err
    report = json.loads((tmp_path / "runs" / "latest" / "report.json").read_text())
    (reason, *_) = report["verdicts"][0]["reasons"]
    assert "the target could not be restarted: --restart: 'false' ended with exit code 1" in reason


def test_a_resumed_run_goes_on_with_its_lifetimes(tmp_path, hostile, capsys):
    """Stopped after its first window, it plays the rest of the first block, and then restarts."""
    path, log = tmp_path / "tiny.toml", tmp_path / "restarts"
    path.write_text(TINY)
    command = python(f"open({str(log)!r}, 'a').write('x')")
    base = ["--target", f"http://127.0.0.1:{hostile}/v1", *ECHO, "--play-all"]
    out = ["--out", str(tmp_path / "runs")]
    cli.main(["run", str(path), *base, *out, "--restart", command])
    folder = (tmp_path / "runs" / "latest").resolve()
    _forget_after_window(folder, 0)
    cli.main(["run", "--resume", str(folder)])
    capsys.readouterr()
    assert log.read_text() == "xx"
    h = histories.read(folder)
    assert (h.requests["outcome"] == "ok").all()


def test_a_finished_run_that_is_resumed_needs_no_target_and_says_the_same(
    tmp_path, hostile_server, capsys
):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    process, port = hostile_server()
    base = ["--target", f"http://127.0.0.1:{port}/v1", *ECHO]
    code = cli.main(["run", str(path), *base, "--out", str(tmp_path / "runs")])
    process.kill()
    process.wait()
    folder = (tmp_path / "runs" / "latest").resolve()
    files = {name: (folder / name).read_bytes() for name in ("report.json", "events.jsonl")}
    shards = sorted(folder.glob("observations-w*.jsonl"))
    assert cli.main(["run", "--resume", str(folder)]) == code
    capsys.readouterr()
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert sorted(folder.glob("observations-w*.jsonl")) == shards


def test_a_run_killed_while_it_was_planned_says_so_as_resume_does(tmp_path, hostile, capsys):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    base = ["--target", f"http://127.0.0.1:{hostile}/v1", *ECHO]
    cli.main(["run", str(path), *base, "--out", str(tmp_path / "runs")])
    folder = (tmp_path / "runs" / "latest").resolve()
    _forget_after_window(folder, -1)
    before = [plan for plan in runfolder.read_plans(folder) if not plan.scenario.checks]
    (folder / "plan.jsonl").unlink()
    runfolder.write_plans(folder, before)
    capsys.readouterr()
    assert cli.main(["analyze", str(folder)]) == 3
    screen = " ".join(capsys.readouterr().out.split())
    assert "the run was stopped before it was planned; start a new one" in screen
    assert "raise what the reasons name" not in screen
    assert cli.main(["run", "--resume", str(folder)]) == 2
    assert "the run was stopped before it was planned; start a new one" in capsys.readouterr().err


def _forget_after_window(folder, last):
    """Make a run folder as if the run had been stopped after a window."""
    windows = {r.id: r.window for p in runfolder.read_plans(folder) for r in p.requests}
    scenarios = {r.id: r.scenario for p in runfolder.read_plans(folder) for r in p.requests}
    for shard in folder.glob("observations-w*.jsonl"):
        lines = []
        for line in shard.read_bytes().splitlines(keepends=True):
            (record,) = json.loads(line).values()
            name = record["request_id"]
            if scenarios[name] == "survey" or windows[name] <= last:
                lines.append(line)
        shard.write_bytes(b"".join(lines))
    (folder / "events.jsonl").unlink()
    (folder / "evidence.json").unlink(missing_ok=True)
