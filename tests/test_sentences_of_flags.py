"""Sentences of flags and permissions."""

import pytest

from leakcheck import scenario
from leakcheck.budget import manners
from leakcheck.cli import main
from leakcheck.cli.parser import parser
from leakcheck.errors import UsageError
from leakcheck.records import Target


@pytest.mark.parametrize(
    ("flag", "what"), [("--wait-ready", "a number"), ("--seed", "a whole number")]
)
def test_a_flag_that_wants_a_number_says_so(flag, what):
    with pytest.raises(UsageError, match=f"{flag}: 'abc' is not {what}"):
        parser().parse_args(["run", "--embedded", flag, "abc"])


def test_a_refusal_names_the_port_where_another_one_is_allowed(tmp_path):
    config = tmp_path / "leakcheck.toml"
    config.write_text('allowed_hosts = ["example.test:8000"]')
    target = Target(base_url="http://example.test/v1", model="m")
    with pytest.raises(UsageError, match=r"example\.test:80 .*allows example\.test:8000"):
        manners.require_permission(target, said_yes=False, config=config)


@pytest.mark.parametrize("command", ["run", "diff", "doctor"])
def test_an_empty_target_is_refused_and_not_taken_for_the_embedded_engine(command, capsys):
    assert main([command, "--target", ""]) == 2
    assert "--target is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scenario", "option", "words"),
    [
        ("row-turnover", "max_filler_words=-5", "max_filler_words is -5; use 0 or more"),
        ("row-turnover", "lasts=0", "lasts is 0; the biased request outlasts from 1 on"),
        ("parameter-twins", "shortest=500", "no window can be planned with"),
        ("parameter-twins", "hot=0", "hot is 0; use 2 or more"),
        ("parameter-twins", "biased_tokens=0", "biased_tokens is 0; use 1 or more"),
        ("parameter-twins", "temperature=0.0", "temperature is 0; use more than 0"),
    ],
)
def test_traffic_that_cannot_be_is_refused_in_one_sentence(scenario, option, words, capsys):
    assert main(["validate", scenario, "--set", f"traffic.{option}"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


NUMBERS = [
    (path.stem, name)
    for path in scenario.shipped_files()
    for name, value in scenario.read(path, {}).traffic.options.items()
    if isinstance(value, (int, float)) and not isinstance(value, bool)
]


@pytest.mark.parametrize(("name", "option"), NUMBERS)
@pytest.mark.parametrize("value", [-1, 0, 100_000])
def test_no_number_in_traffic_is_a_traceback(name, option, value, capsys):
    """Of any shipped scenario: it is planned, or refused in one sentence."""
    few = ["--windows", "1", "--set", f"traffic.{option}={value}"]
    assert main(["validate", name, *few]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("port", ["99999", "abc", "0", "-1"])
def test_a_port_that_is_none_is_refused(port, capsys):
    assert main(["run", "--target", f"http://127.0.0.1:{port}/v1", "--model", "m"]) == 2
    assert "is none; use 1 to 65535" in capsys.readouterr().err
