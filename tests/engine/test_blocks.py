"""The pool, the prefix cache and the scheduler: who holds which block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.engine.pool import BlockPool
from leakcheck.engine.prefix import ROOT, PrefixCache
from leakcheck.engine.values import GenerateRequest, RequestError, SamplingParams


def ask(name, prompt, **given_params):
    n = given_params.pop("n", 1)
    salt = given_params.pop("salt", "")
    params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True} | given_params)
    return GenerateRequest(id=name, prompt=tuple(prompt), params=params, n=n, salt=salt)


def finish(engine):
    updates = []
    while engine.has_work:
        updates += engine.step()
    return updates


def cached_tokens(engine, request):
    engine.submit(request)
    return finish(engine)[-1].usage.cached_tokens


# --- pool ----------------------------------------------------------------------------------------


def test_the_least_recently_used_cached_block_is_evicted_first():
    evicted = []
    pool = BlockPool(2, evicted.append)
    first, second = pool.allocate(), pool.allocate()
    for block in (first, second):
        pool.keep(block)
    pool.release(second)
    pool.release(first)
    assert pool.allocate() == second
    assert evicted == [second]


def test_a_used_block_is_never_evicted():
    pool = BlockPool(1, lambda _: None)
    pool.keep(pool.allocate())
    assert pool.allocate() is None


def test_releasing_a_block_nobody_holds_is_an_error():
    pool = BlockPool(1, lambda _: None)
    pool.release(pool.allocate())
    with pytest.raises(RuntimeError, match="block 0 is released more often than it is held"):
        pool.release(0)


@given(st.lists(st.sampled_from(["allocate", "share", "release", "keep"]), max_size=60))
def test_every_block_is_used_cached_or_free(actions):
    pool, held = BlockPool(4, lambda _: None), []
    for action in actions:
        if action == "allocate":
            block = pool.allocate()
            assert (block is None) == (len(set(held)) == 4)
            held += [] if block is None else [block]
        elif held and action == "share":
            pool.share(held[0])
            held.append(held[0])
        elif held and action == "release":
            pool.release(held.pop())
        elif held:
            pool.keep(held[-1])
        assert pool.used_count == len(set(held))
        assert pool.used_count + pool.cached_count + pool.free_count == 4


# --- prefix cache --------------------------------------------------------------------------------


def filled(*parts, salt=""):
    cache, parent = PrefixCache(2), ROOT
    for ordinal, part in enumerate(parts):
        parent, _ = cache.register(10 + ordinal, ordinal, parent, part, salt)
    return cache


def test_the_last_token_is_always_computed():
    cache = filled((1, 2), (3, 4))
    assert [its.block for its in cache.find([1, 2, 3, 4], "")] == [10]
    assert [its.block for its in cache.find([1, 2, 3, 4, 5], "")] == [10, 11]


def test_a_block_counts_only_behind_its_own_parent():
    cache = filled((1, 2), (3, 4))
    assert cache.find([3, 4, 1], "") == []
    assert [its.block for its in cache.find([1, 2, 9, 4, 5], "")] == [10]


def test_a_colliding_hash_is_no_hit_because_the_tokens_are_compared():
    cache = filled((1, 2))
    cache.digest = lambda *_: next(iter(cache.entries))
    assert cache.find([1, 2, 3], "") != []
    assert cache.find([7, 8, 9], "") == []


def test_another_salt_finds_nothing():
    assert filled((1, 2), salt="mine").find([1, 2, 3], "yours") == []


def test_a_forgotten_block_is_not_found():
    cache = filled((1, 2), (3, 4))
    cache.forget(10)
    assert cache.find([1, 2, 3, 4, 5], "") == []


def test_the_longest_partial_match_is_found():
    cache = filled((1, 2))
    cache.register(20, 0, ROOT, (1, 9), "")
    entry, shared = cache.find_partial([], [1, 9, 7], "")
    assert (entry.block, shared) == (20, 2)
    assert cache.find_partial([], [5, 5, 5], "") is None


# --- sharing in the engine -----------------------------------------------------------------------


def test_a_repeated_prompt_is_served_from_whole_blocks(make_engine):
    engine = make_engine(block_size=4)
    prompt = list(range(50, 63))
    assert cached_tokens(engine, ask("cold", prompt)) == 0
    assert cached_tokens(engine, ask("warm", prompt)) == 12
    assert cached_tokens(engine, ask("other end", [*prompt[:9], 1, 2])) == 8
    assert cached_tokens(engine, ask("other salt", prompt, salt="tenant")) == 0
    assert engine.stats().prefix_hits_tokens == 20
    assert engine.stats().prefix_queries_tokens == 13 + 13 + 11 + 13


def test_a_whole_number_of_blocks_leaves_its_last_block_to_compute(make_engine):
    engine = make_engine(block_size=4)
    prompt = list(range(50, 62))
    cached_tokens(engine, ask("cold", prompt))
    assert cached_tokens(engine, ask("warm", prompt)) == 8


def test_without_prefix_cache_nothing_is_shared(make_engine):
    engine = make_engine(block_size=4, prefix_cache=False)
    cached_tokens(engine, ask("cold", range(20)))
    assert cached_tokens(engine, ask("warm", range(20))) == 0
    assert engine.pool.cached_count == 0


def test_partial_sharing_counts_the_head_of_a_block_and_copies_it(make_engine):
    engine = make_engine(block_size=8, share_partial=True)
    cached_tokens(engine, ask("cold", range(20, 40)))
    before = [its.block for its in engine.prefix.by_block.values()]
    contents = engine.store.keys[0][before].clone()
    assert cached_tokens(engine, ask("warm", [*range(20, 31), 7, 7, 7, 7, 7])) == 11
    assert torch.equal(engine.store.keys[0][before], contents)


def test_choices_share_the_prompt_and_copy_the_last_block_on_write(make_engine):
    engine = make_engine(block_size=4)
    engine.submit(ask("three", range(50, 60), n=3, max_tokens=2, temperature=1.0))
    engine.step()
    tables = [list(its.table) for its in engine.scheduler.running]
    assert tables[0] == tables[1] == tables[2]
    assert [engine.pool.references[block] for block in tables[0]] == [3, 3, 3]
    engine.scheduler.schedule()
    ends = {its.table[2] for its in engine.scheduler.running}
    assert len(ends) == 3
    assert {its.table[0] for its in engine.scheduler.running} == {tables[0][0]}


def test_when_blocks_run_out_the_latest_arrival_yields(make_engine):
    engine = make_engine(block_size=4, num_blocks=8)
    for name, start in (("early", 10), ("late", 90)):
        engine.submit(ask(name, range(start, start + 12), max_tokens=12))
    while not engine.scheduler.preemptions:
        engine.step()
    assert [its.request.id for its in engine.scheduler.running] == ["early"]
    assert [its.request.id for its in engine.scheduler.waiting] == ["late"]
    assert len({update.id for update in finish(engine) if update.finish_reason}) == 2


def test_requests_join_and_leave_at_every_step(make_engine):
    engine = make_engine(max_running=2)
    for name in "abc":
        engine.submit(ask(name, [5, 6], max_tokens=2 if name == "a" else 5))
    engine.step()
    assert [its.request.id for its in engine.scheduler.running] == ["a", "b"]
    engine.step()
    engine.step()
    assert [its.request.id for its in engine.scheduler.running] == ["b", "c"]


def test_a_long_prompt_is_computed_in_chunks_beside_those_who_speak(make_engine):
    engine = make_engine(step_tokens=8)
    engine.submit(ask("speaks", [5, 6], max_tokens=9))
    engine.step()
    engine.submit(ask("long", range(30)))
    for _ in range(4):
        assert [update.id for update in engine.step()] == ["speaks"]
    assert {update.id for update in engine.step()} == {"speaks", "long"}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_frees_everything_wherever_the_request_is(make_engine, steps):
    engine = make_engine(step_tokens=8, prefix_cache=False)
    engine.submit(ask("leaves", range(12), n=2, max_tokens=30))
    for _ in range(steps):
        engine.step()
    updates = engine.abort("leaves")
    assert [update.finish_reason for update in updates] == ["abort", "abort"]
    assert engine.pool.free_count == engine.pool.num_blocks
    assert not engine.has_work
    assert engine.abort("leaves") == []
    assert engine.stats().aborted == 1


@pytest.mark.parametrize(
    ("request_", "param", "message"),
    [
        (ask("a", []), "prompt", "the prompt is empty"),
        (ask("a", [260]), "prompt", "token ids go from 0 to 259"),
        (ask("a", [1], logit_bias=((260, 1.0),)), "logit_bias", "beyond the last one, 259"),
        (ask("a", [1], n=65), "n", "n is at most 64 here"),
        (ask("a", range(250), max_tokens=7), None, "maximum context length is 256 tokens"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(make_engine, request_, param, message):
    engine = make_engine()
    with pytest.raises(RequestError, match=message) as refused:
        engine.submit(request_)
    assert refused.value.param == param
    assert not engine.has_work


def test_the_pool_bounds_the_context(make_engine):
    engine = make_engine(num_blocks=3, block_size=4)
    engine.submit(ask("fits", range(8), max_tokens=4))
    with pytest.raises(RequestError, match="maximum context length is 12 tokens"):
        engine.submit(ask("does not", range(9), max_tokens=4))


def test_an_id_in_flight_is_refused(make_engine):
    engine = make_engine()
    engine.submit(ask("same", [1]))
    with pytest.raises(RequestError, match="'same' is in flight"):
        engine.submit(ask("same", [1]))
