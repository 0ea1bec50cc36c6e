"""A mixed run under a fault against the same requests alone: where a difference entered.

The runs: every request alone (what its keys and values are), all together on a healthy engine (how
far they wander by themselves: the noise), all together under the fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from leakcheck.engine.engine import Engine
from leakcheck.engine.inspection import rehearsal
from leakcheck.engine.inspection.library import (
    Library,
    Sketcher,
    empty_library,
    sketcher,
)
from leakcheck.engine.inspection.rehearsal import Asked, Loaded, Played
from leakcheck.engine.inspection.watch import Contact, Watch
from leakcheck.engine.snapshot import snapshot
from leakcheck.engine.values import EngineError, EngineOptions

BOUND = 5.0
"""A bound is this multiple of the largest honest deviation but one in a thousand."""
QUANTILE = 0.999
BLOCKS = 14
"""Too few for the traffic, so that blocks are evicted and requests preempted."""
SPARE_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a fault's run is compared with. `bounds` [layers]: relative error of honest noise."""

    loaded: Loaded
    options: EngineOptions
    plan: list[Asked]
    solo: Library
    tokens: dict[str, list[int]]
    sketcher: Sketcher
    bounds: torch.Tensor
    healthy: Played


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far what a layer wrote, or read of its own, is from what it was alone.

    `keys`, `values`, `read`: the largest relative error; `*_over`: positions beyond the bound.
    """

    layer: int
    keys: float
    values: float
    keys_over: int
    values_over: int
    positions: int
    read: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What a run under a fault showed.

    `contacts`: reads of what a request had not computed. `inherited`: such reads of a prefix that
    it shares as it should, with a request that had been contaminated when it computed it.
    `crossings`: (reader, writer) across salts, with the blocks. `leaked_blocks` have references in
    the end that no live request explains.
    """

    played: Played
    names: tuple[str, ...]
    contacts: tuple[Contact, ...]
    inherited: tuple[Contact, ...]
    drifts: tuple[Drift, ...]
    extra_keys: int
    missing_keys: int
    crossings: dict[tuple[int, int], set[int]]
    leaked_blocks: int

    @property
    def proofs(self) -> tuple[Contact, ...]:
        """Blocks that are another request's, by their fingerprint."""
        return tuple(
            its
            for its in self.contacts
            if its.source is not None and its.source.request != its.request
        )

    @property
    def first_layer(self) -> int | None:
        """The first layer with a proof, or else with a block that is not its reader's."""
        return min((its.layer for its in self.proofs or self.contacts), default=None)


def rehearse(loaded: Loaded, *, seed: int) -> Rehearsal:
    """The runs without a fault, of traffic and projections by this seed.

    EngineError when these alone already show a contamination, or break.
    """
    options = EngineOptions(num_blocks=BLOCKS, seed=seed)
    lone = loaded.engine(replace(options, prefix_cache=False))
    plan = rehearsal.traffic(lone.vocabulary, seed)
    salts = {its.request.id: its.request.salt for its in plan}
    longest = max(len(its.request.prompt) + its.request.params.max_tokens for its in plan)
    stores = list(zip(lone.store.keys, lone.store.values, strict=True))
    blank = empty_library(tuple(salts), longest + SPARE_TOKENS, options.block_size, stores)
    alone = Watch(lone, blank, None, salts)
    tokens = rehearsal.alone(lone, plan).tokens
    sketches = sketcher(alone.library, seed)
    engine = loaded.engine(options)
    watch = Watch(engine, alone.library.copy(), sketches, salts)
    healthy = rehearsal.together(engine, plan, tokens)
    if healthy.broke or healthy.unfinished or watch.contacts:
        raise EngineError(
            "this model cannot be examined: without any fault its requests"
            f" {failing(healthy, watch)} when they run together"
        )
    return Rehearsal(
        loaded=loaded,
        options=options,
        plan=plan,
        solo=alone.library,
        tokens=tokens,
        sketcher=sketches,
        bounds=noise_bounds(watch, loaded.model.dtype),
        healthy=healthy,
    )


def failing(healthy: Played, watch: Watch) -> str:
    """What went wrong where nothing should have."""
    if healthy.broke:
        return f"end in {healthy.broke}"
    if watch.contacts:
        return f"read {len(watch.contacts)} blocks that they did not compute"
    return f"do not end ({', '.join(healthy.unfinished)})"


