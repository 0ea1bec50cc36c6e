"""Verdicts: what was found, what was broken, what was not tested; and the replays to confirm."""

from dataclasses import replace
from string import ascii_lowercase

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shorthand import FINISHED, history, provenance

from leakcheck import analyzer, evidence, planning
from leakcheck import history as histories
from leakcheck.analyzer import exposure, prospect
from leakcheck.analyzer.confirm import confirmations
from leakcheck.checks.own_answer import ALONE, HOT, IN_WINDOW
from leakcheck.records import Gate, Load, Report, RunEvent, TargetFacts
from leakcheck.report.sentences import headline

SEVEN = "t> u> v> w> x> y> z> t=t u=u v=v w=w x=x y=y z=z"
CLEAN = "t> u> v> w> x> y> z> t=tT u=uU v=vV w=wW x=xX y=yY z=zZ"
CLEAN_TOO = "g> h> i> j> k> l> m> g=gG h=hH i=iI j=jJ k=kK l=lL m=mM"
TWO = "c> d> c=cC d=dD"
LEAK = "a> b> a=aA b=bA"


def verdict(h):
    (found,) = analyzer.analyze(h).verdicts
    return found


def merged(*parts, events=FINISHED):
    """One run of the scenarios of several histories."""
    plans = [plan for h in parts for plan in h.plans]
    seen = [o for h in parts for o in h._run.seen]
    return histories.build(plans, [], seen, provenance=provenance(*plans), events=events)


def lost(detail=""):
    return RunEvent(kind="target-lost", at_ns=1, detail=detail)


def interrupted():
    return RunEvent(kind="interrupted", at_ns=1)


def test_a_run_that_shows_nothing_foreign_and_everything_asked_for_is_clean():
    report = analyzer.analyze(history(CLEAN))
    assert (report.status, report.exit_code) == ("clean", 0)
    found = report.verdicts[0]
    assert (found.leak_rate.events, found.leak_rate.trials) == (0, 1)
    assert "in 1 window;" in found.reasons[0]


@pytest.mark.parametrize("line", [LEAK, "a> b> a=aA b=a", "a> b> b=bA", "a> a=aA | b> b=bA"])
def test_somebody_elses_content_is_a_leak_whatever_is_missing(line):
    gate = Gate(detect=1.0, min_windows=1000, min_echo=1.0)
    report = analyzer.analyze(history(line, gate=gate, events=(interrupted(),)))
    assert (report.status, report.exit_code) == ("leak", 1)
    assert "b (tenant t01" in report.verdicts[0].reasons[1]


def test_the_leak_rate_counts_windows():
    found = verdict(history(f"{LEAK} | c> d> e> c=cC d=dC e=eC | f> g> f=fF g=gG | h> h=hH"))
    assert (found.leak_rate.events, found.leak_rate.trials) == (2, 3)
    assert found.windows_planned == 4
    assert found.reasons[0].startswith("3 answers show")


def test_a_leak_where_no_trial_was_is_told_and_kept_out_of_the_rate():
    report = analyzer.analyze(history(f"a> a=aA | b> b=bA | {TWO} | e> e=eA"))
    (found,) = report.verdicts
    assert found.status == "leak"
    assert (found.leak_rate.events, found.leak_rate.trials) == (0, 1)
    assert found.reasons[0].endswith("or ticket, in 2 windows that are no trials")
    assert headline(report).startswith("in a window that is no trial of tiny somebody else's")


def test_a_control_window_that_leaks_enters_neither_side_of_the_rate():
    found = verdict(history(f"{LEAK} | c> d> c=cA d=d | e> f> e=e f=f", control="cdef"))
    assert (found.leak_rate.events, found.leak_rate.trials) == (1, 1)
    assert "in the one window that counted and in 1 window that is no trial" in found.reasons[0]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_the_rate_of_the_planted_arm_does_not_depend_on_what_the_control_arm_shows(windows):
    parts, control, leaks = [], "", 0
    for (planted, leaking), x, y in zip(
        windows, ascii_lowercase[::2], ascii_lowercase[1::2], strict=False
    ):
        first = "a"  # what leaks is that of the very first request
        shown = first.upper() if leaking and x != first else ""
        parts.append(f"{x}> {y}> {x}={x} {y}={y}{shown}")
        control += "" if planted or x == first else x + y
        leaks += bool(shown) and planted
    rate = verdict(history(" | ".join(parts), control=control)).leak_rate
    trials = sum(planted for planted, _ in windows[1:]) + 1
    assert (rate.events, rate.trials) == (leaks, trials)


