"""What a budget that is too small is told would do."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck import scenario
from leakcheck.budget.spending import Use
from leakcheck.errors import UsageError
from leakcheck.planning import allotment
from leakcheck.records import Caps

NAMED = re.compile(r"enough for it is (.*)$")
PRICES = {"prompt_usd": 3.0, "answer_usd": 15.0}


def named(error):
    """The caps that a sentence says are enough."""
    flags = dict(re.findall(r"--max-([a-z-]+) ([\d.]+)", NAMED.search(error)[1]))
    return {
        "requests": int(flags["requests"]) if "requests" in flags else None,
        "tokens": int(flags["tokens-total"]) if "tokens-total" in flags else None,
        "cost_usd": float(flags["cost"]) if "cost" in flags else None,
    }


@pytest.mark.parametrize("overrides", [{"gate.detect": 0.1}, {"load.windows": 60}, {}])
@pytest.mark.parametrize(
    "caps",
    [
        {"requests": 60},
        {"tokens": 900},
        {"cost_usd": 0.0149},
        {"requests": 600, "tokens": 700, "cost_usd": 0.02},
    ],
    ids=str,
)
def test_the_caps_that_are_named_are_accepted(overrides, caps):
    paths = [scenario.find(name) for name in ("control-group", "rare-token-passphrase")]
    with pytest.raises(UsageError, match="the budget is too small") as caught:
        allotment.allot(paths, overrides, Caps(**caps, **PRICES))
    would = named(str(caught.value))
    assert {name for name, value in would.items() if value is not None} == set(caps)
    assert allotment.allot(paths, overrides, Caps(**would, **PRICES)).played


limits = st.none() | st.integers(1, 5_000)


@given(limits, limits, st.none() | st.floats(0.0001, 9), st.integers(1, 4_000), st.integers(2, 40))
@settings(deadline=None)
def test_what_is_enough_fits_even_where_the_need_grows_with_it(requests, tokens, cost, need, share):
    caps = Caps(requests=requests, tokens=tokens, cost_usd=cost, **PRICES)

    def needed(caps):
        more = need if caps.requests is None else need + min(300, caps.requests // share)
        return Use(requests=more, prompt_tokens=7 * more, answer_tokens=3 * more)

    for reserve in (0.0, 0.1):
        would = allotment.enough(caps, needed, reserve=reserve)
        assert allotment.fits(would, [needed(would)], reserve=reserve)
