"""One rule over a history a file: `check(history, *, options) -> CheckResult`.

The history is that of one scenario; sources may lie in any other. Here is what the sentences and
excerpts of all findings have in common.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from leakcheck.history import History, boundaries
from leakcheck.records import Finding, Observation, Request

EXCERPT_CHARS = 160


def first_of_each_pair(matches: pd.DataFrame) -> list[Any]:
    """Of the matches between each source and recipient the first, as named tuples.

    The field `content` goes before others, then the order of the text decides.
    """
    ordered = matches.assign(other=matches["field"] != "content").sort_values(
        ["window", "recipient", "source", "other", "start"], kind="stable"
    )
    return list(ordered.drop_duplicates(["recipient", "source"]).itertuples(index=False))


def quote(history: History, match: Any) -> tuple[str, tuple[int, int]]:
    """The excerpt and mark of a row of `matches`."""
    text = history.text(match.recipient, match.field, observation=match.observation)
    return excerpt(text, match.start, match.end)


def leak(history: History, match: Any, *, check: str, anomaly: str, what: str) -> Finding:
    """The finding that a row of `matches` makes: `what` (such as `the ticket of r1`) was shown."""
    recipient = history.by_id(match.recipient)
    text, mark = quote(history, match)
    return Finding(
        check=check,
        anomaly=anomaly,
        severity="leak",
        scenario=recipient.scenario,
        window=recipient.window,
        recipient=recipient.id,
        source=match.source,
        relation=history.relation(match.source, recipient.id, observation=int(match.observation)),
        excerpt=text,
        mark=mark,
        explanation=(
            f"{who(recipient, window=True)} was answered with {what}; {when(history, match)}"
            f"{between(history, match)}."
        ),
        evidence=where_found(history, match),
    )


def where_found(history: History, match: Any) -> dict[str, Any]:
    """What the evidence of a finding says about its match: the place, the tenants, the times, the
    ids that the target gave the two replies.

    Times are seconds from the start of whichever of the two was sent first: of the attempt that
    shows the match, and of the source's attempt that may explain it (else the one that decided its
    outcome). An end that nobody saw is left out.
    """
    found = {
        "field": match.field,
        "start": int(match.start),
        "end": int(match.end),
        "variant": match.variant,
        "recipient_tenant": history.by_id(match.recipient).tenant,
    }
    shows = int(match.observation)
    found |= ids_of_reply("recipient", history.attempt(shows))
    if match.owner == "phantom":
        return found
    found["source_tenant"] = history.by_id(match.source).tenant
    found |= boundary(history, match.source, match.recipient, observation=shows)
    row = history.timing(match.source, match.recipient, observation=shows).source
    recipient = history.attempt(shows)
    source = history.answer(match.source) if row is None else history.attempt(row)
    found |= ids_of_reply("source", source)
    if source is None:
        return found
    origin_ns = min(source.start_ns, recipient.start_ns)
    for name, seen in (("source", source), ("recipient", recipient)):
        found[f"{name}_start_s"] = (seen.start_ns - origin_ns) / 1e9
        found[f"{name}_end_s"] = (seen.end_ns - origin_ns) / 1e9
    if row is not None and not history.ended(row):
        del found["source_end_s"]
    return found


def ids_of_reply(side: str, seen: Observation | None) -> dict[str, str]:
    """What the evidence of a finding says about one reply, so that its lines in the logs of the
    target can be found: `recipient_reply_id` (of its headers) and `recipient_target_id` (in the
    answer), as far as the target gave any.
    """
    ids = {} if seen is None else {"reply_id": seen.reply_id, "target_id": seen.target_id}
    return {f"{side}_{name}": value for name, value in ids.items() if value}


def boundary(
    history: History, source: str, recipient: str, *, observation: int | None = None
) -> dict[str, Any]:
    """What the evidence of a finding says about the trust boundary that it crossed: `boundary`, the
    two keys where there are several, and `replica` where it is known of both.
    """
    crossing = history.crossing(source, recipient, observation=observation)
    keys = {"source_key": history.by_id(source).key, "recipient_key": history.by_id(recipient).key}
    found: dict[str, Any] = {"boundary": crossing.boundary, "replica": crossing.replica, **keys}
    return {name: value for name, value in found.items() if value is not None}


def between(history: History, match: Any) -> str:
    """`; a secret sent with the key of alice was shown to bob` of a row of `matches`; empty where
    the two had one key and connections of their own.
    """
    source, recipient = history.by_id(match.source), history.by_id(match.recipient)
    crossing = history.crossing(source.id, recipient.id, observation=int(match.observation))
    told = boundaries.told(crossing, source, recipient)
    return f"; {told}" if told else ""


def who(request: Request, *, window: bool = False) -> str:
    """`r00224 (tenant t00)` or `r00224 (tenant t00, window 14)`, to be read aloud.

    A replay says which request it repeats, in place of its window.
    """
    where = f", window {request.window}" if window else ""
    if request.replays is not None:
        where = f", a replay of {request.replays}"
    return f"{request.id} (tenant {request.tenant}{where})"


def when(history: History, match: Any) -> str:
    """How source and recipient of a row of `matches` lay in time, as the end of a sentence."""
    source, recipient = match.source, match.recipient
    timing = history.timing(source, recipient, observation=int(match.observation))
    if timing.relation == "concurrent":
        return f"the two ran at the same time for {seconds(timing.seconds)}"
    if timing.relation == "sequential":
        return f"{source} had ended {seconds(timing.seconds)} before {recipient} began"
    if timing.source is not None:
        return (
            f"{source} had been sent before {recipient} began, and nobody saw whether it still ran"
        )
    return (
        f"{source} had not been sent by then: an earlier run with the same seed may have left it "
        "in the target"
    )


def alone(request: Request, *, name: str, window: int, cell: str) -> Request:
    """The same payload again with nobody beside it, in a window of its own: a replay."""
    return replace(
        request,
        id=f"{request.id}-{name}",
        window=window,
        phase=0,
        start_offset_s=0.0,
        cell=cell,
        partner=None,
        shared_tokens=None,
        twin=None,
        replays=request.id,
        abort_after_s=None,
        abort_after_chunks=None,
    )


def seconds(value: float | None) -> str:
    """A duration with as many digits as say something: `12.3 s`, `0.21 s`, `0.004 s`."""
    if value is None:
        return "an unknown time"
    digits = 1 if value >= 10 else 2 if value >= 0.1 else 3  # noqa: PLR2004 - digits that matter
    return f"{value:.{digits}f} s"


def excerpt(text: str, start: int, end: int) -> tuple[str, tuple[int, int]]:
    """About 160 characters of `text` around start..end, and where that passage is in them.

    An ellipsis stands where text was left out.
    """
    margin = max(0, EXCERPT_CHARS - (end - start)) // 2
    first, last = max(0, start - margin), min(len(text), end + margin)
    before = "…" if first else ""
    after = "…" if last < len(text) else ""
    shift = len(before) - first
    return f"{before}{text[first:last]}{after}", (start + shift, end + shift)
