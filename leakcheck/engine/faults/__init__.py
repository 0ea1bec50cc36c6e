"""Every isolation fault the engine can switch on. No torch here: `--list-faults` must be quick.

A fault patches a named method of one built engine or server (its *seam*) and nothing else; without
a fault none of this code runs. Each is deterministic in its seed, given the same arrivals. One file
a layer, each with its `FAULTS`.
"""

from __future__ import annotations

from leakcheck.engine.faults import (
    attention,
    benign,
    blocks,
    connection,
    conversation,
    output,
    prefix,
    rows,
    sampler,
    stores,
)
from leakcheck.engine.faults.fault import Fault, Seams, patch

__all__ = ["FAULTS", "Fault", "Seams", "find", "patch"]

FAULTS: tuple[Fault, ...] = (
    *blocks.FAULTS,
    *prefix.FAULTS,
    *attention.FAULTS,
    *rows.FAULTS,
    *sampler.FAULTS,
    *output.FAULTS,
    *connection.FAULTS,
    *stores.FAULTS,
    *conversation.FAULTS,
    *benign.FAULTS,
)


def find(name: str) -> Fault:
    """The fault of this name; LookupError names those there are."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    known = ", ".join(fault.name for fault in FAULTS)
    raise LookupError(f"there is no fault {name!r}; the engine has {known}")
