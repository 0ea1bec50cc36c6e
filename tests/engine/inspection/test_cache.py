"""Defects planted into the cached computation are found, placed and named; healthy models pass."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import Cache, DynamicLayer

from leakcheck.engine.inspection import __main__ as command
from leakcheck.engine.inspection import cache, passes, screen
from leakcheck.engine.inspection.attention import whole_weights
from leakcheck.engine.inspection.bounds import eager_attention
from leakcheck.engine.inspection.compare import Setting, compare_all, lengths_up_to
from leakcheck.engine.inspection.owntext import sample_text
from leakcheck.engine.inspection.specimens import ROTARY, SPECIMENS, byte_tokenizer, obtain
from leakcheck.engine.inspection.ways import OWN, Way, dynamic, one_by_one, ways

BLOCK = 8
TOKENS = 40


def compared(model, tokenizer, *names, lengths=(8, 16, 32, TOKENS), chosen=None):
    """Outcomes by name of the ways whose names begin so; all ways without names."""
    text = tuple(sample_text(model, max(lengths), rows=1, seed=0)[0].tolist())
    setting = Setting(
        model=model, tokenizer=tokenizer, text=text, lengths=lengths, block=BLOCK, seed=0
    )
    chosen = chosen or [its for its in ways(model) if not names or its.name.startswith(names)]
    outcomes, _ = compare_all(setting, chosen, lambda: None)
    return {its.way: its for its in outcomes}


def found(model, tokenizer, name):
    """The finding of one way, which must be there."""
    (outcome,) = compared(model, tokenizer, name).values()
    assert outcome.refusal is None
    assert outcome.finding is not None, f"nothing found, {outcome.of_bound:.2f} of the bound used"
    return outcome.finding


def layers_of(model):
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def attention_of(layer):
    return layer.attn if hasattr(layer, "attn") else layer.self_attn


def plant_positions(model, shift=1):
    """Wrong position ids once something is in the cache."""

    def hook(_module, _args, kwargs):
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        past = int(cache.get_seq_length()) if cache is not None else 0
        if past:
            width = kwargs["input_ids"].shape[1]
            kwargs["position_ids"] = torch.arange(past, past + width)[None] + shift
        return (), kwargs

    return model.register_forward_pre_hook(hook, with_kwargs=True)


def plant_mask(model, layers, hidden=3, head=None):
    """The first keys are invisible to a query with a history, in these layers (and one head)."""

    def hook(module, args, kwargs):
        states = args[0] if args else kwargs["hidden_states"]
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        past = int(cache.get_seq_length(module.layer_idx)) if cache is not None else 0
        if states.shape[1] == 1 and past:
            keys = past + 1
            visible = torch.ones(1, model.config.num_attention_heads, 1, keys, dtype=torch.bool)
            visible[:, slice(head, None if head is None else head + 1), :, :hidden] = False
            if model.config._attn_implementation == "eager":
                lowest = torch.finfo(states.dtype).min
                visible = torch.zeros(visible.shape, dtype=states.dtype).masked_fill(
                    ~visible, lowest
                )
            kwargs["attention_mask"] = visible
        return args, kwargs

    for layer in layers:
        attention_of(layers_of(model)[layer]).register_forward_pre_hook(hook, with_kwargs=True)


def plant_foreign(model, layer, block, heads, scale=1.0):
    """Once there are 20 positions, a block of a layer's cache holds somebody else's state."""

    def hook(_module, args, kwargs):
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        its = cache.layers[layer] if cache is not None else None
        if its is None or its.keys is None or int(its.get_seq_length()) < 20:
            return args, kwargs
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        for states in (its.keys, its.values):
            for head in heads:
                own = states[:, head, part]
                numbers = torch.Generator().manual_seed(head)
                strange = torch.randn(own.shape, generator=numbers) * own.std()
                states[:, head, part] = (strange * scale).to(states.dtype)
        return args, kwargs

    attention_of(layers_of(model)[layer]).register_forward_pre_hook(hook, with_kwargs=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPECIMENS)
def test_healthy_models_give_no_alarm(name, dtype):
    outcomes = compared(*obtain(name, dtype), lengths=(TOKENS,))
    refused = {way for way, its in outcomes.items() if its.refusal}
    windowed = name in ("tiny-mistral", "tiny-gemma2")
    assert refused == ({"paged engine"} if windowed else set())
    for its in outcomes.values():
        assert its.finding is None
        assert its.of_bound < 0.5


ODD = {
    "a-router-that-is-a-linear-map": {
        "model_type": "llama4_text",
        "num_hidden_layers": 2,
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
    },
    "attention-without-a-number": {
        "model_type": "gpt_neo",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "attention_types": [[["global"], 2]],
    },
}
"""Models whose modules are not built as those of most are."""


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
def test_models_of_an_odd_build_are_compared_too(fields):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**ROTARY | fields)).eval()
    outcomes = compared(model, byte_tokenizer(), "DynamicCache", "left-padded", lengths=(16,))
    assert [(its.refusal, its.finding) for its in outcomes.values()] == [(None, None)] * 2


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
def test_their_attention_weights_are_seen_in_every_layer(fields):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**ROTARY | fields)).eval()
    with eager_attention(model):
        weights = whole_weights(model, tuple(range(9)))
    assert len(weights.layers) == 2
    assert all(layer is not None for layer in weights.layers)


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_bounds_leave_room_whatever_the_weights(seed):
    model, tokenizer = obtain("tiny-llama", "float32", seed=seed)
    shares = [its.of_bound for its in compared(model, tokenizer, lengths=(16,)).values()]
    assert 0 < max(shares) < 0.5


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma", "tiny-mistral", "tiny-qwen"])
def test_wrong_position_ids_are_named(name):
    model, tokenizer = obtain(name, "float32")
    plant_positions(model)
    finding = found(model, tokenizer, "DynamicCache")
    its = finding.diagnosis
    assert (its.cause, its.layer, finding.tokens) == ("position ids", 0, 8)
    assert (its.step, its.newest, its.position) == (1, 4, 4)  # the first token after the prompt
    assert its.blocks == (0,)
    assert its.heads == tuple(range(model.config.num_key_value_heads))
    assert finding.contamination


def test_wrong_learned_positions_are_named():
    model, tokenizer = obtain("tiny-gpt2", "float32")
    plant_positions(model)
    its = found(model, tokenizer, "StaticCache").diagnosis
    assert (its.cause, its.layer, its.step, its.position) == ("position ids", 0, 1, 4)


@pytest.mark.parametrize("layer", range(3))
def test_a_mask_that_hides_the_first_keys_is_placed(layer):
    model, tokenizer = obtain("tiny-llama", "float32")
    plant_mask(model, [layer])
    finding = found(model, tokenizer, "DynamicCache")
    its, moved = finding.diagnosis, finding.shift
    assert (its.cause, its.layer, its.step, its.newest) == ("mask", layer, 1, 4)
    assert its.heads == (0, 1, 2, 3)
    assert its.blocks == (0,)
    assert moved.layer == layer
    assert set(moved.hidden) <= {0, 1, 2}
    assert moved.hidden
    assert moved.shares[0].first == 0
    assert moved.outside < 1e-3


@pytest.mark.parametrize("head", [0, 3])
def test_a_mask_wrong_in_one_head_names_that_head(head):
    model, tokenizer = obtain("tiny-qwen", "float32")
    plant_mask(model, [1], head=head)
    its = found(model, tokenizer, "DynamicCache").diagnosis
    assert (its.cause, its.layer, its.heads) == ("mask", 1, (head,))


def test_a_difference_that_float32_does_not_show_is_rounding():
    model, tokenizer = obtain("tiny-llama", "bfloat16")

    def coarse(job, watch):
        half = job.model.dtype != torch.float32
        tokens = (*job.tokens[:5], 0, *job.tokens[6:]) if half else job.tokens
        dynamic(replace(job, tokens=tokens), watch)

    outcomes = compared(model, tokenizer, chosen=[Way(name="coarse", run=coarse)])
    finding = outcomes["coarse"].finding
    assert finding.only_rounding
    assert not finding.contamination
    assert finding.diagnosis.cause == "wrong token"


def test_a_sequence_as_long_as_the_model_allows_runs_in_the_engine():
    model, tokenizer = obtain("tiny-llama", "float32")
    model.config.max_position_embeddings = 16
    (outcome,) = compared(model, tokenizer, "paged", lengths=(16,)).values()
    assert outcome.refusal is None
    assert outcome.longest == 16


def test_a_mask_wrong_in_every_layer_is_placed_in_the_first():
    model, tokenizer = obtain("tiny-qwen", "float32")
    plant_mask(model, range(3))
    its = found(model, tokenizer, "chunked").diagnosis
    assert (its.cause, its.layer) == ("mask", 0)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-gemma"])
@pytest.mark.parametrize(("layer", "block"), [(0, 0), (1, 1), (2, 2)])
def test_foreign_kv_is_placed_by_layer_and_block(name, layer, block):
    model, tokenizer = obtain(name, "float32")
    heads = range(passes.run_whole(model, (1, 2)).keys[0].shape[0])
    plant_foreign(model, layer, block, heads)
    finding = found(model, tokenizer, "DynamicCache")
    its = finding.diagnosis
    assert (its.cause, its.layer, its.blocks) == ("foreign KV", layer, (block,))
    assert its.heads == tuple(heads)
    assert its.position == block * BLOCK
    assert 1.1 < its.error < 2.2
    assert "whole blocks" in its.sentence or its.newest < (block + 1) * BLOCK
    assert finding.tokens == 32
    assert finding.shift is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head", [0, 1])
def test_foreign_kv_in_one_head_names_that_head(head, dtype):
    model, tokenizer = obtain("tiny-llama", dtype)
    plant_foreign(model, 1, 1, [head])
    its = found(model, tokenizer, "DynamicCache").diagnosis
    assert (its.cause, its.layer, its.heads, its.blocks) == ("foreign KV", 1, (head,), (1,))
    assert model.dtype == getattr(torch, dtype)  # it looked closer in float32 and came back


def test_cleared_kv_is_told_from_foreign_kv():
    model, tokenizer = obtain("tiny-llama", "float32")
    plant_foreign(model, 2, 0, [0, 1], scale=0.0)
    its = found(model, tokenizer, "DynamicCache").diagnosis
    assert (its.cause, its.layer, its.blocks) == ("cleared KV", 2, (0,))


@pytest.mark.parametrize("layer", range(3))
def test_foreign_kv_in_the_paged_engine_is_placed(layer):
    model, tokenizer = obtain("tiny-llama", "float32")

    def hook(_module, args, kwargs):
        its = kwargs.get("cache", kwargs.get("past_key_values")).layers[layer]
        for row in getattr(its.batch, "rows", ()) if hasattr(its, "batch") else ():
            if row.sequence.request.id == OWN and row.start >= 20:
                its.stored_keys[row.sequence.table[1], :, 1] = 1.5
        return args, kwargs

    attention_of(layers_of(model)[layer]).register_forward_pre_hook(hook, with_kwargs=True)
    finding = found(model, tokenizer, "paged")
    its = finding.diagnosis
    assert (its.cause, its.layer, its.heads, its.blocks) == ("foreign KV", layer, (1,), (1,))
    assert set(finding.shift.heads) <= {2, 3}  # the query heads that read KV head 1


class SmallLayer(DynamicLayer):
    """Keeps its states in bfloat16."""

    def update(self, keys, values, *rest, **named):
        small = [states.to(torch.bfloat16).float() for states in (keys, values)]
        return super().update(*small, *rest, **named)


def test_a_cache_of_a_smaller_type_is_called_that():
    model, tokenizer = obtain("tiny-llama", "float32")

    def rounded(job, watch):
        one_by_one(job, watch, Cache(layers=[SmallLayer() for _ in range(3)]), [job.prompt])

    outcomes = compared(model, tokenizer, chosen=[Way(name="rounded", run=rounded)])
    finding = outcomes["rounded"].finding
    assert finding.diagnosis.cause == "dtype"
    assert "every layer's cache hands back rounded numbers" in finding.diagnosis.sentence
    assert not finding.contamination


def test_lengths_begin_short_and_double():
    assert lengths_up_to(40) == (8, 16, 32, 40)
    assert lengths_up_to(8) == (8,)


def test_the_screen_of_a_difference_names_everything(capsys):
    model, tokenizer = obtain("tiny-llama", "float32")
    plant_foreign(model, 1, 1, [1])
    parser = argparse.ArgumentParser()
    cache.add_flags(parser)
    flags = ["tiny-llama", "--tokens", "32", "--block-size", "8", "--seconds", "0"]
    given = parser.parse_args(flags)
    assert cache.inspect_model(model, tokenizer, given, screen.console()) == 1
    said = capsys.readouterr().out
    assert "DIFFERENCE: DynamicCache, at 32 tokens" in said
    assert "step 5, which computes token 20; first position 8" in said
    assert "blocks        1 (tokens 8-15)" in said
    assert "likely cause  foreign KV" in said
    assert "of it moved" in said
    assert "likewise StaticCache" in said
    assert "DIFFERENT: DynamicCache, StaticCache" in said
    assert all(len(line) <= 100 for line in said.splitlines())


def test_the_screen_of_a_healthy_model(capsys):
    assert command.main(["cache", "tiny-mistral", "--tokens", "16", "--seconds", "0.05"]) == 0
    said = capsys.readouterr().out
    assert "SAME: 5 of 5 ways" in said
    assert "paged engine: layer 0 of this mistral model keeps a DynamicSliding" in said
    assert "p99.9" in said
    assert all(len(line) <= 100 for line in said.splitlines())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cache", "tiny-nothing"], "there is no specimen 'tiny-nothing'; it is one of tiny-llama"),
        (["cache", "tiny-llama", "--tokens", "4"], "--tokens must be at least 8, not 4"),
        (["cache", "tiny-llama", "--tokens", "4000"], "--tokens 4000 is more than the 1024"),
        (["cache", "no/such/model"], "there is no model folder 'no/such/model'"),
        (["kv"], "there is no command 'kv'; it is one of cache, quant, size, leak, pool"),
        ([], "a command is missing"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments, sentence, capsys):
    assert command.main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
