"""Whether what a connection carried before decides if the next request on it is served."""

from dataclasses import replace

import pretending
import pytest

from leakcheck.analyzer import judge
from leakcheck.backends import CUT
from leakcheck.checks import reuse
from leakcheck.traffic.connections import AFTER_EXPECT, AFTER_MISDIRECTED, REUSED


def history(windows, broken, **fields):
    """Chains over one connection a lane, in which `broken(request)` requests are not served."""
    of = pretending.plan("connections", windows, load__requests=2, load__workers=1, load__lanes=2)
    seen, at_ns = [], 0
    for request in of.requests:
        at_ns += 1_000
        reply = pretending.obedient(request, ())
        if request.sent == "misdirected":
            reply = pretending.Reply(outcome="failed", status=404, error="refused", finish=None)
        elif broken(request):
            reply = pretending.Reply(finish=None, **({"outcome": "failed", "status": 400} | fields))
        made = pretending._observation(request, reply, at_ns)
        connection = None if fields.get("error") == CUT and broken(request) else 1
        seen.append(replace(made, lane=request.lane, connection=connection, end_ns=at_ns + 500))
    return of, pretending.built(of, seen).scenario("connections")


def found(broken, windows=14, **fields):
    of, its = history(windows, broken, **fields)
    return judge(its, of), reuse.check(its)


@pytest.mark.parametrize("cell", [AFTER_MISDIRECTED, AFTER_EXPECT])
def test_what_is_refused_only_after_something_is_a_broken_connection(cell):
    verdict, result = found(lambda request: request.cell == cell)
    (finding,) = result.findings
    assert (finding.anomaly, finding.severity) == ("broken-connection", "corruption")
    assert finding.evidence["windows_up"] == 14
    assert verdict.status == "corruption"


def test_too_few_windows_make_a_note():
    _, result = found(lambda request: request.cell == AFTER_EXPECT, windows=5)
    assert [finding.severity for finding in result.findings] == ["note"]


def test_a_target_that_refuses_all_alike_is_not_accused():
    _, result = found(lambda request: request.cell in {AFTER_MISDIRECTED, AFTER_EXPECT, REUSED})
    assert [finding.severity for finding in result.findings] == ["note", "note"]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 429},
        {"status": 403},
        {"status": 503, "retry_after_s": 1.0},
        {"outcome": "unknown", "status": None, "error": CUT},
    ],
    ids=["429", "403", "503 with a time", "cut"],
)
def test_what_a_target_may_say_at_any_time_accuses_nobody(fields):
    _, result = found(lambda request: request.cell == AFTER_MISDIRECTED, **fields)
    assert result.findings == ()


def test_a_reply_that_never_comes_counts():
    late = {"outcome": "unknown", "status": None, "error": "no whole answer within 60 s"}
    _, result = found(lambda request: request.cell == AFTER_MISDIRECTED, **late)
    assert [finding.severity for finding in result.findings] == ["corruption"]
