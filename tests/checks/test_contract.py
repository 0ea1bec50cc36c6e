"""Every answer obeys its own sampling parameters; what a target cannot do is its own affair."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretending import Reply, history, noisy, obedient, plan, played, say

from leakcheck import evidence
from leakcheck.analyzer import analyze
from leakcheck.checks import contract
from leakcheck.checks._biases import RUN, run, said_over_and_over
from leakcheck.checks._parameters import Sign

WINDOWS = 14


def checked(model, windows=WINDOWS, **options):
    return contract.check(history("parameter-twins", windows, model), **options)


def confirmed(model, windows=WINDOWS):
    """Confirmed findings by aspect."""
    found = checked(model, windows).findings
    assert all(f.anomaly == "foreign-parameters" for f in found)
    return {f.evidence["aspect"]: f for f in found if f.severity == "corruption"}


def with_stops_of_others(request, company):
    stops = {stop for each in company for stop in each.sampling.stop}
    return say(request, replace(request.sampling, stop=(*request.sampling.stop, *sorted(stops))))


def without_stops_in_company(request, company):
    return say(request, replace(request.sampling, stop=() if company else request.sampling.stop))


def with_one_seed(request, company):
    seeds = [each.sampling.seed for each in company if each.sampling.seed] or [None]
    own = request.sampling.seed
    return say(request, replace(request.sampling, seed=own and min(own, *filter(None, seeds), own)))


def greedy_in_company(request, company):
    heat = 0.0 if company else request.sampling.temperature
    return say(request, replace(request.sampling, temperature=heat))


def greedy_beside_others_that_are_hot(request, company):
    """Hot requests lose their heat beside other hot ones."""
    hot = any(each.sampling.temperature for each in company)
    return (
        say(request, replace(request.sampling, temperature=0.0))
        if hot
        else say(request, request.sampling)
    )


def unbiased_beside_stops(request, company):
    stops = any(each.sampling.stop for each in company)
    bias = () if stops else request.sampling.logit_bias
    return say(request, replace(request.sampling, logit_bias=bias))


def heated_by_company(request, company):
    hottest = max((each.sampling.temperature for each in company), default=0.0)
    own = request.sampling.temperature
    return say(request, replace(request.sampling, temperature=max(hottest, own)))


def biased_by_company(request, company):
    biases = [each.sampling.logit_bias for each in company if each.sampling.logit_bias]
    own = request.sampling.logit_bias
    return say(request, replace(request.sampling, logit_bias=own or (biases or [()])[0]))


def unbiased_in_company(request, company):
    bias = () if company else request.sampling.logit_bias
    return say(request, replace(request.sampling, logit_bias=bias))


def as_long_as_the_shortest(request, company):
    lengths = [each.sampling.max_tokens for each in company]
    most = min([request.sampling.max_tokens, *lengths])
    return say(request, replace(request.sampling, max_tokens=most))


def longer_in_company(request, company):
    most = request.sampling.max_tokens + (4 if company else 0)
    return say(request, replace(request.sampling, max_tokens=most))


def test_an_obedient_target_breaks_nothing():
    result = checked(obedient)
    assert result.findings == ()
    assert result.notes == ()
    _, *rows = result.tables[contract.TITLE]
    assert all(windows > 0 and ups == downs == 0 for _, windows, ups, downs, _ in rows)


@pytest.mark.parametrize(
    ("model", "aspect"),
    [
        (with_stops_of_others, "no stop string of another"),
        (without_stops_in_company, "the own stop string"),
        (with_one_seed, "unlike seeds, unlike answers"),
        (greedy_beside_others_that_are_hot, "unlike seeds, unlike answers"),
        (heated_by_company, "greedy answers keep their ticket"),
        (biased_by_company, "no bias of another"),
        (unbiased_beside_stops, "the own bias"),
        (as_long_as_the_shortest, "no max_tokens of another"),
        (longer_in_company, "the own max_tokens"),
    ],
)
def test_parameters_of_others_are_found(model, aspect):
    assert aspect in confirmed(model)


@pytest.mark.parametrize(
    ("model", "aspect"),
    [
        (greedy_in_company, "unlike seeds, unlike answers"),
        (unbiased_in_company, "the own bias"),
    ],
)
def test_what_any_company_changes_is_a_note_as_unlike_replicas_do_it_too(model, aspect):
    found = {f.evidence["aspect"]: f for f in checked(model, 36).findings}
    assert found[aspect].severity == "note"
    assert found[aspect].evidence["alone"]
    assert found[aspect].explanation.endswith("replicas that are not alike do this too.")


@pytest.mark.parametrize(
    ("model", "aspect", "field"),
    [
        (with_stops_of_others, "no stop string of another", "stop"),
        (biased_by_company, "no bias of another", "logit_bias"),
    ],
)
def test_whose_parameters_they_are_is_said(model, aspect, field):
    h = history("parameter-twins", WINDOWS, model)
    found = {f.evidence["aspect"]: f for f in contract.check(h).findings}[aspect]
    source = h.by_id(found.source)
    assert getattr(source.sampling, field)
    assert source.window == found.window
    assert found.source in found.explanation
    assert found.relation == "concurrent"


def test_the_stop_string_that_cut_is_listed_by_the_source_alone():
    h = history("parameter-twins", WINDOWS, with_stops_of_others)
    found = confirmed(with_stops_of_others)["no stop string of another"]
    window = [r for r in h.plans[0].requests if r.window == found.window and r.sampling.stop]
    own = set(h.by_id(found.source).sampling.stop)
    cut = [stop for stop in own if repr(stop) in found.explanation]
    assert len(cut) == 1
    assert {r.twin or r.id for r in window if cut[0] in r.sampling.stop} == {
        h.by_id(found.source).twin
    }


def test_a_bias_that_stays_behind_names_the_request_of_an_earlier_window():
    last = []

    def model(request, company):
        reply = say(request, request.sampling)
        if request.sampling.logit_bias:
            last[:] = [request]
        elif last and request.window == last[0].window + 1 and request.ticket and not company:
            return say(request, replace(request.sampling, logit_bias=last[0].sampling.logit_bias))
        return reply

    h = history("parameter-twins", WINDOWS, model)
    found = {f.evidence["aspect"]: f for f in contract.check(h).findings}["no bias of another"]
    assert found.severity == "corruption"
    assert h.by_id(found.source).window == found.window - 1


def once(model, window=3):
    """A model that does it in one window only."""
    return lambda request, company: (
        model(request, company) if request.window == window else obedient(request, company)
    )


@pytest.mark.parametrize(
    "model",
    [
        with_stops_of_others,
        without_stops_in_company,
        with_one_seed,
        heated_by_company,
        biased_by_company,
        unbiased_beside_stops,
        as_long_as_the_shortest,
    ],
)
def test_once_is_a_note(model):
    found = checked(once(model)).findings
    assert found
    assert {f.severity for f in found} == {"note"}
    assert all("too few to accuse the target" in f.explanation for f in found)


def ignores(**parameters):
    """A model that never looks at these parameters, alone or in company."""
    return lambda request, _: say(request, replace(request.sampling, **parameters))


@pytest.mark.parametrize(
    "model",
    [
        ignores(stop=()),
        ignores(seed=7),
        ignores(temperature=0.0),
        ignores(logit_bias=()),
    ],
)
def test_what_a_target_never_supports_is_said_and_not_held_against_it(model):
    result = checked(model)
    assert result.findings == ()
    assert result.notes


def test_lengths_that_are_not_obeyed_alone_are_not_held_against_it():
    assert checked(ignores(max_tokens=64)).findings == ()


def test_a_target_that_gives_random_answers_to_every_seed_is_not_accused():
    drawn = iter(range(10**9))
    result = checked(
        lambda request, _: say(
            request, replace(request.sampling, seed=request.sampling.seed and next(drawn))
        )
    )
    assert result.findings == ()
    assert any("no seed led to one answer twice" in note for note in result.notes)


def test_a_refused_bias_is_a_note():
    def model(request, company):
        if request.sampling.logit_bias:
            return Reply(outcome="failed", status=400, error="refused with status 400: logit_bias?")
        return obedient(request, company)

    result = checked(model)
    assert result.findings == ()
    assert any("refused with status 400" in note for note in result.notes)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_noisy_target_is_not_accused(share):
    """Five tests at 0.001 in all, so a run is accused with a chance of at most 0.1 %, three runs
    with 0.3 %; test_paired measures that by simulation, this is the same with whole histories.
    """
    for seed in range(3):
        h = history("parameter-twins", WINDOWS, noisy(obedient, share, seed=seed), seed=seed)
        assert [f for f in contract.check(h).findings if f.severity != "note"] == []


@given(st.from_regex(r"[a-zéß]{2}\S{0,8}", fullmatch=True), st.integers(4, 12))
def test_one_word_over_and_over_is_seen(word, times):
    assert said_over_and_over(" ".join([word] * times)) == word


@pytest.mark.parametrize("text", ["- - - - -", "--------", "0 0 0 0 0", "00000000", ". . . . ."])
def test_rulers_and_zeros_are_no_signature_of_a_bias(text):
    assert said_over_and_over(text) is None


def test_a_unit_without_spaces_is_seen():
    assert said_over_and_over("helohelohelohelo") == "helo"


@given(st.lists(st.sampled_from("abcdef"), min_size=4, max_size=12, unique=True))
def test_different_words_are_no_repetition(words):
    assert said_over_and_over(" ".join(words)) is None


@given(st.text("ab ", max_size=12), st.integers(RUN, 9), st.text("ab ", max_size=12))
def test_a_run_is_found_anywhere(before, times, after):
    text = f"{before} {' '.join(['xyz'] * times)} {after}"
    start, end = run("xyz", text)
    assert text[start:end].split() == ["xyz"] * times


@pytest.mark.parametrize("text", ["xyz xyz", "xyz a xyz b xyz", "axyz xyz xyz", ""])
def test_less_is_no_run(text):
    assert run("xyz", text) is None


@given(st.text(max_size=40), st.text(max_size=200))
def test_any_text_can_be_looked_at(unit, text):
    said_over_and_over(text)
    if unit:
        run(unit, text)


# --- honest servers ------------------------------------------------------------------------------


def ignoring_stops_and_ending_early(draws):
    def model(request, _):
        reply = say(request, replace(request.sampling, stop=()))
        words = reply.text.split()
        if draws.random() >= 0.03:
            return reply
        words = words[: draws.randint(1, len(words))]
        return replace(reply, text=" ".join(words), tokens=len(words), finish="stop")

    return model


def ignoring_max_tokens(draws):
    return lambda request, _: say(
        request, replace(request.sampling, max_tokens=draws.randint(20, 60))
    )


def with_a_full_cache(draws, share=0.01):
    """Company is cut wherever the blocks run out."""

    def model(request, company):
        reply = say(request, request.sampling)
        words = reply.text.split()
        if not company or draws.random() >= share:
            return reply
        words = words[: draws.randint(1, len(words))]
        return replace(reply, text=" ".join(words), tokens=len(words), finish="length")

    return model


def ignoring_bias_and_going_round_in_circles(draws):
    def model(request, _):
        if draws.random() < 0.05:
            word = draws.choice(["again", "okay", "loops"])
            return Reply(text=" ".join([word] * request.sampling.max_tokens))
        return say(request, replace(request.sampling, logit_bias=()))

    return model


def with_an_unlike_replica_for_the_overflow(draws, share=0.5):
    """It has no biases and no heat, honours other seeds and loses a tenth of the tickets."""

    def model(request, company):
        if not company or draws.random() >= share:
            return say(request, request.sampling)
        if request.ticket and draws.random() < 0.1:
            return Reply(text="So it goes on.")
        seed = request.sampling.seed and request.sampling.seed + 1
        heat = request.sampling.temperature * draws.choice([0, 1])
        return say(request, replace(request.sampling, logit_bias=(), seed=seed, temperature=heat))

    return model


HONEST = (
    ignoring_stops_and_ending_early,
    ignoring_max_tokens,
    with_a_full_cache,
    ignoring_bias_and_going_round_in_circles,
    with_an_unlike_replica_for_the_overflow,
)


@pytest.fixture(scope="module")
def default_plan():
    return plan("parameter-twins", 36, load__phantoms=0)


def accused(of, server, runs):
    """What is held against a server, of all runs."""
    return [
        finding
        for seed in runs
        for finding in contract.check(played(of, server(random.Random(seed)))).findings
        if finding.severity != "note"
    ]


@pytest.mark.parametrize("server", HONEST)
def test_an_honest_server_is_not_accused(default_plan, server):
    assert accused(default_plan, server, range(3)) == []


@pytest.mark.slow
@pytest.mark.parametrize("server", HONEST)
def test_an_honest_server_is_not_accused_in_thirty_runs(default_plan, server):
    """Runs of the default size. Where one run in ten is accused, that none of 30 is has a chance of
    4 %.
    """
    assert accused(default_plan, server, range(30)) == []


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_a_cache_that_is_often_full_is_not_accused(default_plan, share):
    assert accused(default_plan, lambda draws: with_a_full_cache(draws, share), range(3)) == []


def test_what_the_target_breaks_alone_too_is_said():
    """Ignores every stop string, except of a request alone in three of four windows."""

    def model(request, company):
        ignored = company or request.window % 4 == 0
        return say(
            request, replace(request.sampling, stop=() if ignored else request.sampling.stop)
        )

    found = {f.evidence["aspect"]: f for f in checked(model).findings}["the own stop string"]
    assert found.severity == "note"
    assert found.explanation.endswith("others do so alone, so the target does not enforce it.")


def test_a_unit_that_was_repeated_before_the_bias_was_sent_accuses_nobody():
    """A model with a habit that happens to be what the bias of a later window leads to."""
    late = plan("parameter-twins", WINDOWS).requests
    biases = {r.window: r.sampling.logit_bias for r in late if r.sampling.logit_bias}

    def model(request, company):
        if request.role == "recipient":
            return say(request, replace(request.sampling, logit_bias=biases[WINDOWS - 1]))
        return obedient(request, company)

    assert confirmed(model) == {}


def without_parameters(request, company):
    """A target that knows none of them."""
    del company
    bare = replace(request.sampling, stop=(), seed=None, logit_bias=())
    return say(request, bare)


def test_a_target_that_honours_no_parameter_was_not_tested():
    (reason,) = checked(without_parameters, 4).untested
    assert "no sampling parameter was tested" in reason


def test_a_target_that_honours_some_was():
    assert checked(obedient, 4).untested == ()


def test_a_clean_verdict_needs_what_its_checks_are_there_for():
    report = analyze(history("parameter-twins", 4, without_parameters))
    (verdict,) = report.verdicts
    assert verdict.status == "inconclusive"
    assert any("no sampling parameter was tested" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("parameter", ["seed", "stop", "logit_bias"])
def test_a_parameter_that_is_always_refused_is_noted(parameter):
    def refusing(request, company):
        if getattr(request.sampling, parameter) not in (None, ()):
            return Reply(
                outcome="failed", status=400, error=f"refused with status 400: {parameter}?"
            )
        return obedient(request, company)

    notes = checked(refusing, 3).notes
    assert (
        f"every request with {parameter} was refused: refused with status 400: {parameter}?"
        in notes
    )


# --- how often is too often ----------------------------------------------------------------------


def slips(times, windows):
    """A rule that was broken in so many windows of so many."""
    return contract._counted(
        contract._Aspect(
            name="a rule",
            signs=[
                Sign(window=n, direction=int(n < times), recipient="r", what="")
                for n in range(windows)
            ],
            unseen="",
            rule=True,
        )
    )


@pytest.mark.parametrize(("windows", "accused"), [(3, 3), (14, 3), (36, 4), (100, 6), (505, 14)])
def test_a_rule_must_be_broken_in_more_windows_the_more_there_are(windows, accused):
    few, many = slips(accused - 1, windows), slips(accused, windows)
    assert many.p <= 0.001
    assert few.p > 0.001 or few.signs.ups < contract.VIOLATIONS


def test_an_honest_server_that_slips_in_a_window_of_a_hundred_is_seldom_accused():
    """The size of the rule, exactly: the chance that a binomial count is accused."""
    for windows in (14, 36, 100, 505):
        least = next(
            n for n in range(contract.VIOLATIONS, windows + 1) if slips(n, windows).p <= 0.001
        )
        assert evidence.at_least(least, windows, 0.01) <= 0.001
