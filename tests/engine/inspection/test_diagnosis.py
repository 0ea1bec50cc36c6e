"""From patterns of errors to causes, on made-up records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck.engine.inspection.diagnosis import KEYS, VALUES, Record, diagnose

LAYERS, HEADS, TOKENS, PROMPT, BLOCK = 4, 3, 24, 12, 4
NOISE, BOUND = 1e-6, 1e-5


def healthy():
    """Half the tokens in step 0, the rest one by one; noise everywhere."""
    shape = (LAYERS, 2, HEADS, TOKENS)
    steps = np.maximum(np.arange(TOKENS) - PROMPT + 1, 0)
    newest = (PROMPT - 1, *range(PROMPT, TOKENS))
    return Record(
        computed=np.full(shape, NOISE, np.float32),
        computed_step=np.broadcast_to(steps, shape).copy(),
        held=np.full(shape, NOISE, np.float32),
        held_step=np.full(shape, -1),
        logits_over=np.zeros(TOKENS, bool),
        logits_step=steps,
        newest=newest,
        bounds=np.full(LAYERS, BOUND, np.float32),
        block=BLOCK,
        learned_positions=False,
    )


def held(record, where, error, step):
    """The cache hands back something else from this step on."""
    record.held[where] = error
    record.held_step[where] = step


def test_noise_is_no_difference():
    assert diagnose(healthy()) is None


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, LAYERS - 1), st.integers(0, 2),
    st.sets(st.integers(0, HEADS - 1), min_size=1), st.integers(2, TOKENS - PROMPT),
    st.sampled_from([0.3, 0.7, 1.1, 1.3, 1.41, 1.6, 1.8, 3.0]),
)  # fmt: skip
def test_foreign_blocks_are_named_exactly(layer, block, heads, step, error):
    record = healthy()
    part = slice(block * BLOCK, (block + 1) * BLOCK)
    for head in heads:
        held(record, np.s_[layer, :, head, part], error, step)
    record.computed[layer + 1 :, :, :, PROMPT + step - 1 :] = 0.1  # what follows from it
    its = diagnose(record)
    assert (its.cause, its.layer, its.step) == ("foreign KV", layer, step)
    assert its.newest == PROMPT + step - 1
    assert its.heads == tuple(sorted(heads))
    assert its.blocks == (block,)
    assert its.position == block * BLOCK
    assert "whole blocks" in its.sentence
    assert ("sqrt(2)" in its.sentence) == (1.2 < error < 1.7)
    assert its.contamination


def test_a_part_of_a_block_is_told_from_a_whole_one():
    record = healthy()
    held(record, np.s_[2, :, 0, 5:7], 1.4, 3)
    assert "parts of blocks" in diagnose(record).sentence


def test_what_is_not_a_number_is_said():
    record = healthy()
    held(record, np.s_[0, VALUES, 1, 4:8], np.inf, 2)
    its = diagnose(record)
    assert its.cause == "foreign KV"
    assert "not numbers" in its.sentence


def test_zeros_are_cleared_blocks():
    record = healthy()
    held(record, np.s_[1, :, :, 0:4], 1.0, 2)
    record.held[1, KEYS, :, 0] = 0.6  # where the reference is small
    assert diagnose(record).cause == "cleared KV"


def test_the_earlier_step_comes_first_whatever_the_layer():
    record = healthy()
    held(record, np.s_[3, :, 0, 0:4], 1.4, 2)
    held(record, np.s_[1, :, 0, 4:8], 1.4, 5)
    its = diagnose(record)
    assert (its.layer, its.blocks, its.step) == (3, (0,), 2)


def test_keys_without_values_in_layer_0_are_positions():
    record = healthy()
    record.computed[0, KEYS, :, PROMPT:] = 0.3
    record.computed[1:, :, :, PROMPT:] = 0.3
    held(record, np.s_[0, KEYS, :, PROMPT:], 0.3, 1)
    its = diagnose(record)
    assert (its.cause, its.layer, its.step, its.position) == ("position ids", 0, 1, PROMPT)


@pytest.mark.parametrize(
    ("learned", "last", "cause"),
    [
        (True, TOKENS, "position ids"),
        (True, PROMPT + 1, "wrong token"),
        (False, TOKENS, "wrong token"),
    ],
)
def test_keys_and_values_of_layer_0_are_a_token_or_a_learned_position(learned, last, cause):
    record = replace(healthy(), learned_positions=learned)
    record.computed[0, :, :, PROMPT:last] = 1.4
    assert diagnose(record).cause == cause


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_a_later_layer_first_is_the_attention_before_it(layer):
    record = healthy()
    record.computed[layer:, :, :, PROMPT + 1 :] = 0.05
    its = diagnose(record)
    assert (its.cause, its.layer, its.step) == ("mask", layer - 1, 2)


def test_logits_alone_are_the_attention_of_the_last_layer():
    record = healthy()
    record.logits_over[PROMPT + 2] = True
    its = diagnose(record)
    assert (its.cause, its.layer, its.step, its.newest) == ("mask", LAYERS - 1, 3, PROMPT + 2)


def test_a_little_more_than_the_bound_with_depth_is_rounding():
    record = healthy()
    for layer in range(1, LAYERS):
        record.computed[layer] = BOUND * (1 + layer)
    its = diagnose(record)
    assert its.cause == "numerics"
    assert not its.contamination


def test_small_errors_everywhere_from_layer_0_are_another_type():
    record = healthy()
    record.computed[:] = 3e-3
    assert diagnose(record).cause == "dtype"
    record = healthy()
    record.held[:] = 3e-3
    record.held_step[:] = record.computed_step
    its = diagnose(record)
    assert its.cause == "dtype"
    assert not its.contamination
