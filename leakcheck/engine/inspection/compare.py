"""Run every way at every length, short ones first, and look closer at the first difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from leakcheck.engine.inspection.attention import (
    Shift,
    Weights,
    shift,
    weight_bounds,
    weights_of,
    whole_weights,
)
from leakcheck.engine.inspection.bounds import Bounds, calibrate, eager_attention
from leakcheck.engine.inspection.diagnosis import Diagnosis, Record, diagnose
from leakcheck.engine.inspection.passes import Pass, Watch, run_whole
from leakcheck.engine.inspection.ways import Job, Way
from leakcheck.engine.values import EngineError

SHORTEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference at its shortest length. `shift`: of attention, seen in float32 and eagerly.

    `only_rounding`: the same computation in float32 shows none.
    """

    tokens: int
    diagnosis: Diagnosis
    shift: Shift | None
    only_rounding: bool

    @property
    def contamination(self) -> bool:
        """Whether it could be somebody else's state."""
        return self.diagnosis.contamination and not self.only_rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One way over all lengths it ran at; errors are the largest ones.

    `error` is relative, `of_bound` the largest share of a bound that any error used, `gap`
    (log-odds of the two most likely tokens) and `divergence` (KL) are in nats.
    """

    way: str
    longest: int = 0
    error: float = 0.0
    of_bound: float = 0.0
    gap: float = 0.0
    divergence: float = 0.0
    refusal: str | None = None
    finding: Finding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all comparisons of one call share: each length runs that many tokens of `text`."""

    model: Any
    tokenizer: Any
    text: tuple[int, ...]
    lengths: tuple[int, ...]
    block: int
    seed: int

    def job(self, length: int) -> Job:
        """The first `length` tokens, half of them as the prompt."""
        return Job(
            model=self.model,
            tokenizer=self.tokenizer,
            tokens=self.text[:length],
            prompt=length // 2,
            block=self.block,
            seed=self.seed,
        )


def lengths_up_to(longest: int) -> tuple[int, ...]:
    """8, 16, 32, ... and the longest itself."""
    lengths = []
    length = SHORTEST
    while length < longest:
        lengths.append(length)
        length *= 2
    return (*lengths, longest)


def compare_all(
    setting: Setting, chosen: list[Way], progress: Callable[[], None]
) -> tuple[list[Outcome], Bounds]:
    """Outcomes of these ways and the bounds at the longest length; `progress` after each run.

    A way that differs, or is refused, does not run at greater lengths.
    """
    outcomes = {way.name: Outcome(way=way.name) for way in chosen}
    for length in setting.lengths:
        job = setting.job(length)
        reference = run_whole(setting.model, job.tokens)
        bounds = calibrate(setting.model, reference, seed=setting.seed)
        for way in chosen:
            so_far = outcomes[way.name]
            if so_far.refusal is None and so_far.finding is None:
                outcomes[way.name] = extend(so_far, way, job, reference, bounds)
            progress()
    return list(outcomes.values()), bounds


def extend(so_far: Outcome, way: Way, job: Job, reference: Pass, bounds: Bounds) -> Outcome:
    """The outcome with one more length."""
    try:
        watch, record = watch_way(way, job, reference, bounds)
    except EngineError as error:
        return replace(so_far, refusal=str(error))
    except Exception as error:  # noqa: BLE001 # the model's own code met a cache not made for it
        first = (str(error).strip().splitlines() or [""])[0]
        return replace(so_far, refusal=f"it cannot run: {type(error).__name__}: {first}")
    errors = np.stack([watch.computed, watch.held])
    shares = np.nanmax(errors, axis=(0, 2, 3, 4)) / bounds.layers
    gap, divergence = float(np.nanmax(watch.gaps)), float(np.nanmax(watch.divergence))
    found = diagnose(record)
    return replace(
        so_far,
        longest=len(job.tokens),
        error=max(so_far.error, float(np.nanmax(errors))),
        of_bound=max(
            so_far.of_bound,
            float(shares.max()),
            gap / bounds.gap,
            divergence / bounds.divergence,
        ),
        gap=max(so_far.gap, gap),
        divergence=max(so_far.divergence, divergence),
        finding=look_closer(way, job, found) if found else None,
    )


def watch_way(way: Way, job: Job, reference: Pass, bounds: Bounds) -> tuple[Watch, Record]:
    """Run it and say what was seen."""
    watch = Watch(reference, bounds.layers)
    way.run(job, watch)
    over = np.nan_to_num(watch.gaps, nan=0) > bounds.gap
    over |= np.nan_to_num(watch.divergence, nan=0) > bounds.divergence
    return watch, Record(
        computed=watch.computed,
        computed_step=watch.computed_step,
        held=watch.held,
        held_step=watch.held_step,
        logits_over=over,
        logits_step=watch.logits_step,
        newest=tuple(watch.newest),
        bounds=bounds.layers,
        block=job.block,
        learned_positions=learned_positions(job.model),
    )


def look_closer(way: Way, job: Job, found: Diagnosis) -> Finding:
    """The same in float32, where rounding is a thousand times smaller, then with eager attention.

    What is found in float32 stands in the place of what half precision showed.
    """
    with in_float32(job.model) as was_half:
        if was_half:
            again = examine(way, job)
            if again is None:
                return Finding(
                    tokens=len(job.tokens), diagnosis=found, shift=None, only_rounding=True
                )
            found = again
        with eager_attention(job.model):
            moved = attention_shift(way, job, found)
    return Finding(
        tokens=len(job.tokens),
        diagnosis=with_heads(found, moved, job.block),
        shift=moved,
        only_rounding=False,
    )


def examine(way: Way, job: Job) -> Diagnosis | None:
    """One way at one length, from the reference on."""
    reference = run_whole(job.model, job.tokens)
    bounds = calibrate(job.model, reference, seed=job.seed)
    return diagnose(watch_way(way, job, reference, bounds)[1])


def attention_shift(way: Way, job: Job, found: Diagnosis) -> Shift | None:
    """How attention moved in the layer where the difference entered."""
    reference = whole_weights(job.model, job.tokens)
    if any(layer is None for layer in reference.layers):
        return None  # this model's attention modules hand out no weights
    bounds = weight_bounds(job.model, reference, job.tokens, job.seed)
    watch = Watch(run_whole(job.model, job.tokens))
    seen = Weights(len(reference.layers), len(job.tokens))
    with weights_of(job.model, seen, watch):
        way.run(job, watch)
    since = min(found.newest if found.step else found.position, len(job.tokens) - 1)
    return shift(reference, seen, bounds, layer=found.layer, since=since, block=job.block)


def with_heads(found: Diagnosis, moved: Shift | None, block: int) -> Diagnosis:
    """A mask's heads and blocks show in the attention weights only."""
    if moved is None or found.cause != "mask":
        return found
    blocks = sorted({position // block for position in moved.hidden})
    return replace(found, heads=moved.heads, blocks=tuple(blocks))


def learned_positions(model: Any) -> bool:
    """Whether the model adds an embedding of each position to its token."""
    return any(
        isinstance(module, torch.nn.Embedding) and ("wpe" in name or "position" in name)
        for name, module in model.named_modules()
    )


@contextmanager
def in_float32(model: Any) -> Iterator[bool]:
    """The model in float32, and whether it was not; its own type again afterwards."""
    before = model.dtype
    if before == torch.float32:
        yield False
        return
    model.to(torch.float32)
    try:
        yield True
    finally:
        model.to(before)
