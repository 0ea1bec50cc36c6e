from planning import in_cell, planned, text

NAME = "abort-storm"


def test_half_of_the_first_phase_hangs_up_and_nobody_else_does():
    requests = planned(NAME, 20)
    gone = in_cell(requests, "early", "decoding")
    assert len(gone) == 20 * 6
    assert all(r.phase == 0 and r.passphrase for r in gone)
    for r in requests.values():
        hangs_up = r.abort_after_s is not None or r.abort_after_chunks is not None
        assert hangs_up == (r in gone)


def test_early_aborts_come_within_milliseconds_of_long_prompts():
    early = in_cell(planned(NAME, 20), "early")
    assert all(0 <= r.abort_after_s <= 0.05 and r.abort_after_chunks is None for r in early)
    assert min(len(text(r).split()) for r in early) >= 60
    assert {r.stream for r in early} == {True, False}


def test_aborts_while_decoding_come_after_a_few_chunks_of_a_stream():
    decoding = in_cell(planned(NAME, 20), "decoding")
    assert {r.abort_after_chunks for r in decoding} == {1, 2, 3, 4, 5}
    assert all(r.stream and r.abort_after_s is None for r in decoding)
    assert {r.ask for r in decoding} == {"eliciting", "free"}


def test_every_aborted_payload_comes_again_on_another_lane_and_is_not_aborted():
    requests = planned(NAME, 20)
    retries = in_cell(requests, "retry")
    assert [r.twin for r in retries] == [r.id for r in in_cell(requests, "early", "decoding")]
    for r in retries:
        first = requests[r.twin]
        assert (r.messages, r.sampling, r.stream) == (first.messages, first.sampling, first.stream)
        assert (r.worker, r.lane) != (first.worker, first.lane)
        assert (r.phase, r.role, r.tenant) == (1, "recipient", first.tenant)


def test_others_read_what_may_be_left_and_own_no_passphrase():
    for r in in_cell(planned(NAME, 20), "next", "fresh"):
        assert (r.role, r.ask, r.passphrase) == ("recipient", "eliciting", None)


def test_the_next_on_a_lane_starts_when_its_predecessor_has_hung_up():
    requests = planned(NAME, 20)
    for r in in_cell(requests, "next"):
        first = requests[r.partner]
        assert (r.phase, r.worker, r.lane) == (0, first.worker, first.lane)
        assert r.start_offset_s >= (first.abort_after_s or 0)


def test_requests_of_a_phase_have_lanes_of_their_own_but_for_those_who_come_next():
    lanes = {}
    for r in planned(NAME, 20).values():
        if r.cell != "next":
            lanes.setdefault((r.window, r.phase), []).append((r.worker, r.lane))
    assert all(len(used) == len(set(used)) for used in lanes.values())