def noise_bounds(watch: Watch, dtype: torch.dtype) -> torch.Tensor:
    """[layers]: beyond this a relative error is not the noise of batching."""
    bounds = []
    for layer, written in enumerate(watch.written):
        seen = written[written >= 0]
        usual = float(torch.quantile(seen, QUANTILE)) if len(seen) else 0.0
        bounds.append(BOUND * max(usual, float(watch.read[layer]), torch.finfo(dtype).eps))
    return torch.tensor(bounds)


def examine(
    rehearsed: Rehearsal,
    install: Callable[[Engine], None],
    *,
    share_partial: bool = False,
) -> Examination:
    """The same requests together once more, on an engine that `install` does something to."""
    engine = rehearsed.loaded.engine(replace(rehearsed.options, share_partial=share_partial))
    install(engine)
    salts = {its.request.id: its.request.salt for its in rehearsed.plan}
    watch = Watch(engine, rehearsed.solo.copy(), rehearsed.sketcher, salts)
    played = rehearsal.together(engine, rehearsed.plan, rehearsed.tokens)
    contacts = sorted(watch.contacts.values(), key=lambda its: (its.step, its.layer, its.head))
    inherited = [its for its in contacts if same_prefix(rehearsed, its)]
    pool = snapshot(engine, model="", latencies={})
    return Examination(
        played=played,
        names=rehearsed.solo.names,
        contacts=tuple(its for its in contacts if its not in inherited),
        inherited=tuple(inherited),
        drifts=tuple(drift(watch, layer, float(b)) for layer, b in enumerate(rehearsed.bounds)),
        extra_keys=watch.extra_keys,
        missing_keys=watch.missing_keys,
        crossings=watch.crossings,
        leaked_blocks=len(pool.leaked) + len(pool.lost),
    )


def same_prefix(rehearsed: Rehearsal, contact: Contact) -> bool:
    """Whether the prefix cache does right to share this block, whatever its content has become."""
    source = contact.source
    if source is None or contact.where != "blocks" or source.ordinal != contact.ordinal:
        return False
    end = (contact.ordinal + 1) * rehearsed.options.block_size
    names = rehearsed.solo.names
    mine, other = (rehearsed.tokens[names[one]][:end] for one in (contact.request, source.request))
    return mine == other and contact.request != source.request


