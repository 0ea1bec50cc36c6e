"""Traffic for faults that no passphrase shows: parameters, ragged batches, cache pressure."""

from collections import Counter

import pytest
from pretending import FACTS, plan

from leakcheck import scenario, wording
from leakcheck.errors import UsageError
from leakcheck.passphrase import load_words
from leakcheck.records import TargetFacts
from leakcheck.traffic.parameter_twins import ALONE, MIXED, PLAIN, SEEDED

SHAPES = ("parameter-twins", "ragged-batch", "cache-pressure")


@pytest.fixture(scope="module")
def planned():
    return {name: plan(name, 40).requests for name in SHAPES}


def phases(requests):
    found = {}
    for request in requests:
        found.setdefault((request.window, request.phase), []).append(request)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_twins_have_the_very_same_payload_and_parameters(planned, name):
    by_id = {r.id: r for r in planned[name]}
    twins = [r for r in by_id.values() if r.twin]
    assert len(twins) >= 40
    for r in twins:
        first = by_id[r.twin]
        assert (r.messages, r.sampling, r.tenant) == (first.messages, first.sampling, first.tenant)
        assert (r.ticket, r.passphrase, r.stream) == (first.ticket, first.passphrase, first.stream)
        assert first.twin is None


@pytest.mark.parametrize("name", SHAPES)
def test_nobody_shares_a_lane_in_a_phase_before_all_have_one(planned, name):
    for group in phases(planned[name]).values():
        lanes = Counter((r.worker, r.lane) for r in group)
        assert max(lanes.values()) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_equal_seeds_give_equal_plans(name):
    assert plan(name, 3, seed=5) == plan(name, 3, seed=5)
    assert plan(name, 3, seed=5) != plan(name, 3, seed=6)


@pytest.mark.parametrize("name", SHAPES)
def test_prompt_and_answer_fit_into_480_tokens(planned, name):
    for r in planned[name]:
        words = sum(len(message.content.split()) for message in r.messages)
        assert words * 1.15 + r.sampling.max_tokens + FACTS.overhead_tokens <= 520


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_sent_alone_has_its_phase_for_itself(planned, name):
    for group in phases(planned[name]).values():
        assert len(group) == 1 or all(r.cell != ALONE for r in group)


# --- parameter twins -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def windows(planned):
    found = {}
    for request in planned["parameter-twins"]:
        found.setdefault(request.window, []).append(request)
    return list(found.values())


def recipients(window, cell=ALONE):
    return [r for r in window if r.cell == cell and r.ask == "neutral"]


def test_a_stop_string_of_another_is_listed_by_one_request_and_due_in_one_answer(windows):
    for window in windows:
        mixed = recipients(window, MIXED)
        for r in mixed:
            for stop in r.sampling.stop:
                echoed = [o for o in mixed if stop in o.messages[0].content]
                assert len(echoed) == 1
                assert sum(stop in o.sampling.stop for o in mixed) == 1 + (
                    sum(stop in o.sampling.stop for o in echoed if o is not r)
                )
        foreign = {
            r.id: [s for s in r.sampling.stop if s not in r.messages[0].content] for r in mixed
        }
        assert sum(map(len, foreign.values())) == 2


def test_a_stop_string_never_cuts_a_ticket(windows):
    for window in windows:
        tickets = " ".join(r.ticket.text for r in window if r.ticket)
        stops = {stop for r in recipients(window) for stop in r.sampling.stop}
        assert not [stop for stop in stops for r in recipients(window) if stop in r.ticket.text]
        assert tickets


def test_plain_company_has_neither_heat_nor_stops_nor_biases(windows):
    for window in windows:
        plain = [r.sampling for r in window if r.cell == PLAIN]
        assert len(plain) == 10
        assert not any(s.temperature or s.stop or s.logit_bias or s.seed for s in plain)


@pytest.fixture(scope="module")
def seeded(windows):
    """The two seeded phases of each window."""
    found = []
    for window in windows:
        group = {}
        for r in window:
            if r.cell == SEEDED:
                group.setdefault(r.phase, []).append(r)
        found.append(list(group.values()))
    return found


def test_seeded_company_has_one_hot_request_and_each_of_two_is_so_apart_from_the_other(seeded):
    for groups in seeded:
        assert [len(group) for group in groups] == [10, 10]
        hot = [r for group in groups for r in group if r.sampling.temperature > 0]
        assert len({r.phase for r in hot}) == len({r.twin for r in hot}) == len(hot) == 2


