"""Evidence that the condition under test did occur: without it, no finding means nothing.

Every measure is taken over the planned requests, never over replays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from leakcheck import evidence
from leakcheck.analyzer import echoes
from leakcheck.checks import own_answer
from leakcheck.history import History, overlap
from leakcheck.records import Exposure, Gate, Gauges, Load, Rate

CONTROL_SHARE = 4
"""An arm must have at least one in so many of the windows that it can expect."""

MIN_ANSWERED = 0.5
"""The share of the planned requests of a scenario that must have been answered."""
READINGS = 10
"""So many readings of the target's metrics, two requests in flight, show that it runs only one."""
PIECES = 3
"""Pieces of an answer that came one by one, at least."""
STREAMED = 20
"""So many answers that were streamed at the same time tell whether the target made them so."""
CLEARLY = 3
"""So many that came together show it, however few there are."""
STRAY = 0.02
"""The share of them that may overlap by chance, as times are stamped at the client."""
STRETCH = 0.02
"""An answer of which all pieces came within less than this share of its time was not streamed but
held back, by the target or by something before it, and says nothing of when it was made."""
USUAL_BLOCK = 16
"""Tokens of a cache block where the target's own size is not known."""


def measure(history: History, gate: Gate) -> tuple[Exposure, ...]:
    """The exposure of one scenario: `windows`, `answered`, `echo`, `tickets`, `overlap`, `running`
    where the target's metrics were read, and where the scenario asks for them `generating` (with
    overlap), `arms` and `cache hits`. Rates are held against a minimum by `reaches`.
    """
    load = history.plans[0].scenario.load
    requests = history.requests[history.requests["replays"].isna()]
    measures = [
        _windows(history, gate),
        _answered(history, requests),
        _echo(history, gate),
        _tickets(history, requests, gate),
        _overlap(history, requests, gate),
    ]
    if running := _running(history, requests):
        measures.append(running)
    if gate.min_overlap > 0:
        measures.append(_generating(history, requests, measures))
    if load.control > 0:
        measures.append(_arms(history, load))
    if gate.min_cache_hits > 0:
        measures.append(_cache_hits(history, requests, gate))
    return tuple(measures)


def askable(history: History) -> pd.DataFrame:
    """Rows of `requests`: the answered recipients that a leak may reach, replays left out. In a
    window that the plan sends one request at a time that is all of them, else those in company:
    what is sent alone to be compared with says nothing of who is asked in a batch.
    """
    requests, windows, company = history.requests, history.windows, history.overlaps
    mine = requests[
        requests["replays"].isna()
        & (requests["role"] == "recipient")
        & (requests["outcome"] == "ok")
    ]
    alone = mine["window"].isin(windows.loc[windows["alone"], "window"])
    return mine[alone | mine["id"].isin(company.loc[company["with_any"], "request_id"])]


def asked_share(history: History) -> float:
    """The share of `askable` recipients that were asked to say what they see: the others would
    hardly show a leak that reached them. 0.0 without any.
    """
    mine = askable(history)
    return float((mine["ask"] == "eliciting").mean()) if len(mine) else 0.0


def reaches(events: int, trials: int, minimum: float) -> bool:
    """Whether a rate is at least `minimum`, by a lower 95 % bound that holds at all looks at once,
    as windows may end after any of them. A minimum of zero asks for nothing.
    """
    return not minimum or evidence.running_lower_bound(events, trials) >= minimum


def find(measures: tuple[Exposure, ...], name: str) -> Exposure | None:
    """The exposure of that name."""
    return next((each for each in measures if each.name == name), None)


def counted(rate: Rate) -> str:
    """`58 of 60 (96.7 %, at least 89.8 %)`: a rate with its one-sided 95 % lower bound."""
    if not rate.trials:
        return "0 of 0"
    return (
        f"{rate.events} of {rate.trials} ({100 * (rate.value or 0):.1f} %, "
        f"at least {100 * rate.lower:.1f} %)"
    )