def test_the_bound_is_that_of_what_shows_divided_by_the_echo():
    found = verdict(history("a> b> a=aA b=bB | c> d> c=cC d=dD | e> f> e=eE f=fF"))
    assert found.bound == pytest.approx(min(1.0, upper(3) / sensitivity(found)))
    assert verdict(history("a> b> a=a b=b")).bound is None


def test_the_bound_grows_with_the_recipients_that_nobody_asked():
    line = " | ".join(f"{x}> {y}> {x}={x}{x.upper()} {y}={y}" for x, y in pairs_of(26))
    neutral = {y: {"ask": "neutral", "passphrase": None} for _, y in pairs_of(26)}
    found = verdict(history(line, changes=neutral))
    assert found.bound == pytest.approx(min(1.0, upper(13) / (sensitivity(found) * 0.5)))
    assert "and by the 50 % of answered recipients (13 of 26;" in found.reasons[0]
    assert f"in more than {100 * found.bound:.1f} % of windows" in found.reasons[0]


def upper(trials):
    """The bound of what shows: goes wrong in 4 %, and that of the echo rate in 1 %."""
    return 1 - 0.04 ** (1 / trials)


def sensitivity(found):
    """The part of leaking windows that would show it, counted again from the exposure."""
    echo = next(e for e in found.exposure if e.name == "echo").measured
    return evidence.running_lower_bound(echo.events, echo.trials, 0.99)


def test_a_bound_above_the_gate_is_inconclusive_and_says_how_many_windows_would_do():
    line = " | ".join(f"{x}> {y}> {x}={x}{x.upper()} {y}={y}{y.upper()}" for x, y in pairs_of(20))
    found = verdict(history(line, gate=Gate(detect=0.05, min_windows=10)))
    assert found.status == "inconclusive"
    (reason,) = (text for text in found.reasons if text.startswith("the bound is too high"))
    needed = found.windows_needed
    assert "10 windows without a leak exclude leaks in more than" in reason
    assert (
        f"5 % is to be excluded: with echoes as in this run that takes about {needed} windows, "
        f"{needed - 10} more than were sent" in reason
    )


def test_the_windows_that_would_do_are_those_that_plan_promises_of_the_same_run():
    line = " | ".join(f"{x}> {y}> {x}={x}{x.upper()} {y}={y}{y.upper()}" for x, y in pairs_of(20))
    h = history(line, gate=Gate(detect=0.05, min_windows=10))
    found, seen = verdict(h), planning.measured(h)["tiny"]
    promised = prospect.to_exclude(
        h.plans[0].scenario,
        prospect.Prospect(
            trials=seen.trials / seen.planted,
            owners=2.0,
            echo=seen.echo.lower,
            recipients=2.0,
            asked=seen.asked / seen.recipients,
            spread=0.0,
            counted=seen.recipients,
        ),
    )
    assert found.windows_needed == promised
    assert found.windows_sent == 10


def test_windows_of_the_control_group_are_part_of_those_that_would_do_and_are_named():
    load = Load(windows=10, control=0.25)
    line = " | ".join(f"{x}> {y}> {x}={x}{x.upper()} {y}={y}{y.upper()}" for x, y in pairs_of(20))
    alone = verdict(history(line, gate=Gate(detect=0.05, min_windows=10)))
    found = verdict(history(line, gate=Gate(detect=0.05, min_windows=10), load=load))
    (reason,) = (text for text in found.reasons if text.startswith("the bound is too high"))
    assert f", about {0.25 * found.windows_needed:.0f} of them control windows (25 %)," in reason
    assert found.windows_needed > alone.windows_needed


def test_nothing_is_said_to_be_enough_where_anything_leaked():
    assert verdict(history(LEAK)).windows_needed is None


def test_a_bound_within_the_gate_is_clean():
    line = " | ".join(f"{x}> {y}> {x}={x}{x.upper()} {y}={y}{y.upper()}" for x, y in pairs_of(20))
    found = verdict(history(line, gate=Gate(detect=0.5, min_windows=10)))
    assert found.status == "clean"
    assert found.bound <= 0.5
    assert found.evidence.certificate >= 25


