"""From errors to a cause: which step, layer, head and block came first, and what looks like that.

The order of events is the order of computation: steps, and in a step layer by layer, first what a
layer computed, then what its cache held, last the logits. What is over its bound first is where
the difference entered; its pattern names the likely cause:

* the cache hands back other keys or values than went in: foreign KV (an error about sqrt(2) says
  that the two have nothing in common), or, with exactly 1, cleared ones;
* the keys of layer 0 differ and its values do not: position ids;
* a later layer is the first that computes something else: the attention of the layer before it;
* small errors everywhere: another number type, or rounding that grows with depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Cause = Literal[
    "foreign KV", "cleared KV", "position ids", "mask", "wrong token", "dtype", "numerics"
]
CONTAMINATION = ("foreign KV", "cleared KV", "position ids", "mask", "wrong token")
KEYS, VALUES = 0, 1
FAINT_RATIO = 20
"""Beyond this multiple of the bound nobody should call it rounding."""
ROUNDED = 0.12
"""No cache that rounds to eight bits or more errs by more; int4 does by 0.1."""
SPREAD = 0.8
"""Rounding touches at least this share of what is held."""
CLEARED = 1e-3
LARGE_SHARE = 0.1
"""Zeros err by exactly 1, except where the reference is small: there by less (see `passes`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a watched computation left behind. Errors [layers, K or V, heads, tokens], NaN: unseen.

    `*_step`: when it was computed, or first held beyond the bound (-1: never). `newest` [steps] is
    the last position of each step. `bounds` [layers]; `logits_over` [tokens]: beyond their bounds.
    """

    computed: Floats
    computed_step: Ints
    held: Floats
    held_step: Ints
    logits_over: Bools
    logits_step: Ints
    newest: tuple[int, ...]
    bounds: Floats
    block: int
    learned_positions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The first difference. `layer` is where it entered; heads are those of keys and values.

    `heads` and `blocks` are empty when the pattern does not tell; `position` is the first one
    concerned, `newest` the token computed in that step; `error` is relative.
    """

    cause: Cause
    step: int
    newest: int
    layer: int
    heads: tuple[int, ...]
    blocks: tuple[int, ...]
    position: int
    error: float
    sentence: str

    @property
    def contamination(self) -> bool:
        """Whether it could be somebody else's state, rather than arithmetic."""
        return self.cause in CONTAMINATION


def diagnose(record: Record) -> Diagnosis | None:
    """The first difference beyond the bounds, or None."""
    bounds = record.bounds[:, None, None, None]
    computed = np.nan_to_num(record.computed, nan=-1) > bounds
    held = record.held_step >= 0
    events = [
        *stage_events(np.where(computed, record.computed_step, -1), 0),
        *stage_events(np.where(held, record.held_step, -1), 1),
    ]
    if record.logits_over.any():
        last = len(record.bounds)
        events.append((int(record.logits_step[record.logits_over].min()), last, 0))
    if not events:
        return None
    step, layer, stage = min(events)
    if layer == len(record.bounds):
        return from_logits(record, step)
    if stage:
        return from_held(record, step, layer)
    return from_computed(record, computed, step, layer)


def stage_events(steps: Ints, stage: int) -> list[tuple[int, int, int]]:
    """(first step, layer, stage) of every layer that has one."""
    firsts = ((layer, its[its >= 0]) for layer, its in enumerate(steps))
    return [(int(its.min()), layer, stage) for layer, its in firsts if its.size]


def from_held(record: Record, step: int, layer: int) -> Diagnosis:
    """The cache of a layer handed back something else than was computed."""
    over = record.held_step[layer] == step
    errors = record.held[layer][over]
    positions = np.flatnonzero(over.any(axis=(0, 1)))
    heads = np.flatnonzero(over.any(axis=(0, 2)))
    blocks = np.unique(positions // record.block)
    error = float(np.median(errors))
    seen = np.isfinite(record.held[layer])
    so_far = record.held[layer, :, :, : record.newest[step] + 1]
    if float(errors.max()) < ROUNDED and spread(over, so_far) > SPREAD:
        cause: Cause = "dtype"
        sentence = (
            f"every layer's cache hands back rounded numbers (relative error {error:.1g}): it keeps"
            " a smaller type than the model computes in"
        )
    elif errors.max() < 1 + CLEARED and np.mean(errors > 1 - CLEARED) > LARGE_SHARE:
        cause = "cleared KV"
        sentence = "the cache hands back zeros where keys and values had been written"
    else:
        cause = "foreign KV"
        aligned = over.any(axis=(0, 1))[block_positions(blocks, record.block, seen)].all()
        where = "whole blocks" if aligned else "parts of blocks"
        rest = "the layers before it and all other positions are within their bounds"
        sentence = f"{where} hold other keys or values than were written; {rest}; {likeness(error)}"
    return Diagnosis(
        cause=cause, step=step, newest=record.newest[step], layer=layer,
        heads=tuple(heads.tolist()), blocks=tuple(blocks.tolist()), position=int(positions[0]),
        error=error, sentence=sentence,
    )  # fmt: skip


def spread(over: Bools, errors: Floats) -> float:
    """The share of what was seen that is over its bound."""
    return float(over.sum() / max(1, np.isfinite(errors).sum()))


def block_positions(blocks: Ints, block: int, seen: Bools) -> Ints:
    """The positions of these blocks that the layer has ever held."""
    held = np.flatnonzero(seen.any(axis=(0, 1)))
    return np.asarray(held[np.isin(held // block, blocks)], dtype=np.int64)


def likeness(error: float) -> str:
    """What the size of an error says about two vectors."""
    if not np.isfinite(error):
        return "they are not numbers (NaN)"
    if 1.2 <= error <= 1.7:  # noqa: PLR2004 # around sqrt(2), equal lengths and no common direction
        return f"the error of {error:.2f} is about sqrt(2), as of vectors with nothing in common"
    return f"the error is {error:.2g}"


def from_computed(record: Record, computed: Bools, step: int, layer: int) -> Diagnosis:
    """A layer computed something else although its cache was right until then."""
    now = computed & (record.computed_step == step)
    over = now[layer]
    positions = np.flatnonzero(over.any(axis=(0, 1)))
    worst = float(np.nanmax(np.where(over, record.computed[layer], np.nan)))
    cause, sentence = (
        first_layer(record, computed, over, worst)
        if layer == 0
        else later_layer(record, computed, layer, worst)
    )
    entered = layer - 1 if cause == "mask" else layer
    everywhere = cause in ("position ids", "wrong token", "dtype", "numerics")
    heads = np.flatnonzero(over.any(axis=(0, 2))).tolist() if everywhere else []
    blocks = np.unique(positions // record.block).tolist() if everywhere else []
    return Diagnosis(
        cause=cause, step=step, newest=record.newest[step], layer=entered,
        heads=tuple(heads), blocks=tuple(blocks), position=int(positions[0]), error=worst,
        sentence=sentence,
    )  # fmt: skip


def first_layer(record: Record, computed: Bools, over: Bools, worst: float) -> tuple[Cause, str]:
    """Layer 0 sees only the token and its position."""
    if worst < ROUNDED and spread(computed, record.computed) > SPREAD:
        return "dtype", (
            f"all keys and values differ from layer 0 on by about {worst:.1g}: this computation"
            " runs in another number type"
        )
    if over[KEYS].any() and not computed[0, VALUES].any():
        return "position ids", (
            "the keys of layer 0, which carry the position, differ and its values, which do not,"
            " are the same"
        )
    wrong = computed[0].any(axis=(0, 1))
    first = int(np.flatnonzero(wrong)[0])
    seen = np.isfinite(record.computed[0]).any(axis=(0, 1))
    onward = wrong[first:][seen[first:]].all() and wrong.sum() > 1
    if record.learned_positions and onward:
        return "position ids", (
            "keys and values of layer 0 differ at every position from here on, in a model that"
            " adds a learned position to each token"
        )
    return "wrong token", (
        "keys and values of layer 0, before any attention, differ: another token was computed here"
    )


def later_layer(record: Record, computed: Bools, layer: int, worst: float) -> tuple[Cause, str]:
    """A layer above the first differs first: what reached it came through attention."""
    if worst < FAINT_RATIO * float(record.bounds[layer]) and not jumps(record, computed):
        return "numerics", (
            "small errors that grow with depth and favour no position: rounding, a little more than"
            " the equivalent computations showed"
        )
    return "mask", (
        f"layer {layer - 1} computed and held the right keys and values, and what it passed on is"
        " wrong: its attention saw too few or too many of them"
    )


def jumps(record: Record, computed: Bools) -> bool:
    """Whether some layer is far over its bound at one place: rounding is nowhere far."""
    bounds = record.bounds[:, None, None, None]
    ratios = np.where(computed, record.computed / bounds, 0)
    return bool(ratios.max() >= FAINT_RATIO)


def from_logits(record: Record, step: int) -> Diagnosis:
    """Every layer's keys and values are right, the logits are not: the last layer's attention."""
    over = record.logits_over & (record.logits_step == step)
    return Diagnosis(
        cause="mask", step=step, newest=record.newest[step], layer=len(record.bounds) - 1,
        heads=(), blocks=(), position=int(np.flatnonzero(over)[0]), error=float("nan"),
        sentence=(
            "all keys and values are right and the logits are not: the attention of the last layer"
            " saw too few or too many of them"
        ),
    )  # fmt: skip
