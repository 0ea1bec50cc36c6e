"""From a finding to what the target wrote down of it: its logs, by the ids of the replies, and the
blocks behind it, where the embedded engine kept a trace of them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from leakcheck.checks import ids_of_reply
from leakcheck.history import History
from leakcheck.records import Finding

_IDS = ("reply_id", "target_id")
_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What an id must look like to stand in a command: it is text of the target."""


def named(history: History, finding: Finding) -> Finding:
    """The finding, with the ids that the target gave the replies to recipient and source, where its
    check has not said them: those that decided the outcomes.
    """
    found: dict[str, str] = {}
    for side, name in (("recipient", finding.recipient), ("source", finding.source)):
        if name and not any(f"{side}_{what}" in finding.evidence for what in _IDS):
            found |= ids_of_reply(side, history.answer(name))
    return replace(finding, evidence={**finding.evidence, **found}) if found else finding


def linked(history: History, finding: Finding) -> Finding:
    """The finding, with the command that tells the lives of the blocks that its two requests read.

    As `trace` of its evidence. Unchanged for a target without a trace, or without usable ids.
    """
    engine = history.provenance.engine or {}
    path, names = engine.get("trace"), _answers(history, finding)
    if not isinstance(path, str) or not names:
        return finding
    requests = " ".join(f"--request {name}" for name in names)
    command = f"leakcheck inspect pool --trace {shlex.quote(path)} {requests}"
    return replace(finding, evidence={**finding.evidence, "trace": command})


def _answers(history: History, finding: Finding) -> list[str]:
    """The target's own ids of the answers to recipient and source."""
    found = [history.answer(name) for name in (finding.recipient, finding.source) if name]
    ids = [seen.target_id for seen in found if seen is not None and seen.target_id]
    return [name for name in dict.fromkeys(ids) if _HARMLESS.fullmatch(name)]