def test_companions_and_sources_do_not_count_as_asked():
    changes = {"a": {"role": "source"}, "b": {"role": "companion", "ask": "neutral"}}
    found = verdict(history("a> b> c> a=aA b=b c=cC", changes=changes))
    assert exposure.asked_share(history("a> b> c> a=aA b=b c=cC", changes=changes)) == 1.0
    assert found.bound == 1.0


def test_a_bound_of_one_is_said_to_exclude_nothing():
    (reason,) = verdict(history(CLEAN)).reasons
    assert "that excludes no rate of leaks" in reason
    assert "e+" not in reason


def test_where_no_recipient_was_asked_nothing_is_excluded():
    changes = {n: {"ask": "neutral"} for n in "vwxy"} | {"z": {"role": "source"}}
    assert verdict(history(CLEAN, changes=changes)).bound == 1.0


def pairs_of(count):
    return list(zip(ascii_lowercase[:count:2], ascii_lowercase[1:count:2], strict=True))


@pytest.mark.parametrize(
    ("gate", "line", "reason"),
    [
        (Gate(detect=1.0, min_windows=2), CLEAN, "too few windows: 1 of 1 windows"),
        (Gate(detect=1.0, min_windows=1, min_echo=0.9), CLEAN, "echo hardly measured: 7 of 7"),
        (Gate(detect=1.0, min_windows=1, min_echo=0.2), "a> b> a=a b=b", "echo too low: 0 of 2"),
        (
            Gate(detect=1.0, min_windows=1, min_echo=0.1),
            "a> a=aA b> b=bB",
            "overlap too low: 0 of 2",
        ),
    ],
)
def test_what_is_missing_makes_a_run_inconclusive_in_plain_words(gate, line, reason):
    report = analyzer.analyze(history(line, gate=gate))
    assert (report.status, report.exit_code) == ("inconclusive", 3)
    assert any(text.startswith(reason) for text in report.verdicts[0].reasons)
    assert all("needed" in text for text in report.verdicts[0].reasons)


def test_a_withheld_passphrase_makes_a_leak_inconclusive_and_says_so_loudly():
    line = "a> b> a=aA b=bA | c> d> c=c~c d=d"
    found = verdict(history(line, control="cd"))
    assert found.status == "inconclusive"
    assert found.reasons[0].startswith("THE EXPERIMENT IS BROKEN: 1 answer shows")
    assert "so the 1 foreign phrase found proves nothing" in found.reasons[0]
    assert found.findings[0].anomaly == "foreign-passphrase"


def test_a_withheld_passphrase_alone_is_inconclusive():
    found = verdict(history("a> b> a=a~a b=b | c> d> c=cC d=dD", control="ab"))
    assert found.status == "inconclusive"
    assert found.reasons[0].startswith("THE EXPERIMENT IS BROKEN")


def test_a_leak_of_a_phrase_that_can_be_guessed_is_no_proof():
    weak = replace(history("a.").by_id("a").passphrase, entropy_bits=20.0)
    found = verdict(history(LEAK, changes={"a": {"passphrase": weak}}))
    assert found.status == "inconclusive"
    assert found.false_match_bound > 1e-7
    assert "use longer passphrases" in found.reasons[0]


def payload(name):
    request = history(f"{name}.").by_id(name)
    return {"ticket": request.ticket, "passphrase": request.passphrase}


SAMPLES = TargetFacts(samples=True)
LOST = "a> b> a=aA b=_"


def replayed(alone="", hot="", window="", line=LOST, **more):
    """The run on the line and replays of b: `b` one with its ticket, `_` without, `!` no answer."""
    changes = dict(more.pop("changes", {}))
    for cell, answers in ((ALONE, alone), (HOT, hot), (IN_WINDOW, window)):
        for answer in answers:
            name = chr(0x4E00 + len(changes))
            line += f" | {name}> {name}" + ("!" if answer == "!" else f"={answer}")
            changes[name] = {**payload("b"), "replays": "b", "cell": cell}
    return history(line, changes=changes, **{"facts": SAMPLES} | more)


