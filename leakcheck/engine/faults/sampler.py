"""Faults of the sampler: a row is sampled by parameters that are not its own."""

from __future__ import annotations

from leakcheck.engine.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
