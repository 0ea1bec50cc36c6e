"""From work to tensors: ragged rows, positions, slots and masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakcheck.engine.rows import Batcher, Work, choose_width
from leakcheck.engine.values import GenerateRequest, SamplingParams

PADDING = 99


@pytest.fixture
def work(make_engine):
    """`work((length, start, count, table), ...)`: work on sequences with these tables."""

    def make(*specs):
        engine = make_engine()
        items = []
        for number, (length, start, count, table) in enumerate(specs):
            tokens = tuple(range(100 * number, 100 * number + length))
            request = GenerateRequest(id=str(number), prompt=tokens, params=SamplingParams())
            sequence = engine.new_sequence(request, number, 0)
            sequence.table, sequence.computed = table, start
            items.append(Work(sequence=sequence, start=start, count=count))
        return items

    return make


def batcher():
    return Batcher(4, PADDING, torch.device("cpu"))


def test_decoding_rows_are_one_token_wide(work):
    batch = batcher().build(work((6, 5, 1, [3, 4]), (2, 1, 1, [7])))
    assert batch.input_ids.tolist() == [[5], [101]]
    assert batch.position_ids.tolist() == [[5], [1]]
    assert batch.slots.tolist() == [4 * 4 + 1, 7 * 4 + 1]
    assert batch.table.tolist() == [[3, 4], [7, PADDING]]
    assert batch.mask[0, 0].tolist() == [[True] * 6 + [False] * 2]
    assert batch.mask[1, 0].tolist() == [[True] * 2 + [False] * 6]


def test_a_chunk_becomes_right_aligned_rows_that_see_only_their_past(work):
    items = work((7, 2, 5, [3, 4]))
    built = batcher()
    rows = built.cut(items, 4)
    assert [(row.start, row.count, row.last) for row in rows] == [(2, 4, False), (6, 1, True)]
    positions = built.positions(rows, 4)
    assert positions.tolist() == [[2, 3, 4, 5], [-1, -1, -1, 6]]
    assert built.input_ids(rows, 4).tolist() == [[2, 3, 4, 5], [0, 0, 0, 6]]
    pad = PADDING * 4
    assert built.slots(rows, positions).tolist() == [[14, 15, 16, 17], [pad, pad, pad, 18]]
    visible = built.mask(rows, positions, 8)
    assert visible.shape == (2, 1, 4, 8)
    assert visible[0, 0].sum(axis=1).tolist() == [3, 4, 5, 6]
    assert visible[1, 0].sum(axis=1).tolist() == [1, 1, 1, 7]


def test_a_chunk_that_does_not_reach_the_end_is_not_sampled(work):
    rows = batcher().cut(work((9, 0, 5, [1, 2])), 16)
    assert [row.last for row in rows] == [False]


def test_the_width_follows_the_mixture(work):
    prefill = work((200, 0, 128, list(range(50))))
    decode = work(*[(20, 19, 1, list(range(5)))] * 30)
    assert choose_width(decode) == 1
    assert choose_width(prefill) >= 32
    assert choose_width(prefill + decode) < choose_width(prefill)


def test_no_row_is_left_out_whatever_the_width(work):
    items = work((50, 3, 47, list(range(20))), (9, 8, 1, [1, 2, 3]))
    for width in (1, 2, 8, 64):
        rows = batcher().cut(items, width)
        covered = np.concatenate([np.arange(row.start, row.end) for row in rows[:-1]])
        assert covered.tolist() == list(range(3, 50))
