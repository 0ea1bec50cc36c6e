"""Fixtures that several test files share."""

import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# a stalled machine is no failure of an example; pytest-timeout bounds what hangs
hypothesis.settings.register_profile("leakcheck", deadline=None)
hypothesis.settings.load_profile("leakcheck")


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path_factory, monkeypatch):
    """No test finds what another one, or the user, measured of a target."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def no_terminal_of_a_width(monkeypatch):
    """What is printed is as wide as where there is no terminal, whoever starts the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def hostile_server():
    """A function that starts a process of tests/hostile.py and returns it with its port."""
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("hostile.py"))],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def hostile():
    """The port of one hostile target for all tests that leave it alive."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("hostile.py"))],
        stdout=subprocess.PIPE,
        text=True,
    )
    yield int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
