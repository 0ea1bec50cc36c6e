"""Faults of stores around the model: an answer or a conversation is kept under the wrong key."""

from __future__ import annotations

from leakcheck.engine.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
