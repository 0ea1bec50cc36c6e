"""Faults of batch rows: a row runs on what belongs to another row."""

from __future__ import annotations

from leakcheck.engine.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