def drift(watch: Watch, layer: int, bound: float) -> Drift:
    """One layer's deviation from the run alone."""
    keys, values = watch.written[layer]
    return Drift(
        layer=layer,
        keys=float(keys.max()),
        values=float(values.max()),
        keys_over=int((keys > bound).sum()),
        values_over=int((values > bound).sum()),
        positions=int((keys >= 0).sum()),
        read=float(watch.read[layer]),
        bound=bound,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The pattern a run shows, by its name, and what is behind the name in one sentence."""

    name: str
    contaminated: bool
    sentence: str


WHERE = {
    "gather": "what attention was given is not what the batch's block table points at",
    "rows": "the batch's block table is not the one of its sequence",
    "blocks": "the request's own block table points at blocks that hold it",
}


def signature(seen: Examination) -> Signature:
    """The first of the patterns of a difference that this run shows."""
    for rule in (
        foreign,
        unknown,
        positional,  # before the mask: a mask alone leaves the keys of layer 0 as they are
        masked,
        tokens,
        crossed,
        later,
        numeric,
        starved,
        sampled,
    ):
        found = rule(seen)
        if found is not None:
            return found
    return Signature(
        name="none",
        contaminated=False,
        sentence="keys, values, masks and picks are what they are without the fault",
    )


def foreign(seen: Examination) -> Signature | None:
    """Blocks with another request's fingerprint."""
    if not seen.proofs:
        return None
    layers = sorted({its.layer for its in seen.proofs})
    ways = Counter(its.where for its in seen.proofs)
    beyond = all(its.beyond for its in seen.proofs)
    only = len(layers) == 1 and len(seen.drifts) > 1
    span = "in this layer alone" if only else f"in {len(layers)} of {len(seen.drifts)} layers"
    how = "the mask shows positions the request does not have" if beyond else WHERE[
        ways.most_common(1)[0][0]
    ]  # fmt: skip
    return Signature(
        name="foreign KV",
        contaminated=True,
        sentence=f"another request's keys and values are read, {span}: {how}",
    )


def unknown(seen: Examination) -> Signature | None:
    """Blocks that are not their reader's and nobody's whole."""
    if not seen.contacts:
        return None
    if all(its.cleared for its in seen.contacts):
        what = "they were cleared, or never written"
    elif all(its.source for its in seen.contacts):
        what = "they are other blocks of its own"
    else:
        what = "they are nobody's whole block: partly overwritten, or left over"
    ways = Counter(its.where for its in seen.contacts).most_common(1)[0][0]
    return Signature(
        name="strange KV",
        contaminated=True,
        sentence=f"a request reads keys and values that it did not compute; {what}; {WHERE[ways]}",
    )


def masked(seen: Examination) -> Signature | None:
    """A mask that is not causal over the request's own positions."""
    if not seen.extra_keys and not seen.missing_keys:
        return None
    return Signature(
        name="mask",
        contaminated=True,
        sentence=(
            f"queries were shown {seen.extra_keys} keys beyond their own position and denied"
            f" {seen.missing_keys} of their own"
        ),
    )


def positional(seen: Examination) -> Signature | None:
    """Keys of the first layer differ where its values do not."""
    first = seen.drifts[0]
    if not first.keys_over or first.values_over:
        return None
    return Signature(
        name="positions",
        contaminated=False,
        sentence=(
            f"{first.keys_over} of {first.positions} keys of layer 0 differ and no value does: the"
            " model was told other position ids; the content is the request's own"
        ),
    )


def tokens(seen: Examination) -> Signature | None:
    """Keys and values of the first layer differ: something else went in."""
    first = seen.drifts[0]
    if not first.values_over:
        return None
    return Signature(
        name="input",
        contaminated=True,
        sentence=(
            f"{first.values_over} of {first.positions} values of layer 0 differ already: the model"
            " was given other tokens (or, with learned positions, other position ids)"
        ),
    )


def crossed(seen: Examination) -> Signature | None:
    """Blocks shared across salts: the same content, so no fingerprint tells."""
    if not seen.crossings:
        return None
    reader, writer = next(iter(seen.crossings))
    return Signature(
        name="salt",
        contaminated=True,
        sentence=(
            f"{seen.names[reader]} reads blocks that {seen.names[writer]} wrote under another"
            " cache_salt: the same tokens, so the same keys and values, but not for it to find"
        ),
    )


STRANGE = 0.3


def later(seen: Examination) -> Signature | None:
    """A later layer computes something quite different, from inputs that are clean."""
    over = [its for its in seen.drifts[1:] if its.keys_over or its.values_over]
    if not over or max(max(its.keys, its.values) for its in over) < STRANGE:
        return None
    first = over[0].layer
    return Signature(
        name="attention",
        contaminated=True,
        sentence=(
            f"what layer {first - 1} was given is clean and what layer {first} computes is not: the"
            f" difference entered inside layer {first - 1}, after its cache was read"
        ),
    )


def numeric(seen: Examination) -> Signature | None:
    """Small errors beyond the noise, without a stranger's content."""
    over = [its for its in seen.drifts if its.keys_over or its.values_over or its.read > its.bound]
    if not over:
        return None
    worst = max(max(its.keys, its.values, its.read) for its in over)
    return Signature(
        name="numerics",
        contaminated=False,
        sentence=(
            f"keys and values differ by at most {worst:.2g} (relative), beyond the noise of"
            " batching, and are nobody else's: rounding, not contamination"
        ),
    )


def starved(seen: Examination) -> Signature | None:
    """Requests that never end, blocks that never come back."""
    if not seen.leaked_blocks and not seen.played.unfinished:
        return None
    return Signature(
        name="capacity",
        contaminated=False,
        sentence=(
            f"keys and values are clean; {seen.leaked_blocks} blocks never came back and"
            f" {len(seen.played.unfinished)} of {len(seen.names)} requests never ended"
        ),
    )


def sampled(seen: Examination) -> Signature | None:
    """Clean keys and values, and other picks."""
    if not seen.played.other_picks:
        return None
    return Signature(
        name="picks",
        contaminated=False,
        sentence=(
            f"keys and values are clean; {seen.played.other_picks} of {seen.played.picks} tokens"
            " were picked otherwise than alone: look behind the model, at logits and sampler"
        ),
    )
