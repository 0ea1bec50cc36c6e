import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakcheck.records import EXIT_CODES, Evidence, Exposure
from leakcheck.report import counting, document, html, markdown, plain, plain_run, terminal

LONGEST = 400
JARGON = re.compile(
    r"e-value|Clopper|p-value|p =|martingale|Fisher|likelihood|phantom|posterior|"
    r"\b(alpha|eta|arms?)\b|sensitivity|certificate|\btrial",
    re.IGNORECASE,
)
ANOMALIES = (
    "foreign-passphrase", "foreign-answer", "foreign-cache-hit", "altered-passphrase",
    "foreign-topic", "lost-answer", "changed-answer", "foreign-parameters", "diverted-answer",
    "lost-capacity", "withheld-passphrase", "divergence", "influence", "one-of-the-future",
)  # fmt: skip
SEVERITIES = ("leak", "corruption", "error", "note")
FIGURES = (
    "kept_alone", "replayed_alone", "lost_in_window", "replayed_in_window", "windows_up", "windows",
    "p", "parted_again", "replayed", "parted_in_other_company", "replayed_in_other_company",
    "empty_at_end", "end",
)  # fmt: skip
COUNTS = st.one_of(st.integers(0, 3), st.integers(0, 10**7))
RATES = st.tuples(COUNTS, COUNTS).map(lambda pair: (min(pair), max(pair)))
E_VALUES = st.one_of(st.just(0.0), st.floats(1e-9, 1e300), st.just(1.0))


def everything(samples, evidenced):
    return {**samples.ALL, **evidenced}


def sentences_of(said):
    return [said.found, said.means]


def is_one_sentence(text):
    return text.endswith(".") and not re.search(r"[.!?]\s", text) and ".." not in text


def is_plain(said):
    assert all(is_one_sentence(each) for each in sentences_of(said)), said.text
    assert all(each[0].isupper() or each[0].isdigit() for each in sentences_of(said)), said.text
    assert said.text.isascii()
    assert said.text.isprintable()
    assert "  " not in said.text
    assert len(said.text) < LONGEST, said.text
    assert not JARGON.search(said.text), said.text
    for sentence in sentences_of(said):
        shown = re.sub(r"95 % confidence", "", sentence)
        assert "%" not in shown or re.search(r"\d+ (more )?windows?", shown), sentence
    assert not re.search(r"\b1 (more )?(windows|answers|requests|scenarios)\b", said.text)


def test_every_sample_is_told_in_two_plain_sentences(samples, evidenced):
    for make in everything(samples, evidenced).values():
        report = make()
        is_plain(plain_run.run(report))
        for verdict in report.verdicts:
            is_plain(plain.verdict(verdict))


@st.composite
def findings(draw, samples, text):
    values = st.one_of(COUNTS, st.floats(allow_nan=True), st.none(), st.just(text), st.booleans())
    return dataclasses.replace(
        samples.leak_finding(0),
        anomaly=draw(st.one_of(st.sampled_from(ANOMALIES), st.just(text))),
        severity=draw(st.sampled_from(SEVERITIES)),
        window=draw(st.integers(0, 10**6)),
        recipient=text,
        source=text,
        excerpt=text,
        explanation=text,
        evidence=draw(st.dictionaries(st.sampled_from(FIGURES), values)),
    )


@st.composite
def evidence(draw, samples, text):
    tiers = [
        dataclasses.replace(
            tier,
            name=draw(st.one_of(st.just(tier.name), st.just(text))),
            planted_hits=draw(COUNTS),
            e_value=draw(E_VALUES),
        )
        for tier in samples
    ]
    return Evidence(
        alpha=draw(st.sampled_from([0.01, 0.05, 1e-6])),
        detect=draw(st.sampled_from([0.01, 0.05, 0.001])),
        e_value=draw(E_VALUES),
        sensitivity=draw(st.one_of(st.none(), st.just(0.0), st.floats(1e-6, 1))),
        certificate=draw(E_VALUES),
        settled=draw(st.sampled_from([None, "leak", "evidence", "certificate"])),
        tiers=tuple(draw(st.sampled_from([[], tiers, tiers[:1]]))),
    )


