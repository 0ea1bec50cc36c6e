"""What people write on the command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.cli import asked
from leakcheck.cli.parser import parser
from leakcheck.errors import UsageError


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("5%", 0.05),
        ("5 %", 0.05),
        ("0.05", 0.05),
        (".05", 0.05),
        (" 99.5% ", 0.995),
        ("1.%", 0.01),
        ("1e-3", 0.001),
        ("5E-2", 0.05),
        ("50e-1%", 0.05),
    ],
)
def test_a_share_is_a_percentage_or_a_fraction(text, share):
    assert asked.percent("--detect", text) == pytest.approx(share)


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "0",
        "0%",
        "100%",
        "1",
        "1.5",
        "-5%",
        "",
        "%",
        "five",
        "nan",
        "1e-0",
        "1e",
        "e-2",
        "1e-9999",
        "1e-999",
        "5%%",
        "\u0665%",
    ],
)
def test_anything_else_is_no_share(text):
    with pytest.raises(UsageError, match=r"--detect: .* is no share between 0 % and 100 %"):
        asked.percent("--detect", text)


@given(st.integers(1, 9999))
def test_a_percentage_and_its_fraction_are_the_same_share(parts):
    assert asked.percent("x", f"{parts / 100:.2f}%") == pytest.approx(
        asked.percent("x", f"{parts / 10000:.4f}")
    )


def setup(*flags):
    return asked.setup(parser().parse_args(["run", *flags]), None)


TARGET = ("--target", "http://127.0.0.1:9/v1", "--model", "m")


def test_the_metrics_of_the_target_are_read_unless_they_are_off():
    assert setup(*TARGET).metrics == "auto"
    assert setup(*TARGET, "--metrics", "off").metrics == "off"
    page = "http://127.0.0.1:1/metrics"
    assert setup(*TARGET, "--metrics", page).metrics == page


def test_a_page_of_metrics_on_another_machine_wants_permission():
    page = ("--metrics", "http://x:1/metrics")
    with pytest.raises(UsageError, match=r"^x is not this machine: "):
        setup(*TARGET, *page)
    assert setup(*TARGET, *page, "--yes-i-am-allowed").metrics == "http://x:1/metrics"


@pytest.mark.parametrize(
    "url", ["yes", "http://me:secret@x/metrics", "http://x/metrics?key=secret"]
)
def test_a_page_of_metrics_is_a_plain_url_without_secrets(url):
    with pytest.raises(UsageError, match=r"^--metrics: ") as refused:
        setup(*TARGET, "--metrics", url)
    assert "secret" not in str(refused.value)


def test_the_right_form_of_a_page_of_metrics_is_not_that_of_a_target():
    with pytest.raises(UsageError, match=r"as http://host:port/metrics, auto or off$"):
        setup(*TARGET, "--metrics", "foo")


def test_one_lifetime_and_a_command_that_restarts_contradict_each_other():
    with pytest.raises(UsageError, match=r"^--lifetimes 1 and --restart exclude each other"):
        setup(*TARGET, "--restart", "true", "--lifetimes", "1")


def test_a_command_that_restarts_makes_two_lifetimes():
    assert setup(*TARGET).lifetimes == setup("--embedded").lifetimes == 1
    assert setup(*TARGET, "--restart", "true").lifetimes == 2
    assert setup(*TARGET, "--restart", "true", "--lifetimes", "4").lifetimes == 4
    assert setup("--embedded", "--lifetimes", "3").lifetimes == 3
