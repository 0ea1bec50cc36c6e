"""What looks like trouble and is no leak: noise, delay, refusal, invention, restarts."""

from __future__ import annotations

from leakcheck.engine.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