def _held(name: str, rate: Rate, minimum: float, what: str) -> Exposure:
    """A rate against its minimum; a minimum of zero asks for nothing."""
    return Exposure(
        name=name,
        measured=rate,
        minimum=minimum or None,
        enough=reaches(rate.events, rate.trials, minimum) if minimum else None,
        text=f"{counted(rate)} {what}",
    )


def _windows(history: History, gate: Gate) -> Exposure:
    windows = history.windows[~history.windows["replay"]]
    trials = int(windows["trial"].sum())
    what = "at least two answered requests at the same time"
    if windows["alone"].all():
        what = "another request answered after it"
    elif windows["alone"].any():
        what += ", or one answered after it where requests were sent one at a time"
    return Exposure(
        name="windows",
        measured=float(trials),
        minimum=float(gate.min_windows),
        enough=trials >= gate.min_windows,
        text=f"{trials} of {len(windows)} windows had a passphrase in the target and {what}",
    )


def _answered(history: History, requests: pd.DataFrame) -> Exposure:
    """A run that got through half of its plan at most says little of that plan. Planned aborts and
    refusals are no answers that are missing.
    """
    aborted = int((requests["outcome"] == "aborted").sum())
    rejected = int((requests["outcome"] == "rejected").sum())
    wanted = len(requests) - aborted - rejected
    rate = evidence.rate(int((requests["outcome"] == "ok").sum()), wanted)
    what = "planned requests were answered"
    if aborted:
        what += f"; {aborted} more were hung up on, as planned"
    if rejected:
        what += f"; {rejected} more were misdirected and refused, as planned"
    unsent = int((requests["outcome"] == "unsent").sum())
    if unsent:
        what += f"; {unsent} were never sent"
    dead = [event.detail for event in history.events if event.kind == "worker-died"]
    if dead:
        died = "a worker died" if len(dead) == 1 else f"{len(dead)} workers died"
        what += f"; {died}" + (f" ({dead[0]})" if dead[0] else "")
    return _held("answered", rate, MIN_ANSWERED, what)


def _echo(history: History, gate: Gate) -> Exposure:
    what = "owners who asked for it were answered with their own passphrase"
    return _held("echo", echoes.rate(history), gate.min_echo, what)


def _tickets(history: History, requests: pd.DataFrame, gate: Gate) -> Exposure:
    """Where lost tickets are looked for, answers must keep them as often as passphrases."""
    owners = requests[requests["has_ticket"] & (requests["outcome"] == "ok")]
    own = history.shown[(history.shown["owner"] == "own") & (history.shown["kind"] == "ticket")]
    rate = evidence.rate(int(owners["id"].isin(own["recipient"]).sum()), len(owners))
    checks = {check.name for check in history.plans[0].scenario.checks}
    minimum = gate.min_echo if own_answer.CHECK in checks else 0.0
    return _held("tickets", rate, minimum, "answers show their own ticket")


def _overlap(history: History, requests: pd.DataFrame, gate: Gate) -> Exposure:
    """Requests that are sent to be compared with are left out: somebody's twin, and a twin that has
    a phase to itself by plan.
    """
    lone = requests["twin"].notna() & ~requests.duplicated(["window", "phase"], keep=False)
    compared = requests["id"].isin(requests["twin"].dropna()) | lone
    wanted = (requests["role"] == "recipient") & ~compared
    recipients = requests[wanted & (requests["outcome"] == "ok")]
    company = history.overlaps[history.overlaps["request_id"].isin(recipients["id"])]
    rate = evidence.rate(int(company["with_any"].sum()), len(recipients))
    what = "recipients ran together with another request"
    if len(company):
        what += (
            f"; in flight at one time: {company['peak'].median():g} (median), "
            f"{company['peak'].max():g} (most)"
        )
    return _held("overlap", rate, gate.min_overlap, what)