@st.composite
def verdicts(draw, samples, tiers, text):
    events, trials = draw(RATES)
    names = ("answered", "echo", "tickets", "overlap", "cache hits", "windows", "arms", text)
    exposure = []
    for name in draw(st.lists(st.sampled_from(names), max_size=8)):
        measured = draw(st.one_of(st.none(), st.just(41.0), RATES.map(lambda r: samples.rate(*r))))
        exposure.append(
            Exposure(
                name=name,
                measured=measured,
                minimum=draw(st.sampled_from([0.5, 1.0, 60.0])),
                enough=draw(st.sampled_from([True, False, None])),
                text=text,
            )
        )
    return dataclasses.replace(
        samples.verdict(samples.NAMES[0]),
        scenario=text,
        status=draw(st.sampled_from(sorted(EXIT_CODES))),
        reasons=(text,),
        windows_planned=draw(COUNTS),
        leak_rate=samples.rate(events, trials),
        bound=draw(st.one_of(st.none(), st.floats(0, 1, exclude_min=True))),
        false_match_bound=draw(st.one_of(st.just(0.0), st.floats(0, 1), st.just(1e-300))),
        findings=tuple(draw(st.lists(findings(samples, text), max_size=3))),
        findings_total=draw(st.integers(0, 9000)),
        exposure=tuple(exposure),
        evidence=draw(st.one_of(st.none(), evidence(tiers, text))),
    )


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_was_judged_it_is_told_in_two_plain_sentences_without_a_word_of_the_target(
    samples, evidenced, data
):
    tiers = evidenced["fuzzy-leak"]().verdicts[-1].evidence.tiers
    text = "\x1b[31m<b>Zzyzx! Is it?</b> 100 %\n"
    judged = data.draw(st.lists(verdicts(samples, tiers, text), min_size=1, max_size=3))
    status = data.draw(st.sampled_from([verdict.status for verdict in judged]))
    report = samples.report(status, judged, e_value=data.draw(E_VALUES))
    each = [plain.verdict(verdict, report.e_value) for verdict in judged]
    for said in (plain_run.run(report), *each, *map(plain.verdict, judged)):
        is_plain(said)
        assert "zzyzx" not in said.text.lower()


def said_of(evidenced, name):
    report = evidenced[name]()
    return plain.verdict(report.verdicts[-1], report.e_value)


def test_every_kind_of_verdict_is_told_in_its_own_words(evidenced):
    kinds = [name for name in evidenced if name not in {"twelve", "dead-target"}]
    told = {said_of(evidenced, name).found for name in kinds}
    assert len(told) == len(kinds)


def test_a_whole_passphrase_is_told_with_windows_and_the_chance_of_an_accident(samples):
    said = plain.verdict(samples.leak().verdicts[2])
    assert said.found == (
        "In 7 of 100 windows an answer held the whole passphrase of another request, which chance "
        "alone does in at most 1 of 3 trillion runs."
    )


def test_fuzzy_evidence_is_told_with_both_counts_and_how_rare_it_is_on_a_healthy_target(evidenced):
    assert said_of(evidenced, "fuzzy-leak").found == (
        "Other requests' passphrases, spelled or encoded, came up in answers: 9 of 800 that were "
        "sent, against 2 of 79200 alike that never were; a healthy target would show so much in at "
        "most 1 run in 2,100."
    )


def test_a_leak_that_no_single_finding_shows_is_told_as_fuzzy(evidenced):
    report = evidenced["fuzzy-leak"]()
    nameless = dataclasses.replace(report.verdicts[-1], findings=())
    said = plain.verdict(nameless, report.e_value)
    assert plain.is_fuzzy(nameless)
    assert said.means.endswith("whose content it was in any of them cannot be told.")
    told = dataclasses.replace(report, verdicts=(*report.verdicts[:-1], nameless))
    assert said.found in html.render(told).replace("&#39;", "'")
    assert terminal.render(told)
    assert markdown.render(told)
    assert "whole" not in said.text
    is_plain(said)


