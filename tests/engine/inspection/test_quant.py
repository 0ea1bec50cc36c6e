"""What rounding a cache costs, and that it is said not to be a leak."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.engine.inspection import __main__ as command
from leakcheck.engine.inspection.owntext import sample_text
from leakcheck.engine.inspection.quant import Cost, costs_of, drift, parts_up_to
from leakcheck.engine.inspection.rounding import KINDS, rounded
from leakcheck.engine.inspection.specimens import obtain


@given(st.integers(1, 70), st.floats(1e-3, 1e3), st.integers(0, 100))
def test_rounding_errs_by_half_a_step_at_most(size, spread, seed):
    numbers = torch.Generator().manual_seed(seed)
    states = torch.randn(3, size, generator=numbers) * spread
    most = states.abs().amax(-1, keepdim=True)
    assert torch.equal(rounded(states, "float32"), states)
    for kind, step in (("bfloat16", 2**-8), ("int8", 1 / 127), ("int4", 2 / 15)):
        error = (rounded(states, kind) - states).abs()
        # half a step, and what the float16 of scale and zero point adds over all steps
        assert (error <= most * (step / 2 + 2e-3) + 1e-4).all(), kind


def test_a_coarser_cache_costs_more():
    model, _ = obtain("tiny-qwen", "float32")
    text = sample_text(model, 64, rows=2, seed=0)
    exact, *others = costs_of(model, text, lambda: None)
    assert [its.kind for its in (exact, *others)] == list(KINDS)
    assert not exact.divergence.any()
    assert not exact.differs.any()
    costs = [float(its.divergence.mean()) for its in others]
    assert 0 < costs[0] < costs[1] < costs[2]
    assert costs[0] < 1e-3
    assert costs[2] > 10 * costs[1]


def cost(divergence):
    row = np.array([divergence], dtype=np.float32)
    return Cost(kind="int4", surprise=row, divergence=row, differs=row > 1)


def test_drift_is_where_it_stays():
    parts = parts_up_to(129, 1)
    assert [(its.first, its.last) for its in parts] == [(1, 31), (32, 63), (64, 127), (128, 128)]
    assert drift(cost([0.0] * 128), parts) is None
    assert drift(cost([0.1] + [0.0] * 127), parts) is None
    assert drift(cost([0.0] * 31 + [0.1] * 97), parts) == parts[1]
    assert drift(cost([0.1] * 128), parts) == parts[0]


def test_the_screen_says_it_is_not_a_leak(capsys):
    assert command.main(["quant", "tiny-mistral", "--tokens", "48", "--sequences", "2"]) == 0
    said = capsys.readouterr().out
    assert "int4: quality drifts from token 4 on" in said
    assert "int8: quality drifts" not in said
    assert "This is not a leak" in said
    assert "first other token" in said
    assert all(len(line) <= 100 for line in said.splitlines())


def test_a_file_is_read_in_the_place_of_its_own_text(tmp_path, capsys):
    file = tmp_path / "text"
    file.write_text("seven lines of plain text " * 4)
    arguments = ["quant", "tiny-llama", "--text", str(file), "--tokens", "32", "--sequences", "9"]
    assert command.main(arguments) == 0
    assert "3 x 32 tokens of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tokens", "8"], "--tokens must be at least 16, not 8"),
        (["--sequences", "0"], "--sequences must be at least 1, not 0"),
        (["--text", "/nowhere"], "the text /nowhere cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(arguments, sentence, capsys):
    assert command.main(["quant", "tiny-llama", *arguments]) == 2
    assert sentence in capsys.readouterr().err
