"""Whose machine it is, and that nothing goes to somebody else's without permission."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck import cli
from leakcheck.budget import manners
from leakcheck.errors import UsageError
from leakcheck.records import Caps, Pace, Target

HOME = ["http://127.0.0.1:8000/v1", "http://127.9.9.9/v1", "http://[::1]:8000", "http://localhost"]
AWAY = [
    "https://api.example.com/v1",
    "http://10.0.0.7:8000/v1",
    "http://127.0.0.1.example.com/v1",
    "http://localhost.example.com",
    "http://[2001:db8::1]:80/v1",
    "http://0.0.0.0:8000",
]


def target(url, **fields):
    return Target(base_url=url, model="m", **fields)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("url", HOME)
def test_this_machine_needs_no_permission(url, tmp_path):
    manners.require_permission(target(url), said_yes=False, config=tmp_path / "none")
    assert not manners.is_guest(target(url))


@pytest.mark.parametrize("url", AWAY)
def test_any_other_host_needs_it(url, tmp_path):
    with pytest.raises(UsageError, match="is not this machine") as caught:
        manners.require_permission(target(url), said_yes=False, config=tmp_path / "none")
    assert "--yes-i-am-allowed" in str(caught.value)
    assert "allowed_hosts = [" in str(caught.value)
    manners.require_permission(target(url), said_yes=True, config=tmp_path / "none")


@given(st.tuples(*[st.integers(0, 255)] * 4))
def test_of_all_ipv4_addresses_only_those_of_loopback_are_this_machine(parts):
    assert manners.is_this_machine(".".join(map(str, parts))) == (parts[0] == 127)


@pytest.mark.parametrize("backend", ["callable", "command"])
def test_what_reaches_no_network_needs_none(backend):
    assert not manners.is_guest(target("module:function", backend=backend))


def test_a_provider_by_name_is_somebody_else():
    assert manners.is_guest(target("provider", backend="litellm"))


def test_a_metrics_page_and_a_proxy_are_hosts_like_any_other(monkeypatch):
    at_home = target(HOME[0])
    assert manners.elsewhere(at_home, "http://stats.example.com/metrics") == (
        "stats.example.com:80",
    )
    monkeypatch.setenv("http_proxy", "http://proxy.example.com:3128")
    assert manners.elsewhere(at_home) == ("proxy.example.com:3128",)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert manners.elsewhere(at_home) == ()


@pytest.mark.parametrize(
    ("listed", "fine"),
    [
        ("api.example.com", True),
        ("API.example.com", True),
        ("api.example.com:443", True),
        ("api.example.com:8443", False),
        ("example.com", False),
    ],
)
def test_a_line_of_the_file_permits_exactly_the_host_it_names(listed, fine, tmp_path):
    config = tmp_path / "leakcheck.toml"
    config.write_text(f'allowed_hosts = ["{listed}"]')
    aim = target("https://api.example.com/v1")
    if fine:
        manners.require_permission(aim, said_yes=False, config=config)
    else:
        with pytest.raises(UsageError, match="is not this machine"):
            manners.require_permission(aim, said_yes=False, config=config)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("allowed_hosts = [", "is not TOML"),
        ("allowed_host = []", "there is no key 'allowed_host'"),
        ('allowed_hosts = "a.example"', "is not a list of hosts"),
        ('allowed_hosts = ["*.example.com"]', "which is no host"),
        ('allowed_hosts = ["https://a.example"]', "which is no host"),
        ("allowed_hosts = [7]", "holds 7, which is no host"),
    ],
)
def test_a_bad_file_is_one_clear_sentence_even_beside_the_flag(text, error, tmp_path):
    config = tmp_path / "leakcheck.toml"
    config.write_text(text)
    with pytest.raises(UsageError, match=r"leakcheck\.toml") as caught:
        manners.require_permission(target(AWAY[0]), said_yes=True, config=config)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["run", "diff", "words --out=w.txt", "doctor"])
def test_no_command_looks_up_or_connects_before_permission(command, tmp_path, monkeypatch, capsys):
    def touched(*_arguments, **_options):
        pytest.fail("a packet would have been sent")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "getaddrinfo", touched)
    monkeypatch.setattr(socket.socket, "connect", touched)
    name, *more = command.split()
    url = "http://api.example.com/v1"
    where = [url] if name == "doctor" else [f"--target={url}"]
    assert cli.main([name, *where, "--model=m", *more]) == 2
    said = capsys.readouterr().err
    assert "api.example.com is not this machine" in said
    assert said.count("\n") == 1


def test_a_guest_has_limits_by_default_and_this_machine_has_none():
    assert manners.caps_of(target(AWAY[0]), Caps()) == manners.DEFAULT_CAPS
    assert manners.pace_of(target(AWAY[0]), Pace()) == manners.DEFAULT_PACE
    assert manners.caps_of(target(HOME[0]), Caps()) == Caps()
    assert manners.pace_of(target(HOME[0]), Pace()) is None


def test_what_is_asked_for_goes_before_the_defaults():
    caps = manners.caps_of(target(AWAY[0]), Caps(requests=10))
    assert (caps.requests, caps.tokens) == (10, manners.DEFAULT_CAPS.tokens)
    pace = manners.pace_of(target(AWAY[0]), Pace(requests=2, per_s=1.0))
    assert (pace.requests, pace.per_s, pace.in_flight) == (2, 1.0, manners.DEFAULT_PACE.in_flight)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--max-rate=5"], "--max-rate: '5' is no rate; write it as 2/s, 60/m or 20/30s"),
        (["--max-rate=0/s"], "--max-rate: '0/s' is no rate"),
        (["--max-cost=1"], "--max-cost: give the prices too"),
        (["--max-cost=-1", "--price-in=1", "--price-out=1"], "--max-cost: -1 is out of range"),
        (["--price-in=1"], "--price-out is missing"),
        (["--max-errors=50"], "--max-errors: '50' is no share"),
        (["--max-wait-s=0"], "--max-wait-s: 0 is out of range"),
        (["--max-in-flight=0"], "--max-in-flight: '0' is not a whole number"),
    ],
)
def test_a_wrong_limit_is_one_sentence(flags, error, capsys):
    assert cli.main(["run", *flags]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert said.count("\n") == 1
