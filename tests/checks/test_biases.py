"""What a bias does to others in traffic that comes and goes around it."""

from dataclasses import replace

import pytest
from pretending import history, obedient, say

from leakcheck.checks import contract

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


def test_too_few_windows_are_a_note():
    (found,) = checked(inherits(*BIASES), windows=2).findings
    assert found.severity == "note"