def test_the_run_tells_the_evidence_of_the_run_and_not_that_of_its_worst_scenario(evidenced):
    assert "at most 1 run in 2,100" in plain_run.run(evidenced["fuzzy-leak"]()).found


def test_a_leak_that_ended_its_scenario_is_not_told_as_a_rate_without_saying_so(evidenced):
    assert said_of(evidenced, "early-leak").found.startswith(
        "In 1 of 3 windows, where the scenario ended, an answer held"
    )


def test_a_leak_outside_the_windows_that_count_is_not_told_as_none_of_them(samples):
    verdict = samples.verdict("control-group", "leak", findings=(samples.leak_finding(0),))
    said = plain.verdict(verdict)
    assert said.found.startswith("Outside the 100 windows that count")


def test_a_match_that_chance_could_make_is_not_called_impossible(samples):
    verdict = dataclasses.replace(samples.leak().verdicts[2], false_match_bound=0.4)
    assert "chance" not in plain.verdict(verdict).found


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("lost-answer", ("1 of 1598 answers", "3 of 3 times alone", "6 of 6 times")),
        ("changed-answer", ("18 of 24 windows", "at most 1 of 260,000 tests")),
        ("foreign-parameters", ("11 of 36 windows", "at most 1 of 2,000 tests")),
        (
            "diverted-answer",
            ("1 of 1598 answers", "10 of 10 times in that", "0 of 10 times in another"),
        ),
    ],
)
def test_corruption_of_each_kind_is_told_with_its_counts(evidenced, kind, counts):
    said = said_of(evidenced, kind)
    assert all(count in said.found for count in counts)
    assert said.means.startswith("Nobody's content was shown")


def test_what_is_certified_is_the_rate_that_was_to_be_excluded(evidenced):
    assert said_of(evidenced, "certified").found == (
        "None of 433 windows showed anybody else's content, so leaks in more than 1 % of windows "
        "are excluded with 95 % confidence."
    )


def test_too_few_windows_are_told_with_the_bound_and_how_many_more_it_takes(evidenced):
    verdict = evidenced["too-few"]().verdicts[-1]
    more = plain.windows_missing(verdict)
    needed = verdict.leak_rate.trials + more
    shown = verdict.evidence.detect * verdict.evidence.sensitivity
    assert (1 - shown) ** -needed >= 25 > (1 - shown) ** -(needed - 1)
    said = plain.verdict(verdict)
    assert "None of 41 windows" in said.found
    assert f"about {more} more windows without a leak" in said.means


def open_scenario(samples, name, **more):
    return dataclasses.replace(samples.verdict(name, "inconclusive"), **more)


def test_a_run_whose_open_scenarios_are_all_measured_says_how_many_windows_in_all(samples):
    verdicts = [
        open_scenario(samples, samples.NAMES[0], windows_sent=4, windows_needed=450),
        open_scenario(samples, samples.NAMES[1], windows_sent=70, windows_needed=100),
    ]
    said = plain_run.run(samples.report("inconclusive", verdicts)).means
    assert "about 476 more windows in all are needed" in said


def test_a_scenario_of_which_nothing_was_sent_counts_with_the_least_its_claim_takes(samples):
    begun = open_scenario(samples, samples.NAMES[0], windows_sent=4, windows_needed=450)
    unsent = open_scenario(samples, samples.NAMES[1], bound=None, windows_sent=0)
    scenario = next(s for s in samples.PROVENANCE.scenarios if s.name == samples.NAMES[1])
    least = plain.least_windows(scenario)
    assert (1 - scenario.gate.detect) ** least <= 0.04
    report = samples.report("inconclusive", [begun, unsent])
    said = plain_run.run(report).means
    assert f"at least {446 + least} more windows are needed" in said
    assert "in all" not in said


