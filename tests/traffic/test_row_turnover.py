"""Requests that come and go around one that says one token over and over."""

import itertools
from collections import Counter

import pytest

from leakcheck import scenario
from leakcheck.errors import UsageError
from leakcheck.passphrase import load_words
from leakcheck.records import TargetFacts


def planned(seed=1, facts=None, **overrides):
    path = next(p for p in scenario.shipped_files() if p.stem == "row-turnover")
    changed = {f"load.{key}": value for key, value in {"windows": 8, **overrides}.items()}
    return scenario.plan(
        scenario.read(path, changed),
        seed=seed,
        facts=facts or TargetFacts(),
        words=load_words(),
        style="rare-token",
    )


@pytest.fixture(scope="module")
def windows():
    return [
        list(group) for _, group in itertools.groupby(planned().requests, key=lambda r: r.window)
    ]


def biased(window):
    return [r for r in window if r.sampling.logit_bias or r.sampling.allowed_token_ids]


def test_the_biased_request_comes_once_alone_and_once_among_others(windows):
    for window in windows:
        alone, among = sorted(biased(window), key=lambda r: r.cell)
        assert (alone.cell, among.cell) == ("alone", "turnover")
        assert (among.messages, among.sampling) == (alone.messages, alone.sampling)
        assert [r.id for r in window if r.phase == alone.phase] == [alone.id]


def test_it_joins_late_outlasts_each_of_the_others_and_has_a_lane_for_itself(windows):
    for window in windows:
        among = next(r for r in biased(window) if r.cell == "turnover")
        others = [r for r in window if r.cell == "turnover" and r is not among]
        assert among.start_offset_s > 0 == max(r.start_offset_s for r in others)
        assert among.sampling.max_tokens > max(r.sampling.max_tokens for r in others)
        assert (among.worker, among.lane) not in {(r.worker, r.lane) for r in others}


def test_the_others_follow_each_other_on_their_lanes_and_no_two_are_equally_long(windows):
    for window in windows:
        others = [r for r in window if r.role == "recipient"]
        lanes = {(r.worker, r.lane) for r in others}
        assert (len(others), len(lanes)) == (12, 3)
        assert len({r.sampling.max_tokens for r in others}) == len(others)


def test_both_kinds_of_bias_take_turns(windows):
    kinds = [bool(biased(window)[0].sampling.allowed_token_ids) for window in windows]
    assert kinds == [False, True] * 4


def test_what_a_target_refuses_is_not_planned():
    requests = planned(facts=TargetFacts(refuses=("allowed_token_ids",))).requests
    assert not any(r.sampling.allowed_token_ids for r in requests)
    assert len({r.window for r in biased(requests)}) == 8


@pytest.mark.parametrize(
    ("load", "lanes"), [({"lanes": 8}, 6), ({"requests": 3}, 1), ({"workers": 1}, 1)]
)
def test_on_every_lane_that_is_used_at_least_two_follow_each_other(load, lanes):
    requests = [r for r in planned(**load).requests if (r.window, r.role) == (0, "recipient")]
    used = Counter((r.worker, r.lane) for r in requests)
    assert (len(used), min(used.values()) >= 2) == (lanes, True)


@pytest.mark.parametrize("load", [{"lanes": 1, "workers": 1}, {"requests": 2}])
def test_too_few_lanes_or_requests_are_said_with_what_would_do(load):
    with pytest.raises(UsageError, match="use 2 lanes and 3 requests, or more"):
        planned(**load)
