"""The table of faults; each fault at work is in tests/engine/faults, one file a layer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from leakcheck.engine import faults
from leakcheck.engine.delivery import Delivery


def test_the_table_of_faults_is_printed_without_torch():
    code = (
        "import sys; from leakcheck.engine.__main__ import main; main(['--list-faults']);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == [fault.name for fault in faults.FAULTS]
    assert all(len(row["mechanism"]) > 100 and row["seam"] for row in rows)


def test_every_leaking_fault_names_what_must_report_it_and_real_cases():
    for fault in faults.FAULTS:
        benign = fault.layer == "benign"
        assert benign is not bool(fault.anomalies), fault.name
        assert benign or fault.cases, fault.name


def test_a_seam_that_is_gone_is_an_error():
    with pytest.raises(AttributeError):
        faults.patch(Delivery(), "no_such_method", lambda original: original)


def test_an_unknown_fault_names_those_there_are():
    with pytest.raises(
        LookupError, match=r"the engine has .*prefix-length-only, .*mask-broadcast, .*response-swap"
    ):
        faults.find("none")
