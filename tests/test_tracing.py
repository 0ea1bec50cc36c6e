"""A finding of a traced engine names the command that shows the blocks behind it."""

from dataclasses import replace

import pytest
from shorthand import history

from leakcheck import analyzer
from leakcheck import history as histories

LEAK = "a> b> a=aA b=bA"


def traced(path, ids):
    """A leak from a to b, on an engine with its trace at `path`; `ids` of the answers by letter."""
    run = history(LEAK)._run
    seen = [replace(o, target_id=ids.get(o.request_id)) for o in run.seen]
    origin = replace(run.provenance, engine={"trace": path})
    h = histories.build(run.plans, [], seen, provenance=origin, events=run.events)
    return analyzer.analyze(h).verdicts[0].findings[0].evidence.get("trace")


def test_a_finding_names_the_trace_and_both_answers():
    assert traced("/runs/t.jsonl", {"a": "chatcmpl-1", "b": "chatcmpl-2"}) == (
        "leakcheck inspect pool --trace /runs/t.jsonl --request chatcmpl-2 --request chatcmpl-1"
    )


def test_an_engine_without_a_trace_has_no_command():
    assert traced(None, {"a": "chatcmpl-1", "b": "chatcmpl-2"}) is None
    assert "trace" not in analyzer.analyze(history(LEAK)).verdicts[0].findings[0].evidence


def test_a_path_with_a_blank_can_be_pasted():
    assert "--trace '/my runs/t'" in traced("/my runs/t", {"b": "chatcmpl-2"})


@pytest.mark.parametrize("hostile", ["x; rm -rf ~", "$(id)", "a\nb", "-rf", "a" * 200, "\x1b[2J"])
def test_an_id_that_could_do_harm_stands_in_no_command(hostile):
    assert traced("/t", {"b": hostile}) is None
    assert traced("/t", {"a": "chatcmpl-1", "b": hostile}).endswith("--request chatcmpl-1")


def test_one_id_for_both_answers_is_asked_for_once():
    assert traced("/t", {"a": "same", "b": "same"}).count("same") == 1