def test_one_request_of_seeded_company_leaves_as_early_as_in_mixed_company(seeded, windows):
    mixed = [r.sampling.max_tokens for r in windows[0] if r.cell == MIXED]
    assert mixed.count(8) == 1
    for groups in seeded:
        for group in groups:
            early = [r for r in group if r.sampling.max_tokens == 8]
            assert len(early) == 1
            assert not early[0].ticket


def test_as_many_join_seeded_company_late_as_mixed_company(windows):
    def late(cell):
        offsets = [r.start_offset_s for window in windows for r in window if r.cell == cell]
        return sum(offset > 0 for offset in offsets) / len(offsets)

    assert late(PLAIN) == 0
    assert late(SEEDED) == pytest.approx(late(MIXED), abs=0.07)


def test_hot_twins_have_one_payload_and_different_seeds_and_tenants(windows):
    for window in windows:
        hot = [r for r in window if r.cell == MIXED and r.sampling.temperature > 0]
        assert len({r.messages for r in hot}) == 1
        assert len({r.sampling.seed for r in hot}) == len({r.tenant for r in hot}) == len(hot) == 3


def test_mixed_company_has_every_kind(windows):
    for window in windows:
        mixed = [r.sampling for r in window if r.cell == MIXED]
        assert len(mixed) == 10
        for has in ("temperature", "stop", "logit_bias", "seed"):
            assert any(getattr(s, has) for s in mixed), has
        assert len({s.max_tokens for s in mixed}) >= 4


def test_texts_to_be_continued_hold_the_words_to_repeat():
    path = {each.stem: each for each in scenario.shipped_files()}["parameter-twins"]
    facts = TargetFacts(block_tokens=16, continues=True)
    read = scenario.read(path, {"load.windows": 2})
    requests = scenario.plan(read, seed=0, facts=facts, words=load_words(), style="phrase").requests
    for r in requests:
        if r.ask == "neutral":
            assert r.messages[0].content.endswith("WORDS=")
            assert r.messages[0].content.count(r.ticket.text) == 2


# --- ragged --------------------------------------------------------------------------------------


def test_batches_of_every_size_are_planned(planned):
    sizes = Counter(r.window for r in planned["ragged-batch"] if r.cell == "ragged").values()
    assert set(sizes) == set(range(1, 17))


@pytest.mark.parametrize("most", [4, 7, 14, 21])
def test_every_size_comes_whatever_the_largest(most):
    requests = plan("ragged-batch", most, load__requests=most, gate__min_windows=1).requests
    sizes = Counter(r.window for r in requests if r.cell == "ragged").values()
    assert set(sizes) == set(range(1, most + 1))


def test_lengths_in_a_batch_are_very_unequal(planned):
    for group in phases(planned["ragged-batch"]).values():
        if len(group) >= 3:
            lengths = sorted(len(r.messages[0].content.split()) for r in group)
            assert lengths[-1] > 4 * lengths[0]


def test_some_join_late(planned):
    offsets = [r.start_offset_s for r in planned["ragged-batch"] if r.cell == "ragged"]
    assert 0.3 < sum(offset > 0 for offset in offsets) / len(offsets) < 0.7
    assert max(offsets) <= 0.15


# --- cache pressure ------------------------------------------------------------------------------


def test_the_working_set_is_filled_between_two_visits():
    for wanted in (2048, 4096, 8192):
        requests = plan("cache-pressure", 2, traffic__working_set_tokens=wanted).requests
        tokens = sum(
            FACTS.overhead_tokens + len(r.messages[0].content.split()) + r.sampling.max_tokens
            for r in requests
            if r.window == 0 and not r.twin
        )
        assert wanted <= tokens <= 2.2 * wanted


def test_both_visits_have_equal_company(planned):
    groups = phases(planned["cache-pressure"])
    sizes = {}
    for (window, _), group in groups.items():
        for cell in ("before", "after"):
            if any(r.cell == cell for r in group):
                sizes[window, cell] = len(group)
    assert set(sizes.values()) == {12}


def test_prefixes_are_everybodys_own(planned):
    first = Counter(
        " ".join(r.messages[0].content.split()[:16])
        for r in planned["cache-pressure"]
        if not r.twin
    )
    assert max(first.values()) == 1


def test_filler_of_the_shapes_never_holds_a_rare_word():
    assert not set(wording.WORDS) & set(load_words())


def test_parameter_twins_say_how_many_requests_they_need():
    with pytest.raises(UsageError, match="use at least 8 requests"):
        plan("parameter-twins", 1, load__requests=7)
    assert plan("parameter-twins", 1, load__requests=8).requests
