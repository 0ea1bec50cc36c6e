"""Faults of the block lifecycle: who may read and write a physical block, and when."""

from __future__ import annotations

from leakcheck.engine.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
