"""Each fault of batch rows at work inside the engine, and its absence without the fault."""

from __future__ import annotations

from random import Random

import pytest

from leakcheck.engine import faults
from leakcheck.engine.delivery import Delivery
from leakcheck.engine.values import GenerateRequest, SamplingParams

SIZE = 4


@pytest.fixture
def faulty(make_engine):
    """An engine with a fault, or none, by its name."""

    def make(name=None, *, rate=1.0, seed=0, **options):
        engine = make_engine(block_size=SIZE, **options)
        if name:
            seams = faults.Seams(engine=engine, delivery=Delivery())
            faults.find(name).install(seams, rate, Random(seed))
        return engine

    return make


def submit(engine, name, prompt, tokens=6):
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0)
    engine.submit(GenerateRequest(id=name, prompt=tuple(prompt), params=params))


def run(engine, steps=None):
    """Generated tokens by request, of so many steps or to the end."""
    got = {}
    while engine.has_work and steps != 0:
        for update in engine.step():
            got.setdefault(update.id, []).extend(one.token for one in update.logprobs)
        steps = steps and steps - 1
    return got


def alone(engine, prompt, tokens=6):
    submit(engine, "alone", prompt, tokens)
    return run(engine)["alone"]


def sequence(engine, name):
    return engine.live[name][0]


def next_tables(engine):
    """The block table, without padding, that each request's last row is computed on next."""
    batch = engine.batcher.build(engine.scheduler.schedule())
    padding = engine.store.padding_block
    return {
        row.sequence.request.id: [block for block in table if block != padding]
        for row, table in zip(batch.rows, batch.table.tolist(), strict=True)
    }


# --- row-condense --------------------------------------------------------------------------------

ENDING, STAYING, MOVED = range(10, 23), range(50, 63), range(110, 132)


def condense(engine):
    """Three requests until the first has ended; the table it had then."""
    submit(engine, "ending", ENDING, tokens=2)
    submit(engine, "staying", STAYING)
    submit(engine, "moved", MOVED)
    run(engine, steps=1)
    left = list(sequence(engine, "ending").table)
    run(engine, steps=1)
    assert "ending" not in engine.live
    return left


def test_row_condense_leaves_the_last_row_on_the_table_of_the_one_that_ended(faulty):
    engine = faulty("row-condense")
    left = condense(engine)
    own = list(sequence(engine, "moved").table)
    assert next_tables(engine)["moved"] == left + own[len(left) :]
    assert next_tables(engine)["staying"] == sequence(engine, "staying").table