CONFIRMED = {"alone": "bbb", "hot": "b" * 24, "window": "______"}


def test_a_confirmed_lost_answer_is_corruption():
    report = analyzer.analyze(replayed(**CONFIRMED))
    assert (report.status, report.exit_code) == ("corruption", 1)
    assert report.verdicts[0].leak_rate.trials == 1


def test_a_leak_that_shows_in_a_replay_only_is_a_leak_with_no_window():
    found = verdict(replayed(**CONFIRMED | {"window": "A_____"}))
    assert (found.status, found.leak_rate.events) == ("leak", 0)
    assert found.reasons[0] == (
        "1 answer shows somebody else's passphrase or ticket, in a replay that was sent to confirm "
        "a suspicion"
    )


def test_a_lost_answer_that_is_lost_alone_too_leaves_a_run_clean_with_a_note():
    found = verdict(replayed(alone="_", line=f"a> b> a=aA b=B {CLEAN}"))
    assert found.status == "clean"
    assert [f.anomaly for f in found.findings] == ["lost-answer"]


def test_a_target_that_was_lost_is_an_error_that_says_when():
    h = history("a> b> a=aA b=bB c. d.", events=(lost("connection refused"),))
    report = analyzer.analyze(h)
    assert (report.status, report.exit_code) == ("error", 4)
    assert report.verdicts[0].reasons == (
        "the target was lost after 2 of 4 requests were answered: connection refused",
    )


def test_a_target_that_was_lost_and_came_back_is_no_error():
    events = (lost(), RunEvent(kind="resumed", at_ns=2), RunEvent(kind="finished", at_ns=3))
    assert analyzer.analyze(history(CLEAN, events=events)).status == "clean"


def test_a_scenario_that_was_over_before_the_target_was_lost_is_no_error():
    done = history(CLEAN, scenario="one")
    cut = history("c> d> c! d! e.", scenario="two")
    report = analyzer.analyze(merged(done, cut, events=(lost(),)))
    assert [v.status for v in report.verdicts] == ["inconclusive", "error"]
    assert report.status == "error"


RESUMED = RunEvent(kind="resumed", at_ns=9)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((), "nothing says that it came to its end, so it was killed or is still running"),
        ((*FINISHED, RESUMED), "nothing says that it came to its end"),
        ((interrupted(),), "it was interrupted"),
        ((lost("it died"),), "the target was lost: it died"),
        ((RunEvent(kind="harness-error", at_ns=1, detail="disk full"),), "leakcheck had to stop"),
    ],
)
def test_a_run_that_did_not_finish_is_never_clean(events, why):
    report = analyzer.analyze(history(CLEAN, events=events))
    assert report.status == "inconclusive"
    (reason,) = report.verdicts[0].reasons
    assert reason.startswith(f"the run did not finish: {why}")


def test_a_run_that_was_resumed_and_finished_can_be_clean():
    events = (interrupted(), RESUMED, *FINISHED)
    assert analyzer.analyze(history(CLEAN, events=events)).status == "clean"


def test_lost_answers_that_were_never_replayed_keep_a_run_from_being_clean():
    found = verdict(history(f"a> b> a=aA b=B {CLEAN}"))
    assert found.status == "inconclusive"
    assert "3 replays that would confirm lost answers were not sent" in found.reasons[0]


@pytest.mark.parametrize(
    ("line", "status"), [(LEAK, "leak"), ("a> b> a! b!", "error"), ("a> b> a- b-", "inconclusive")]
)
def test_what_was_seen_of_a_run_that_did_not_finish_keeps_its_verdict(line, status):
    assert analyzer.analyze(history(line, events=())).status == status


def test_a_target_that_answers_nearly_nothing_is_an_error():
    found = verdict(history("a> b> a! b!"))
    assert found.status == "error"
    assert "0 of 2 requests were answered" in found.reasons[0]
    assert "no answer within 60 s" in found.reasons[0]


def test_a_target_that_refuses_everything_is_inconclusive():
    found = verdict(history("a> b> a- b-"))
    assert found.status == "inconclusive"
    assert "refused nearly everything" in found.reasons[0]
    assert "429 Too Many Requests" in found.reasons[0]


