"""Caches that round what they keep: bfloat16, int8 and int4, as engines with a quantised cache do.

A number is rounded once, when it is written; what attention reads is the rounded number again in
the model's type. int8 keeps one scale a token and head (symmetric), int4 a scale and a zero point
for each `GROUP` numbers of a head; both as float16, as `kvsize` counts them.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from leakcheck.engine.inspection.kvsize import GROUP
from leakcheck.engine.inspection.passes import fresh_cache

KINDS = ("float32", "bfloat16", "int8", "int4")
INT8_MAX = 127
INT4_STEPS = 15


def rounded(states: torch.Tensor, kind: str) -> torch.Tensor:
    """[..., size] after one round trip through the type; float32 is left alone."""
    if kind == "float32":
        return states
    if kind == "bfloat16":
        return states.to(torch.bfloat16).to(states.dtype)
    return as_int8(states) if kind == "int8" else as_int4(states)


def as_int8(states: torch.Tensor) -> torch.Tensor:
    """Symmetric, one scale for the last dimension."""
    scale = half(states.abs().amax(-1, keepdim=True) / INT8_MAX).clamp_min(tiny())
    return (states / scale).round().clamp(-INT8_MAX, INT8_MAX) * scale


def as_int4(states: torch.Tensor) -> torch.Tensor:
    """Asymmetric, by groups; the last one of a head may be smaller."""
    parts = []
    for part in torch.split(states, GROUP, dim=-1):
        low = half(part.amin(-1, keepdim=True))
        scale = half((part.amax(-1, keepdim=True) - low) / INT4_STEPS).clamp_min(tiny())
        parts.append(((part - low) / scale).round().clamp(0, INT4_STEPS) * scale + low)
    return torch.cat(parts, dim=-1)


def half(numbers: torch.Tensor) -> torch.Tensor:
    """As a float16 keeps them."""
    return numbers.to(torch.float16).to(numbers.dtype)


def tiny() -> float:
    """The smallest scale: that of zeros."""
    return torch.finfo(torch.float16).tiny


def rounding_cache(model: Any, kind: str) -> DynamicCache:
    """An empty cache that keeps this type."""
    cache = fresh_cache(model)
    for layer in cache.layers:
        round_layer(layer, kind)
    return cache


def round_layer(layer: Any, kind: str) -> None:
    """Wrap one layer's `update`."""
    original = layer.update

    def update(keys: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return original(rounded(keys, kind), rounded(values, kind), *rest, **named)

    layer.update = update