def test_a_scenario_that_an_interrupted_run_never_came_to_counts_too(samples):
    begun = open_scenario(samples, samples.NAMES[0], windows_sent=4, windows_needed=450)
    least = sum(map(plain.least_windows, samples.PROVENANCE.scenarios[1:]))
    for more in ({"interrupted": True}, {"events": ()}):  # Ctrl-C, and kill -9
        said = plain_run.run(samples.report("inconclusive", [begun], **more)).means
        assert f"at least {446 + least} more windows are needed" in said


def test_windows_of_the_control_group_count_among_the_least(samples):
    scenario = samples.PROVENANCE.scenarios[0]
    quarter = dataclasses.replace(scenario, load=dataclasses.replace(scenario.load, control=0.25))
    planted = plain.least_windows(scenario)
    assert plain.least_windows(quarter) == -(-planted * 4 // 3)


def test_one_answer_is_not_told_as_many(samples):
    report = samples.report("leak", [one_leak(samples)])
    assert "an answer held a whole secret of another request" in plain_run.run(report).found
    assert "answers held whole secrets" in plain_run.run(samples.leak()).found


def one_leak(samples):
    finding = samples.leak_finding(0)
    return samples.verdict(
        "prefix-overlap", "leak", leaks=1, windows=1, findings=(finding,), findings_total=1
    )


def test_a_leak_in_the_only_window_is_told_without_a_share(samples):
    said = plain.verdict(one_leak(samples)).found
    assert said.startswith("In the one window that counted, an answer held")


def test_few_answers_that_all_repeat_are_told_as_too_few(samples):
    verdict = samples.verdict(samples.NAMES[0], "inconclusive", echo=(4, 4))
    short = [
        dataclasses.replace(e, enough=False if e.name == "echo" else e.enough)
        for e in verdict.exposure
    ]
    said = plain.verdict(dataclasses.replace(verdict, exposure=tuple(short))).means
    assert "4 cases are too few to tell how many answers repeat their own passphrase" in said


def test_a_mute_target_is_told_as_one_that_could_not_have_shown_a_leak(evidenced):
    said = said_of(evidenced, "mute")
    assert "a leak would hardly have shown" in said.found
    assert "only 0 of 400 answers repeated their own passphrase" in said.means


def test_traces_that_settle_nothing_over_the_run_are_told_beside_a_clean_verdict(evidenced):
    report = evidenced["suspected"]()
    its = counting.odds(max(1.0, report.e_value))
    said = said_of(evidenced, "suspected").means
    assert f"1 healthy run in {its} at most" in said
    assert "180" not in said  # of this scenario, which was picked from many
    assert "healthy run" not in plain.verdict(report.verdicts[-1]).means


@pytest.mark.parametrize("name", ["clean", "leak", "corruption", "inconclusive", "interrupted"])
def test_a_report_of_an_older_version_is_told_too(samples, name):
    report = samples.ALL[name]()
    assert all(verdict.evidence is None for verdict in report.verdicts)
    read = document.load(document.render(report))
    said = plain.verdict(read.verdicts[0])
    assert said.found in html.render(read).replace("&#39;", "'")
    assert terminal.render(read)
    assert markdown.render(read)


@given(st.floats(1, 1e300))
def test_odds_are_never_told_greater_than_they_are(times):
    number, _, name = counting.odds(times).partition(" ")
    size = {"": 1, "million": 1e6, "billion": 1e9, "trillion": 1e12}[name]
    told = float(number.replace(",", "")) * size
    assert told <= times * (1 + 1e-6)
    assert told >= min(times, 1e15) * 0.5


@pytest.mark.parametrize(
    ("times", "told"),
    [(1.0, "1"), (99.9, "99"), (4211.0, "4,200"), (3.2e6, "3 million"), (1e300, "1000 trillion")],
)
def test_odds_are_told_in_round_words(times, told):
    assert counting.odds(times) == told
