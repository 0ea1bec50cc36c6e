from typing import Any, Literal

import pytest

from leakcheck import plugin
from leakcheck.errors import UsageError


def example(window, *, share: float = 0.5, count: int = 1, names: list[str] | None = None,
            mode: Literal["a", "b"] = "a", anything: Any = None):  # fmt: skip
    return window, share, count, names, mode, anything


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"'concurent'.*did you mean 'concurrent'"):
        plugin.load("traffic", "concurent", "plan")


def test_a_dotted_name_is_any_module():
    assert plugin.load("traffic", "leakcheck.traffic.concurrent", "plan").__name__ == "plan"


def test_a_module_without_the_function_is_refused():
    with pytest.raises(UsageError, match="`plan`"):
        plugin.load("traffic", "json", "plan")


def test_options_are_the_keyword_only_parameters():
    assert list(plugin.options_of(example)) == ["share", "count", "names", "mode", "anything"]


@pytest.mark.parametrize(
    "table",
    [
        {"share": 1},
        {"share": 0.25},
        {"count": 3},
        {"names": ["x"]},
        {"mode": "b"},
        {"anything": {}},
    ],
)
def test_a_fitting_table_is_accepted(table):
    plugin.check_options(example, table, "file: traffic")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"shares": 1}, r"unknown key 'shares'; did you mean 'share'\?"),
        ({"count": 1.5}, "file: traffic.count: 1.5 is not of type integer"),
        ({"count": True}, "True is not of type integer"),
        ({"share": "half"}, "'half' is not of type number"),
        ({"mode": "c"}, "'c' is not of type 'a' or 'b'"),
        ({"names": [1]}, "is not of type list of string"),
    ],
)
def test_a_wrong_key_or_type_is_named(table, sentence):
    with pytest.raises(UsageError, match=sentence):
        plugin.check_options(example, table, "file: traffic")


def test_names_are_found_without_importing_anything():
    assert {"concurrent", "shared_prefix", "mixed_batch"} <= set(plugin.names("traffic"))
    assert not any(name.startswith("_") for name in plugin.names("checks"))


def test_every_plug_in_says_in_one_line_what_it_is():
    for kind in ("traffic", "checks", "backends"):
        for name in plugin.names(kind):
            assert plugin.summary(kind, name).endswith((".", ":"))
