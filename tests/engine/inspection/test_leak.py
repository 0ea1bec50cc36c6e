"""The first contaminated layer, its blocks and their source, as fingerprints find them."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
import torch

from leakcheck.engine import faults
from leakcheck.engine.faults.attention import bleed_head, bleed_layer
from leakcheck.engine.inspection import contamination
from leakcheck.engine.inspection.__main__ import main
from leakcheck.engine.inspection.rehearsal import Loaded, traffic
from leakcheck.engine.inspection.specimens import obtain
from leakcheck.engine.models import layer_shapes
from leakcheck.engine.server import Api

WITNESS_LAYERS = 4


@cache
def loaded(model, dtype):
    made, tokenizer = obtain(model, dtype)
    return Loaded(model=made, tokenizer=tokenizer, shapes=layer_shapes(made))


@cache
def rehearsed(model, dtype, seed):
    return contamination.rehearse(loaded(model, dtype), seed=seed)


def bleeding(dtype, seed, layer, model="witness"):
    def install(engine):
        seams = faults.Seams(engine=engine, delivery=None)
        bleed_layer(seams, layer, 1.0, Random(seed))

    return contamination.examine(rehearsed(model, dtype, seed), install)


def under(name, model="tiny-llama", rate=1.0):
    """What a fault of the library does, and its signature."""
    fault = faults.find(name)
    its = rehearsed(model, "float32", 0)

    def install(engine):
        api = Api(engine, its.loaded.tokenizer, model=model)
        seams = faults.Seams(engine=engine, delivery=api.delivery, api=api)
        fault.install(seams, rate, Random(0))

    partial = "--share-partial" in fault.engine_flags
    seen = contamination.examine(its, install, share_partial=partial)
    return seen, contamination.signature(seen)


# --- the right layer -----------------------------------------------------------------------------


@pytest.mark.parametrize("layer", range(WITNESS_LAYERS))
@pytest.mark.parametrize(("dtype", "seed"), [("float32", 0), ("bfloat16", 1)])
def test_a_bleed_in_one_layer_is_found_in_that_layer(dtype, seed, layer):
    seen = bleeding(dtype, seed, layer)
    assert seen.first_layer == layer
    assert {its.layer for its in seen.proofs} == {layer}


@pytest.mark.power
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_is_found_with_every_seed_in_both_types(dtype, seed):
    found = [bleeding(dtype, seed, layer).first_layer for layer in range(WITNESS_LAYERS)]
    rehearsed.cache_clear()
    assert found == list(range(WITNESS_LAYERS))


def test_the_source_is_the_request_whose_table_was_read():
    tables = []

    def install(engine):
        layer = engine.cache.paged_layers[1]
        seams = faults.Seams(engine=engine, delivery=None)
        bleed_layer(seams, 1, 1.0, Random(0))
        bleeding_gather = layer.gather

        def gather(store, batch):
            by_block = {
                block: row.sequence.request.id for row in batch.rows for block in row.sequence.table
            }
            tables.append((engine.steps + 1, by_block))
            return bleeding_gather(store, batch)

        layer.gather = gather

    seen = contamination.examine(rehearsed("tiny-llama", "float32", 0), install)
    owners = dict(tables)
    assert len(seen.proofs) > 10
    for proof in seen.proofs:
        source, reader = seen.names[proof.source.request], seen.names[proof.request]
        assert source in owners[proof.step].values()
        assert source != reader


def test_a_proof_is_unlike_its_owner_and_like_its_source():
    seen = bleeding("float32", 0, 1, model="tiny-llama")
    assert all(its.source.cosine > 0.99 for its in seen.proofs)
    assert all(its.own_cosine < 0.9 or its.error > 0.3 for its in seen.proofs)


def test_a_bleed_of_one_head_names_that_head_only():
    def install(engine):
        bleed_head(faults.Seams(engine=engine, delivery=None), 1, 1.0, Random(0))

    seen = contamination.examine(rehearsed("tiny-llama", "float32", 0), install)
    assert {its.head for its in seen.proofs} == {1}
    assert seen.first_layer == 0


def test_layers_before_the_bleed_compute_what_they_compute_alone():
    seen = bleeding("float32", 0, 1, model="tiny-llama")
    assert [its.keys_over + its.values_over for its in seen.drifts[:2]] == [0, 0]
    assert seen.drifts[2].keys_over > 0


# --- no layer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_a_fault_nothing_is_found(dtype):
    seen = contamination.examine(rehearsed("tiny-llama", dtype, 0), lambda _: None)
    assert seen.contacts == seen.inherited == ()
    assert contamination.signature(seen).name in {"none", "picks"}
    assert not contamination.signature(seen).contaminated


def test_the_traffic_evicts_and_preempts():
    healthy = rehearsed("witness", "float32", 0).healthy
    assert healthy.evictions > 5
    assert healthy.preemptions > 0
    assert healthy.unfinished == ()


def test_traffic_is_repeated_by_its_seed():
    assert traffic(500, 3) == traffic(500, 3)
    assert traffic(500, 3) != traffic(500, 4)


def test_a_broken_engine_is_a_result():
    def install(engine):
        def explode(_):
            raise ZeroDivisionError("boom")

        engine.scheduler.commit = explode

    seen = contamination.examine(rehearsed("tiny-llama", "float32", 0), install)
    assert seen.played.broke == "ZeroDivisionError: boom"


# --- signatures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("prefix-length-only", "foreign KV"),
        ("mask-broadcast", "foreign KV"),
        ("stale-block", "foreign KV"),
        ("position-restart", "positions"),
        ("salt-ignored", "salt"),
        ("kv-quant-int8", "numerics"),
        ("refcount-leak", "capacity"),
    ],
)
def test_each_mechanism_has_its_signature(name, pattern):
    assert under(name)[1].name == pattern


def test_a_mask_that_shows_a_neighbour_is_told_from_a_table_that_names_it():
    assert "mask shows" in under("mask-broadcast")[1].sentence
    assert "own block table" in under("prefix-length-only")[1].sentence


def test_a_hidden_key_is_a_mask():
    def install(engine):
        healthy = engine.batcher.mask

        def mask(rows, positions, keys):
            visible = healthy(rows, positions, keys)
            visible[..., 1:4] = False
            return visible

        engine.batcher.mask = mask

    seen = contamination.examine(rehearsed("tiny-llama", "float32", 0), install)
    found = contamination.signature(seen)
    assert (found.name, seen.extra_keys) == ("mask", 0)
    assert seen.missing_keys > 100


def test_cleared_blocks_are_strange_and_nobodys():
    def install(engine):
        layer = engine.cache.paged_layers[1]
        healthy = layer.gather

        def gather(store, batch):
            read = healthy(store, batch)
            read[:, :, :16] = 0
            return read

        layer.gather = gather

    seen = contamination.examine(rehearsed("tiny-llama", "float32", 0), install)
    found = contamination.signature(seen)
    assert (found.name, seen.first_layer) == ("strange KV", 1)
    assert "cleared" in found.sentence
    assert all(its.where == "gather" for its in seen.contacts)


def test_other_tokens_are_seen_in_the_values_of_the_first_layer():
    def install(engine):
        healthy = engine.batcher.input_ids
        engine.batcher.input_ids = lambda rows, width: (healthy(rows, width) + 1) % 250

    seen = contamination.examine(rehearsed("tiny-llama", "float32", 0), install)
    assert contamination.signature(seen).name == "input"


# --- the command ---------------------------------------------------------------------------------


def command(capsys, *flags):
    code = main(["leak", *flags])
    return code, *capsys.readouterr()


def test_the_screen_names_layer_blocks_and_source(capsys):
    code, out, _ = command(
        capsys, "--model", "tiny-llama", "--fault", "one-layer-bleed", "--layer", "2"
    )
    assert code == 1
    assert "first contaminated layer: 2" in out
    assert "signature: foreign KV" in out
    assert "its block 0" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--fault", "none"], "there is no fault 'none'"),
        (["--fault", "mask-broadcast", "--layer", "1"], "--layer goes with --fault one-layer"),
        (["--fault", "mask-broadcast", "--fault-rate", "2"], "--fault-rate is a share"),
        (["--fault", "one-layer-bleed", "--layer", "9", "--model", "tiny-llama"], "from 0 to 2"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(capsys, flags, said):
    code, _, err = command(capsys, *flags)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.power
@pytest.mark.parametrize(
    "name", [its.name for its in faults.FAULTS if its.layer not in ("output", "stores")]
)
def test_every_fault_inside_the_engine_has_a_sensible_screen(capsys, name):
    code, out, err = command(capsys, "--model", "tiny-llama", "--fault", name)
    assert (code in (0, 1), err) == (True, "")
    assert "signature: " in out
    assert max(map(len, out.splitlines())) <= 100
    if faults.find(name).layer in ("benign", "sampler"):
        assert code == 0


@pytest.mark.parametrize(
    "name", [its.name for its in faults.FAULTS if its.layer in ("output", "stores")]
)
def test_every_fault_outside_the_engine_is_one_sentence(capsys, name):
    code, out, _ = command(capsys, "--fault", name)
    assert (code, out.split()[:2]) == (0, [name, "lives"])


torch.set_num_threads(1)
