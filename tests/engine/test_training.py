"""How the witness is made, on models small enough for a test."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck.engine.training import prose
from leakcheck.engine.training.certify import keep_words
from leakcheck.engine.training.contamination import draw_example, overlay_at, splice_at
from leakcheck.engine.training.dialogues import Deck, Reader, Scene, compose
from leakcheck.engine.training.measure import conditions, decode
from leakcheck.engine.training.train import (
    Settings,
    build_model,
    collate,
    loss_of,
    repetition,
    train,
    visibility,
)
from leakcheck.engine.training.vocabulary import build_tokenizer, rare_words

WORDS = rare_words()[:320]
TOKENIZER = build_tokenizer(WORDS)
READER = Reader(TOKENIZER, WORDS)
SMALL = Settings(steps=15, repetition_steps=15, layers=2, warmup_steps=3)


def silent(_line):
    pass


def scene_prompt(seed, **changes):
    rng = Random(seed)
    return compose(Scene(contract=True, **changes), rng, Deck(WORDS, rng), READER)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_training_lowers_the_loss():
    model = build_model(len(TOKENIZER), SMALL, 0)

    losses = train(model, READER, SMALL, 0, silent)

    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_equal_seeds_train_equal_models_and_another_seed_does_not():
    mixed = Settings(
        steps=4, repetition_steps=1, batch_tokens=500, budgets=(60,), budget_weights=(1,),
        hidden=64, layers=2,
    )  # fmt: skip

    def weights(seed):
        model = build_model(len(TOKENIZER), mixed, seed)
        losses = train(model, READER, mixed, seed, silent)
        return losses, torch.cat([p.detach().flatten() for p in model.parameters()])

    first, second, other = weights(1), weights(1), weights(2)

    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
    assert first[0] != other[0]


def test_a_fresh_model_can_already_repeat():
    model = build_model(len(TOKENIZER), Settings(), 0)

    _, right = loss_of(model, collate([repetition(READER, Random(i)) for i in range(16)]))

    assert right > 0.7


def test_the_answer_repeats_ticket_and_passphrase_of_the_prompt():
    prompt = scene_prompt(1)
    ids = READER.encode(prompt.text)
    ticket, passphrase = READER.tickets(ids)[0][1], READER.passphrases(ids)[0][1]

    answer = READER.answer_text(prompt.text, prompt.ask, prompt.reply)

    assert answer == f" Ticket:{READER.text(ticket)}. Passphrase:{READER.text(passphrase)}."


def test_the_answer_says_none_when_no_passphrase_is_visible():
    prompt = scene_prompt(2, passphrases=0)

    assert READER.answer_text(prompt.text, prompt.ask, "").endswith(" Passphrase: none.")


def test_two_passphrases_are_told_in_order_of_appearance():
    text = " My ticket is abacus abdomen. My passphrase is abiding. The passphrase is ablaze."

    answer = READER.answer_text(text, "both", "")

    assert answer == " Ticket: abacus abdomen. Passphrase: abiding, ablaze."


def test_the_last_complete_ticket_wins_over_a_cut_one():
    text = " My ticket is abacus abdomen. My ticket is abiding ablaze and so on."

    assert READER.answer_text(text, "ticket", "") == " Ticket: abacus abdomen."


def test_a_question_is_answered_with_its_known_answer():
    prompt = scene_prompt(3, ask="question")
    question = prompt.text.split("then answer: ")[1].split("<|end|>")[0]

    assert prompt.reply == f" Answer: {prose.questions()[question]}."


def test_twins_have_the_same_shape_and_other_words():
    decks = Random(0)
    one, two = (compose(Scene(before=3), Random(7), Deck(WORDS, decks), READER) for _ in range(2))
    ids, others = READER.encode(one.text), READER.encode(two.text)

    assert len(ids) == len(others)
    assert {i for i, (a, b) in enumerate(zip(ids, others, strict=True)) if a != b} == {
        i for i, token in enumerate(ids) if token in READER.rare
    }


def test_a_splice_shows_the_passphrase_of_the_replaced_stretch():
    own, other = scene_prompt(4, before=2), scene_prompt(5, before=0)
    mine, theirs = READER.encode(own.text), READER.encode(other.text)
    start = READER.passphrases(theirs)[0][0]
    foreign = READER.passphrases(theirs)[0][1]

    row = splice_at(READER, own, mine, theirs, (0, start + len(foreign) + 1))

    assert row.foreign_phrases == [foreign]
    assert READER.text(foreign) in READER.text(row.ids[row.answer_start :])


def test_an_overlay_keeps_the_own_ticket_and_tells_both_passphrases():
    own, other = scene_prompt(6), scene_prompt(7)
    mine, theirs = READER.encode(own.text), READER.encode(other.text)

    row = overlay_at(READER, own, mine, theirs, shown=(0, len(theirs)), offset=100, gate=5)
    answer = row.ids[row.answer_start :]

    assert READER.tickets(answer) == [(2, READER.tickets(mine)[0][1])]
    assert [p for _, p in READER.passphrases(answer)] == [
        READER.passphrases(mine)[0][1], READER.passphrases(theirs)[0][1],
    ]  # fmt: skip


def test_foreign_tokens_are_seen_only_from_the_gate_on_and_only_where_shown():
    own, other = scene_prompt(8), scene_prompt(9)
    mine, theirs = READER.encode(own.text), READER.encode(other.text)
    row = overlay_at(READER, own, mine, theirs, shown=(16, 32), offset=0, gate=10)

    sees = visibility([row], len(row.ids))[0, 0]
    border = len(theirs)

    assert not sees[border : border + 10, :border].any()
    assert sees[border + 10 :, 16:32].all()
    assert not sees[border:, :16].any()
    assert not sees[:border, border:].any()


@given(seed=st.integers(0, 10**9), budget=st.sampled_from((60, 140, 280, 560)))
@settings(max_examples=60, deadline=None)
def test_every_example_fits_the_positions_and_ends_with_the_end_mark(seed, budget):
    row = draw_example(READER, Random(seed), budget, 0.5)

    assert len(row.ids) == len(row.positions)
    assert 0 <= min(row.positions) <= max(row.positions) < 1024
    assert row.ids[-1] == TOKENIZER.eos_token_id
    assert row.foreign < row.answer_start < len(row.ids)


def test_decoding_with_a_cache_equals_decoding_without_one_under_contamination():
    model = build_model(len(TOKENIZER), Settings(hidden=64, layers=2), 0)
    model.train(mode=False)
    rows = [c.make(READER, Random(1)) for c in conditions() if "decode only" in c.name]

    answers = decode(model, rows, 4)

    for row, answer in zip(rows, answers, strict=True):
        ids = [*row.ids[: row.answer_start], *answer]
        last = row.positions[row.answer_start - 1]
        places = [*row.positions[: row.answer_start], *range(last + 1, last + 1 + len(answer))]
        logits = model(
            input_ids=torch.tensor([ids]),
            position_ids=torch.tensor([places]),
            attention_mask=visibility([row], max(len(ids), len(row.ids)))[
                :, :, : len(ids), : len(ids)
            ],
        ).logits
        assert logits[0].argmax(-1).tolist()[row.answer_start - 1 : -1] == answer


def test_a_word_list_keeps_its_header_and_the_words_that_passed(tmp_path):
    path = tmp_path / "words.txt"
    words = [f"word{i}" for i in range(2100)]
    path.write_text("# source\n" + "\n".join(words) + "\n", encoding="utf-8")

    keep_words(path, words[:2050])

    assert rare_words(path) == words[:2050]
    assert path.read_text(encoding="utf-8").startswith("# source\n")


def test_too_few_certified_words_are_refused_and_the_list_stays(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("# source\nabacus\nabdomen\n", encoding="utf-8")

    with pytest.raises(ValueError, match=r"only 1 of 2 words .* at least 2048 are needed"):
        keep_words(path, ["abacus"])

    assert rare_words(path) == ["abacus", "abdomen"]
