import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from shorthand import history

from leakcheck import cli
from leakcheck.analyzer import analyze
from leakcheck.cli import asked, commands
from leakcheck.cli.parser import parser
from leakcheck.errors import UsageError


def leakcheck(*arguments, cwd=None, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEAKCHECK_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, "-m", "leakcheck.cli", *arguments],
        capture_output=True, text=True, check=False, cwd=cwd, env=clean | environment, timeout=120,
    )  # fmt: skip


def refusal(done):
    """The one sentence of a refusal: exit code 2, no traceback."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len([line for line in lines if line.startswith("leakcheck: ")]) == 1
    assert "usage:" not in done.stderr
    return lines[-1]


def test_help_answers_fast():
    best = min(_cpu_s("-m", "leakcheck.cli", "--help") for _ in range(5))
    bare = min(_cpu_s("-c", "pass") for _ in range(5))
    assert best < bare + 0.25  # CPU time, for other processes take turns with these


def _cpu_s(*arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_version_is_printed():
    assert leakcheck("--version").stdout.startswith("leakcheck ")


def test_no_command_is_a_usage_error():
    assert leakcheck().returncode == 2


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["run", "no-such"], {}, "no scenario 'no-such'"),
        (["run", "missing/file.toml"], {}, "no scenario file at missing/file.toml"),
        (["run", "--target", "localhost:8000", "--model", "m"], {}, "is not a URL"),
        (["run", "--target", "http://127.0.0.1:9/v1"], {}, "--model is missing"),
        (["run", "--target", "http://127.0.0.1:9/v1", "--model", "m", "--api-key-env", "NOKEY"],
         {}, "environment variable NOKEY"),
        (["run", "--target", "http://h/v1", "--embedded"], {}, "exclude each other"),
        (["run", "--header-env", "X", "--target", "http://h/v1", "--model", "m"],
         {}, "not of the form HEADER=NAME"),
        (["run", "--set", "load.windows"], {}, "is not KEY=VALUE"),
        (["run", "--seed", "-1"], {}, "the seed -1 is out of range"),
        (["run", "--seed", "9" * 30], {}, "is out of range; use 0 to"),
        (["run", "--timeout-s", "nan"], {}, "nan is not of type number"),
        (["run", "--windows", "9" * 20], {}, "is out of range; use 1 to 100000"),
        (["run", "--target", "http://h/v1", "--model", "a\x1b[31m"], {}, "holds characters that"),
        (["run", "--target", "http://h/v1", "--backend", "opanai"], {}, "did you mean 'openai'"),
        (["run", "--target", "http://h/v1", "--model", "m", "--header-env", "X Y=HOME"],
         {}, "not of the form HEADER=NAME"),
        (["run", "--resume", "x", "--windows", "5"], {}, "leave out --windows"),
        (["run", "--resume", "x", "--smoke"], {}, "leave out --smoke"),
        (["run", "--resume", "x", "--play-all"], {}, "leave out --play-all"),
        (["run", "concurrency-sweep", "--resume", "x"], {}, "leave out concurrency-sweep"),
        ([], {}, "COMMAND is missing; `leakcheck --help` says what there is"),
        (["rnu"], {}, "COMMAND: there is no 'rnu'; did you mean 'run'? (known: run, plan"),
        (["list", "fault"], {}, "kind: there is no 'fault'; did you mean 'faults'? (known: "),
        (["run", "--api", "chatt"], {}, "--api: there is no 'chatt'; did you mean 'chat'?"),
        (["run", "--lifetimes", "0"], {}, "--lifetimes: '0' is not a whole number of at least 1"),
        (["diff", "--max-requests", "0"], {}, "--max-requests: '0' is not a whole number"),
        (["analyze"], {}, "RUN_DIR is missing; `leakcheck analyze --help` says what there is"),
        (["analyze", "a", "b"], {}, "there is no flag or argument 'b' here"),
        (["run", "--seed", "x"], {}, "--seed: 'x' is not a whole number"),
        (["run", "--fault", "nope"], {}, "--fault: there is no 'nope'; did you mean '"),
        (["serve", "--fault", "nope"], {}, "--fault: there is no 'nope'; did you mean '"),
        (["serve", "--fault-rate", "0.5"], {}, "name that with --fault"),
        (["serve", "--nonsense"], {}, "--nonsense"),
        (["plan", "--price-in", "-1"], {}, "--price-in: -1 is out of range; use a number from 0"),
        (["plan", "--price-out", "1"], {}, "--price-in is missing"),
        (["run", "--target", "http://h/v1", "--model", "m", "--metrics", "foo"],
         {}, "--metrics: 'foo' is not a URL; write it as http://host:port/metrics, auto or off"),
        (["run", "--target", "http://me:pw@h/v1"], {}, "holds credentials"),
        (["run", "--target", "http://h/v1?key=s3cret"], {}, "query parameter 'key'"),
        (["run", "--set", "load.window=3"], {}, "did you mean 'windows'"),
        (["run", "--windows", "0"], {}, "load.windows: 0 is out of range"),
        (["run"], {"LEAKCHECK_SEED": "x"}, "LEAKCHECK_SEED: 'x' is not an integer"),
        (["analyze", "no-such-run"], {}, "is no run folder"),
        (["run", "--resume", "no-such-run"], {}, "no-such-run"),
        (["validate", "no-such"], {}, "no scenario 'no-such'"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_one_sentence(arguments, environment, sentence):
    assert sentence in refusal(leakcheck(*arguments, **environment))


def test_a_wrong_fault_names_the_right_ones():
    done = leakcheck("run", "--fault", "prefix-length", "--windows", "1")
    assert done.returncode == 2
    assert "prefix-length-only" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_hands_its_flags_to_the_engine():
    assert "--prefix-cache" in leakcheck("serve", "--help").stdout.replace("--no-", "--")
    done = leakcheck("serve", "--fault", "no-such")
    assert (done.returncode, "prefix-length-only" in done.stderr) == (2, True)


def test_an_unknown_flag_is_refused():
    done = leakcheck("run", "--tarhget", "x")
    assert (done.returncode, "--tarhget" in done.stderr) == (2, True)


def test_validate_says_what_each_shipped_scenario_would_send():
    done = leakcheck("validate")
    assert done.returncode == 0, done.stderr
    shipped = (Path(__file__).parents[1] / "scenarios").glob("*.toml")
    said = [line.split(": valid; ")[0] for line in done.stdout.splitlines()]
    assert sorted(Path(path).name for path in said) == sorted(path.name for path in shipped)
    assert "bits" in done.stdout


def test_list_names_everything():
    done = leakcheck("list")
    assert done.returncode == 0, done.stderr
    for name in ("prefix-overlap", "shared_prefix", "own_answer", "openai", "response-swap"):
        assert name in done.stdout


@pytest.mark.parametrize("columns", [30, 60, 100])
def test_a_list_fits_into_the_columns_of_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["list", "checks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert all(line.strip() for line in lines)


def test_a_shortcut_overrides_the_file_and_set_overrides_anything():
    parsed = parser().parse_args(
        ["run", "--windows", "3", "--set", "gate.min_echo=0.25", "--set", "traffic.use=mixed_batch"]
    )
    assert asked.overrides(parsed) == {
        "load.windows": 3, "gate.min_echo": 0.25, "traffic.use": "mixed_batch",
    }  # fmt: skip


def test_set_of_a_scenario_that_is_not_played_is_refused():
    flags = ("run", "abort-storm", "--set", "abort-strom:load.windows=3")
    with pytest.raises(
        UsageError, match=r"no scenario 'abort-strom' is played \(but abort-storm\)"
    ):
        asked.overrides(parser().parse_args(flags))


def test_a_target_from_the_environment_is_used(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    monkeypatch.setenv("LEAKCHECK_MODEL", "m")
    target = asked._target(parser().parse_args(["run"]))
    assert (target.base_url, target.model) == ("http://127.0.0.1:9/v1", "m")


def test_embedded_wins_over_a_target_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert asked._target(parser().parse_args(["run", "--embedded"])) is None


def test_secrets_in_a_url_are_refused_without_being_repeated():
    for url in ("http://me:s3cret@h/v1", "http://h/v1?key=s3cret"):
        done = leakcheck("run", "--target", url, "--model", "m")
        assert "s3cret" not in done.stdout + done.stderr


def test_every_run_draws_a_fresh_seed_unless_one_is_given(monkeypatch):
    monkeypatch.delenv("LEAKCHECK_SEED", raising=False)
    fresh = {asked._seed(parser().parse_args(["run"])) for _ in range(3)}
    assert len(fresh) == 3
    assert asked._seed(parser().parse_args(["run", "--seed", "7"])) == 7


def test_a_key_given_in_the_place_of_a_variable_is_not_repeated():
    flags = ["--target", "http://h/v1", "--model", "m", "--api-key-env", "sk-planted-0123456789"]
    done = leakcheck("run", *flags)
    assert done.returncode == 2
    assert "sk-planted" not in done.stdout + done.stderr


def test_what_nobody_foresaw_is_no_leak(monkeypatch, capsys):
    def broken(_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(commands, "list_", broken)
    assert cli.main(["list"]) == 4
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_full_standard_output_is_no_leak():
    command = f"{sys.executable} -m leakcheck.cli list traffic > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - a redirection is what is tested
    assert done.returncode == 4
    assert "No space left" in done.stderr


def test_a_complaint_cannot_steer_the_terminal(capfd):
    cli._complain("said \x1b[31m\u202eevil")
    assert "\x1b" not in (said := capfd.readouterr().err)
    assert "\u202e" not in said


def test_a_verdict_keeps_its_exit_code_when_its_reader_has_gone(monkeypatch, tmp_path):
    def gone(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    monkeypatch.setattr(commands, "drop_output", lambda: None)
    leak = analyze(history("a> b> a=aA b=bA"))
    assert commands._show(leak, tmp_path) == 1


def test_a_list_whose_reader_has_gone_is_no_error():
    command = f"{sys.executable} -m leakcheck.cli list checks | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [["selftest", "--out"], ["selftest", "--docs"]])
def test_a_self_test_whose_figures_cannot_be_kept_does_not_begin(arguments):
    done = leakcheck(*arguments, "/proc/nowhere/x")
    assert done.returncode == 2
    assert "/proc/nowhere/x cannot be written" in done.stderr


def test_what_is_wrong_with_a_run_is_said_before_its_self_test():
    done = leakcheck("run", "nosuch", "--selftest")
    assert done.returncode == 2
    assert "no scenario 'nosuch'" in done.stderr
