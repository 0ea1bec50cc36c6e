"""A report says whether leakcheck had proved itself before the run."""

import dataclasses

import pytest

from leakcheck.records import SelfTest
from leakcheck.report import document, html, markdown, terminal

RENDERERS = {
    "terminal": terminal.render,
    "html": html.render,
    "markdown": markdown.render,
}


def after(report, selftest):
    provenance = dataclasses.replace(report.provenance, selftest=selftest)
    return dataclasses.replace(report, provenance=provenance)


@pytest.mark.parametrize("form", RENDERERS)
@pytest.mark.parametrize("passed", [True, False])
def test_date_and_result_of_the_selftest_are_shown(samples, form, passed):
    proof = SelfTest(date="2026-07-03", passed=passed, faults=32, caught=31, harmless=8, accused=1)
    shown = " ".join(RENDERERS[form](after(samples.clean(), proof)).split())
    result = "passed" if passed else "FAILED"
    assert f"self-test of 2026-07-03: {result}; 31 of 32 planted faults caught, 1 of 8" in shown


@pytest.mark.parametrize("form", RENDERERS)
def test_without_a_selftest_nothing_is_claimed(samples, form):
    assert "self-test of" not in RENDERERS[form](samples.clean())


def test_the_selftest_is_read_back_from_the_json(samples):
    proof = SelfTest(
        date="2026-07-03",
        passed=False,
        faults=2,
        caught=1,
        harmless=1,
        accused=0,
        failures=("slow in x, seed 0: called leak (foreign-answer): one answer shows another's",),
    )
    report = after(samples.clean(), proof)
    assert document.load(document.render(report)) == report
