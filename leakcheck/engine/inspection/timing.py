"""How long a step takes, with a cache and without one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from leakcheck.engine.inspection.passes import cache_argument, fresh_cache

STEPS = 1000
"""Timed steps for the percentiles: fewer cannot show a p99.9."""
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Median seconds for the next token after `length` tokens."""

    length: int
    cached_s: float
    uncached_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles over `steps` cached steps after about `length` tokens, in seconds."""

    length: int
    steps: int
    p50_s: float
    p99_s: float
    p999_s: float


def speeds(model: Any, text: torch.Tensor, lengths: list[int]) -> list[Speed]:
    """At each length; `text` [1, more tokens than the longest length]."""
    return [
        Speed(
            length=length,
            cached_s=float(np.median(cached_steps(model, text, length, REPEATS))),
            uncached_s=float(np.median(uncached_steps(model, text[:, : length + 1]))),
        )
        for length in lengths
    ]


def latency(model: Any, text: torch.Tensor, length: int, seconds: float) -> Latency:
    """Percentiles of a cached step, from `STEPS` steps or as many as fit into the time."""
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < STEPS and (not taken or time.perf_counter() < deadline):
        taken += cached_steps(model, text, length, min(50, STEPS - len(taken)))
    p50, p99, p999 = np.quantile(taken, [0.5, 0.99, 0.999], method="higher")
    return Latency(
        length=length, steps=len(taken), p50_s=float(p50), p99_s=float(p99), p999_s=float(p999)
    )


@torch.inference_mode()
def cached_steps(model: Any, text: torch.Tensor, length: int, count: int) -> list[float]:
    """Seconds of `count` single-token steps after a prefill of `length` tokens, the first left out.

    The sequence does not grow beyond `count` more tokens; one warm-up step comes before.
    """
    cache, taken = fresh_cache(model), []
    argument = {cache_argument(model): cache}
    room = model.config.get_text_config()
    room = getattr(room, "max_position_embeddings", None) or length + count + 1
    count = max(1, min(count, room - length - 1))
    model(input_ids=text[:, :length], use_cache=True, **argument)
    for _ in range(count + 1):
        began = time.perf_counter()
        model(input_ids=text[:, length : length + 1], use_cache=True, **argument)
        synchronize(model)
        taken.append(time.perf_counter() - began)
    return taken[1:]


@torch.inference_mode()
def uncached_steps(model: Any, tokens: torch.Tensor) -> list[float]:
    """Seconds of the whole sequence in one pass without a cache, three times."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        model(input_ids=tokens, use_cache=False)
        synchronize(model)
        taken.append(time.perf_counter() - began)
    return taken


def synchronize(model: Any) -> None:
    """Wait until a device has done what it was given."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
