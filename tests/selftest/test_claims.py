"""What scenarios claim to catch, against the faults that there are."""

from pathlib import Path

import pytest

from leakcheck.selftest import campaign, document, table
from leakcheck.selftest.schedule import FULL
from leakcheck.selftest.values import HEALTHY

ROOT = Path(__file__).parents[2]


def test_every_leaking_fault_is_claimed_by_a_scenario():
    claimed = {name for each in campaign.shipped() for name in each.catches}
    assert {fault.name for fault in campaign.faults() if not fault.benign} - claimed == set()


def test_every_claim_is_of_a_leaking_fault_and_made_once():
    leaking = {fault.name for fault in campaign.faults() if not fault.benign}
    for each in campaign.shipped():
        assert set(each.catches) <= leaking, each.path
        assert len(set(each.catches)) == len(each.catches), each.path


def test_what_is_played_at_full_length_exists():
    assert set(FULL.long_scenarios) <= {each.name for each in campaign.shipped()}
    quiet = {HEALTHY, *(fault.name for fault in campaign.faults() if fault.benign)}
    assert set(FULL.long_faults) <= quiet


def test_the_published_page_shows_the_published_figures():
    figures = ROOT / "reports" / "baselines" / "power.json"
    if not figures.exists():
        pytest.skip("nothing is published yet: make power writes it")
    power = document.load(figures.read_bytes())
    assert power.full
    assert not power.partial
    assert (ROOT / "docs" / "power.md").read_text() == table.markdown(power)