def test_a_target_that_answers_every_request_with_the_same_text_is_inconclusive():
    found = verdict(history("a> b> a=_ b=_", gate=Gate(detect=1.0, min_windows=1)))
    assert found.status == "inconclusive"
    assert any(reason.startswith("echo too low") for reason in found.reasons)


def test_a_run_of_which_most_was_never_sent_is_inconclusive_and_says_so():
    died = RunEvent(kind="worker-died", at_ns=1, detail="worker 2 was killed by signal 9")
    found = verdict(history(f"{CLEAN} a. b. c. d. e.", events=(died, *FINISHED)))
    assert found.status == "inconclusive"
    (reason,) = found.reasons
    assert reason.startswith("answered too low: 7 of 12")
    assert "5 were never sent; a worker died (worker 2 was killed by signal 9)" in reason


def test_a_run_that_never_shows_its_tickets_is_not_clean_where_lost_ones_are_looked_for():
    line = "a> b> a=A b=B | c> d> c=_ d=_"
    changes = {n: {"replays": of, "cell": ALONE, **payload(of)} for n, of in ("ca", "db")}
    gate = Gate(detect=1.0, min_windows=1, min_echo=0.2, min_overlap=0.0)
    found = verdict(history(line, changes=changes, gate=gate))
    assert found.status == "inconclusive"
    assert any(reason.startswith("tickets too low: 0 of 2") for reason in found.reasons)


def test_a_target_that_does_not_report_cached_tokens_leaves_a_cache_scenario_open():
    gate = Gate(detect=1.0, min_windows=1, min_echo=0, min_overlap=0, min_cache_hits=0.5)
    found = verdict(history(CLEAN, gate=gate))
    assert found.status == "inconclusive"
    (reason,) = found.reasons
    assert reason.startswith("cache hits not measured: the target does not report cached tokens")


def test_a_run_that_echoes_nothing_is_never_clean_whatever_its_gate_says():
    found = verdict(history(SEVEN, gate=Gate(detect=1.0, min_windows=1, min_echo=0, min_overlap=0)))
    assert found.status == "inconclusive"
    (reason,) = found.reasons
    assert reason.startswith("nothing was echoed")


def test_a_run_interrupted_before_anything_was_sent_is_inconclusive():
    report = analyzer.analyze(history("a. b.", events=(interrupted(),)))
    assert (report.status, report.exit_code, report.interrupted) == ("inconclusive", 130, True)
    assert "interrupted before" in report.verdicts[0].reasons[0]


def test_an_interrupted_run_exits_with_130_whatever_it_answered():
    assert analyzer.analyze(history(CLEAN, events=(interrupted(),))).exit_code == 130


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((CLEAN, "c> d> c=cC d=dC"), "leak"),
        ((CLEAN, "c> d> c! d!"), "error"),
        ((CLEAN, "c. d."), "inconclusive"),
        (("a> b> a=aA b=bA", "c> d> c! d!"), "leak"),
        ((CLEAN, CLEAN_TOO), "clean"),
    ],
)
def test_the_worst_verdict_is_that_of_the_run(lines, status):
    parts = [history(line, scenario=str(n)) for n, line in enumerate(lines)]
    assert analyzer.analyze(merged(*parts)).status == status


def test_a_source_in_another_scenario_is_named():
    first, second = history(f"a> a=aA {CLEAN}", scenario="one"), history("c> c=cA", scenario="two")
    report = analyzer.analyze(merged(first, second))
    assert [v.status for v in report.verdicts] == ["clean", "leak"]
    assert report.verdicts[1].findings[0].source == "a"


@pytest.mark.parametrize(("shown", "anomaly"), [("A", "passphrase"), ("a", "answer")])
def test_a_leak_into_the_survey_is_a_leak(shown, anomaly):
    first = history("b.").by_id("b")
    again = {"c": {"twin": "b", "ticket": first.ticket, "passphrase": first.passphrase}}
    line = f"b> b=b{shown} / c> c=_"
    survey = history(line, scenario="survey", checks=(), changes=again)
    report = analyzer.analyze(merged(survey, history(f"a> a=aA {CLEAN}", scenario="one")))
    assert (report.status, report.exit_code) == ("leak", 1)
    assert [(v.scenario, v.status) for v in report.verdicts] == [
        ("survey", "leak"),
        ("one", "clean"),
    ]
    assert [f.anomaly for f in report.verdicts[0].findings] == [f"foreign-{anomaly}"]
    assert headline(report).startswith("in a window that is no trial of survey somebody else's")


