import dataclasses
import json
from pathlib import Path

import orjson
import pytest

from leakcheck.errors import HarnessError, RunFolderError
from leakcheck.records import Report
from leakcheck.report import document

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "report.schema.json"
NAMES = ["clean", "leak", "corruption", "inconclusive", "interrupted", "empty"]


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_read_back_as_it_was_written(samples, name):
    report = samples.ALL[name]()
    assert document.load(document.render(report)) == report


def test_equal_reports_give_equal_bytes(samples):
    assert document.render(samples.leak()) == document.render(samples.leak())


def test_the_schema_version_stands_first(samples):
    assert document.render(samples.clean()).startswith('{\n  "schema": 1,\n  "status"')


def test_keys_of_free_tables_are_sorted(samples):
    finding = dataclasses.replace(samples.leak_finding(0), evidence={"b": 1, "a": 2})
    report = samples.report("leak", [samples.verdict("control-group", findings=(finding,))])
    text = document.render(report)
    assert text.index('"a": 2') < text.index('"b": 1')


def test_a_number_that_is_not_finite_becomes_null_in_evidence(samples):
    text = document.render(samples.hostile())
    assert "NaN" not in text
    evidence = orjson.loads(text)["verdicts"][0]["findings"][0]["evidence"]
    assert evidence["nan"] is None


def test_a_rate_that_is_not_a_number_is_refused_by_its_path(samples):
    broken = dataclasses.replace(samples.rate(1, 2), low=float("nan"))
    verdict = dataclasses.replace(samples.verdict("control-group"), leak_rate=broken)
    with pytest.raises(HarnessError, match=r"leak_rate\.low|\$\.verdicts"):
        document.render(samples.report("clean", [verdict]))


def test_lone_surrogates_of_a_target_do_not_stop_the_report(samples):
    finding = dataclasses.replace(samples.leak_finding(0), excerpt="a\ud800b", mark=(0, 3))
    report = samples.report("leak", [samples.verdict("control-group", findings=(finding,))])
    read = document.load(document.render(report))
    assert read.verdicts[0].findings[0].excerpt == "a?b"


def test_a_value_that_json_has_no_form_for_is_named(samples):
    finding = dataclasses.replace(samples.leak_finding(0), evidence={"odd": object()})
    report = samples.report("leak", [samples.verdict("control-group", findings=(finding,))])
    with pytest.raises(HarnessError, match="object"):
        document.render(report)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"schema": 99}', "schema 99; this leakcheck reads 1"),
        ('{"schema": 1, "status": "fine"}', "status"),
    ],
)
def test_a_damaged_report_is_refused_in_one_sentence(text, said):
    with pytest.raises(RunFolderError, match=said):
        document.load(text)


def test_the_committed_schema_is_current():
    again = (
        "python -c 'from leakcheck.report import document; print(document.schema(), end=\"\")' "
        "> docs/report.schema.json"
    )
    assert SCHEMA_FILE.read_text(encoding="utf-8") == document.schema(), f"run: {again}"


def test_the_documentation_names_every_field_of_the_schema():
    text = SCHEMA_FILE.with_name("report-schema.md").read_text(encoding="utf-8")
    definitions = json.loads(document.schema())["$defs"]
    documented = {"Report", "Verdict", "Finding", "Rate", "Exposure", "Curve", "RunEvent"}
    missing = [
        f"{name}.{field}"
        for name in sorted(documented)
        for field in definitions[name]["properties"]
        if f"`{field}`" not in text
    ]
    assert not missing


def test_a_report_needs_no_field_that_has_a_default(samples):
    data = orjson.loads(document.render(samples.empty()))
    del data["events"], data["leaks_by_pair"]
    assert isinstance(document.load(orjson.dumps(data)), Report)
