"""Sentences of flags and permissions."""

import pytest

from leakcheck.budget import manners
from leakcheck.cli.parser import parser
from leakcheck.errors import UsageError
from leakcheck.records import Target


@pytest.mark.parametrize(
    ("flag", "what"), [("--wait-ready", "a number"), ("--seed", "a whole number")]
)
def test_a_flag_that_wants_a_number_says_so(flag, what):
    with pytest.raises(UsageError, match=f"{flag}: 'abc' is not {what}"):
        parser().parse_args(["run", "--embedded", flag, "abc"])


def test_a_refusal_names_the_port_where_another_one_is_allowed(tmp_path):
    config = tmp_path / "leakcheck.toml"
    config.write_text('allowed_hosts = ["example.test:8000"]')
    target = Target(base_url="http://example.test/v1", model="m")
    with pytest.raises(UsageError, match=r"example\.test:80 .*allows example\.test:8000"):
        manners.require_permission(target, said_yes=False, config=config)