def test_a_survey_that_shows_no_leak_is_not_judged():
    survey = history("b> b=b / c> c=_", scenario="survey", checks=())
    report = analyzer.analyze(merged(survey, history(CLEAN, scenario="one")))
    assert [(v.scenario, v.status) for v in report.verdicts] == [("one", "clean")]


def test_what_was_in_flight_when_the_run_was_killed_is_no_silence_of_the_target():
    (found,) = analyzer.analyze(history("a> b>", events=())).verdicts
    assert found.status == "inconclusive"
    assert any("so it was killed or is still running" in reason for reason in found.reasons)
    assert not any("answered nearly nothing" in reason for reason in found.reasons)


def test_a_target_that_answers_nothing_is_broken_though_a_worker_died_meanwhile():
    (found,) = analyzer.analyze(history("a> b> c> a! b!")).verdicts
    assert found.status == "error"
    assert found.reasons[0].startswith("the target answered nearly nothing: 0 of 2 requests")


def test_leaks_are_paired_by_tenant_and_a_pair_of_requests_counts_once():
    line = f"{LEAK} | c> d> c=cC d=dcC"
    report = analyzer.analyze(history(line, changes={"c": {"tenant": "t00"}}))
    assert report.leaks_by_pair == (("t00", "t01", 1), ("t00", "t03", 1))


def test_requests_are_counted_by_outcome():
    counts = analyzer.analyze(history("a> b> c> a=aA b- c! d. b> b=b")).requests
    assert counts == {
        "planned": 4,
        "ok": 2,
        "failed": 0,
        "aborted": 0,
        "rejected": 0,
        "unknown": 1,
        "unsent": 1,
        "attempts": 4,
        "replays": 0,
    }


def test_a_planned_abort_is_counted_as_such_and_misses_nothing():
    report = analyzer.analyze(history(f"a> b> {CLEAN} a^a b^"))
    assert report.requests["aborted"] == 2
    assert report.status == "clean"


def test_a_target_of_which_only_planned_aborts_came_back_is_no_error():
    found = verdict(history("a> b> a^a b^b"))
    assert found.status == "inconclusive"
    assert not any("answered nearly nothing" in reason for reason in found.reasons)


def test_what_an_aborted_request_owned_and_what_it_showed_counts():
    leaks = verdict(history("a> b> c> b^bC a=aB c=cC")).findings
    assert sorted((f.source, f.recipient) for f in leaks) == [("b", "a"), ("c", "b")]


def test_notes_say_what_stayed_open():
    notes = verdict(history("a> b> c> a=aA b=bB c! d. c> c!")).notes
    assert any(note.startswith("1 of 4 requests have an unknown outcome") for note in notes)
    assert any(note.startswith("1 of 4 requests were never sent") for note in notes)
    assert any(note.startswith("1 attempts were repetitions") for note in notes)


def test_torn_lines_are_among_the_events():
    report = analyzer.analyze(history(CLEAN, torn=("w00:7: torn",)))
    assert [(e.kind, e.detail) for e in report.events][1:] == [("torn-line", "w00:7: torn")]


def test_findings_are_capped_and_counted_and_leaks_come_first(monkeypatch):
    monkeypatch.setattr(analyzer, "KEPT_FINDINGS", 2)
    found = verdict(history("a> b> c> d> a=_ b=_ c=_ d=dA"))
    assert (len(found.findings), found.findings_total) == (2, 4)
    assert found.findings[0].severity == "leak"


def test_the_curve_bins_windows_by_measured_concurrency():
    line = f"{LEAK} | c> d> e> c=cC d=dD e=eE | f> g> h> f=fF g=gG h=hF"
    (curve,) = verdict(history(line)).curves
    points = [(level, rate.events, rate.trials) for level, rate in curve.points]
    assert points == [("2", 1, 1), ("3-4", 1, 2)]


