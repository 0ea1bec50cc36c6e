"""Each fault of the sampler at work inside the engine, and its absence without the fault."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from leakcheck.engine import faults
from leakcheck.engine.delivery import Delivery
from leakcheck.engine.values import GenerateRequest, SamplingParams

GREEDY = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=0)
HOT = replace(GREEDY, temperature=2.0, seed=1)
PROMPT, OTHER = range(10, 25), range(110, 121)


@pytest.fixture
def faulty(make_engine):
    """An engine with a fault, or none, by its name."""

    def make(name=None):
        engine = make_engine(block_size=4)
        if name:
            seams = faults.Seams(engine=engine, delivery=Delivery())
            faults.find(name).install(seams, 1.0, Random(0))
        return engine

    return make


def submit(engine, name, prompt, params, n=1):
    engine.submit(GenerateRequest(id=name, prompt=tuple(prompt), params=params, n=n))


def run(engine):
    """Generated tokens by request, to the end."""
    got = {}
    while engine.has_work:
        for update in engine.step():
            got.setdefault(update.id, []).extend(one.token for one in update.logprobs)
    return got


def alone(engine, prompt, params):
    submit(engine, "alone", prompt, params)
    return run(engine)["alone"]


def texts(engine):
    """Text and reason to end by request, to the end."""
    got, reasons = {}, {}
    while engine.has_work:
        for update in engine.step():
            got[update.id] = got.get(update.id, "") + update.text
            reasons[update.id] = update.finish_reason
    return got, reasons


def used(engine):
    """The parameters that shaped each request's row, in the order of steps."""
    seen = {}
    shape = engine.sampler.shape

    def watched(sequences, params, logits):
        for sequence, its in zip(sequences, params, strict=True):
            seen.setdefault(sequence.request.id, []).append(its)
        return shape(sequences, params, logits)

    engine.sampler.shape = watched
    run(engine)
    return seen


# --- params-of-first -----------------------------------------------------------------------------

FIRST = replace(GREEDY, temperature=1.5, top_p=0.5, presence_penalty=1.0, logit_bias=((7, 3.0),))


def two(engine):
    submit(engine, "first", PROMPT, replace(FIRST, logprobs=None))
    submit(engine, "second", OTHER, GREEDY)
    return used(engine)


def test_params_of_first_samples_every_row_by_the_first_rows_parameters(faulty):
    assert two(faulty("params-of-first"))["second"] == [FIRST] * 8


def test_without_params_of_first_everybody_has_their_own(faulty):
    assert two(faulty())["second"] == [GREEDY] * 8


def test_params_of_first_makes_a_greedy_answer_random_and_a_hot_one_greedy(faulty):
    engine = faulty("params-of-first")
    submit(engine, "hot", PROMPT, HOT)
    submit(engine, "greedy", OTHER, GREEDY)
    assert run(engine)["greedy"] != alone(faulty(), OTHER, GREEDY)
    submit(engine, "greedy", OTHER, GREEDY)
    submit(engine, "hot", PROMPT, HOT)
    assert run(engine)["hot"] == alone(faulty(), PROMPT, GREEDY)


def test_params_of_first_leaves_a_request_its_length_and_its_logprobs(faulty):
    engine = faulty("params-of-first")
    submit(engine, "first", PROMPT, replace(FIRST, logprobs=None, max_tokens=2))
    submit(engine, "second", OTHER, GREEDY)
    got = run(engine)
    assert got["first"] == []
    assert len(got["second"]) == 8


# --- params-of-first-request ---------------------------------------------------------------------


@pytest.mark.parametrize("first", [HOT, GREEDY])
def test_params_of_first_request_gives_everybody_after_it_its_heat(faulty, first):
    engine = faulty("params-of-first-request")
    submit(engine, "first", PROMPT, first)
    used(engine)
    submit(engine, "greedy", OTHER, GREEDY)
    submit(engine, "hot", OTHER, HOT)
    seen = used(engine)
    heats = {(each.temperature, each.top_p) for its in seen.values() for each in its}
    assert heats == {(first.temperature, first.top_p)}


