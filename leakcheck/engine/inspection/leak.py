"""`inspect leak`: the first contaminated layer and block under a fault, and whose content it is."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from leakcheck.engine import faults
from leakcheck.engine.faults.fault import Fault, Seams
from leakcheck.engine.inspection.terminal import width
from leakcheck.engine.values import EngineError

if TYPE_CHECKING:
    from leakcheck.engine.engine import Engine
    from leakcheck.engine.inspection.contamination import Examination, Rehearsal, Signature
    from leakcheck.engine.inspection.watch import Contact

DTYPES = ("float32", "bfloat16")
BLEED = "one-layer-bleed"
ROWS_MAX = 12
"""Blocks on the screen; what is left out is counted."""
CONTAMINATED = 1
OUTSIDE = {
    "output": "on the way out: the engine computes what it should, and an answer, or a piece of it,"
    " goes to the wrong client",
    "stores": "in a store in front of the engine, which never hears of a request that is answered"
    " from it",
}
"""Layers of faults that touch nothing an engine computes; as the end of a sentence."""
BEHIND = {
    "sampler": "The fault lives in the sampler: it picks tokens from logits that are right, and"
    " leaves keys and values alone.",
    "benign": "The fault is benign: whatever shows here is not to be called a leak.",
}
"""What else is worth saying of a layer when nothing contaminated was found."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Which fault, of which model."""
    parser.add_argument("--fault", required=True, metavar="NAME", help="see leakcheck list faults")
    parser.add_argument("--layer", type=int, metavar="L", help=f"of {BLEED}; else by the seed")
    parser.add_argument("--fault-rate", type=float, default=1.0, help="how often, 0 to 1")
    parser.add_argument(
        "--model", default="witness", help="witness, tiny-llama, a folder, a hub id"
    )
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    parser.add_argument("--seed", type=int, default=0, help="of traffic, fault and projections")


def main(arguments: argparse.Namespace) -> int:
    """Run, compare, print: 1 when a contamination was found, 0 when not."""
    fault = checked(arguments)
    if fault.layer in OUTSIDE:
        told = (
            f"{fault.name} lives {OUTSIDE[fault.layer]}. Keys and values stay clean: there is"
            f" nothing to see inside the model; leakcheck run --fault {fault.name} sees answers."
        )
        sys.stdout.write("\n".join(textwrap.wrap(told, width())) + "\n")
        return 0
    rehearsed, seen = run(arguments, fault)
    from leakcheck.engine.inspection.contamination import signature  # noqa: PLC0415 # as in `run`

    found = signature(seen)
    for line in screen(arguments, fault, rehearsed, seen, found):
        sys.stdout.write(line + "\n")
    return CONTAMINATED if found.contaminated else 0


def checked(arguments: argparse.Namespace) -> Fault:
    """The fault; EngineError when the flags do not fit."""
    try:
        fault = faults.find(arguments.fault)
    except LookupError as error:
        raise EngineError(str(error)) from error
    if arguments.layer is not None and fault.name != BLEED:
        raise EngineError(f"--layer goes with --fault {BLEED}; {fault.name} has no layer to choose")
    if not 0 <= arguments.fault_rate <= 1:
        raise EngineError(f"--fault-rate is a share from 0 to 1, not {arguments.fault_rate}")
    return fault


def run(arguments: argparse.Namespace, fault: Fault) -> tuple[Rehearsal, Examination]:
    """Every request alone, all together, all together under it. Heavy imports happen here."""
    from leakcheck.engine.inspection import contamination  # noqa: PLC0415 # a wrong flag is quick
    from leakcheck.engine.inspection.rehearsal import Loaded  # noqa: PLC0415 # as above
    from leakcheck.engine.inspection.specimens import obtain  # noqa: PLC0415 # as above
    from leakcheck.engine.models import layer_shapes  # noqa: PLC0415 # as above

    model, tokenizer = obtain(arguments.model, arguments.dtype)
    loaded = Loaded(model=model, tokenizer=tokenizer, shapes=layer_shapes(model))
    layers = len(loaded.shapes)
    if arguments.layer is not None and not 0 <= arguments.layer < layers:
        raise EngineError(f"--layer goes from 0 to {layers - 1} here, not {arguments.layer}")
    rehearsed = contamination.rehearse(loaded, seed=arguments.seed)

    def install(engine: Engine) -> None:
        put_in(fault, engine, tokenizer, arguments)

    partial = "--share-partial" in fault.engine_flags
    return rehearsed, contamination.examine(rehearsed, install, share_partial=partial)


