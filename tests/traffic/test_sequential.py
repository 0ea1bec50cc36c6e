from collections import Counter

from planning import in_cell, planned, text

NAME = "sequential-carry-over"


def test_every_phase_has_one_request():
    made = planned(NAME, 10, pairs=1, sandwiches=1)
    phases = Counter((r.window, r.phase) for r in made.values())
    assert set(phases.values()) == {1}
    assert {phase for _, phase in phases} == set(range(5))


def test_who_comes_after_a_source_asks_for_everything_and_owns_no_passphrase():
    requests = planned(NAME, 10)
    for after in in_cell(requests, "after"):
        source = requests[after.partner]
        assert (source.window, source.phase + 1) == (after.window, after.phase)
        assert source.passphrase is not None
        assert (after.passphrase, after.role, after.ask) == (None, "recipient", "eliciting")


def test_half_of_those_who_come_after_have_the_shape_of_their_source():
    requests = planned(NAME, 40)
    alike = [
        len(text(after).split()) == len(text(requests[after.partner]).split())
        for after in in_cell(requests, "after")
    ]
    assert 10 <= sum(alike) <= 32


def test_a_payload_comes_cold_and_warm_with_another_tenant_in_between():
    requests = planned(NAME, 10)
    order = {(r.window, r.phase): r for r in requests.values()}
    for warm in in_cell(requests, "warm"):
        cold = requests[warm.twin]
        between = order[warm.window, warm.phase - 1]
        assert (cold.cell, between.cell) == ("cold", "between")
        assert cold.phase + 2 == warm.phase
        assert (warm.messages, warm.sampling, warm.stream) == (
            cold.messages,
            cold.sampling,
            cold.stream,
        )
        assert warm.passphrase == cold.passphrase
        assert between.tenant != warm.tenant == cold.tenant


def test_what_is_called_cold_begins_like_nothing_before_it():
    requests = planned(NAME, 60)
    beginnings = [tuple(text(r).split()[:14]) for r in requests.values() if r.twin is None]
    assert len(beginnings) == len(set(beginnings))
    assert all("My ticket" not in " ".join(words) for words in beginnings)


def test_some_sequences_stay_on_one_lane_and_some_do_not():
    lanes = {}
    for r in planned(NAME, 20).values():
        if r.cell in {"before", "after"}:
            lanes.setdefault(r.window, set()).add((r.worker, r.lane))
    assert {len(used) for used in lanes.values()} == {1, 2}


def test_more_sequences_can_be_asked_for():
    cells = Counter(r.cell for r in planned(NAME, 3, pairs=2, sandwiches=3).values())
    assert cells == {"before": 6, "after": 6, "cold": 9, "between": 9, "warm": 9}
