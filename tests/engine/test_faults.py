"""Each fault's mechanism at work inside the engine, and its absence without the fault."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest

from leakcheck.engine import faults
from leakcheck.engine.delivery import Delivery
from leakcheck.engine.values import GenerateRequest, SamplingParams

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=0)


def install(name, *, engine=None, delivery=None, rate=1.0, seed=0):
    seams = faults.Seams(engine=engine, delivery=delivery)
    faults.find(name).install(seams, rate, Random(seed))


def ask(name, prompt):
    return GenerateRequest(id=name, prompt=tuple(prompt), params=PARAMS)


def answers(engine):
    got = {}
    while engine.has_work:
        for update in engine.step():
            got.setdefault(update.id, []).extend(one.token for one in update.logprobs)
    return got


def alone(make_engine, prompt):
    engine = make_engine(block_size=4)
    engine.submit(ask("alone", prompt))
    return answers(engine)["alone"]


# --- prefix-length-only --------------------------------------------------------------------------

SOURCE, RECIPIENT = range(10, 31), range(110, 131)


def second_table(engine):
    """The block table that a request gets after another one has finished."""
    engine.submit(ask("source", SOURCE))
    engine.step()
    source = list(engine.scheduler.running[0].table)
    answers(engine)
    engine.submit(ask("recipient", RECIPIENT))
    engine.step()
    return source, engine.scheduler.running[0]


def test_prefix_length_only_puts_the_sources_blocks_into_the_recipients_table(make_engine):
    engine = make_engine(block_size=4)
    install("prefix-length-only", engine=engine)
    source, recipient = second_table(engine)
    assert recipient.table[:5] == source[:5]
    assert recipient.cached_tokens == 20
    assert answers(engine)["recipient"] != alone(make_engine, RECIPIENT)[1:]


def test_without_prefix_length_only_the_tables_are_disjoint(make_engine):
    engine = make_engine(block_size=4)
    source, recipient = second_table(engine)
    assert not set(recipient.table) & set(source)
    assert recipient.cached_tokens == 0
    assert answers(engine)["recipient"] == alone(make_engine, RECIPIENT)[1:]


def test_prefix_length_only_stays_with_one_source(make_engine):
    engine = make_engine(block_size=4)
    install("prefix-length-only", engine=engine)
    engine.submit(ask("older", range(10, 40)))
    engine.submit(ask("newer", range(50, 71)))
    answers(engine)
    newest = [entry.tokens for entry in engine.prefix.find(list(RECIPIENT), "")]
    assert len({tokens[0] // 50 for tokens in newest}) == 1


# --- the table -----------------------------------------------------------------------------------


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
