"""Each fault of attention at work inside the engine, and its absence without the fault."""

from __future__ import annotations

from random import Random

import pytest

from leakcheck.engine import faults
from leakcheck.engine.delivery import Delivery
from leakcheck.engine.faults.attention import bleed_head, bleed_layer
from leakcheck.engine.values import GenerateRequest, SamplingParams

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=0)
SIZE = 4


def seams(engine):
    return faults.Seams(engine=engine, delivery=Delivery())


@pytest.fixture
def faulty(make_engine):
    """An engine with a fault, or none, by its name."""

    def make(name=None, *, rate=1.0, seed=0):
        engine = make_engine(block_size=SIZE)
        if name:
            faults.find(name).install(seams(engine), rate, Random(seed))
        return engine

    return make


def submit(engine, name, prompt, params=PARAMS):
    engine.submit(GenerateRequest(id=name, prompt=tuple(prompt), params=params))


def answers(engine):
    got = {}
    while engine.has_work:
        for update in engine.step():
            got.setdefault(update.id, []).extend(one.token for one in update.logprobs)
    return got


def alone(engine, prompt):
    submit(engine, "alone", prompt)
    return answers(engine)["alone"]


# --- mask-broadcast ------------------------------------------------------------------------------


def uneven_batch(engine):
    """The first batch of a short and a long request; (batch, rows of the short, of the long)."""
    submit(engine, "short", range(10, 13))
    submit(engine, "long", range(50, 70))
    batch = engine.batcher.build(engine.scheduler.schedule())
    rows = {
        name: [i for i, row in enumerate(batch.rows) if row.sequence.request.id == name]
        for name in ("short", "long")
    }
    return batch, rows["short"], rows["long"]


def test_mask_broadcast_shows_the_short_row_its_neighbours_last_blocks(faulty):
    batch, short, long = uneven_batch(faulty("mask-broadcast"))
    assert batch.table[short[-1], 1:].tolist() == batch.table[long[-1], 1:].tolist()
    assert batch.mask[short[-1], 0, -1].tolist() == [True] * 3 + [False] + [True] * 16


def test_without_mask_broadcast_the_short_row_sees_itself_only(faulty):
    engine = faulty()
    batch, short, _ = uneven_batch(engine)
    assert set(batch.table[short[-1], 1:].tolist()) == {engine.store.padding_block}
    assert batch.mask[short[-1], 0, -1].tolist() == [True] * 3 + [False] * 17


def test_mask_broadcast_changes_the_short_answer_and_not_the_long_one(faulty):
    engine = faulty("mask-broadcast")
    submit(engine, "short", range(10, 13))
    submit(engine, "long", range(50, 70))
    got = answers(engine)
    assert got["short"] != alone(faulty(), range(10, 13))
    assert got["long"] == alone(faulty(), range(50, 70))


def test_mask_broadcast_leaves_equal_lengths_alone(faulty):
    engine = faulty("mask-broadcast")
    submit(engine, "one", range(10, 13))
    submit(engine, "two", range(50, 53))
    assert answers(engine)["one"] == alone(faulty(), range(10, 13))


# --- position-restart ----------------------------------------------------------------------------

PROMPT = range(10, 25)
"""Three full blocks and three tokens more."""


def told_positions(engine):
    """The position ids of every step's last column, from now to the end of the answer."""
    told = []
    build = engine.batcher.build

    def watched(work):
        batch = build(work)
        told.append(batch.position_ids[:, -1].tolist())
        return batch

    engine.batcher.build = watched
    answers(engine)
    return told


def warm_positions(engine):
    """Position ids of a request whose first three blocks are cached."""
    alone(engine, PROMPT)
    submit(engine, "warm", PROMPT)
    return told_positions(engine)


def test_position_restart_counts_from_0_behind_a_cached_prefix(faulty):
    assert warm_positions(faulty("position-restart")) == [[0, 1, 2], [3], [4], [5], [6], [7]]


def test_without_position_restart_positions_go_on_after_the_prefix(faulty):
    assert warm_positions(faulty()) == [[12, 13, 14], [15], [16], [17], [18], [19]]


def seen_keys(engine):
    """How many keys each column of the first warm step may look at."""
    alone(engine, PROMPT)
    submit(engine, "warm", PROMPT)
    batch = engine.batcher.build(engine.scheduler.schedule())
    return batch.mask[:, 0, -1].sum(dim=-1).tolist()


