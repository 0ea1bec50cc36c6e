"""Plans of the shipped scenarios, for tests of traffic shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakcheck import scenario
from leakcheck.passphrase import assert_separate, load_words
from leakcheck.records import Plan, Request, TargetFacts

FACTS = TargetFacts(block_tokens=16, overhead_tokens=2)


def plan(name: str, windows: int, *, facts: TargetFacts = FACTS, **options: Any) -> Plan:
    """The first windows of a shipped scenario, with other options of its traffic."""
    overrides: Mapping[str, Any] = {
        "load.windows": windows,
        "load.phantoms": 9,
        **{f"traffic.{key}": value for key, value in options.items()},
    }
    read = scenario.read(scenario.find(name), overrides)
    return scenario.plan(read, seed=3, facts=facts, words=load_words(), style="phrase")


def planned(name: str, windows: int, **more: Any) -> dict[str, Request]:
    """Requests by id, proven to hold nobody else's phrases."""
    made = plan(name, windows, **more)
    assert_separate([made])
    return {request.id: request for request in made.requests}


def in_cell(requests: Mapping[str, Request], *cells: str) -> list[Request]:
    """Those of these cells; there are some."""
    found = [request for request in requests.values() if request.cell in cells]
    assert found, cells
    return found


def text(request: Request) -> str:
    """The user's message."""
    return request.messages[-1].content