def test_params_of_first_request_ends_with_the_engine(faulty):
    for params in (HOT, GREEDY):
        engine = faulty("params-of-first-request")
        submit(engine, "first", PROMPT, params)
        assert {each.temperature for each in used(engine)["first"]} == {params.temperature}


# --- stop-shared ---------------------------------------------------------------------------------


def stop_of(engine, prompt):
    """The text of a greedy answer, and a stop string in the middle of it."""
    submit(engine, "alone", prompt, GREEDY)
    text = texts(engine)[0]["alone"]
    stop = next(letter for letter in text if letter.isascii())
    assert 0 < text.index(stop) < len(text) - 1
    return text, stop


def test_stop_shared_ends_an_answer_at_anothers_stop_string(faulty):
    text, stop = stop_of(faulty(), OTHER)
    engine = faulty("stop-shared")
    submit(engine, "owner", PROMPT, replace(GREEDY, stop=(stop,)))
    submit(engine, "other", OTHER, GREEDY)
    got, reasons = texts(engine)
    assert got["other"] == text[: text.index(stop)]
    assert reasons["other"] == "stop"


def test_without_stop_shared_an_answer_goes_on(faulty):
    text, stop = stop_of(faulty(), OTHER)
    engine = faulty()
    submit(engine, "owner", PROMPT, replace(GREEDY, stop=(stop,)))
    submit(engine, "other", OTHER, GREEDY)
    got, reasons = texts(engine)
    assert (got["other"], reasons["other"]) == (text, "length")


def test_stop_shared_does_not_outlast_the_batch(faulty):
    text, stop = stop_of(faulty(), OTHER)
    engine = faulty("stop-shared")
    submit(engine, "owner", PROMPT, replace(GREEDY, stop=(stop,)))
    run(engine)
    submit(engine, "other", OTHER, GREEDY)
    assert texts(engine)[0]["other"] == text


def test_stop_shared_loses_no_text_that_was_held_back(faulty):
    text, stop = stop_of(faulty(), OTHER)
    engine = faulty("stop-shared")
    submit(engine, "owner", PROMPT, replace(GREEDY, stop=(stop + "~",), max_tokens=3))
    submit(engine, "other", OTHER, GREEDY)
    assert texts(engine)[0]["other"] == text


# --- seed-shared ---------------------------------------------------------------------------------


def twins(engine, *, first_seed=1):
    """The answers to one payload with two seeds, behind a request that finds the engine idle."""
    submit(engine, "first", OTHER, replace(HOT, seed=first_seed, max_tokens=12))
    submit(engine, "two", PROMPT, replace(HOT, seed=2))
    submit(engine, "three", PROMPT, replace(HOT, seed=3))
    got = run(engine)
    return got["two"], got["three"]


def test_seed_shared_gives_unlike_seeds_one_text(faulty):
    left, right = twins(faulty("seed-shared"))
    assert left == right


def test_without_seed_shared_unlike_seeds_give_unlike_texts(faulty):
    left, right = twins(faulty())
    assert left != right
    assert left == alone(faulty(), PROMPT, replace(HOT, seed=2))


def test_seed_shared_takes_the_seed_of_whoever_found_the_engine_idle(faulty):
    engine = faulty("seed-shared")
    assert twins(engine, first_seed=2)[0] == alone(faulty(), PROMPT, replace(HOT, seed=2))
    assert twins(engine, first_seed=1)[0] == alone(faulty(), PROMPT, replace(HOT, seed=1))
    assert alone(engine, PROMPT, replace(HOT, seed=3)) == alone(
        faulty(), PROMPT, replace(HOT, seed=3)
    )