def test_row_condense_also_writes_where_it_reads(faulty):
    engine = faulty("row-condense")
    submit(engine, "ending", range(10, 33), tokens=2)
    submit(engine, "moved", range(110, 121))
    run(engine, steps=1)
    left = list(sequence(engine, "ending").table)
    run(engine, steps=1)
    batch = engine.batcher.build(engine.scheduler.schedule())
    assert batch.slots.tolist() == [left[12 // SIZE] * SIZE + 12 % SIZE]


@pytest.mark.parametrize(("name", "rate"), [(None, 1.0), ("row-condense", 0.0)])
def test_without_row_condense_everybody_stays_on_their_own_table(faulty, name, rate):
    engine = faulty(name, rate=rate)
    condense(engine)
    tables = next_tables(engine)
    assert tables == {one: sequence(engine, one).table for one in ("staying", "moved")}


def test_row_condense_changes_the_moved_answer_only(faulty):
    engine = faulty("row-condense")
    submit(engine, "ending", ENDING, tokens=2)
    submit(engine, "staying", STAYING)
    submit(engine, "moved", MOVED)
    got = run(engine)
    assert got["staying"] == alone(faulty(), STAYING)
    assert got["moved"] != alone(faulty(), MOVED)
    assert got["moved"][:2] == alone(faulty(), MOVED)[:2]


def test_row_condense_forgets_a_table_with_its_request(faulty):
    engine = faulty("row-condense")
    condense(engine)
    run(engine)
    assert alone(engine, range(140, 150)) == alone(faulty(), range(140, 150))


def test_an_abort_condenses_too(faulty):
    engine = faulty("row-condense")
    submit(engine, "aborted", ENDING)
    submit(engine, "moved", MOVED)
    run(engine, steps=1)
    left = list(sequence(engine, "aborted").table)
    engine.abort("aborted")
    assert next_tables(engine)["moved"][: len(left)] == left


# --- row-off-by-one ------------------------------------------------------------------------------

BEFORE, JOINING = range(10, 31), range(110, 123)


def join(engine):
    """One request is decoding when another joins; the tables of both and that of the step."""
    submit(engine, "before", BEFORE)
    run(engine, steps=1)
    submit(engine, "joining", JOINING)
    tables = next_tables(engine)
    return tables, sequence(engine, "before"), sequence(engine, "joining")


def test_row_off_by_one_computes_a_prompt_on_the_table_of_the_row_before(faulty):
    tables, before, joining = join(faulty("row-off-by-one"))
    assert tables["joining"] == before.table[: len(joining.table)]
    assert tables["before"] == before.table


def test_without_row_off_by_one_the_joining_row_has_its_own_table(faulty):
    tables, before, joining = join(faulty())
    assert tables == {"before": before.table, "joining": joining.table}


def test_row_off_by_one_overwrites_the_neighbours_prompt_for_good(faulty):
    engine = faulty("row-off-by-one")
    submit(engine, "before", BEFORE)
    run(engine, steps=1)
    submit(engine, "joining", JOINING)
    run(engine, steps=1)
    healthy = faulty()
    submit(healthy, "joining", JOINING)
    run(healthy, steps=1)
    wanted = healthy.store.keys[0][sequence(healthy, "joining").table[:3]]
    assert engine.store.keys[0][sequence(engine, "before").table[:3]].allclose(wanted, atol=1e-4)
    assert not engine.store.keys[0][sequence(engine, "joining").table[:3]].any()
    assert next_tables(engine) == {
        one: sequence(engine, one).table for one in ("before", "joining")
    }


def test_row_off_by_one_changes_both_answers(faulty):
    engine = faulty("row-off-by-one")
    submit(engine, "before", BEFORE)
    got = run(engine, steps=1)
    submit(engine, "joining", JOINING)
    later = run(engine)
    assert got["before"] + later["before"] != alone(faulty(), BEFORE)
    assert later["joining"] != alone(faulty(), JOINING)


def test_row_off_by_one_leaves_decoding_and_lonely_rows_alone(faulty):
    engine = faulty("row-off-by-one")
    assert alone(engine, BEFORE) == alone(faulty(), BEFORE)
    submit(engine, "one", range(50, 55))
    run(engine, steps=1)
    submit(engine, "two", range(70, 75))
    run(engine, steps=1)
    for _ in range(2):
        tables = next_tables(engine)
        assert tables == {one: sequence(engine, one).table for one in ("one", "two")}


# --- preempt-restore -----------------------------------------------------------------------------

OLDER, VICTIM = range(10, 22), range(110, 122)


def preempted(engine):
    """Two requests in a pool too small for both: the later one gives its blocks back and waits."""
    submit(engine, "older", OLDER, tokens=16)
    submit(engine, "victim", VICTIM, tokens=16)
    while not engine.scheduler.preemptions:
        engine.step()
    return sequence(engine, "older"), sequence(engine, "victim")


@pytest.fixture
def restored(faulty):
    """`restored(name)`: (engine, older, victim) once the victim is given room again."""

    def make(name=None, **options):
        engine = faulty(name, num_blocks=9, **options)
        older, victim = preempted(engine)
        engine.pool.num_blocks += 16
        engine.pool.references += [0] * 16
        engine.pool._free += range(9, 25)
        engine.scheduler.schedule()
        assert victim in engine.scheduler.running
        return engine, older, victim

    return make


def test_preempt_restore_puts_the_runners_full_blocks_into_the_victims_table(restored):
    engine, older, victim = restored("preempt-restore")
    count = victim.computed // SIZE
    assert count >= 3
    assert victim.table[:count] == older.table[:count]
    assert [engine.pool.references[block] for block in older.table[:count]] == [2] * count
    assert victim.digests == older.digests[:count]


@pytest.mark.parametrize(("name", "rate"), [(None, 1.0), ("preempt-restore", 0.0)])
def test_without_preempt_restore_the_victim_gets_nothing_of_the_other(restored, name, rate):
    _, older, victim = restored(name, rate=rate)
    assert not set(victim.table) & set(older.table)


def crowd(engine):
    """Eight requests that do not fit together; their answers by number."""
    for number in range(8):
        submit(engine, str(number), prompt(number), tokens=20)
    got = run(engine)
    assert engine.scheduler.preemptions
    return [got[str(number)] for number in range(8)]


def prompt(number):
    return range(number * 20, number * 20 + 13)


def test_preempt_restore_changes_answers_but_not_that_of_the_first(faulty):
    engine = faulty("preempt-restore", num_blocks=16)
    got = crowd(engine)
    changed = [n for n in range(8) if got[n] != alone(faulty(), prompt(n), 20)]
    assert changed
    assert 0 not in changed
    assert [len(tokens) for tokens in got] == [20] * 8
    assert engine.pool.used_count == 0


def test_without_preempt_restore_preempted_answers_are_what_they_are_alone(faulty):
    got = crowd(faulty(num_blocks=16))
    assert got == [alone(faulty(), prompt(n), 20) for n in range(8)]