def put_in(fault: Fault, engine: Engine, tokenizer: Any, arguments: argparse.Namespace) -> None:
    """Switch the fault on in an engine; some want a server around it, which then serves nobody."""
    from leakcheck.engine.faults.attention import bleed_layer  # noqa: PLC0415 # as in `run`
    from leakcheck.engine.server import Api  # noqa: PLC0415 # as in `run`

    api = Api(engine, tokenizer, model=arguments.model)
    seams = Seams(engine=engine, delivery=api.delivery, api=api)
    chance = Random(f"fault {arguments.seed}")
    if arguments.layer is not None:
        bleed_layer(seams, arguments.layer, arguments.fault_rate, chance)
    else:
        fault.install(seams, arguments.fault_rate, chance)


# --- the screen ----------------------------------------------------------------------------------


def screen(
    arguments: argparse.Namespace,
    fault: Fault,
    rehearsed: Rehearsal,
    seen: Examination,
    found: Signature,
) -> Iterator[str]:
    """Text as wide as the terminal, tables as they need."""
    played = seen.played
    yield from paragraph(
        f"{fault.name} ({fault.layer}), {arguments.model} in {arguments.dtype}, seed "
        f"{arguments.seed}"
    )
    options = rehearsed.options
    yield from textwrap.wrap(
        f"{len(seen.names)} requests, each alone and then all together in {played.steps} steps, on"
        f" {options.num_blocks} blocks of {options.block_size} tokens: {played.evictions}"
        f" evictions, {played.preemptions} preemptions; {played.other_picks} of {played.picks}"
        " tokens picked otherwise than alone",
        width(),
    )
    yield ""
    yield from layer_table(seen)
    yield ""
    yield from contact_table(seen)
    yield from paragraph(f"signature: {found.name}: {found.sentence}.")
    if (first := seen.first_layer) is not None:
        yield f"first contaminated layer: {first}"
    if played.broke:
        yield from paragraph(f"the engine broke in step {played.steps + 1}: {played.broke}")
    if not found.contaminated and fault.layer in BEHIND:
        yield from paragraph(BEHIND[fault.layer])


def paragraph(text: str) -> Iterator[str]:
    """Wrapped, with the rest indented."""
    yield from textwrap.wrap(text, width(), subsequent_indent="  ")


def layer_table(seen: Examination) -> Iterator[str]:
    """What was written and read, layer by layer, against the runs alone."""
    foreign = Counter(its.layer for its in seen.proofs)
    strange = Counter(its.layer for its in seen.contacts)
    inherited = Counter(its.layer for its in seen.inherited)
    yield "        largest relative error against alone         heads of blocks read that are"
    yield "layer     keys   values   own reads   noise bound       foreign  nobody's  inherited"
    for its in seen.drifts:
        others = strange[its.layer] - foreign[its.layer]
        yield (
            f"{its.layer:>5}{its.keys:>9.1e}{its.values:>9.1e}{its.read:>12.1e}{its.bound:>14.1e}"
            f"{foreign[its.layer]:>14}{others:>10}{inherited[its.layer]:>11}"
        )


def contact_table(seen: Examination) -> Iterator[str]:
    """The blocks of the first contaminated layer, in order of steps."""
    contacts = [its for its in seen.proofs or seen.contacts if its.layer == seen.first_layer]
    if not contacts:
        return
    groups: dict[tuple[int, int, int, str], list[Contact]] = {}
    for its in contacts:
        groups.setdefault((its.step, its.request, its.ordinal, source_name(seen, its)), []).append(
            its
        )
    yield f"blocks of layer {seen.first_layer} that are not their reader's"
    yield " step  reader  positions  heads   block  cosine to own  to source  source"
    for (step, request, _, source), heads in list(groups.items())[:ROWS_MAX]:
        one = heads[0]
        first, last = one.positions
        own = max(its.own_cosine for its in heads)
        theirs = min((its.source.cosine for its in heads if its.source), default=None)
        shown = "-" if theirs is None else f"{theirs:.4f}"
        numbers = ",".join(str(its.head) for its in heads)
        where = f"{first}-{last}"
        yield (
            f"{step:>5}  {seen.names[request]:<6}  {where:>9}  {numbers:<6} {one.physical:>6}"
            f"{own:>15.2f}{shown:>11}  {source}"
        )
    if len(groups) > ROWS_MAX:
        yield f"      and {len(groups) - ROWS_MAX} more"
    yield ""


def source_name(seen: Examination, contact: Contact) -> str:
    """Whose block it is, as far as its fingerprint tells."""
    if contact.source is None:
        return "cleared" if contact.cleared else "nobody's whole block"
    return f"{seen.names[contact.source.request]}, its block {contact.source.ordinal}"