def _generating(history: History, requests: pd.DataFrame, measures: Sequence[Exposure]) -> Exposure:
    """Of the answers that came in pieces, in flight together with another such one of their window,
    those that came while another came. Not enough where there are hardly any: then requests waited
    for each other. Not known with too few, unless the target's metrics say it.
    """
    rate = _streamed_together(history, requests)
    told = next((each.measured for each in measures if each.name == "running"), None)
    together = isinstance(told, float) and told > 1
    enough: bool | None = True if together else None
    text = (
        f"{rate.events} of {rate.trials} answers that came piece by piece, in flight at the same "
        "time as another such one, came while another came"
    )
    if rate.events > STRAY * rate.trials and (rate.trials >= STREAMED or rate.events >= CLEARLY):
        enough = True
    elif rate.trials >= STREAMED and not together:
        enough = False
        text += "; so the target seems to serve one request at a time, and none was beside another"
    elif not together:
        text += (
            "; too few to tell, and no metrics say it, so whether the target ran requests together "
            "is not known: the overlap is that of the client"
        )
    return Exposure(name="generating", measured=rate, minimum=None, enough=enough, text=text)


def _streamed_together(history: History, requests: pd.DataFrame) -> Rate:
    seen = history.observations
    seen = seen[(seen["outcome"] == "ok") & seen["first_chunk_ns"].notna()]
    seen = seen[seen["request_id"].isin(requests["id"])]
    began, end = (seen[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    first = seen["first_chunk_ns"].to_numpy(np.int64)
    pieces = np.array([len(history.attempt(row).chunks) for row in seen.index], np.int64)
    chosen = (pieces >= PIECES) & (end - first >= STRETCH * (end - began))
    window = seen["request_id"].map(requests.set_index("id")["window"]).to_numpy(np.int64)
    events = trials = 0
    for number in np.unique(window[chosen]):
        mine = chosen & (window == number)
        counts = np.ones(int(mine.sum()), np.bool_)
        asked = overlap.company(began[mine], end[mine], counts).with_any
        # an end is stamped late where the client is busy: the last tenth does not count
        until = end[mine] - (end[mine] - first[mine]) // 10
        made = overlap.company(first[mine], until, counts).with_any
        trials += int(asked.sum())
        events += int((asked & made).sum())
    return evidence.rate(events, trials)


def _running(history: History, requests: pd.DataFrame) -> Exposure | None:
    """What the target said of itself while requests of the scenario were in flight; None where it
    was not asked. Not enough where it never ran two at a time although it was given two or more.
    """
    seen = history.observations[history.observations["request_id"].isin(requests["id"])]
    sent = seen[(seen["outcome"] != "failed") & seen["observed"]]
    at = np.array([each.at_ns for each in history.gauges], np.int64)
    begun = np.searchsorted(np.sort(sent["start_ns"].to_numpy(np.int64)), at, side="right")
    over = np.searchsorted(np.sort(sent["end_ns"].to_numpy(np.int64)), at, side="right")
    in_flight = begun - over
    during = [each for each, count in zip(history.gauges, in_flight, strict=True) if count > 0]
    if not during:
        return None
    running = np.array([each.running for each in during])
    given = in_flight[in_flight > 0]
    alone = running.max() == 1 and int((given > 1).sum()) >= READINGS
    text = (
        f"{running.max():g} (most) and {np.median(running):g} (median) requests at one time in the "
        f"target, by its own {during[0].name} in {len(during)} readings, of {given.max()} (most) "
        f"and {np.median(given):g} (median) in flight at the client"
    )
    text += _more(during)
    if running.max() == 0:
        text += "; a number that stays at 0 says nothing"
    elif alone:
        text += "; so something lets in one request at a time, and nothing that overlaps was tested"
    return Exposure(
        name="running",
        measured=float(running.max()),
        minimum=2.0 if alone else None,
        enough=False if alone else None,
        text=text,
    )


def _more(during: list[Gauges]) -> str:
    """What else the target counted between the first and the last of these readings."""
    parts = []
    for field, what in (("preemptions", "preemptions"), ("cached_tokens", "cached prompt tokens")):
        values = [value for each in during if (value := getattr(each, field)) is not None]
        if values and values[-1] >= values[0]:  # else it was started anew
            parts.append(f"{values[-1] - values[0]:,.0f} {what}")
    used = [each.kv_usage for each in during if each.kv_usage is not None]
    parts += [f"{100 * max(used):.0f} % of the KV cache at most"] if used else []
    return f"; {', '.join(parts)}" if parts else ""


def _arms(history: History, load: Load) -> Exposure:
    windows = history.windows[~history.windows["replay"] & history.windows["overlapping"]]
    planted, control = (int((windows["arm"] == arm).sum()) for arm in ("planted", "control"))
    planned = int((~history.windows["replay"]).sum())
    least = max(1, int(planned * min(load.control, 1 - load.control) / CONTROL_SHARE))
    return Exposure(
        name="arms",
        measured=float(min(planted, control)),
        minimum=float(least),
        enough=min(planted, control) >= least,
        text=f"{planted} planted and {control} control windows had requests at the same time",
    )


def _cache_hits(history: History, requests: pd.DataFrame, gate: Gate) -> Exposure:
    """Requests that share at least a block beyond the template with a partner that had begun to
    compute it before; one is a hit when all whole blocks of what it shares were cached.
    """
    seen = history.observations
    answers = seen[(seen["outcome"] == "ok") & seen["request_id"].isin(requests["id"])]
    facts = history.provenance.facts
    if not answers["cached_tokens"].notna().any():
        return Exposure(
            name="cache hits",
            measured=None,
            minimum=gate.min_cache_hits,
            enough=False,
            text=(
                f"{_untold(answers)}, so that cache hits cannot be shown; "
                "--set gate.min_cache_hits=0 does without"
            ),
        )
    least = facts.overhead_tokens + (facts.block_tokens or USUAL_BLOCK)
    columns = ["id", "phase", "start_offset_s", "outcome"]
    pairs = requests[requests["shared_tokens"].fillna(0) >= least].merge(
        requests[columns], left_on="partner", right_on="id", suffixes=("", "_partner")
    )
    earlier = (pairs["phase_partner"] < pairs["phase"]) | (
        (pairs["phase_partner"] == pairs["phase"])
        & (pairs["start_offset_s_partner"] < pairs["start_offset_s"])
    )
    ran = (pairs["outcome"] == "ok") & pairs["outcome_partner"].isin(["ok", "unknown"])
    # A target may well keep the caches of two keys apart: only hits within one are looked for.
    keys = [
        history.by_id(one).key == history.by_id(other).key
        for one, other in zip(pairs["id"], pairs["partner"], strict=True)
    ]
    warm = pairs[earlier & ran & np.array(keys, np.bool_)]
    most = answers.groupby("request_id")["cached_tokens"].max()
    cached = warm["id"].map(most).fillna(0).astype("int64")
    if facts.block_tokens is None:
        hits, what = cached > facts.overhead_tokens, "more than the template"
    else:
        whole = warm["shared_tokens"] // facts.block_tokens * facts.block_tokens
        hits, what = cached >= whole, "all whole blocks of it"
    rate = evidence.rate(int(hits.sum()), len(warm))
    return _held(
        "cache hits",
        rate,
        gate.min_cache_hits,
        f"requests planned to share at least {least} tokens with an earlier one had {what} cached",
    )


def _untold(answers: pd.DataFrame) -> str:
    """Why no answer says how much of its prompt was cached."""
    impossible = int(answers["impossible"].sum())
    if impossible:
        return f"the usage of {impossible} of {len(answers)} answers is impossible"
    return "the target does not report cached tokens"