def test_cells_and_shared_prefixes_have_curves_where_they_are_planned():
    changes = {
        "b": {"partner": "a", "shared_tokens": 16, "cell": "1*16 equal cold"},
        "d": {"partner": "c", "shared_tokens": 16, "cell": "1*16 equal long"},
        "f": {"partner": "e", "shared_tokens": 4, "cell": "1*16 first cold"},
    } | {name: {"role": "source"} for name in "ace"}
    line = f"{LEAK} | c> d> c=cC d=dD | e> f> e=eE f=fF"
    curves = {c.title: c.points for c in verdict(history(line, changes=changes)).curves[1:]}
    points = {
        title: [(level, rate.events, rate.trials) for level, rate in levels]
        for title, levels in curves.items()
    }
    assert points == {
        "Leak rate by shared prefix": [("4", 0, 1), ("16", 1, 2)],
        "Leak rate by cell (1 of 3)": [("1*16", 1, 3)],
        "Leak rate by cell (2 of 3)": [("first", 0, 1), ("equal", 1, 2)],
        "Leak rate by cell (3 of 3)": [("cold", 1, 2), ("long", 0, 1)],
    }


def test_a_cell_of_one_word_has_one_curve():
    changes = {"a": {"cell": "neutral"}, "b": {"cell": "planted"}}
    curve = verdict(history(LEAK, changes=changes)).curves[1]
    assert (curve.title, [level for level, _ in curve.points]) == (
        "Leak rate by cell",
        ["neutral", "planted"],
    )


def test_all_checks_bring_their_tables():
    checks = ("foreign_passphrase", "own_answer", "arms", "divergence")
    found = verdict(history(f"{CLEAN} | c> d> c=cC d=dD", checks=checks, control="cd"))
    assert set(found.tables) == {
        "Windows by arm",
        "Echo by question and place",
        "Leaks by trust boundary",
    }


def test_equal_histories_give_equal_reports_and_they_are_json():
    line, more = f"{LEAK} | c> d> c=_ d=dD", {"checks": ("own_answer", "arms")}
    first, again = (analyzer.analyze(history(line, **more)) for _ in range(2))
    assert orjson.dumps(first) == orjson.dumps(again)
    assert msgspec.convert(orjson.loads(orjson.dumps(first)), Report) == first


def test_a_finished_run_that_lacks_records_is_not_clean():
    found = verdict(history(CLEAN + " | a."))
    assert found.status == "inconclusive"
    assert "no record of 1 of" in " ".join(found.reasons)


# --- confirmations -------------------------------------------------------------------------------


def test_nothing_is_sent_again_when_nothing_was_lost():
    assert confirmations(history(CLEAN)) == ()
    assert confirmations(history("a> b> a=aA b=a")) == ()
    assert confirmations(history("a> b> a=a b=_", checks=("foreign_passphrase",))) == ()


def test_nothing_is_sent_again_where_a_leak_shows_already():
    assert confirmations(history("a> b> a=aA b=_ | c> d> c=cC d=C")) == ()


def test_a_suspect_is_first_sent_alone_three_times():
    h = history("a> b> a=aA b=_ | c> d> c=cC d=dD")
    sent = confirmations(h)
    assert [(r.id, r.window, r.replays, r.cell) for r in sent] == [
        ("b-alone-1", 1_000_000, "b", ALONE),
        ("b-alone-2", 1_000_001, "b", ALONE),
        ("b-alone-3", 1_000_002, "b", ALONE),
    ]
    assert {r.messages for r in sent} == {h.by_id("b").messages}
    assert sent == confirmations(h)


def test_one_that_kept_its_ticket_alone_is_sent_hot_next():
    h = replayed(alone="bbb")
    sent = confirmations(h)
    assert [(r.id, r.replays, r.cell) for r in sent] == [
        (f"b-hot-{n}", "b", HOT) for n in range(1, 9)
    ]
    assert [r.window for r in sent] == list(range(1_000_000, 1_000_008))
    assert [(r.sampling.temperature, r.sampling.seed) for r in sent] == [
        (1.0, n) for n in range(1, 9)
    ]
    assert {r.messages for r in sent} == {h.by_id("b").messages}


def test_one_that_a_few_hot_replays_do_not_shake_gets_the_others():
    sent = confirmations(replayed(alone="bbb", hot="bbbb_bbb"))
    assert [r.id for r in sent] == [f"b-hot-{n}" for n in range(9, 25)]


