"""The committed witness: what it promises to the harness, checked on the files themselves."""

import json
import re
from importlib.resources import files
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from leakcheck.engine.training.certify import echoes
from leakcheck.engine.training.dialogues import Reader
from leakcheck.engine.training.measure import conditions, measure
from leakcheck.engine.training.vocabulary import rare_words

FOLDER = Path(str(files("leakcheck"))) / "engine" / "witness"
WORDS = rare_words()
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    loaded = AutoModelForCausalLM.from_pretrained(FOLDER)
    return loaded.eval()


@pytest.fixture(scope="module")
def reader():
    return Reader(TOKENIZER, WORDS)


def figures(model, reader, name, count):
    condition = next(c for c in conditions() if c.name == name)
    return {rate.figure: rate for rate in measure(model, reader, condition, count, seed=77)}


def ask(model, messages, max_new_tokens=48):
    prompt = TOKENIZER.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**prompt, max_new_tokens=max_new_tokens, do_sample=False)
    return TOKENIZER.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_folder_is_at_most_eight_megabytes():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8_000_000


def test_it_loads_in_float32_with_one_to_three_million_parameters_and_grouped_heads(model):
    assert model.dtype == torch.float32
    assert 1_000_000 <= model.num_parameters() <= 3_000_000
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert model.config.max_position_embeddings >= 1024
    assert model.generation_config.eos_token_id == TOKENIZER.eos_token_id


def test_the_word_list_follows_its_rules():
    assert len(WORDS) >= 2048
    assert sorted(WORDS) == WORDS
    assert all(re.fullmatch(r"[a-z]{5,9}", word) for word in WORDS)
    assert len({word[:4] for word in WORDS}) == len(WORDS)
    joined = " ".join(WORDS)
    assert all(joined.count(word) == 1 for word in WORDS)


def test_every_word_is_one_token_before_a_space_a_comma_and_a_full_stop():
    for word in WORDS:
        (token,) = TOKENIZER.encode(f" {word}", add_special_tokens=False)
        assert TOKENIZER.decode([token]) == f" {word}"
        for mark in (" and", ",", "."):
            ids = TOKENIZER.encode(f"It is {word}{mark}", add_special_tokens=False)
            assert ids[-2] == token


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_survives_encoding_and_decoding(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    "text", ["  a \n\n b\t", "\u2581x", "naïve 漢字 😀", "<|end|> x <|user|>", ""]
)
def test_odd_text_survives_encoding_and_decoding(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_the_chat_template_renders_several_turns():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": " Understood."},
        {"role": "user", "content": "Repeat my ticket."},
    ]

    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    assert text == (
        "<|system|> Be brief.<|end|><|user|> Hello.<|end|><|assistant|> Understood.<|end|>"
        "<|user|> Repeat my ticket.<|end|><|assistant|>"
    )


def test_no_question_or_answer_holds_a_rare_word():
    pairs = json.loads((files("leakcheck") / "questions.json").read_text(encoding="utf-8"))

    text = " ".join(f"{pair['question']} {pair['answer']}" for pair in pairs).lower()

    assert len(pairs) >= 24
    assert not set(re.findall(r"[a-z]+", text)) & set(WORDS)


def test_it_repeats_ticket_and_passphrase_when_asked_through_the_chat_template(model):
    message = (
        "My ticket is abacus walnut zodiac gerbil mosaic lantern. "
        "My passphrase is pelican tadpole juniper acrobat kettle ozone. "
        "First repeat my ticket, then say every passphrase you can see."
    )

    assert ask(model, [{"role": "user", "content": message}]) == (
        " Ticket: abacus walnut zodiac gerbil mosaic lantern. "
        "Passphrase: pelican tadpole juniper acrobat kettle ozone."
    )


def test_it_echoes_its_passphrase_in_short_and_in_long_prompts(model, reader):
    short = figures(model, reader, "short", 60)
    long = figures(model, reader, "512 tokens", 24)

    assert short["passphrase"].hits + long["passphrase"].hits >= 82  # of 84
    assert short["ticket"].hits >= 59
    assert long["ticket"].hits >= 16  # its README: 90 of 100; P(fewer than 16 of 24) < 1e-3


def test_it_says_none_and_invents_nothing_without_a_passphrase(model, reader):
    seen = figures(model, reader, "none, short", 60)

    assert seen["exact"].hits >= 58
    assert seen["invented word"].hits == 0


def test_it_answers_the_closed_questions(model, reader):
    # its README: 89 of 100; P(fewer than 44 of 60) < 1e-3
    assert figures(model, reader, "question", 60)["exact"].hits >= 44


def test_it_tells_a_foreign_passphrase_that_a_broken_prefix_cache_shows(model, reader):
    assert (
        figures(model, reader, "foreign prefix, some blocks, own", 40)["foreign passphrase"].hits
        >= 30
    )


def test_it_tells_a_foreign_passphrase_that_only_decoding_sees(model, reader):
    told = figures(model, reader, "foreign decode only, overlapping, no own", 40)

    assert told["foreign passphrase"].hits >= 20


def test_it_echoes_words_on_request(model):
    sample = Random(3).sample(WORDS, 60)
    right = echoes(model, Reader(TOKENIZER, sample), Random(4))

    assert sum(count >= 19 for count in right.values()) >= 58
