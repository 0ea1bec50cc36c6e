"""A key is planted, a target gives it back in every way, and nothing that is written has it."""

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import play, text, windows

from leakcheck import redact
from leakcheck.errors import UsageError
from leakcheck.records import Chunk, Target
from leakcheck.run import lifetimes

KEY = "sk-planted-7Qm2xV9bLr4TzW"
WAYS = ("answer", "error", "redirect", "refusal", "header", "split")
ENV = {"MY_KEY": KEY, "OMP_NUM_THREADS": "1"}
CRASHES = """
import os, sys
from leakcheck import cli
from leakcheck.run import experiment
def crash(*_arguments):
    raise RuntimeError("the key is " + os.environ["MY_KEY"])
experiment.run = crash
sys.exit(cli.main())
"""


@pytest.fixture
def endpoint():
    manner = {"scale": 0.005, "latency_s": [1, 2], "models": True, "tells_key": WAYS}
    command = [sys.executable, str(Path(__file__).with_name("hostile_endpoint.py"))]
    process = subprocess.Popen([*command, json.dumps(manner)], stdout=subprocess.PIPE, text=True)
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    process.kill()
    process.wait()
    process.stdout.close()


def forms(key):
    """The key as it may stand somewhere, beginnings of it included."""
    bearer = base64.b64encode(f"Bearer {key}".encode()).decode()
    return {key, key[:12], key[::-1], bearer[10:30], base64.b64encode(key.encode()).decode()[:24]}


def found_in(text):
    return sorted(form for form in forms(KEY) if form in text)


def leakcheck(tmp_path, *arguments, code=None):
    start = ["-m", "leakcheck.cli"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | ENV | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )


def everything(tmp_path, done):
    yield "stdout", done.stdout
    yield "stderr", done.stderr
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path), path.read_text(errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        ("run", "concurrency-sweep", "--windows=12", "--max-errors=90%"),
        ("diff", "--windows=3", "--requests=6"),
        ("doctor",),
    ],
    ids=lambda each: each[0],
)
def test_no_command_writes_the_key_anywhere(command, endpoint, tmp_path):
    name, *flags = command
    where = [endpoint] if name == "doctor" else [f"--target={endpoint}"]
    done = leakcheck(tmp_path, name, *where, "--model=m", "--api-key-env=MY_KEY", *flags)
    assert done.returncode in (0, 1, 3, 4), done.stderr
    written = dict(everything(tmp_path, done))
    if name != "doctor":
        assert any("****" in text for text in written.values()), "the key never came back"
        again = leakcheck(tmp_path, "analyze", "reports/latest")
        written |= {f"analyze {what}": text for what, text in everything(tmp_path, again)}
    assert {what: found_in(text) for what, text in written.items() if found_in(text)} == {}


@pytest.mark.parametrize("variable", ["MY_KEY", "HIDDEN"])
def test_a_crash_inside_shows_no_key(variable, tmp_path):
    code = CRASHES.replace("MY_KEY", variable)
    done = subprocess.run(
        [
            *(sys.executable, "-c", code, "run", "concurrency-sweep", "--model=m"),
            *("--target=http://127.0.0.1:9/v1", f"--api-key-env={variable}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {variable: KEY, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 4
    assert "this should not have happened: RuntimeError: the key is ****" in done.stderr
    assert "Traceback" in done.stderr
    assert found_in(done.stdout + done.stderr) == []


@given(st.binary(max_size=8), st.binary(max_size=8), st.booleans())
def test_base64_of_anything_around_a_key_does_not_show_it(before, after, urlsafe):
    key = "sk-planted-7Qm2xV9bLr4TzW"
    coded = (base64.urlsafe_b64encode if urlsafe else base64.b64encode)(
        before + key.encode() + after
    )
    keys = tuple(redact._forms(key))
    masked = redact.redact(coded.decode(), keys)
    assert masked.count("*") >= 4 * len(key) // 3 - 4
    assert len(masked) == len(coded)


@pytest.mark.parametrize("length", [6, 12, 24])
def test_the_beginning_of_a_key_at_a_cut_is_masked(length):
    said = redact.redact(f"the key {KEY[:length]}…", (KEY,))
    assert said == f"the key {'*' * length}…"


def test_as_many_fields_as_there_are_pieces_are_masked_in_time():
    pieces = [Chunk(text=KEY, field=f"content[{number}]") for number in range(40_000)]
    begun = time.process_time()
    masked = redact.redact_chunks(pieces, (KEY,))
    assert time.process_time() - begun < 10.0  # each field looked up in all pieces takes a minute
    assert {chunk.text for chunk in masked} == {"*" * len(KEY)}


# --- what runs in our environment ----------------------------------------------------------------

TELLS = """
import json, os, sys
for number, line in enumerate(sys.stdin):
    key = os.environ["SOME_SERVICE_TOKEN"]
    if number % 2:
        sys.stderr.write(f"fatal: the key is {key}\\n")
        sys.exit(3)
    print(json.dumps({"piece": "it is " + key[:9]}), flush=True)
    print(json.dumps({"piece": key[9:], "finish_reason": "stop"}), flush=True)
    print(json.dumps({"done": True}), flush=True)
"""


def tells(_asked):
    """A function that knows a key of the environment, and says or raises it."""
    key = os.environ["SOME_SERVICE_TOKEN"]
    if "w1" in str(_asked):
        raise RuntimeError(f"the key is {key}")
    return f"it is {key}"


@pytest.mark.parametrize("backend", ["command", "callable"])
def test_a_key_that_a_target_finds_in_the_environment_is_in_no_run_folder(
    backend, tmp_path, monkeypatch
):
    program = tmp_path / "tells.py"
    program.write_text(TELLS)
    places = {"command": f"{sys.executable} {program}", "callable": "test_key_planting:tells"}
    monkeypatch.setenv("SOME_SERVICE_TOKEN", KEY)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    aim = Target(base_url=places[backend], model="m", backend=backend)
    root = tmp_path / "runs"
    root.mkdir()
    _, shards = play(root, aim, *windows(2, size=2), workers=2)
    assert any(text(each) for each in shards.observations)
    assert any(each.error for each in shards.observations)
    for path in root.rglob("*"):
        if path.is_file():
            assert found_in(path.read_text(errors="replace")) == [], path


@given(
    st.sampled_from(["callable", "command", "litellm", "openai", "ollama"]),
    st.text("abcXYZ_", min_size=1, max_size=9),
    st.sampled_from(["KEY", "TOKEN", "SECRET", "PASSWORD", "key", "KEYS_FILE", "HOME"]),
    st.text("abc0123-_", min_size=1, max_size=20),
)
def test_a_secret_of_the_environment_is_one_by_its_name_where_the_target_can_read_it(
    backend, begin, end, value
):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "environ", {begin + end: value})
        found = redact.secrets(Target(base_url="x", model="m", backend=backend))
    called = end in ("KEY", "TOKEN", "SECRET", "PASSWORD", "key")
    reads = backend in ("callable", "command", "litellm")
    assert (value in found) == (called and reads and len(value) >= 8)


def test_a_command_that_restarts_a_target_gives_no_key_of_the_environment_away(monkeypatch):
    monkeypatch.setenv("SOME_SERVICE_TOKEN", KEY)
    with pytest.raises(UsageError, match="ended with exit code 3") as caught:
        lifetimes.order("sh -c 'echo \"the key is $SOME_SERVICE_TOKEN\" >&2; exit 3'")
    assert found_in(str(caught.value)) == []
