"""What a claim takes: windows, requests, tokens, minutes, money; and the command that says so."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretending import obedient, plan, played
from shorthand import history

from leakcheck import cli, planning, scenario
from leakcheck.cli import bills
from leakcheck.evidence import rate
from leakcheck.records import Rate, TargetFacts

SHIPPED = {path.stem: path for path in scenario.shipped_files()}


def read(name, **overrides):
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return scenario.read(SHIPPED[name], keys)


def bill(name="rare-token-passphrase", *, seen=None, facts=None, terms=None, **overrides):
    given_terms = terms or planning.Terms()
    return planning.bill(read(name, **overrides), given_terms, seen=seen, facts=facts)


def seen(**fields):
    usual = {
        "where": "that run",
        "echo": rate(100, 100),
        "asked": 100,
        "recipients": 100,
        "trials": 50,
        "planted": 50,
        "requests_per_s": 10.0,
        "told": 100,
        "prompt_tokens": 90.0,
        "answer_tokens": 30.0,
    }
    return planning.Seen(**(usual | fields))


def exclude(**given):
    return bill(**given).needs[-1].windows


def perfect_echo():
    return Rate(events=9, trials=9, low=1, high=1, lower=1.0, upper=1)


# --- how many windows ----------------------------------------------------------------------------


@pytest.mark.parametrize(("detect", "windows"), [(0.05, 59), (0.01, 299), (0.001, 2995)])
def test_the_rule_of_three_where_everything_would_show(detect, windows):
    need = bill(seen=seen(echo=perfect_echo()), gate__detect=detect).needs[0]
    assert (need.goal, need.windows) == (planning.SEE, windows)


@pytest.mark.parametrize(("power", "windows"), [(0.8, 161), (0.9, 230), (0.99, 459)])
def test_more_power_takes_more_windows_to_see_and_no_more_to_exclude(power, windows):
    usual = exclude(seen=seen(echo=perfect_echo()))
    needs = bill(seen=seen(echo=perfect_echo()), terms=planning.Terms(power=power)).needs
    assert {need.goal: need.windows for need in needs} == {
        planning.SEE: windows,
        planning.EXCLUDE: usual,
    }


@given(st.floats(0.001, 0.2), st.integers(1, 100), st.floats(0.5, 0.999))
def test_so_many_trials_have_the_power_and_one_less_has_not(detect, asked, power):
    of = read("rare-token-passphrase", gate__detect=detect)
    figures = planning.bill(
        of, planning.Terms(power=power), seen=seen(asked=asked, echo=perfect_echo())
    )
    visible, windows = detect * asked / 100, figures.needs[0].windows
    assert 1 - (1 - visible) ** windows >= power - 1e-9
    assert windows == 1 or 1 - (1 - visible) ** (windows - 1) < power


def test_a_weak_echo_and_few_that_are_asked_take_more_windows():
    for need, weak, few in zip(
        bill(seen=seen()).needs,
        bill(seen=seen(echo=rate(50, 100)), gate__min_echo=0.0).needs,
        bill(seen=seen(asked=50)).needs,
        strict=True,
    ):
        assert weak.windows > 1.9 * need.windows
        assert few.windows > 1.9 * need.windows


def test_a_few_owners_that_were_all_echoed_are_no_perfect_echo():
    assert exclude(seen=seen(echo=rate(40, 40))) > 1.05 * exclude(seen=seen(echo=perfect_echo()))


@pytest.mark.parametrize("half", [{"load__control": 0.5}, {"seen": seen(trials=25)}])
def test_where_half_of_the_windows_are_no_trials_twice_as_many_are_sent(half):
    one, other = bill(seen=seen()).needs, bill(**{"seen": seen(), **half}).needs
    assert other[0].windows == pytest.approx(2 * one[0].windows, rel=0.01)
    # and some more, since a run may draw fewer trials than half of its windows
    assert 2.02 * one[1].windows < other[1].windows < 2.2 * one[1].windows


def test_to_exclude_takes_as_many_trials_as_the_gate_wants():
    enough = {"gate__detect": 0.5, "gate__min_windows": 60}
    assert exclude(seen=seen(), **enough) == 60
    # 60 heads at least in 95.5 % of 139 tosses of a coin, and in 94.7 % of 138
    assert exclude(seen=seen(trials=25), **enough) == 139


@pytest.mark.parametrize("lacking", [{"gate__min_echo": 0.96}, {"gate__detect": 1e-9}])
def test_what_no_run_would_certify_takes_no_number_of_windows(lacking):
    assert exclude(seen=seen(echo=rate(95, 100)), **lacking) is None


@pytest.mark.parametrize("broken", [{"echo": rate(0, 50)}, {"asked": 0}, {"trials": 0}])
def test_where_nothing_would_show_no_number_is_enough(broken):
    for need in bill(seen=seen(**broken)).needs:
        assert need.windows is need.requests is need.minutes is need.answer_tokens is None


# --- what they cost ------------------------------------------------------------------------------


def test_requests_are_counted_in_windows_that_are_really_planned():
    figures = bill("control-group")
    assert figures.requests.value == 16
    assert re.fullmatch(r"(\d+) requests in (\d+) planned windows", figures.requests.source)
    assert figures.needs[0].requests == 16 * figures.needs[0].windows


def test_a_measured_run_gives_tokens_minutes_and_with_prices_a_cost():
    terms = planning.Terms(price=planning.Price(prompt_usd=2.0, answer_usd=10.0))
    need = bill("control-group", seen=seen(), terms=terms).needs[0]
    assert need.prompt_tokens == 90 * need.requests
    assert need.answer_tokens == 30 * need.requests
    assert need.minutes == pytest.approx(need.requests / 10 / 60)
    assert need.cost_usd == pytest.approx((180 + 300) * need.requests / 1e6)


def test_without_a_run_there_are_no_minutes_and_every_assumption_says_so():
    figures = bill()
    assert (
        figures.needs[0].minutes
        is figures.needs[0].cost_usd
        is figures.requests_per_s.value
        is None
    )
    assert "echo 0.9 (assumed)" in figures.sensitivity.source
    assert "one token each (assumed)" in figures.prompt_tokens.source
    assert figures.answer_tokens.source.endswith("at most")


def test_a_given_rate_is_used_in_place_of_a_measured_one():
    figures = bill(seen=seen(), terms=planning.Terms(requests_per_s=100.0))
    assert (figures.requests_per_s.value, figures.requests_per_s.source) == (100.0, "given")
    assert figures.needs[0].minutes == pytest.approx(figures.needs[0].requests / 6000)


def test_a_surveyed_target_prices_the_words_of_prompts():
    silent = seen(told=0, prompt_tokens=None, answer_tokens=None)
    words = bill(facts=TargetFacts(), seen=silent).prompt_tokens.value
    facts = TargetFacts(overhead_tokens=5, tokens_per_word=2.0)
    assert bill(facts=facts, seen=silent).prompt_tokens.value == pytest.approx(2 * words + 5)


def test_windows_that_can_be_no_trial_by_plan_are_left_out():
    lonely = planning.sample(read("rare-token-passphrase", load__requests=1), TargetFacts())
    assert (lonely.planted, lonely.testable) == (30, 0)


# --- an earlier run ------------------------------------------------------------------------------


def told(request, company):
    return replace(obedient(request, company), tokens=7)


def test_an_earlier_run_is_measured_scenario_by_scenario():
    run = played(plan("rare-token-passphrase", 10), told)
    found = planning.measured(run)["rare-token-passphrase"]
    owners = [r for r in run.plans[0].requests if r.passphrase and r.ask == "eliciting"]
    assert found.echo.trials == len(owners)
    assert (found.trials, found.planted) == (10, 10)
    assert found.recipients == len(run.plans[0].requests)
    # ten windows, one a second, of which the last ends after 0.8 s
    assert found.requests_per_s == pytest.approx(found.recipients / 9.8)


def test_tokens_are_known_only_where_the_target_told_both():
    found = planning.measured(played(plan("rare-token-passphrase", 2), told))
    assert found["rare-token-passphrase"].prompt_tokens is None


def test_a_run_of_other_scenarios_still_gives_echo_and_speed():
    run = played(plan("rare-token-passphrase", 10), told)
    (figures,) = planning.bills([read("control-group")], planning.Terms(), run=run)
    assert "all scenarios of that run" in figures.sensitivity.source
    assert figures.requests_per_s.value == pytest.approx(
        planning.measured(run)["rare-token-passphrase"].requests_per_s
    )


def test_windows_of_which_nothing_was_sent_are_no_windows_without_a_trial():
    (told,) = planning.measured(history("a> b> a=aA b=bB | c. d. | e. f.")).values()
    assert (told.trials, told.planted) == (1, 1)


def test_a_run_that_was_stopped_before_it_sent_anything_gives_nothing():
    run = history("a.", changes={"a": {"scenario": "tiny"}})
    (figures,) = planning.bills([read("control-group")], planning.Terms(), run=run)
    assert figures.requests_per_s.value is None
    assert "assumed" in figures.sensitivity.source


# --- the command ---------------------------------------------------------------------------------


def printed(capsys, *arguments):
    assert cli.main(["plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture
def _nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKCHECK_OUT", str(tmp_path))


@pytest.mark.usefixtures("_nowhere")
def test_the_table_has_a_row_for_each_claim_and_their_sum(capsys):
    out = printed(capsys, "rare-token-passphrase", "control-group", "--power", "80%")
    rows = [line.split() for line in out.splitlines() if re.search(r"[\d,]+ +-$", line)]
    assert [row[0] for row in rows] == ["rare-token-passphrase"] * 2 + ["control-group"] * 2 + [
        "all"
    ] * 2
    windows = [int(row[-5].replace(",", "")) for row in rows]
    assert windows[4] == windows[0] + windows[2]
    assert windows[5] == windows[1] + windows[3]
    assert "No run to take figures from" in out


@pytest.mark.usefixtures("_nowhere")
def test_a_rate_makes_minutes_and_prices_make_dollars(capsys):
    out = printed(capsys, "control-group", "--rate", "10", "--price-in", "1", "--price-out", "4")
    head, row, _ = out.split("\n\n")[1].splitlines()
    assert head.split()[-2:] == ["minutes", "USD"]
    cells = [float(cell.replace(",", "")) for cell in row.split()[-5:]]
    assert cells[3] == pytest.approx(cells[0] / 600, abs=0.05)
    assert cells[4] == pytest.approx((cells[1] + 4 * cells[2]) / 1e6, abs=0.005)


@pytest.mark.usefixtures("_nowhere")
def test_no_line_is_wider_than_the_terminal_but_the_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = printed(capsys, "control-group")
    assert all(len(line) <= 60 for line in out.split("\n\n")[0].splitlines())
    assert all(len(line) <= 60 for line in out.split("\n\n")[3].splitlines())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--power", "95"], "--power: '95' is no share"),
        (["--detect", "0%"], "--detect: '0%' is no share"),
        (["--rate", "0"], "--rate: 0 is out of range; use a number above 0"),
        (["--rate", "nan"], "--rate: nan is out of range"),
        (["--price-in", "1"], "--price-out is missing"),
        (["--price-in", "-1", "--price-out", "1"], "--price-in: -1 is out of range"),
        (["--like", "/nowhere"], "--like: /nowhere is no run folder"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(arguments, sentence, capsys):
    assert cli.main(["plan", "control-group", *arguments]) == 2
    out, err = capsys.readouterr()
    (complaint,) = [line for line in err.splitlines() if line.startswith("leakcheck: ")]
    assert out == ""
    assert sentence in complaint


@pytest.mark.usefixtures("_nowhere")
def test_a_budget_that_is_too_small_is_named(capsys):
    flags = ("control-group", "--detect", "5%", "--windows")
    enough = exclude(name="control-group", gate__detect=0.05)
    assert "budget" not in printed(capsys, *flags, str(enough))
    tight = " ".join(printed(capsys, *flags, str(enough - 1)).split())
    assert f"(load.windows): --windows {enough} makes it enough" in tight


def test_unknown_figures_are_no_zeros():
    need = planning.Need(
        scenario="x", goal="see", windows=None, requests=None, prompt_tokens=None,
        answer_tokens=None, minutes=None, cost_usd=None,
    )  # fmt: skip
    figures = replace(bill(), needs=(need,))
    row = bills.render([figures], planning.Terms(), None, 100).split("\n\n")[1].splitlines()[1]
    assert row.split()[-5:] == ["-"] * 5
