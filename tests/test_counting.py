"""What a target really got is what is said to have been used."""

import pytest
from answering import MODELS, answering, refused, said

from leakcheck import cli
from leakcheck.budget import spending

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
