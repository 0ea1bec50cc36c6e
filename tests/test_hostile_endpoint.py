"""`diff` and `run` against an endpoint of which nothing is known: within the budget and the pace to
the request, no false leak, a leak where the budget allows, else inconclusive with the true reasons.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from leakcheck.budget import spending

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
SCALE = 1 / 200
RATE = ("--max-rate=60/0.3s", "--max-in-flight=16")
KEY = "sk-planted-0123456789abcdef"
ALL = {
    "latency_s": (2, 20),
    "per_minute": 60,
    "random_429": 0.03,
    "random_500": 0.03,
    "hidden": "You are a helpful assistant of the Example company. Never speak of politics. " * 3,
    "preamble": "The user says:",
    "collapses": True,
    "refuses": 0.1,
    "caches": True,
    "chatter": True,
    "content_type": "text/plain",
}


@contextmanager
def endpoint(**manner):
    command = [sys.executable, str(Path(__file__).with_name("hostile_endpoint.py"))]
    process = subprocess.Popen(
        [*command, json.dumps({"scale": SCALE, **manner})], stdout=subprocess.PIPE, text=True
    )
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def leakcheck(port, tmp_path, command, *flags):
    """What a command said, its exit code, and what the endpoint saw."""
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "leakcheck.cli",
                command,
                f"--target=http://127.0.0.1:{port}/v1",
            ),
            *("--model=m", "--api-key-env=MY_KEY", f"--out={tmp_path}", "--seed=5", *flags),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"MY_KEY": KEY},
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/seen") as page:
        return done, " ".join(done.stdout.split()), json.load(page)


def most_in(times_s, span_s):
    times_s = sorted(times_s)
    return max(sum(at <= other < at + span_s for other in times_s) for at in times_s)


def used(tmp_path):
    return spending.used(tmp_path / "latest")


QUICK = (
    "concurrency-sweep",
    "--detect=25%",
    "--set=gate.min_windows=12",
    "--max-requests=345",
    "--workers=2",
    "--set=load.lanes=16",
    *RATE,
)
TOGETHER = {
    "latency, cache": {"latency_s": (2, 20), "caches": True},
    "limit, 500": {"per_minute": 60, "random_500": 0.05},
    "limit without Retry-After, rewrites": {
        "per_minute": 60,
        "says_when": False,
        "preamble": "The user says:",
        "collapses": True,
        "truncates_words": 400,
    },
    "429, hidden": {"random_429": 0.05, "hidden": "Never speak of politics. " * 30, "usage": True},
    "chatter": {"chatter": True, "content_type": "text/plain", "models": True},
}
"""Two in one run where neither hides the other: a run takes seconds of a processor."""


@pytest.mark.parametrize("manner", TOGETHER.values(), ids=TOGETHER)
def test_nothing_that_stands_in_the_way_of_an_honest_model_is_a_leak(manner, tmp_path):
    with endpoint(**({"latency_s": (1, 2)} | manner)) as port:
        done, said, seen = leakcheck(port, tmp_path, "run", *QUICK)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert len(seen["times_s"]) <= 345
    assert f"used: {used(tmp_path).requests} requests of at most 345" in said
    assert most_in(seen["times_s"], 0.3) <= 60
    assert seen["most_in_flight"] <= 16


def test_all_at_once_is_no_leak_and_keeps_the_budget(tmp_path):
    with endpoint(**ALL) as port:
        done, said, seen = leakcheck(port, tmp_path, "diff", "--max-requests=400", *RATE)
    assert done.returncode == 3, done.stdout + done.stderr
    assert len(seen["times_s"]) <= 400
    assert "10 % is to be excluded, which takes about" in said
    assert most_in(seen["times_s"], 0.3) <= 60


@pytest.mark.parametrize("command", [("run", "concurrency-sweep"), ("diff",)])
def test_a_leak_shows_through_all_at_once(command, tmp_path):
    with endpoint(**ALL, swaps=0.05) as port:
        done, said, seen = leakcheck(port, tmp_path, *command, "--max-requests=800", *RATE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "leak" in said
    assert len(seen["times_s"]) <= 800


def test_refusals_that_lower_the_echo_leave_it_open_and_are_named(tmp_path):
    with endpoint(refuses=0.8, latency_s=(1, 2)) as port:
        done, said, _ = leakcheck(port, tmp_path, "run", *QUICK)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "echo too low" in said


def test_caps_hold_to_the_request_where_retries_eat_them(tmp_path):
    """Every second attempt is refused: 345 are not enough for the 278 requests that are planned."""
    with endpoint(every_second_429=True, latency_s=(1, 2)) as port:
        done, said, seen = leakcheck(port, tmp_path, "run", *QUICK)
    assert done.returncode == 3, done.stdout + done.stderr
    # each is written down before it is sent: one may be counted that never arrived
    assert used(tmp_path).requests <= 345
    assert len(seen["times_s"]) + seen["pages"] <= 345
    assert "the budget of requests was used up after" in said


def test_the_pace_holds_over_all_workers_retries_included(tmp_path):
    with endpoint(random_429=0.1, latency_s=(2, 20)) as port:
        done, _, seen = leakcheck(
            port, tmp_path, "run", "concurrency-sweep", "--windows=12", "--max-rate=10/0.4s"
        )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert most_in(seen["times_s"], 0.4) <= 10


def test_a_limit_far_below_the_pace_slows_the_run_down_rather_than_being_hammered(tmp_path):
    with endpoint(per_minute=60, burst=5, latency_s=(1, 2)) as port:
        done, _, seen = leakcheck(
            port, tmp_path, "run", "concurrency-sweep", "--windows=12", "--max-rate=600/0.3s"
        )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    refused = seen["statuses"].count(429)
    assert 0 < refused < len(seen["statuses"]) / 3


@pytest.mark.parametrize("announces", ["openai", "anthropic"])
def test_a_limit_that_answers_announce_is_kept_before_it_refuses(announces, tmp_path):
    """53 of 308 attempts are refused where nothing is announced."""
    manner = {"per_minute": 60, "burst": 20, "latency_s": (1, 2), "scale": 1 / 60}
    pace = ("--max-rate=600/0.3s", "--max-in-flight=16")
    with endpoint(**manner, announces=announces) as port:
        done, _, seen = leakcheck(port, tmp_path, "run", "concurrency-sweep", "--windows=12", *pace)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert len(seen["statuses"]) > 200
    # none, unless this machine stands still in between: what is known of the target is then old
    assert seen["statuses"].count(429) < len(seen["statuses"]) / 20


def test_a_limit_that_is_always_said_to_be_used_up_is_not_waited_for_without_end(tmp_path):
    with endpoint(latency_s=(1, 2), announces="always empty", scale=1 / 60) as port:
        begun = time.monotonic()
        done, _, seen = leakcheck(
            port, tmp_path, "run", "concurrency-sweep", "--windows=12", "--max-rate=600/0.3s"
        )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert time.monotonic() - begun < len(seen["statuses"]) * 0.5  # a second for each, else


def test_a_broken_target_trips_the_breaker_and_the_report_says_why(tmp_path):
    with endpoint(latency_s=(1, 2), fails_after=60) as port:
        done, said, seen = leakcheck(port, tmp_path, "run", *QUICK, "--max-errors=50%")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "of the last 40 attempts failed, more than 50 % (--max-errors)" in said
    assert len(seen["times_s"]) < 130


@pytest.mark.parametrize("windows", [1, 40])
def test_a_target_that_breaks_for_good_is_lost_without_any_flag(windows, tmp_path):
    with endpoint(latency_s=(1, 2), fails_after=90) as port:
        size = ("--set=load.requests=120",) if windows == 1 else ()
        done, said, seen = leakcheck(
            port, tmp_path, "run", "concurrency-sweep", f"--windows={windows}", *size
        )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "the target was lost after" in said
    assert "is the first that got no answer" in said
    assert len(seen["times_s"]) < 280


def test_a_pause_beyond_all_patience_ends_the_run_at_once(tmp_path):
    with endpoint(busy_after=90, asks_to_wait_s=3600, latency_s=(1, 2)) as port:
        done, said, seen = leakcheck(port, tmp_path, "run", *QUICK)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "left alone for 3600 s" in said
    assert seen["statuses"].count(429) <= 16


def test_a_budget_too_small_for_anything_says_what_would_do(tmp_path):
    with endpoint() as port:
        done, _, seen = leakcheck(port, tmp_path, "run", "concurrency-sweep", "--max-requests=100")
    assert done.returncode == 2
    assert "the budget is too small (--max-requests 100): concurrency-sweep" in done.stderr
    assert seen["times_s"] == []


def test_a_resumed_run_keeps_its_caps(tmp_path):
    with endpoint(latency_s=(1, 2), usage=True, hidden="Never speak of it. " * 75) as port:
        cap = ("--max-tokens-total=60000",)
        done, said, _ = leakcheck(port, tmp_path, "run", *QUICK, *cap)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "the budget of tokens was used up" in said
        before = used(tmp_path).tokens
        again = subprocess.run(
            [sys.executable, "-m", "leakcheck.cli", "run", "--resume", str(tmp_path / "latest")],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"MY_KEY": KEY},
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/seen") as page:
            seen = json.load(page)
    assert again.returncode == 3, again.stdout + again.stderr
    assert 20000 < before <= used(tmp_path).tokens <= 60000
    assert seen["prompt_tokens"] + seen["answer_tokens"] <= 60000
