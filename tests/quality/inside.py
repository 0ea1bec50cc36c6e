"""Claim 12: `leakcheck inspect leak` names the layer and the block where a fault was put in.

Every trial is one fault, in one layer or everywhere, in one model with traffic by one seed, against
what the same requests computed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import torch
from numpy.random import Generator

from leakcheck.engine import faults
from leakcheck.engine.engine import Engine
from leakcheck.engine.faults.attention import bleed_layer, position_restart
from leakcheck.engine.inspection import contamination
from leakcheck.engine.inspection.contamination import Examination, Rehearsal, signature
from leakcheck.engine.inspection.rehearsal import Loaded
from leakcheck.engine.inspection.specimens import obtain
from leakcheck.engine.models import layer_shapes
from leakcheck.engine.server import Api
from quality.values import Effort, Result, share

torch.set_num_threads(1)
Install = Callable[[Engine], None]


def foreign_float32(_rng: Generator, effort: Effort) -> Result:
    """Foreign keys and values in one layer."""
    return _foreign(effort, "12a", "float32")


def foreign_bfloat16(_rng: Generator, effort: Effort) -> Result:
    """The same, beside the rounding of bfloat16."""
    return _foreign(effort, "12b", "bfloat16")


def positions_float32(_rng: Generator, effort: Effort) -> Result:
    """Wrong position ids behind a cached prefix."""
    return _named(effort, "12c", "float32", "positions", _restart)


def positions_bfloat16(_rng: Generator, effort: Effort) -> Result:
    """The same in bfloat16."""
    return _named(effort, "12d", "bfloat16", "positions", _restart)


def mask_float32(_rng: Generator, effort: Effort) -> Result:
    """Keys that a mask hides."""
    return _named(effort, "12e", "float32", "mask", _hide)


def mask_bfloat16(_rng: Generator, effort: Effort) -> Result:
    """The same in bfloat16."""
    return _named(effort, "12f", "bfloat16", "mask", _hide)


def healthy(_rng: Generator, effort: Effort) -> Result:
    """Nothing put in, nothing found."""
    accused, trials = 0, 0
    for model, kind, seed in _specimens(effort, "float32", "bfloat16"):
        seen = contamination.examine(_rehearsed(model, kind, seed), lambda _: None)
        accused += signature(seen).contaminated or bool(seen.contacts)
        trials += 1
    return share("12g", "no fault, either type: something is named", accused, trials, at_most=0.0)


def _foreign(effort: Effort, number: str, dtype: str) -> Result:
    right, trials = 0, 0
    for model, kind, seed in _specimens(effort, dtype):
        its = _rehearsed(model, kind, seed)
        layers = range(len(its.loaded.shapes)) if effort.long else (1,)
        for layer in layers:
            seen = contamination.examine(its, _bleed(its, layer, seed))
            # a neighbour's table is read place by place: its block n for the own block n
            blocks = all(
                its.source is not None and its.source.ordinal == its.ordinal for its in seen.proofs
            )
            right += seen.first_layer == layer and blocks and bool(seen.proofs)
            trials += 1
    claim = f"foreign keys and values, {dtype}: the right layer, and every block the right one"
    return share(number, claim, right, trials, at_least=1.0)


def _named(
    effort: Effort, number: str, dtype: str, pattern: str, fault: Callable[[Rehearsal], Install]
) -> Result:
    right, trials, enters = 0, 0, {"positions": 0, "mask": 1}[pattern]
    for model, kind, seed in _specimens(effort, dtype):
        its = _rehearsed(model, kind, seed)
        seen = contamination.examine(its, fault(its))
        right += signature(seen).name == pattern and _enters(seen) == enters
        trials += 1
    what = {"positions": "wrong position ids", "mask": "keys hidden by a mask"}[pattern]
    claim = f"{what}, {dtype}: named, and keys differ from layer {enters} on"
    return share(number, claim, right, trials, at_least=1.0)


def _enters(seen: Examination) -> int | None:
    """The first layer whose keys differ beyond the noise."""
    return next((its.layer for its in seen.drifts if its.keys_over), None)


def _specimens(effort: Effort, *dtypes: str) -> list[tuple[str, str, int]]:
    models = ("tiny-llama", "witness") if effort.long else ("tiny-llama",)
    seeds = range(effort.pick(1, 5))
    return [(model, dtype, seed) for model in models for dtype in dtypes for seed in seeds]


@cache
def _loaded(model: str, dtype: str) -> Loaded:
    made, tokenizer = obtain(model, dtype)
    return Loaded(model=made, tokenizer=tokenizer, shapes=layer_shapes(made))


@cache
def _rehearsed(model: str, dtype: str, seed: int) -> Rehearsal:
    return contamination.rehearse(_loaded(model, dtype), seed=seed)


def _bleed(_its: Rehearsal, layer: int, seed: int) -> Install:
    def install(engine: Engine) -> None:
        bleed_layer(faults.Seams(engine=engine, delivery=None), layer, 1.0, Random(seed))

    return install


def _restart(its: Rehearsal) -> Install:
    def install(engine: Engine) -> None:
        api = Api(engine, its.loaded.tokenizer, model="specimen")
        seams = faults.Seams(engine=engine, delivery=api.delivery, api=api)
        position_restart(seams, 1.0, Random(0))

    return install


def _hide(_its: Rehearsal) -> Install:
    def install(engine: Engine) -> None:
        own = engine.batcher.mask

        def mask(rows: Any, positions: Any, keys: int) -> Any:
            visible = own(rows, positions, keys)
            visible[..., 1:4] = False
            return visible

        faults.patch(engine.batcher, "mask", lambda _own: mask)

    return install
