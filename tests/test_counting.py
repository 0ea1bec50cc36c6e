"""What a target really got is what is said to have been used."""

import pytest
from answering import MODELS, answering, refused, said
from playing import request

from leakcheck import cli
from leakcheck.budget import spending
from leakcheck.records import Chunk, Observation, Usage, Use

TINY = """
schema = 1
name = "tiny"
version = 1
summary = "A few small windows."
[load]
windows = 3
requests = 4
workers = 2
lanes = 2
phantoms = 9
[traffic]
use = "concurrent"
[checks.foreign_passphrase]
[gate]
min_windows = 3
"""


@pytest.mark.parametrize("unknown", ["", "seed", "top_p"])
def test_what_is_used_is_what_the_target_got_meeting_included(unknown, tmp_path, capsys):
    got = []

    def answer(_method, path, body):
        got.append(path)
        if path == "/v1/models":
            return 200, MODELS
        if unknown in body:
            return 400, refused(f"unknown field: {unknown}")
        return 200, said(body["messages"][-1]["content"])

    scenario = tmp_path / "tiny.toml"
    scenario.write_text(TINY)
    runs = tmp_path / "runs"
    with answering(answer) as (url, _):
        aim = ("--target", url, "--model", "m", "--style", "phrase", "--metrics", "off")
        cli.main(["run", str(scenario), *aim, "--max-requests", "400", "--out", str(runs)])
    assert spending.used(runs / "latest").requests == len(got)
    assert f"used: {len(got)} requests" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("told", "outcome", "counted"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4}, "ok", (9, 4, 0)),
        ({"prompt_tokens": 9}, "ok", (9, 10, 1)),
        ({"prompt_tokens": 9, "negative": True}, "unknown", (9, 16, 1)),
        ({"completion_tokens": 4}, "ok", (3, 4, 1)),
        ({}, "ok", (3, 10, 1)),
        ({}, "failed", (0, 0, 0)),
    ],
)
def test_what_a_target_does_not_count_is_counted_from_characters(told, outcome, counted):
    seen = Observation(
        request_id="r", worker=0, lane=0, outcome=outcome, start_ns=0, end_ns=1,
        chunks=(Chunk(text="a" * 30),), usage=Usage(**told) if told else None,
    )  # fmt: skip
    prompt, answer, estimated = counted
    expected = Use(requests=1, prompt_tokens=prompt, answer_tokens=answer, estimated=estimated)
    assert spending.use(request("r"), seen) == expected
