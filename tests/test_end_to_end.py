"""The whole command line against targets that are broken, dead, killed or lying."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playing import alive, eventually

SCENARIO = """
schema = 1
name = "tiny"
version = 1
summary = "A few small windows."
[load]
windows = {windows}
requests = 4
workers = 2
lanes = 2
phantoms = 9
[traffic]
use = "concurrent"
[checks.foreign_passphrase]
[checks.own_answer]
[gate]
min_windows = 3
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SCENARIO.format(windows=3))
    return path


def start(scenario, *flags, cwd=None):
    out = ["--style", "phrase", "--out", str(scenario.parent / "reports")]
    return start_plain(str(scenario), *out, *flags, cwd=cwd)


def start_plain(*flags, cwd=None):
    command = [sys.executable, "-m", "leakcheck.cli", "run"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEAKCHECK_", "OPENAI_"))}
    return subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=clean, cwd=cwd, start_new_session=True,
    )  # fmt: skip


def run(scenario, port, model, *flags):
    base = f"http://127.0.0.1:{port}/v1"
    process = start(scenario, "--target", base, "--model", model, "--timeout-s", "2", *flags)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def folder(scenario):
    (found,) = [p for p in (scenario.parent / "reports").iterdir() if not p.is_symlink()]
    return found


def report(scenario):
    return json.loads((folder(scenario) / "report.json").read_text())


