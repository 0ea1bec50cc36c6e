"""Every frozen value that crosses a module, process or file boundary.

All are JSON types all the way down: `orjson.dumps` writes them, `msgspec.convert(data, Type)` reads
them back and refuses anything else. Units are in the names: `_s` float seconds, `_ns` monotonic
integer nanoseconds of this host, `_tokens`, `_bytes`. Rates are fractions 0..1. `None` is the only
"not measured". Imports nothing else of ours.
"""

from __future__ import annotations

from leakcheck.records.asked import (
    EXIT_CODES,
    EXIT_INTERRUPTED,
    SCHEMA,
    Api,
    Arm,
    Ask,
    Gate,
    Load,
    Outcome,
    Owner,
    PlugIn,
    Relation,
    Role,
    Scenario,
    Status,
    Style,
    Target,
    TargetFacts,
    Tenant,
)
from leakcheck.records.judged import (
    CheckResult,
    Curve,
    Evidence,
    Exposure,
    Finding,
    Look,
    Match,
    Rate,
    Report,
    TierEvidence,
    Verdict,
)
from leakcheck.records.observed import (
    Chunk,
    Gauges,
    Observation,
    Provenance,
    RunEvent,
    SelfTest,
    TokenLogprob,
    Usage,
)
from leakcheck.records.planned import (
    Message,
    Passphrase,
    Plan,
    Request,
    Sampling,
)

__all__ = [
    "EXIT_CODES",
    "EXIT_INTERRUPTED",
    "SCHEMA",
    "Api",
    "Arm",
    "Ask",
    "CheckResult",
    "Chunk",
    "Curve",
    "Evidence",
    "Exposure",
    "Finding",
    "Gate",
    "Gauges",
    "Load",
    "Look",
    "Match",
    "Message",
    "Observation",
    "Outcome",
    "Owner",
    "Passphrase",
    "Plan",
    "PlugIn",
    "Provenance",
    "Rate",
    "Relation",
    "Report",
    "Request",
    "Role",
    "RunEvent",
    "Sampling",
    "Scenario",
    "SelfTest",
    "Status",
    "Style",
    "Target",
    "TargetFacts",
    "Tenant",
    "TierEvidence",
    "TokenLogprob",
    "Usage",
    "Verdict",
]
