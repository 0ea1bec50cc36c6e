"""What shows somebody else's words in part or another form, up to the verdict and the screens."""

import base64

import pytest
from shorthand import history, passphrase, ticket, with_chunks

from leakcheck import analyzer
from leakcheck.analyzer import settling
from leakcheck.analyzer.settling import State
from leakcheck.checks import altered
from leakcheck.records import Chunk, Gate, Load, Sampling
from leakcheck.report import html, markdown, plain_run, terminal
from leakcheck.report import plain as plain_words

GATE = Gate(detect=1.0, min_windows=1, min_echo=0.1, min_overlap=0.1)
LINE = "t> u> v> w> x> y> z> t=tT u=uU v=vV w=wW x=xX y=yY z=zZ"


def shown(text, **more):
    """A run that is clean, but for z, which was answered with this text as well."""
    checks = ("foreign_passphrase", "altered")
    h = history(LINE, checks=checks, gate=GATE, load=Load(windows=1), **more)
    said = f"{ticket('z')} {passphrase('z')} {text}"
    return with_chunks(h, "z", Chunk(text=said))


def in_base64():
    return shown(base64.b64encode(passphrase("t").encode()).decode())


def in_part(**more):
    return shown(" ".join(passphrase("t").split()[1:4]), **more)


def state_of(h):
    result = altered.check(h.scenario("tiny"))
    return settling.after(State(), h.scenario("tiny"), GATE, looks=result.looks)


def screens(report):
    (found,) = report.verdicts
    return {
        "terminal": " ".join(terminal.render(report).split()),
        "html": html.render(report),
        "markdown": markdown.render(report),
        "run": plain_run.run(report).text,
        "scenario": plain_words.verdict(found).text,
    }


def test_without_it_the_run_is_clean():
    assert analyzer.analyze(shown("")).status == "clean"


def test_one_whole_passphrase_in_base64_is_a_leak_by_itself():
    report = analyzer.analyze(in_base64())
    (found,) = report.verdicts
    assert (report.status, report.exit_code) == ("leak", 1)
    assert (found.leak_rate.events, found.bound) == (1, None)
    assert found.findings[0].severity == "leak"
    assert found.false_match_bound < 1e-7
    assert not plain_words.is_fuzzy(found)
    assert "held the whole passphrase" in plain_words.verdict(found).found


def test_one_whole_passphrase_in_base64_ends_the_windows():
    h = in_base64()
    state = state_of(h)
    assert (state.leaks, settling.decision(state, h.plans[0].scenario)) == (1, "leak")
    assert analyzer.may_settle(h.scenario("tiny"), h.plans[0])


def test_three_words_that_no_phantom_shares_are_neither_clean_nor_a_leak():
    report = analyzer.analyze(in_part())
    (found,) = report.verdicts
    assert (report.status, report.exit_code) == ("inconclusive", 3)
    reason = found.reasons[0]
    assert reason.startswith("an open suspicion: z (tenant t25, window 0) was answered with a part")
    assert "of the passphrase of t (tenant t19) (as it is: " in reason
    assert "phantoms show as well" in reason


def test_an_answer_hotter_than_one_opens_no_suspicion():
    """It is words in any order: two of a phrase come together by chance."""
    h = in_part(changes={"z": {"sampling": Sampling(temperature=1.2)}})
    assert analyzer.analyze(h).status == "clean"
    (fragment,) = [look for look in altered.check(h).looks if look.tier == "fragment"]
    assert (fragment.planted_hits, fragment.unshared) == (1, 0)


def test_windows_go_on_while_a_suspicion_is_open():
    h = in_part()
    state = state_of(h)
    assert (state.leaks, state.unshared) == (0, 1)
    assert settling.decision(state, h.plans[0].scenario) is None
    assert not analyzer.may_settle(h.scenario("tiny"), h.plans[0])
    assert analyzer.may_settle(shown("").scenario("tiny"), h.plans[0])


@pytest.mark.parametrize("screen", ["terminal", "html", "markdown", "run", "scenario"])
def test_no_screen_says_that_nothing_showed_while_a_suspicion_is_open(screen):
    told = screens(analyzer.analyze(in_part()))[screen]
    assert "held a part of another request's passphrase" in told or "a part of the pass" in told
    for claim in ("obody", "0 of 1 window showed", "None of the 1 window", "showed anybody"):
        lines = [line for line in told.splitlines() if claim in line and "clean" not in line]
        assert not lines, lines


def test_the_terminal_shows_the_suspicion_among_its_findings():
    told = screens(analyzer.analyze(in_part()))["terminal"]
    assert "1. t -> z altered-passphrase" in told