@pytest.mark.parametrize(
    ("model", "code", "sentence"),
    [
        ("no-such-model", 2, "the target offers no model 'no-such-model'"),
        ("unauthorized", 2, "wants an API key"),
        ("busy", 4, "refuses a tiny request with status 429"),
        ("broken", 4, "status 500: the engine has crashed"),
        ("cut", 4, "the connection was cut before the answer was complete"),
        ("invalid", 4, "the target sent invalid JSON"),
        ("latin1", 4, "bytes that are not UTF-8"),
        ("huge", 4, "the reply is longer than 2000000 bytes"),
        ("endless", 4, "does not answer within 2 s"),
        ("refuses", 4, "this prompt is not allowed"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused_in_one_sentence(
    scenario, hostile, model, code, sentence
):
    got, _, err = run(scenario, hostile, model)
    assert got == code
    (line,) = [line for line in err.splitlines() if line.startswith("leakcheck: ")]
    assert sentence in line


def test_a_dead_target_is_refused_in_one_sentence(scenario):
    code, _, err = run(scenario, 9, "any")
    assert code == 4
    assert "127.0.0.1:9" in err.strip().splitlines()[-1]


def test_a_target_that_always_says_the_same_is_inconclusive(scenario, hostile):
    code, out, _ = run(scenario, hostile, "same")
    assert code == 3
    assert "echo too low" in out


def test_an_unwritable_reports_folder_is_refused_before_anything_is_sent(scenario, hostile):
    blocked = scenario.parent / "file"
    blocked.write_text("")
    code, _, err = run(scenario, hostile, "echo", "--out", str(blocked))
    assert code == 2
    assert "cannot be written" in err


def test_a_target_killed_in_mid_run_ends_it_with_a_report(scenario, hostile_server):
    scenario.write_text(SCENARIO.format(windows=200))
    server, port = hostile_server()
    base = f"http://127.0.0.1:{port}/v1"
    process = start(scenario, "--target", base, "--model", "pause", "--timeout-s", "5")
    eventually(lambda: answered(scenario) > 20)
    server.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, (out, err)
    assert "the target was lost after" in out
    assert report(scenario)["status"] == "error"


def answered(scenario):
    """Answers so far to the scenario itself: what is measured before it stands before it in the
    plan.
    """
    for path in (scenario.parent / "reports").glob("2*/plan.jsonl"):
        planned = path.read_bytes()
        at = planned.find(b'{"plan":{"scenario":{"name":"tiny"')
        shards = path.parent.glob("observations-w*.jsonl")
        sent = sum(shard.read_bytes().count(b'{"observe":') for shard in shards)
        return sent - planned.count(b'{"request":', 0, at) if at >= 0 else 0
    return 0


def worker_pids(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        int(pid)
        for pid in children
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    ]


def test_a_worker_killed_in_mid_run_is_reported_and_the_rest_is_analysed(scenario, hostile):
    scenario.write_text(SCENARIO.format(windows=25))
    base = f"http://127.0.0.1:{hostile}/v1"
    process = start(scenario, "--target", base, "--model", "pause")
    eventually(lambda: answered(scenario) > 20)
    os.kill(worker_pids(process)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, (out, err)
    assert [e["kind"] for e in report(scenario)["events"]].count("worker-died") == 1
    assert "worker died" in out
    assert report(scenario)["requests"]["ok"] > 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_what_was_observed_and_is_marked_interrupted(scenario, hostile, number):
    scenario.write_text(SCENARIO.format(windows=200))
    base = f"http://127.0.0.1:{hostile}/v1"
    process = start(scenario, "--target", base, "--model", "pause")
    eventually(lambda: answered(scenario) > 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, (out, err)
    assert report(scenario)["interrupted"]
    assert report(scenario)["requests"]["ok"] > 10
    assert "Traceback" not in err


def test_an_interrupted_run_is_resumed_to_its_end(scenario, hostile):
    scenario.write_text(SCENARIO.format(windows=25))
    base = f"http://127.0.0.1:{hostile}/v1"
    process = start(scenario, "--target", base, "--model", "pause")
    eventually(lambda: answered(scenario) > 20)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    first = report(scenario)
    again = start_plain("--resume", str(folder(scenario)))
    out, err = again.communicate(timeout=60)
    assert again.returncode == 3, (out, err)
    second = report(scenario)
    assert not second["interrupted"]
    assert second["requests"]["ok"] > first["requests"]["ok"]
    assert second["requests"].get("unsent", 0) == 0


def test_a_killed_parent_leaves_no_worker_and_its_run_can_be_analysed(scenario, hostile):
    scenario.write_text(SCENARIO.format(windows=200))
    base = f"http://127.0.0.1:{hostile}/v1"
    process = start(scenario, "--target", base, "--model", "pause")
    eventually(lambda: answered(scenario) > 20)
    workers = worker_pids(process)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    eventually(lambda: not any(alive(pid) for pid in workers))
    latest = scenario.parent / "reports" / "latest"
    assert latest.resolve() == folder(scenario).resolve()  # and not the run before
    done = subprocess.run(
        [sys.executable, "-m", "leakcheck.cli", "analyze", str(latest)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert report(scenario)["requests"]["ok"] > 10


def test_analyze_gives_the_very_same_report(scenario, hostile):
    run(scenario, hostile, "same")
    before = (folder(scenario) / "report.json").read_bytes()
    subprocess.run(
        [sys.executable, "-m", "leakcheck.cli", "analyze", str(folder(scenario))],
        capture_output=True, check=False,
    )  # fmt: skip
    assert (folder(scenario) / "report.json").read_bytes() == before


def test_a_key_never_reaches_any_file_or_screen(scenario, hostile, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "sk-planted-0123456789")
    code, out, err = run(scenario, hostile, "parrot-key", "--api-key-env", "SECRET_KEY")
    written = b"".join(p.read_bytes() for p in scenario.parent.rglob("*") if p.is_file())
    assert code in (3, 4)
    assert "sk-planted" not in out + err
    assert b"sk-planted" not in written


def events(scenario):
    return [(e["kind"], e["detail"]) for e in report(scenario)["events"]]


def state(scenario):
    """What the run folder keeps of the evidence."""
    return json.loads((folder(scenario) / "evidence.json").read_text())["scenarios"]["tiny"]


def test_a_scenario_ends_when_its_windows_have_shown_enough(scenario, hostile):
    scenario.write_text(SCENARIO.format(windows=300))
    code, out, _ = run(scenario, hostile, "echo", "--detect", "40%")
    assert code == 0, out
    assert ("settled", "tiny") in events(scenario)
    (verdict,) = report(scenario)["verdicts"]
    assert verdict["evidence"]["settled"] == "certificate"
    assert verdict["bound"] <= 0.4
    assert state(scenario)["trials"] == verdict["leak_rate"]["trials"] < 60
    assert report(scenario)["requests"]["unsent"] == 0
    assert "unsent" not in out
    before = (folder(scenario) / "report.json").read_bytes()
    command = [sys.executable, "-m", "leakcheck.cli", "analyze", str(folder(scenario))]
    subprocess.run(command, capture_output=True, check=False)
    assert (folder(scenario) / "report.json").read_bytes() == before


def test_a_target_that_falls_silent_does_not_cost_the_budget(scenario, hostile):
    scenario.write_text(SCENARIO.format(windows=300))
    code, out, _ = run(scenario, hostile, "tires", "--play-all")
    assert code in (3, 4), out
    windows = state(scenario)["windows"]
    answered = report(scenario)["requests"]["ok"] // 4
    assert windows <= answered + 8
    (verdict,) = report(scenario)["verdicts"]
    assert verdict["status"] != "clean"
    assert verdict["evidence"]["settled"] is None
    assert "finished" in [kind for kind, _ in events(scenario)]


def test_play_all_plays_every_window(scenario, hostile):
    scenario.write_text(SCENARIO.format(windows=40))
    code, out, _ = run(scenario, hostile, "echo", "--detect", "40%", "--play-all")
    assert code == 0, out
    assert [kind for kind, _ in events(scenario)] == ["finished"]
    assert report(scenario)["requests"]["ok"] >= 40 * 4
    assert state(scenario)["windows"] == 40


def test_a_leak_of_what_an_earlier_window_sent_ends_the_scenario_at_once(scenario, hostile):
    scenario.write_text(SCENARIO.format(windows=300))
    code, out, _ = run(scenario, hostile, "stale", "--detect", "1%", "--style", "phrase")
    assert code == 1, out
    (verdict,) = [v for v in report(scenario)["verdicts"] if v["scenario"] == "tiny"]
    assert verdict["evidence"]["settled"] == "leak"
    assert state(scenario)["windows"] <= 12
    assert "no estimate of how often it happens" in verdict["reasons"][-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_is_resumed_to_the_same_evidence(scenario, hostile, number):
    scenario.write_text(SCENARIO.format(windows=300))
    base = f"http://127.0.0.1:{hostile}/v1"
    process = start(scenario, "--target", base, "--model", "echo", "--detect", "8%")
    eventually(lambda: answered(scenario) > 60)
    process.send_signal(number)
    process.communicate(timeout=60)
    again = start_plain("--resume", str(folder(scenario)))
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, (out, err)
    kinds = [kind for kind, _ in events(scenario)]
    assert kinds[-3:] == ["resumed", "settled", "finished"]
    (verdict,) = report(scenario)["verdicts"]
    assert state(scenario)["trials"] == verdict["leak_rate"]["trials"] < 200
    assert state(scenario)["sensitivity"] == verdict["evidence"]["sensitivity"]