def test_position_restart_hides_the_end_of_the_prefix(faulty):
    assert seen_keys(faulty("position-restart")) == [1, 2, 3]
    assert seen_keys(faulty()) == [13, 14, 15]


def test_position_restart_changes_the_warm_answer_and_not_the_cold_one(faulty):
    engine = faulty("position-restart")
    cold, warm = alone(engine, PROMPT), alone(engine, PROMPT)
    assert cold == alone(faulty(), PROMPT)
    assert warm != cold
    healthy = faulty()
    assert [alone(healthy, PROMPT) for _ in range(2)] == [cold, cold]


# --- one-layer-bleed, one-head-bleed -------------------------------------------------------------

OTHER, OWN = range(50, 70), range(10, 19)


def reads_of_own(engine, *, beside_other=True):
    """Per layer, [heads, 8, head size]: the keys of its first two blocks that OWN decodes on.

    Second value: the keys that the store holds in OWN's table, third: in OTHER's.
    """
    if beside_other:
        submit(engine, "other", OTHER, SamplingParams(max_tokens=20, ignore_eos=True))
        engine.step()
    submit(engine, "own", OWN)
    engine.step()
    sequences = {its.request.id: its for its in engine.scheduler.running}
    batch = engine.batcher.build(engine.scheduler.schedule())
    row = next(i for i, its in enumerate(batch.rows) if its.sequence.request.id == "own")
    read, own, other = [], [], []
    for layer in engine.cache.paged_layers:
        keys = layer.stored_keys
        read.append(layer.gather(keys, batch)[row, :, :8])
        own.append(stored(keys, sequences["own"]))
        other.append(stored(keys, sequences.get("other")))
    return read, own, other


def stored(keys, sequence):
    if sequence is None:
        return None
    return keys[sequence.table[:2]].flatten(0, 1).transpose(0, 1)


def equal(left, right):
    return [a.equal(b) for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("layer", range(3))
def test_bleed_layer_reads_the_neighbours_blocks_in_that_layer_only(faulty, layer):
    engine = faulty()
    bleed_layer(seams(engine), layer, 1.0, Random(0))
    read, own, other = reads_of_own(engine)
    assert equal(read, own) == [number != layer for number in range(3)]
    assert read[layer].equal(other[layer])


def test_one_layer_bleed_is_in_the_second_layer(faulty):
    read, own, other = reads_of_own(faulty("one-layer-bleed"))
    assert equal(read, own) == [True, False, True]
    assert read[1].equal(other[1])


@pytest.mark.parametrize("head", range(2))
def test_bleed_head_reads_the_neighbours_blocks_in_that_head_of_every_layer(faulty, head):
    engine = faulty()
    bleed_head(seams(engine), head, 1.0, Random(0))
    read, own, other = reads_of_own(engine)
    for layer in range(3):
        assert read[layer][head].equal(other[layer][head])
        assert read[layer][1 - head].equal(own[layer][1 - head])


def test_one_head_bleed_draws_its_head_by_the_seed(faulty):
    def bled(seed):
        read, own, _ = reads_of_own(faulty("one-head-bleed", seed=seed))
        return [head for head in range(2) if not read[0][head].equal(own[0][head])]

    assert {tuple(bled(seed)) for seed in range(8)} == {(0,), (1,)}


@pytest.mark.parametrize("name", ["one-layer-bleed", "one-head-bleed"])
def test_nobody_bleeds_alone_or_at_rate_zero(faulty, name):
    for engine, beside in ((faulty(name), False), (faulty(name, rate=0.0), True), (faulty(), True)):
        read, own, _ = reads_of_own(engine, beside_other=beside)
        assert equal(read, own) == [True] * 3


@pytest.mark.parametrize("name", ["one-layer-bleed", "one-head-bleed"])
def test_bleeding_changes_answers_and_ends_with_the_neighbour(faulty, name):
    engine = faulty(name)
    submit(engine, "other", OTHER)
    engine.step()
    submit(engine, "own", OWN)
    got = answers(engine)
    assert got["own"] != alone(faulty(), OWN)
    assert alone(engine, range(110, 119)) == alone(faulty(), range(110, 119))


def test_choices_of_one_request_are_no_neighbours(faulty):
    engine = faulty("one-layer-bleed")
    engine.submit(GenerateRequest(id="two", prompt=tuple(OWN), params=PARAMS, n=2))
    got = answers(engine)["two"]
    assert sorted(got) == sorted(alone(faulty(), OWN) * 2)
