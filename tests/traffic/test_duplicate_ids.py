from collections import Counter

from planning import in_cell, planned

NAME = "duplicate-ids"


def test_each_id_is_sent_by_two_tenants_of_one_window():
    pairs = {}
    for r in planned(NAME, 20).values():
        pairs.setdefault(r.client_id, []).append(r)
    assert len(pairs) == 20 * 8
    for first, second in pairs.values():
        assert (first.role, second.role, second.partner) == ("source", "recipient", first.id)
        assert first.window == second.window
        assert first.tenant != second.tenant
        assert (first.worker, first.lane, first.phase) != (second.worker, second.lane, second.phase)


def test_sources_own_a_passphrase_and_recipients_ask_for_everything():
    requests = planned(NAME, 20).values()
    assert all(r.passphrase is not None for r in requests if r.role == "source")
    seconds = [r for r in requests if r.role == "recipient"]
    assert all(r.ask == "eliciting" and r.ticket is not None for r in seconds)
    assert 0.3 < sum(r.passphrase is not None for r in seconds) / len(seconds) < 0.7


def test_every_cell_comes_equally_often_and_in_every_window():
    requests = planned(NAME, 20)
    assert set(Counter(r.cell for r in requests.values()).values()) == {80}
    assert len({(r.window, r.cell) for r in requests.values()}) == 80


def test_the_second_comes_at_the_same_time_or_afterwards():
    requests = planned(NAME, 20)
    for cell, late in (("together", 0), ("during", 0), ("after", 1), ("hung-up", 1)):
        for second in in_cell(requests, cell):
            if second.partner is None:
                continue
            first = requests[second.partner]
            assert (first.phase, second.phase) == (0, late)
            assert (second.start_offset_s > 0) == (cell == "during")


def test_only_the_first_of_a_pair_hangs_up():
    requests = planned(NAME, 20)
    gone = [r for r in requests.values() if r.abort_after_chunks is not None]
    assert gone == [r for r in in_cell(requests, "hung-up") if r.role == "source"]
    assert all(r.stream for r in gone)