def test_seed_shared_gives_the_choices_of_one_request_one_text(faulty):
    def choices(engine):
        submit(engine, "both", PROMPT, HOT, n=2)
        got = {}
        while engine.has_work:
            for update in engine.step():
                got.setdefault(update.index, []).extend(one.token for one in update.logprobs)
        return got[0] == got[1]

    assert choices(faulty("seed-shared"))
    assert not choices(faulty())


# --- bias-left-on-row ----------------------------------------------------------------------------

FORCED = replace(GREEDY, logit_bias=((7, 100.0),))


def test_bias_left_on_row_forces_the_next_occupants_until_one_has_its_own(faulty):
    engine = faulty("bias-left-on-row")
    assert alone(engine, PROMPT, FORCED) == [7] * 8
    assert alone(engine, OTHER, GREEDY) == [7] * 8
    assert alone(engine, PROMPT, GREEDY) == [7] * 8
    own = replace(GREEDY, logit_bias=((9, 100.0),))
    assert alone(engine, OTHER, own) == [9] * 8
    assert alone(engine, OTHER, GREEDY) == [9] * 8


def test_without_bias_left_on_row_nobody_inherits_it(faulty):
    engine = faulty()
    alone(engine, PROMPT, FORCED)
    assert alone(engine, OTHER, GREEDY) == alone(faulty(), OTHER, GREEDY)


def test_bias_left_on_row_stays_on_its_row(faulty):
    engine = faulty("bias-left-on-row")
    submit(engine, "plain", OTHER, GREEDY)
    submit(engine, "forced", PROMPT, FORCED)
    run(engine)
    submit(engine, "row 0", OTHER, GREEDY)
    submit(engine, "row 1", OTHER, GREEDY)
    got = run(engine)
    assert got["row 0"] == alone(faulty(), OTHER, GREEDY)
    assert got["row 1"] == [7] * 8


def test_bias_left_on_row_frees_the_row_of_an_aborted_request(faulty):
    engine = faulty("bias-left-on-row")
    submit(engine, "aborted", PROMPT, FORCED)
    engine.step()
    engine.abort("aborted")
    assert alone(engine, OTHER, GREEDY) == [7] * 8


# --- mask-left-by-move ---------------------------------------------------------------------------

MASKED = replace(GREEDY, max_tokens=24, allowed_token_ids=(7,))


def row_of_a_moved_mask(engine, params, masked=MASKED):
    """What a request says that joins where one with a mask was until another row ended."""
    submit(engine, "ends", OTHER, replace(GREEDY, max_tokens=3))
    submit(engine, "stays", OTHER, replace(GREEDY, max_tokens=24))
    submit(engine, "masked", PROMPT, masked)
    got = {}
    while "ends" in engine.live:
        for update in engine.step():
            got.setdefault(update.id, []).extend(one.token for one in update.logprobs)
    submit(engine, "joins", PROMPT, params)
    for name, tokens in run(engine).items():
        got.setdefault(name, []).extend(tokens)
    assert set(got["masked"]) == {7}
    return got["joins"]


def test_mask_left_by_move_binds_whoever_comes_to_the_old_row(faulty):
    assert row_of_a_moved_mask(faulty("mask-left-by-move"), GREEDY) == [7] * 8


def test_without_mask_left_by_move_nobody_is_bound(faulty):
    assert row_of_a_moved_mask(faulty(), GREEDY) == alone(faulty(), PROMPT, GREEDY)


def test_mask_left_by_move_gives_way_to_a_mask_of_ones_own(faulty):
    own = replace(GREEDY, allowed_token_ids=(9,))
    assert row_of_a_moved_mask(faulty("mask-left-by-move"), own) == [9] * 8


def test_mask_left_by_move_is_not_looked_at_once_nobody_has_a_mask(faulty):
    engine = faulty("mask-left-by-move")
    row_of_a_moved_mask(engine, GREEDY)
    assert alone(engine, PROMPT, GREEDY) == alone(faulty(), PROMPT, GREEDY)
