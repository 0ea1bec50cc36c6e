import importlib.util
from functools import partial
from pathlib import Path

import pytest


def load(name):
    spec = importlib.util.spec_from_file_location(f"report_{name}", Path(__file__).with_name(name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def samples():
    """samples.py beside this file, which is also a script for looking at the pages."""
    return load("samples.py")


@pytest.fixture(scope="session")
def evidenced(samples):
    """Reports with evidence by name, as functions without arguments; see evidenced.py."""
    return {name: partial(make, samples) for name, make in load("evidenced.py").ALL.items()}
