"""What stops a trial, and what stops a campaign."""

import pytest
from selftest.made import FAULTS, SCENARIOS, trial

from leakcheck.errors import TargetError
from leakcheck.selftest import bench, campaign
from leakcheck.selftest.schedule import FAST, jobs

TODO = jobs(FAULTS, SCENARIOS, FAST, seed=0)
OPTIONS = campaign.Options(benches=1)


def played(monkeypatch, play, keep=None):
    """A campaign whose benches play trials with this function."""

    class Bench:
        def __init__(self, common, name):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def play(self, job):
            return play(job)

    monkeypatch.setattr(campaign, "Bench", Bench)
    monkeypatch.setattr(campaign, "faults", lambda: FAULTS)
    monkeypatch.setattr(campaign, "shipped", lambda: SCENARIOS)
    return campaign.run(OPTIONS, lambda *_: None, keep)


def as_trial(job, **fields):
    return trial(job.fault.name, job.scenario, job.seed, kind=job.kind, **fields)


def test_figures_of_a_whole_campaign_are_not_partial(monkeypatch):
    kept = []
    power = played(monkeypatch, as_trial, kept.append)
    assert (power.trials, power.unplayed, power.partial) == (len(TODO), 0, False)
    assert kept == []


@pytest.mark.parametrize("after", [0, 3])
def test_at_ctrl_c_the_figures_so_far_are_kept_and_marked(monkeypatch, after):
    kept, count = [], iter(range(len(TODO)))

    def play(job):
        if next(count) == after:
            raise KeyboardInterrupt
        return as_trial(job)

    with pytest.raises(KeyboardInterrupt):
        played(monkeypatch, play, kept.append)
    assert [(each.trials, each.unplayed, each.partial) for each in kept] == (
        [(after, len(TODO) - after, True)] if after else []
    )


@pytest.mark.parametrize(
    "error", [OSError("disk is full"), EOFError(), TargetError("the engine has ended")]
)
def test_what_breaks_one_trial_is_its_reason_and_the_bench_begins_again(
    monkeypatch, tmp_path, error
):
    def broken(_self, _job):
        raise error

    starts = []
    monkeypatch.setattr(bench.Bench, "_start", lambda _self: starts.append(1))
    monkeypatch.setattr(bench.Bench, "_play", broken)
    mine = {each.name: each for each in SCENARIOS}
    with bench.Bench(bench.Common(root=tmp_path, scenarios=mine), "b") as its:
        found = its.play(TODO[0])
    assert (found.broken, found.detected, found.status) == (True, False, "error")
    assert found.reason == f"{type(error).__name__}: {error}".removesuffix(": ")
    assert len(starts) == 2
