"""The trace tells the life of every block, and what a fault did to it."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from leakcheck.engine import faults, trace
from leakcheck.engine.server import Api
from leakcheck.engine.values import EngineError, GenerateRequest, SamplingParams

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture
def traced(make_engine, tokenizer, tmp_path):
    """`traced(fault, **options)`: an engine and a function that reads its trace so far."""

    def make(fault=None, **options):
        engine = make_engine(block_size=4, **options)
        api = Api(engine, tokenizer, model="tiny")
        if fault:
            seams = faults.Seams(engine=engine, delivery=api.delivery, api=api)
            faults.find(fault).install(seams, 1.0, Random(0))
        path = tmp_path / "trace.jsonl"
        trace.start(api, path, fault=fault)

        def events(*names):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            return [line for line in lines if not names or line["event"] in names]

        return engine, events

    return make


def ask(engine, name, prompt, **kw):
    engine.submit(GenerateRequest(id=name, prompt=tuple(prompt), params=PARAMS, **kw))


def finish(engine):
    while engine.has_work:
        engine.step()


def brief(events):
    return [(e["event"], e["request"], e["block"]) for e in events]


def test_a_block_is_allocated_written_read_kept_and_freed(traced):
    engine, events = traced()
    ask(engine, "a", range(10, 17))
    finish(engine)
    assert [e for e in brief(events()[1:-1]) if e[2] == 0] == [
        ("alloc", "a", 0), ("write", "a", 0), ("read", "a", 0), ("keep", "a", 0), ("free", "a", 0),
    ]  # fmt: skip


def test_every_block_event_says_its_step_mask_and_references(traced):
    engine, events = traced()
    ask(engine, "a", range(10, 17))
    finish(engine)
    first = events("alloc")[0]
    assert (first["step"], first["references"], first["cause"]) == (1, 1, "room")
    rows, one, width, keys = first["mask"]
    assert (rows * width >= 7, one, keys) == (True, 1, 8)
    assert [e["step"] for e in events("free")] == [4, 4, 4]


def test_a_prefix_hit_is_a_share_with_the_hash_it_was_found_by(traced):
    engine, events = traced()
    ask(engine, "a", range(10, 17))
    finish(engine)
    ask(engine, "b", [*range(10, 14), 99, 98])
    engine.step()
    (shared,), kept = events("share"), events("keep")[0]
    assert (shared["request"], shared["block"], shared["cause"]) == ("b", 0, "prefix")
    assert shared["hash"] == kept["hash"] == engine.prefix.by_block[0].digest.hex()
    assert shared["same_prefix"] is True


def test_a_block_taken_again_says_who_wrote_it_last(traced):
    engine, events = traced(prefix_cache=False)
    for name in "ab":
        ask(engine, name, range(10, 17))
        finish(engine)
    assert {(e["request"], e["was"]) for e in events("reuse")} == {("b", "a")}


def test_an_eviction_names_the_hash_that_is_gone(traced):
    engine, events = traced(num_blocks=3)
    ask(engine, "a", range(10, 17))
    finish(engine)
    ask(engine, "b", range(30, 37))
    finish(engine)
    kept = {e["hash"] for e in events("keep")}
    assert events("evict")
    assert all(e["hash"] in kept and e["forgotten"] for e in events("evict"))


def test_copy_on_write_names_both_blocks(traced):
    engine, events = traced(share_partial=True)
    ask(engine, "a", range(10, 19))
    finish(engine)
    ask(engine, "b", [*range(10, 16), 99, 98])
    engine.step()
    (copied,) = events("copy")
    assert (copied["request"], copied["source"], copied["cause"]) == ("b", 1, "copy on write")
    assert copied["block"] in {e["block"] for e in events("reuse", "alloc") if e["request"] == "b"}


def test_an_abort_is_the_cause_of_its_frees_between_steps(traced):
    engine, events = traced(prefix_cache=False)
    ask(engine, "a", range(10, 17))
    engine.step()
    engine.abort("a")
    freed = events("free")
    assert {(e["cause"], e["step"], e["mask"] is None) for e in freed} == {("aborted", 1, True)}


def test_a_preempted_request_gives_its_blocks_back_as_such(traced):
    engine, events = traced(num_blocks=4, prefix_cache=False)
    ask(engine, "a", range(10, 17))
    ask(engine, "b", range(30, 37))
    finish(engine)
    assert ("b", "preempted") in {(e["request"], e["cause"]) for e in events("free")}


def test_under_prefix_length_only_a_request_reads_a_block_that_another_wrote(traced):
    engine, events = traced("prefix-length-only")
    ask(engine, "source", range(10, 31))
    finish(engine)
    ask(engine, "recipient", range(110, 131))
    finish(engine)
    writers = {e["block"]: e["request"] for e in events("write") if e["request"] == "source"}
    read = {e["block"] for e in events("read") if e["request"] == "recipient"}
    assert set(writers) & read >= set(range(5))


@pytest.mark.parametrize(
    ("name", "second", "salt"),
    [
        ("prefix-length-only", range(110, 131), ""),
        ("salt-ignored", range(10, 31), "other"),
        ("prefix-no-parent", [1, 2, 3, 4, *range(14, 31)], ""),
    ],
)
def test_a_share_of_what_was_not_looked_for_says_so(traced, name, second, salt):
    engine, events = traced(name)
    ask(engine, "a", range(10, 31))
    finish(engine)
    ask(engine, "b", [1, 2, 3, 4, 5] if name == "prefix-no-parent" else [9])
    finish(engine)
    ask(engine, "c", second, salt=salt)
    finish(engine)
    assert False in {e["same_prefix"] for e in events("share") if e["request"] == "c"}


def test_under_mask_broadcast_a_request_reads_blocks_it_never_held(traced):
    engine, events = traced("mask-broadcast")
    ask(engine, "short", range(10, 13))
    ask(engine, "long", range(50, 70))
    engine.step()
    held = {e["block"] for e in events("alloc", "share") if e["request"] == "short"}
    read = {e["block"] for e in events("read") if e["request"] == "short"}
    assert read - held


def test_a_traced_engine_answers_the_same(make_engine, traced):
    def text(engine):
        ask(engine, "a", range(10, 17), n=2)
        ask(engine, "b", range(30, 37))
        got = {}
        while engine.has_work:
            for update in engine.step():
                key = update.id, update.index
                got[key] = got.get(key, "") + update.text
        return got

    assert text(traced()[0]) == text(make_engine(block_size=4))


def test_without_a_trace_nothing_is_wrapped(make_engine):
    engine = make_engine()
    parts = (engine, engine.pool, engine.scheduler, engine.store, engine.prefix)
    assert not any(callable(value) for part in parts[1:] for n, value in vars(part).items()
                   if not n.startswith("_"))  # fmt: skip
    assert "step" not in vars(engine)


def test_a_trace_that_cannot_be_written_is_one_sentence(make_engine, tokenizer, tmp_path):
    api = Api(make_engine(), tokenizer, model="tiny")
    with pytest.raises(EngineError, match="cannot be written: No such file or directory"):
        trace.start(api, Path(tmp_path / "no" / "trace.jsonl"))


def test_a_second_engine_goes_on_in_the_same_file(traced):
    traced()
    _, events = traced()
    assert [e["event"] for e in events()] == ["start", "start"]
