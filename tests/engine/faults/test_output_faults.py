"""Each fault of the way out at work, and its absence without the fault."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from asgi import Client, play

from leakcheck.engine import faults
from leakcheck.engine.delivery import Delivery, Mailbox
from leakcheck.engine.faults import misdelivery
from leakcheck.engine.faults.output import CROSSED_CHUNKS
from leakcheck.engine.values import GenerateRequest, SamplingParams, Update


def make_delivery(name=None, *, rate=1.0, seed=0):
    delivery = Delivery()
    if name:
        seams = faults.Seams(engine=None, delivery=delivery)
        faults.find(name).install(seams, rate, Random(seed))
    return delivery


def readers(delivery, *names):
    """A mailbox for each name."""
    boxes = {}
    for name in names:
        boxes[name] = Mailbox(queue=asyncio.Queue(), offset=0, choices=1)
        delivery.open(name, boxes[name])
    return boxes


def read(box):
    texts = []
    while not box.queue.empty():
        texts.append(box.queue.get_nowait().text)
    return "".join(texts)


def updates(*texts):
    """An update of request `a` for a text such as "a1"; "a1." is its last one."""
    return [
        Update(id=text[0], index=0, text=text, finish_reason="stop" if text[-1] == "." else None)
        for text in texts
    ]


# --- response-swap -------------------------------------------------------------------------------


def test_response_swap_exchanges_two_whole_streams():
    delivery = make_delivery("response-swap")
    boxes = readers(delivery, "a", "b")
    delivery.deliver(updates("a1", "b1"))
    delivery.deliver(updates("a2", "b2"))
    assert read(boxes["a"]) == "b1b2"
    assert read(boxes["b"]) == "a1a2"


@pytest.mark.parametrize("fault", [None, "stream-crosswire", "response-swap"])
def test_at_rate_zero_and_without_a_fault_everyone_gets_their_own(fault):
    delivery = make_delivery(fault, rate=0.0)
    boxes = readers(delivery, "a", "b")
    delivery.deliver(updates("a1", "b1", "c1"))
    assert (read(boxes["a"]), read(boxes["b"])) == ("a1", "b1")


def test_response_swap_never_touches_an_answer_that_has_begun():
    delivery = make_delivery("response-swap")
    boxes = readers(delivery, "a")
    delivery.deliver(updates("a1"))
    boxes |= readers(delivery, "b")
    delivery.deliver(updates("a2", "b1"))
    assert (read(boxes["a"]), read(boxes["b"])) == ("a1a2", "b1")


def test_a_swapped_client_that_leaves_ends_the_request_it_was_wired_to():
    delivery = make_delivery("response-swap")
    boxes = readers(delivery, "a", "b")
    assert delivery.close("a") == "b"
    delivery.deliver(updates("a1", "b1"))
    assert (read(boxes["a"]), read(boxes["b"])) == ("", "a1")
    assert delivery.close("b") == "a"
    assert delivery.mailboxes == {}


def test_response_swap_is_repeated_by_its_seed():
    def wiring(seed):
        delivery = make_delivery("response-swap", rate=0.3, seed=seed)
        boxes = readers(delivery, *"abcdefgh")
        delivery.deliver(updates(*"abcdefgh"))
        return [read(box) for box in boxes.values()]

    assert wiring(1) == wiring(1)
    assert len({tuple(wiring(seed)) for seed in range(8)}) > 1


# --- stream-crosswire ----------------------------------------------------------------------------


def test_stream_crosswire_exchanges_two_streams_for_a_run_of_chunks():
    delivery = make_delivery("stream-crosswire", rate=1.0)
    boxes = readers(delivery, "a", "b")
    for _ in range(3):
        delivery.deliver(updates("a1", "b1"))
    assert (read(boxes["a"]), read(boxes["b"])) == ("b1b1b1", "a1a1a1")


def test_stream_crosswire_ends_after_its_run():
    delivery = make_delivery("stream-crosswire", rate=1.0)
    boxes = readers(delivery, "a", "b")
    for _ in range(CROSSED_CHUNKS):
        delivery.deliver(updates("a1"))
    assert read(boxes["b"]) == "a1" * CROSSED_CHUNKS
    del delivery.route  # no new run begins
    delivery.deliver(updates("a2"))
    assert (read(boxes["a"]), read(boxes["b"])) == ("a2", "")


def test_stream_crosswire_sends_the_last_chunk_home():
    delivery = make_delivery("stream-crosswire", rate=1.0)
    boxes = readers(delivery, "a", "b")
    delivery.deliver(updates("a1", "b1", "a2."))
    assert (read(boxes["a"]), read(boxes["b"])) == ("b1a2.", "a1")


def test_stream_crosswire_ends_with_either_client():
    delivery = make_delivery("stream-crosswire", rate=1.0)
    boxes = readers(delivery, "a", "b")
    delivery.deliver(updates("a1"))
    assert delivery.close("b") == "b"
    delivery.deliver(updates("a2"))
    assert (read(boxes["a"]), read(boxes["b"])) == ("a2", "a1")


# --- off-by-one-after-abort ----------------------------------------------------------------------


def test_off_by_one_hands_the_reply_of_an_aborted_request_to_the_next_one():
    delivery = make_delivery("off-by-one-after-abort")
    readers(delivery, "a")
    assert delivery.close("a") == misdelivery.NOBODY
    delivery.deliver(updates("a1", "a2."))
    boxes = readers(delivery, "b")
    delivery.deliver(updates("b1."))
    assert read(boxes["b"]) == "a1a2."
    delivery.close("b")
    boxes = readers(delivery, "c")
    assert read(boxes["c"]) == "b1."


def test_off_by_one_leaves_the_part_that_was_not_read():
    delivery = make_delivery("off-by-one-after-abort")
    boxes = readers(delivery, "a")
    delivery.deliver(updates("a1"))
    delivery.close("a")
    boxes |= readers(delivery, "b")
    delivery.deliver(updates("b1", "a2", "a3."))
    assert (read(boxes["a"]), read(boxes["b"])) == ("a1", "a2a3.")


def test_off_by_one_keeps_channels_apart_while_nobody_aborts():
    delivery = make_delivery("off-by-one-after-abort")
    for _ in range(3):
        boxes = readers(delivery, "a", "b")
        delivery.deliver(updates("b1", "a1", "a2.", "b2."))
        assert (read(boxes["a"]), read(boxes["b"])) == ("a1a2.", "b1b2.")
        delivery.close("a")
        delivery.close("b")


def test_a_channel_too_many_replies_behind_is_dropped():
    delivery = make_delivery("off-by-one-after-abort")
    for name in "abcd"[: misdelivery.OWED_MAX]:
        readers(delivery, name)
        delivery.close(name)
    boxes = readers(delivery, "e")
    delivery.deliver(updates("a1.", "b1.", "e1."))
    assert read(boxes["e"]) == "e1."


@pytest.mark.parametrize("fault", [None, "off-by-one-after-abort"])
def test_off_by_one_shows_after_a_client_hung_up(make_engine, tokenizer, fault):
    async def scenario(api):
        client, gone = Client(api), asyncio.Event()
        alone = await client.ask("first")
        gone.set()
        await client.ask("second", gone=gone)
        return alone, await client.ask("first")

    engine = make_engine()
    alone, after = play(engine, tokenizer, scenario, fault)
    assert (after == alone) is (fault is None)
    assert not any(engine.pool.references)


def test_off_by_one_waits_for_no_reply_of_a_refused_request(make_engine, tokenizer):
    async def scenario(api):
        client = Client(api)
        refused = await client.ask("first", max_tokens=10_000)
        return refused[0], await client.ask("first"), await client.ask("first")

    status, one, two = play(make_engine(), tokenizer, scenario, "off-by-one-after-abort")
    assert (status, one) == (400, two)


# --- same-second-id ------------------------------------------------------------------------------


@pytest.fixture
def same_second(monkeypatch):
    """All of the test happens in one second; those who hang are cut off soon."""
    monkeypatch.setattr(misdelivery.time, "time", lambda: 1_700_000_000.0)
    monkeypatch.setattr(misdelivery, "HANG_S", 0.3)


async def both(api, **fields):
    """Two answers, each alone, then the same two at the same time."""
    client = Client(api)
    alone = [await client.ask(text, **fields) for text in ("first", "second")]
    together = await asyncio.gather(*(client.ask(text, **fields) for text in ("first", "second")))
    return alone, together


@pytest.mark.usefixtures("same_second")
def test_same_second_id_gives_the_last_client_the_first_answer(make_engine, tokenizer):
    alone, together = play(make_engine(), tokenizer, both, "same-second-id")
    assert together[1] == alone[0] != alone[1]
    assert together[0][0] == 503


@pytest.mark.usefixtures("same_second")
def test_same_second_id_leaves_requests_alone_that_are_not_named_like_this(make_engine, tokenizer):
    async def scenario(api):
        return await both(api)

    alone, together = play(make_engine(), tokenizer, scenario, "same-second-id", rate=0.0)
    assert together == alone


def test_same_second_id_loses_nobody_in_the_next_second(make_engine, tokenizer, monkeypatch):
    seconds = iter(range(100))
    monkeypatch.setattr(misdelivery.time, "time", lambda: next(seconds))
    alone, together = play(make_engine(), tokenizer, both, "same-second-id")
    assert together == alone


@pytest.mark.usefixtures("same_second")
def test_a_displaced_client_that_leaves_takes_nothing_from_who_reads_its_answer():
    async def body():
        delivery = make_delivery("same-second-id")
        boxes = readers(delivery, "s-0/1", "s-0/2")
        delivery.deliver([Update(id="s-0/1", index=0, text="mine ")])
        ended = delivery.close("s-0/1")
        delivery.deliver([Update(id="s-0/1", index=0, text="all of it")])
        delivery.deliver([Update(id="s-0/2", index=0, text="lost")])
        said = read(boxes["s-0/2"])
        delivery.close("s-0/2")
        delivery.deliver([Update(id="s-0/1", index=0, text="nobody's")])
        return ended, said, read(boxes["s-0/2"]), delivery.mailboxes

    ended, said, after, mailboxes = asyncio.run(body())
    assert (ended, said) == (misdelivery.NOBODY, "mine all of it")
    assert (after, mailboxes) == ("", {})


# --- duplicate-request-id ------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_duplicate_request_id_crosses_two_answers(make_engine, tokenizer, stream):
    async def scenario(api):
        return await both(api, headers={"X-Request-Id": "same"}, stream=stream)

    engine = make_engine()
    alone, together = play(engine, tokenizer, scenario, "duplicate-request-id")
    assert together == alone[::-1] != alone
    assert not any(engine.pool.references)


def test_without_duplicate_request_id_equal_headers_mean_nothing(make_engine, tokenizer):
    async def scenario(api):
        return await both(api, headers={"X-Request-Id": "same"})

    alone, together = play(make_engine(), tokenizer, scenario)
    assert together == alone


def test_duplicate_request_id_needs_the_header(make_engine, tokenizer):
    alone, together = play(make_engine(), tokenizer, both, "duplicate-request-id")
    assert together == alone


def test_a_client_that_leaves_ends_the_request_that_answered_it():
    delivery = make_delivery("duplicate-request-id")
    boxes = readers(delivery, "id-0/1", "id-0/2")
    assert delivery.close("id-0/2") == "id-0/1"
    delivery.deliver([Update(id="id-0/2", index=0, text="two")])
    assert read(boxes["id-0/1"]) == "two"
    assert delivery.close("id-0/1") == "id-0/2"


# --- detokenizer-state ---------------------------------------------------------------------------

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def speaking(make_engine, fault=None, *, rate=1.0):
    engine = make_engine(block_size=4)
    if fault:
        seams = faults.Seams(engine=engine, delivery=None)
        faults.find(fault).install(seams, rate, Random(0))
    return engine


def submit(engine, name, prompt):
    engine.submit(GenerateRequest(id=name, prompt=tuple(prompt), params=PARAMS))


def text(engine, name, prompt):
    submit(engine, name, prompt)
    parts = []
    while engine.has_work:
        parts += [update.text for update in engine.step() if update.id == name]
    return "".join(parts)


FIRST, SECOND = range(40, 50), range(50, 60)


def test_detokenizer_state_starts_an_answer_with_the_end_of_the_one_before(make_engine):
    plain = speaking(make_engine)
    first, second = text(plain, "a", FIRST), text(plain, "b", SECOND)
    engine = speaking(make_engine, "detokenizer-state")
    assert text(engine, "a", FIRST) == first
    assert text(engine, "b", SECOND) == first + second


def test_detokenizer_state_at_rate_zero_changes_no_text(make_engine):
    plain = speaking(make_engine)
    engine = speaking(make_engine, "detokenizer-state", rate=0.0)
    for name, prompt in (("a", FIRST), ("b", SECOND)):
        assert text(engine, name, prompt) == text(plain, name, prompt)


def test_detokenizer_state_keeps_what_an_aborted_answer_held(make_engine):
    second = text(speaking(make_engine), "b", SECOND)
    engine = speaking(make_engine, "detokenizer-state", rate=0.0)
    submit(engine, "a", FIRST)
    for _ in range(4):
        engine.step()
    engine.abort("a")
    answer = text(engine, "b", SECOND)
    assert answer.endswith(second)
    assert len(answer) > len(second)


def test_detokenizer_state_gives_running_sequences_rows_of_their_own(make_engine):
    engine = speaking(make_engine, "detokenizer-state")
    plain = speaking(make_engine)
    for its in (engine, plain):
        submit(its, "a", FIRST)
    assert text(engine, "b", SECOND) == text(plain, "b", SECOND)
