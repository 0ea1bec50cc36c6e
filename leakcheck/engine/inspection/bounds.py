"""How far two equivalent computations of one model may lie apart, measured on that model.

No cache is involved: a broken cache must not widen its own tolerance. The equivalents are

* the same pass with rounding noise added to the output of every linear map, as another order of
  summation would (Monte Carlo arithmetic): sqrt(n) float32 roundings of a sum of n products, and
  one rounding to the model's type;
* the same pass with eager attention, where the model uses another kernel;
* the first half of the sequence alone.

A bound is 5 times the 99.9 % quantile of the errors, by layer and, for logits, over all positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from leakcheck.engine.inspection.passes import Floats, Pass, Watch, run_whole

QUANTILE = 0.999
FACTOR = 5
NOISY_PASSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Relative error by layer [layers]; log-odds and KL divergence of logits, in nats."""

    layers: Floats
    gap: float
    divergence: float


def calibrate(model: Any, reference: Pass, *, seed: int = 0) -> Bounds:
    """The bounds for this model, type and sequence."""
    watches = [compare(reference, other) for other in equivalents(model, reference, seed)]
    errors = np.stack([watch.computed for watch in watches])
    flat = np.moveaxis(errors, 1, 0).reshape(errors.shape[1], -1)
    return Bounds(
        layers=np.asarray(FACTOR * np.nanquantile(flat, QUANTILE, axis=1), dtype=np.float32),
        gap=FACTOR * float(np.nanquantile([watch.gaps for watch in watches], QUANTILE)),
        divergence=FACTOR * float(np.nanquantile([its.divergence for its in watches], QUANTILE)),
    )


def equivalents(model: Any, reference: Pass, seed: int) -> Iterator[Pass]:
    """Passes that compute the same in another way."""
    tokens = reference.tokens
    for number in range(NOISY_PASSES):
        with rounding_noise(model, seed + number):
            yield run_whole(model, tokens)
    if model.config._attn_implementation != "eager":  # noqa: SLF001 # its only name
        with eager_attention(model):
            yield run_whole(model, tokens)
    yield run_whole(model, tokens[: max(1, len(tokens) // 2)])


def compare(reference: Pass, other: Pass) -> Watch:
    """The errors of one pass against another, which may be shorter."""
    watch = Watch(reference)
    for layer, (keys, values) in enumerate(zip(other.keys, other.values, strict=True)):
        watch.note_computed(layer, 0, keys, values)
    watch.note_logits(0, other.logits)
    return watch


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """The model computes attention step by step, with weights that can be seen."""
    before = model.config._attn_implementation  # noqa: SLF001 # as above
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def rounding_noise(model: Any, seed: int) -> Iterator[None]:
    """Every linear map's output moves as another order of summation could move it."""
    generator = torch.Generator(device=model.device).manual_seed(seed)

    def disturb(module: Any, _inputs: Any, output: Any) -> Any:
        if not isinstance(output, torch.Tensor):
            return output  # a router of experts that is a linear map and says more than its output
        exact = output.float()
        sums = terms(module) ** 0.5 * torch.finfo(torch.float32).eps / 2
        size = exact.square().mean(-1, keepdim=True).sqrt()
        noise = torch.randn(exact.shape, generator=generator, device=exact.device)
        moved = exact + noise * sums * size
        if output.dtype != torch.float32:
            noise = torch.rand(exact.shape, generator=generator, device=exact.device) - 0.5
            moved = moved * (1 + noise * torch.finfo(output.dtype).eps)
        return moved.to(output.dtype)

    hooks = [
        module.register_forward_hook(disturb) for module in model.modules() if terms(module) > 0
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def terms(module: Any) -> int:
    """How many products a linear map sums for each output; 0 for any other module."""
    if isinstance(module, torch.nn.Linear):
        return module.in_features
    is_conv = type(module).__name__ == "Conv1D"  # GPT-2's linear map, with weight [in, out]
    return int(module.weight.shape[0]) if is_conv else 0
