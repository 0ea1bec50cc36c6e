import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def samples():
    """samples.py beside this file, which is also a script for looking at the pages."""
    spec = importlib.util.spec_from_file_location(
        "report_samples", Path(__file__).with_name("samples.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
