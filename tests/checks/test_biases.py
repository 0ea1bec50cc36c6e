"""What a bias does to others in traffic that comes and goes around it."""

import random
from dataclasses import replace

import pytest
from pretending import history, obedient, say

from leakcheck.checks import contract
from leakcheck.traffic.parameter_twins import TOKEN_IDS

WINDOWS = 12
BIASES = ("logit_bias", "allowed_token_ids")


def checked(model, windows=WINDOWS):
    return contract.check(history("row-turnover", windows, model), mixed="turnover", about="biases")


def inherits(*parameters):
    """Everybody in company is bound by these parameters of others."""

    def model(request, company):
        inherited = {
            name: value
            for each in company
            for name in parameters
            if (value := getattr(each.sampling, name))
        }
        own = any(getattr(request.sampling, name) for name in BIASES)
        return say(request, request.sampling if own else replace(request.sampling, **inherited))

    return model


def circling(model, share, *, words):
    """The same model, whose recipients in a share of answers say one of so many words over and
    over, all of them words that some bias may lead to.
    """
    draws = random.Random(1)
    known = draws.sample(list(TOKEN_IDS), words)

    def answer(request, company):
        reply = model(request, company)
        if request.role != "recipient" or draws.random() >= share:
            return reply
        return replace(reply, text=" ".join([f"token{draws.choice(known)}"] * 6))

    return answer


def ignores(*parameters):
    return lambda request, _: say(
        request, replace(request.sampling, **dict.fromkeys(parameters, ()))
    )


def test_a_target_that_obeys_is_accused_of_nothing_and_both_aspects_were_tested():
    seen = checked(obedient)
    assert (seen.findings, seen.notes, seen.untested) == ((), (), ())
    rows = seen.tables[contract.TITLE][1:]
    assert {name for name, *_ in rows} == {"no bias of another", "the own bias"}
    assert all(windows == WINDOWS and ups == downs == 0 for _, windows, ups, downs, _ in rows)


@pytest.mark.parametrize("parameter", BIASES)
def test_a_bias_of_another_is_found_and_its_parameter_and_request_are_named(parameter):
    h = history("row-turnover", WINDOWS, inherits(parameter))
    (found,) = contract.check(h, mixed="turnover", about="biases").findings
    assert (found.severity, found.anomaly) == ("corruption", "foreign-parameters")
    assert f"to which the {parameter} of {found.source} leads" in found.explanation
    assert getattr(h.by_id(found.source).sampling, parameter)
    assert found.evidence["windows_up"] == WINDOWS // 2


@pytest.mark.parametrize("other", BIASES)
def test_a_kind_of_bias_that_is_ignored_takes_nothing_from_the_other(other):
    (obeyed,) = set(BIASES) - {other}

    def model(request, company):
        heard = replace(request, sampling=replace(request.sampling, **{other: ()}))
        return inherits(obeyed)(heard, company)

    (found,) = checked(model).findings
    assert found.severity == "corruption"


def test_a_target_that_ignores_both_is_accused_of_nothing_and_untested():
    seen = checked(ignores(*BIASES))
    assert seen.findings == ()
    (reason,) = seen.untested
    assert reason.startswith("no bias was tested: logit_bias and allowed_token_ids were each")


def test_three_windows_of_few_are_enough():
    (found,) = checked(inherits(*BIASES), windows=3).findings
    assert found.severity == "corruption"


def test_too_few_windows_are_a_note():
    (found,) = checked(inherits(*BIASES), windows=2).findings
    assert found.severity == "note"


@pytest.mark.parametrize(("share", "words"), [(0.1, 100), (0.1, len(TOKEN_IDS)), (1.0, 100)])
def test_a_model_that_goes_round_in_circles_is_not_accused(share, words):
    seen = checked(circling(obedient, share, words=words), windows=100)
    assert {each.severity for each in seen.findings} <= {"note"}


def test_a_bias_of_another_is_found_in_a_model_that_goes_round_in_circles():
    (found,) = checked(circling(inherits(*BIASES), 0.1, words=100), windows=30).findings
    assert found.severity == "corruption"
    assert "over what no bias leads to (binomial tests against 5% by chance" in found.explanation