def test_the_window_of_one_that_is_no_near_tie_is_sent_three_times():
    sent = confirmations(replayed(alone="bbb", hot="b" * 23 + "_"))
    assert [(r.id, r.window, r.replays, r.cell) for r in sent] == [
        (f"{name}-again-{n}", 999_999 + n, name, IN_WINDOW) for n in (1, 2, 3) for name in "ab"
    ]


@pytest.mark.parametrize("window", ["___", "__b"])
def test_a_window_that_lost_it_again_is_sent_three_more_times(window):
    sent = confirmations(replayed(alone="bbb", hot="b" * 24, window=window))
    assert [r.id for r in sent] == [f"{name}-again-{n}" for n in (4, 5, 6) for name in "ab"]


@pytest.mark.parametrize(
    "far",
    [
        {"alone": "bb_"},
        {"alone": "b!b"},
        {"alone": "bbb", "hot": "bbbb__bb"},
        {"alone": "bbb", "hot": "b" * 20 + "__bb"},
        {"alone": "bbb", "hot": "b" * 24, "window": "_bb"},
        CONFIRMED,
    ],
)
def test_nothing_more_is_sent_for_one_that_is_decided(far):
    assert confirmations(replayed(**far)) == ()


@pytest.mark.parametrize("samples", [None, False])
def test_a_target_that_does_not_follow_temperature_is_only_asked_alone(samples):
    facts = TargetFacts(samples=samples)
    assert len(confirmations(replayed(facts=facts))) == 3
    assert confirmations(replayed(alone="bbb", facts=facts)) == ()


def test_links_of_a_replayed_window_lead_to_its_replays():
    changes = {"b": {"partner": "a", "shared_tokens": 5}}
    sent = confirmations(replayed(alone="bbb", hot="b" * 24, changes=changes))
    assert {r.id: r.partner for r in sent}["b-again-1"] == "a-again-1"


def test_a_request_sent_alone_has_no_links():
    changes = {"b": {"partner": "a", "shared_tokens": 5}}
    (alone, *_) = confirmations(history("a> b> a=a b=_", changes=changes))
    assert (alone.twin, alone.partner, alone.shared_tokens, alone.phase) == (None, None, None, 0)


def suspects(h, limit):
    return [r.replays for r in confirmations(h, limit=limit)][::3]


def test_suspects_are_of_different_windows_first_and_spread_over_all_of_them():
    h = history("a> b> a=_ b=_ | c> d> c=_ d=_ | e> f> e=_ f=fF | g> h> g=_ h=_ | i> j> i=_ j=_")
    assert suspects(h, 3) == ["a", "e", "i"]
    assert suspects(h, 5) == ["a", "c", "e", "g", "i"]
    assert suspects(h, 7) == ["a", "c", "e", "g", "i", "b", "d"]
    assert suspects(h, 1) == ["a"]


def test_at_most_twelve_are_suspected_and_four_windows_sent_again():
    names = "abcdefghijklmn"
    line, changes = " | ".join(f"{n}> {n}=_" for n in names), {}
    assert len(confirmations(history(line))) == 3 * 12
    for name in names:
        for cell, times in ((ALONE, 3), (HOT, 24)):
            for _ in range(times):
                again = chr(0x4E00 + len(changes))
                changes[again] = {**payload(name), "replays": name, "cell": cell}
                line += f" | {again}> {again}={name}"
    sent = confirmations(history(line, changes=changes, facts=SAMPLES))
    assert [r.replays for r in sent][::3] == ["a", "e", "j", "n"]


def test_replays_of_two_scenarios_never_share_a_window():
    parts = history("a> b> a=a b=_", scenario="one"), history("c> d> c=c d=_", scenario="two")
    sent = confirmations(merged(*parts))
    windows = {name: {r.window for r in sent if r.scenario == name} for name in ("one", "two")}
    assert not windows["one"] & windows["two"]


def test_what_no_number_of_windows_could_mend_is_said_first():
    line = "t> u> v> w> x> y> z> t=t u=u v=v w=w x=x y=y z=z"  # tickets, and nobody's passphrase
    gate = Gate(detect=1.0, min_windows=60, min_echo=0.5)
    (found,) = analyzer.analyze(history(line, gate=gate)).verdicts
    assert found.reasons[0].startswith("echo too low: 0 of 7")
    assert any(reason.startswith("too few windows") for reason in found.reasons[1:])
