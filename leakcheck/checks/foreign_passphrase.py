"""Nobody may be answered with a passphrase that only another request was given.

A `foreign-passphrase` is a leak at first sight: the entropy of passphrases leaves no other way for
it to get there. A passphrase or phantom that was never sent and shows all the same
(`withheld-passphrase`) is proof against the experiment itself: its words can be guessed, or the
harness sent what it should not have.
"""

from __future__ import annotations

from typing import Any

from leakcheck.checks import first_of_each_pair, leak, quote, where_found, who
from leakcheck.history import History
from leakcheck.records import CheckResult, Finding

CHECK = "foreign_passphrase"


def check(history: History) -> CheckResult:
    """One finding for each pair of source and recipient, and for each phrase that was never sent.

    The first passage in `content` is the one quoted, or the first in another field.
    """
    matches = history.matches
    foreign = matches[(matches["kind"] == "passphrase") & (matches["owner"] == "foreign")]
    unsent = matches[matches["kind"].isin(["withheld", "phantom"])]
    control = (
        f"passphrases that were never sent and showed: {len(unsent)} (the whole run was searched "
        f"for {history.phantoms} phantoms, and for {history.scanned.phrases} passphrases and "
        "tickets)"
    )
    return CheckResult(
        check=CHECK,
        findings=(
            *(_leak(history, match) for match in first_of_each_pair(foreign)),
            *(_impossible(history, match) for match in first_of_each_pair(unsent)),
        ),
        notes=(control,),
    )


def _leak(history: History, match: Any) -> Finding:
    owners = [history.by_id(owner) for owner in history.owners(match.source)]
    twins = sum(owner.replays is None for owner in owners) - 1
    others = "its twin" if twins == 1 else f"its {twins} twins"
    given = f" and {others} were given" if twins else " was given"
    what = f"the passphrase that only {who(history.by_id(match.source))}{given}"
    return leak(history, match, check=CHECK, anomaly="foreign-passphrase", what=what)


def _impossible(history: History, match: Any) -> Finding:
    recipient = history.by_id(match.recipient)
    text, mark = quote(history, match)
    phantom = match.kind == "phantom"
    what = "a phantom" if phantom else f"the passphrase withheld from {match.source}"
    return Finding(
        check=CHECK,
        anomaly="withheld-passphrase",
        severity="note",
        scenario=recipient.scenario,
        window=recipient.window,
        recipient=recipient.id,
        source=None if phantom else match.source,
        excerpt=text,
        mark=mark,
        explanation=(
            f"{who(recipient, window=True)} was answered with {what}, which was never sent: "
            "passphrases can be guessed here, or the harness sent what it should not have."
        ),
        evidence=where_found(history, match),
    )
