"""The target serves at the end what it served at the start; a rate limit is no lost capacity."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretending import FACTS, Reply, history, obedient, plan, played
from shorthand import history as line

from leakcheck import evidence, scenario
from leakcheck import history as histories
from leakcheck.analyzer import analyze
from leakcheck.checks import liveness
from leakcheck.passphrase import load_words
from leakcheck.report import sentences

WINDOWS = 40
HANGS = Reply(outcome="unknown", status=None, error="no whole answer within 60 s")
BREAKS = Reply(outcome="unknown", status=500, error="the target answered with status 500: oops")
GONE = Reply(outcome="failed", status=None, error="no connection to 127.0.0.1:9: refused")
LIMITED = Reply(outcome="failed", status=429, error="refused with status 429: slow down")
BUSY = Reply(outcome="failed", status=503, retry_after_s=1.0, error="refused with status 503: busy")
REFUSED = Reply(outcome="failed", status=400, error="refused with status 400: too long")
HUNG_UP = Reply(outcome="aborted", status=200)


def run(model, windows=WINDOWS):
    return history("rare-token-passphrase", windows, model, load__requests=4)


def from_window(number, reply, share=1.0, seed=0):
    """A model that gives this reply to a share of requests from some window on."""
    draws = random.Random(seed)
    return lambda request, company: (
        reply if request.window >= number and draws.random() < share else obedient(request, company)
    )


@pytest.mark.parametrize("reply", [HANGS, BREAKS, GONE])
def test_a_target_that_serves_nobody_in_the_end_has_lost_its_capacity(reply):
    (found,) = liveness.check(run(from_window(25, reply))).findings
    assert (found.anomaly, found.severity, found.window) == ("lost-capacity", "error", 25)
    assert found.evidence["weak_at_end"] == found.evidence["empty_at_end"] == 10
    assert reply.error in found.explanation


@pytest.mark.parametrize("reply", [LIMITED, BUSY, REFUSED, HUNG_UP])
def test_refusals_and_planned_aborts_are_no_lost_capacity(reply):
    assert liveness.check(run(from_window(25, reply))).findings == ()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_target_that_loses_as_many_from_the_start_is_not_accused(share):
    for seed in range(10):
        assert liveness.check(run(from_window(0, HANGS, share, seed))).findings == ()


def test_a_target_that_warms_up_slowly_is_not_accused():
    def model(request, company):
        return HANGS if request.window < 10 else obedient(request, company)

    assert liveness.check(run(model)).findings == ()


def test_a_target_that_answers_some_in_the_end_is_slow_and_not_lost():
    """Nobody in less than half of the last windows: overload, until it is shown to be more."""
    assert liveness.check(run(from_window(25, HANGS, share=0.6))).findings == ()


@pytest.mark.parametrize(("dies_at", "windows", "found"), [(5, 12, 0), (5, 13, 1), (3, 20, 1)])
def test_how_many_windows_it_takes_does_not_depend_on_when_it_dies(dies_at, windows, found):
    """12 choose 5 orders are 792, too few for 0.001; 13 choose 5 are 1287."""
    assert len(liveness.check(run(from_window(dies_at, HANGS), windows)).findings) == found


@given(st.integers(1, 30), st.integers(1, 30))
def test_the_rank_test_counts_orders(those, others):
    p = evidence.later(range(others, others + those), range(others))
    if min(those, others) <= 8:
        assert p == pytest.approx(1 / math.comb(those + others, those))
    assert evidence.later(range(those), range(those, those + others)) > 0.49


def test_random_losses_are_rarely_thought_late():
    """Level 0.001: of 1000 orders more than 5 pass with a chance of 0.06 %."""
    rng, found = random.Random(5), 0
    for _ in range(1000):
        weak = [rng.random() < 0.4 for _ in range(40)]
        places = [[n for n, each in enumerate(weak) if each == kind] for kind in (True, False)]
        found += evidence.later(*places) <= liveness.ALPHA
    assert found <= 5


def answering_one_of_each_window(last):
    """From window 25 on only the first request of each phase in company is answered; the request
    `last` is not.
    """

    def model(request, company):
        first = all(request.id < each.id for each in company)
        lost = request.window >= 25 and (not first or not company)
        return HANGS if lost or request.id == last else obedient(request, company)

    return model


@pytest.mark.parametrize("cell", ["alone", "planted"])
def test_where_some_are_answered_it_counts_whether_the_last_one_alone_is(cell):
    name, few = "mixed-batch-differential", {"load__requests": 6}
    last, seed = next(
        (request, seed)
        for seed in itertools.count()
        if (request := plan(name, WINDOWS, seed=seed, **few).requests[-1]).cell == cell
    )
    h = history(name, WINDOWS, answering_one_of_each_window(last.id), seed=seed, **few)
    found = liveness.check(h).findings
    assert len(found) == (cell == "alone")
    assert all(f.evidence["empty_at_end"] == 0 for f in found)


def test_lost_capacity_is_an_error_of_the_verdict_and_of_the_report():
    report = analyze(
        history(
            "concurrency-sweep",
            WINDOWS,
            from_window(25, HANGS),
            load__requests=4,
            gate__min_windows=1,
        )
    )
    (verdict,) = report.verdicts
    assert (verdict.status, report.exit_code) == ("error", 4)
    assert verdict.reasons[0].startswith("the target lost capacity")
    assert "the target lost capacity" in sentences.headline(report)
    assert [f.anomaly for f in sentences.grave(report)] == ["lost-capacity"]


def test_a_leak_beats_lost_capacity():
    def model(request, company):
        if request.window >= 25:
            return HANGS
        other = next((each for each in company if each.passphrase), None)
        said = obedient(request, company).text
        return Reply(text=f"{said} {other.passphrase.text}" if other else said)

    report = analyze(history("concurrency-sweep", WINDOWS, model, load__requests=4))
    assert report.verdicts[0].status == "leak"


def test_requests_that_were_never_sent_are_nobodys_fault():
    assert liveness.check(line("a> a=a | b. | c.")).findings == ()


# --- what passes, and what does not --------------------------------------------------------------


def out(start, length=1_000_000):
    """A model that serves nobody for so many windows; a probe counts as one window more."""

    def model(request, company):
        probe = request.cell == liveness.PROBE
        at = request.window - liveness.FIRST_PROBE_WINDOW + WINDOWS if probe else request.window
        return HANGS if start <= at < start + length else obedient(request, company)

    return model


def ended(model, of):
    """The run of a plan to its very end: probes are sent as long as there are any to send."""
    h = played(of, model)
    while (probe := liveness.probe(h)) is not None:
        of = replace(of, requests=(*of.requests, probe))
        h = played(of, model)
    return h


def small():
    return plan("rare-token-passphrase", WINDOWS, load__requests=2)


def test_an_outage_that_passes_near_the_end_accuses_nobody():
    """Also one that is over only when the last probe is sent."""
    draws, of, probed = random.Random(7), small(), 0
    for _ in range(60):
        length = draws.randint(5, 20)
        start = draws.randint(WINDOWS - 10, WINDOWS + liveness.PROBES - 1) - length
        h = ended(out(start, length), of)
        probed += len(h.requests) > len(of.requests)
        assert all(f.severity == "note" for f in liveness.check(h).findings), (start, length)
    assert probed > 5


@pytest.mark.parametrize("dies_at", [5, 15, 25, 33])
def test_a_target_that_never_comes_back_is_accused_after_three_probes(dies_at):
    of = small()
    h = ended(out(dies_at), of)
    (found,) = liveness.check(h).findings
    assert (found.severity, found.window) == ("error", dies_at)
    assert len(h.requests) == len(of.requests) + liveness.PROBES


def test_probes_end_with_the_first_that_is_served_and_the_finding_says_that_it_came_back():
    h = ended(out(25, WINDOWS - 25 + 1), small())
    probes = h.requests[h.requests["cell"] == liveness.PROBE]
    assert list(probes["outcome"]) == ["unknown", "ok"]
    (found,) = liveness.check(h).findings
    assert (found.anomaly, found.severity) == ("lost-capacity", "note")
    assert found.evidence["came_back"] == probes["id"].iloc[-1]
    assert "it came back" in found.explanation


def test_a_probe_is_a_request_alone_that_was_served_before():
    h = run(from_window(25, HANGS))
    probe = liveness.probe(h)
    assert h.answer(probe.replays).outcome == "ok"
    assert probe.messages == h.by_id(probe.replays).messages
    assert probe.window not in set(h.requests["window"])


def test_without_suspicion_there_is_no_probe():
    assert liveness.probe(run(obedient)) is None
    assert liveness.probe(run(from_window(25, LIMITED))) is None


@pytest.mark.parametrize(("second", "severity"), [(obedient, "note"), (out(0), "error")])
def test_what_a_later_scenario_was_answered_counts_too(second, severity):
    first = small()
    read = scenario.read(scenario.find("control-group"), {"load.windows": 3, "load.requests": 2})
    after = scenario.plan(
        read,
        seed=0,
        facts=FACTS,
        words=load_words(),
        style="phrase",
        ids=itertools.count(len(first.requests)),
    )
    parts = [played(first, out(25)), played(after, second)]
    seen = [[part.attempt(n) for n in range(len(part.observations))] for part in parts]
    end_ns = max(each.end_ns for each in seen[0])
    later = [
        replace(each, start_ns=each.start_ns + end_ns, end_ns=each.end_ns + end_ns)
        for each in seen[1]
    ]
    whole = histories.build([first, after], [], [*seen[0], *later], provenance=parts[0].provenance)
    (found,) = liveness.check(whole.scenario(first.scenario.name)).findings
    assert found.severity == severity
    assert (liveness.probe(whole) is None) == (severity == "note")
