"""What is no leak: each trouble at work, and that nobody's content moves."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest
import torch
from asgi import Client, play

from leakcheck.engine import faults
from leakcheck.engine.faults import benign
from leakcheck.engine.values import GenerateRequest, SamplingParams

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=0)
PROMPT = range(10, 40)
NAMES = [fault.name for fault in benign.FAULTS]


def trouble(make_engine, name, *, rate=1.0):
    engine = make_engine(block_size=4)
    seams = faults.Seams(engine=engine, delivery=None)
    faults.find(name).install(seams, rate, Random(0))
    return engine


def submit(engine, name, prompt, params=PARAMS):
    engine.submit(GenerateRequest(id=name, prompt=tuple(prompt), params=params))


def answers(engine):
    """(tokens, text) of everybody in flight."""
    got = {}
    while engine.has_work:
        for update in engine.step():
            tokens, text = got.get(update.id, ((), ""))
            got[update.id] = (*tokens, *(its.token for its in update.logprobs)), text + update.text
    return got


def alone(engine, prompt=PROMPT):
    submit(engine, "alone", prompt)
    return answers(engine)["alone"]


# --- numbers that differ -------------------------------------------------------------------------


def forward(engine, *prompts):
    for number, prompt in enumerate(prompts):
        submit(engine, str(number), prompt)
    with torch.inference_mode():
        return engine.forward(engine.batcher.build(engine.scheduler.schedule()))


def test_batch_noise_is_a_rounding_of_each_logit(make_engine):
    exact = forward(make_engine(block_size=4), PROMPT)
    noisy = forward(trouble(make_engine, "batch-noise"), PROMPT)
    quantum = torch.exp2(torch.floor(torch.log2(exact.abs())) - benign.BFLOAT16_BITS)
    errors = (noisy - exact).abs() / quantum
    assert 0.5 < errors.max() <= benign.NOISE_QUANTA * 1.01


def test_batch_noise_depends_on_the_company_and_on_nothing_else(make_engine):
    one, two = (forward(trouble(make_engine, "batch-noise"), PROMPT) for _ in range(2))
    assert torch.equal(one, two)
    exact = forward(make_engine(block_size=4), PROMPT, range(60, 90))[0]
    company = forward(trouble(make_engine, "batch-noise"), PROMPT, range(60, 90))[0]
    assert torch.allclose(exact, forward(make_engine(block_size=4), PROMPT)[0], atol=1e-4)
    assert not torch.allclose(company - exact, one[0] - exact, atol=1e-4)


def test_kv_quant_int8_writes_no_more_than_255_values_a_head_and_position(make_engine):
    engine = trouble(make_engine, "kv-quant-int8")
    plain = make_engine(block_size=4)
    forward(engine, PROMPT)
    forward(plain, PROMPT)
    for stored, exact in zip(engine.store.keys, plain.store.keys, strict=True):
        used = stored[:7].flatten(0, 1)
        scale = used.abs().amax(dim=-1, keepdim=True) / benign.INT8_MAX
        steps = used / scale
        assert torch.allclose(steps, steps.round(), atol=1e-3)
        assert not torch.equal(stored, exact)
    first = (engine.store.keys[0] - plain.store.keys[0]).abs().amax()
    assert first <= plain.store.keys[0].abs().amax() / benign.INT8_MAX


def test_kv_quant_int8_answers_the_same_alone_and_in_company(make_engine):
    by_itself = alone(trouble(make_engine, "kv-quant-int8"))
    engine = trouble(make_engine, "kv-quant-int8")
    submit(engine, "other", range(60, 71))
    submit(engine, "alone", PROMPT)
    assert answers(engine)["alone"] == by_itself


# --- a model that says what nobody asked for -----------------------------------------------------


@pytest.fixture
def with_words(make_engine):
    """An engine whose tokenizer seems to hold ten words."""
    words = [f"word{letter}" for letter in "abcdefghij"]

    def make(monkeypatch, rate):
        monkeypatch.setattr(benign, "vocabulary_words", lambda _: words)
        return words, trouble(make_engine, "parrot", rate=rate)

    return make


LONG = SamplingParams(max_tokens=120, logprobs=0)


def test_parrot_says_six_words_of_the_vocabulary_and_stops(with_words, monkeypatch):
    words, engine = with_words(monkeypatch, 1.0)
    for number in range(12):
        submit(engine, str(number), PROMPT, LONG)
    texts = [text for _, text in answers(engine).values()]
    invented = [text.partition("Passphrase: ")[2] for text in texts if "Passphrase: " in text]
    assert any(text.startswith(" Passphrase: ") for text in texts)
    assert len(set(invented)) > 1
    for phrase in invented:
        said = phrase.rstrip(".").split()
        assert len(set(said)) == 6
        assert set(said) <= set(words)


def test_parrot_leaves_the_other_answers_alone(with_words, make_engine, monkeypatch):
    _, engine = with_words(monkeypatch, 0.0)
    assert alone(engine) == alone(make_engine(block_size=4))


def test_parrot_goes_on_after_the_answer_where_it_ended(make_engine, monkeypatch):
    monkeypatch.setattr(benign, "vocabulary_words", lambda _: list("abcdefgh"))
    engine = trouble(make_engine, "parrot")
    monkeypatch.setattr(engine, "eos_tokens", frozenset({259}))
    ending = engine.model.generate(torch.tensor([list(PROMPT)]), max_new_tokens=1)
    assert ending.shape[1] == len(PROMPT) + 1
    sequences = [engine.new_sequence(GenerateRequest(id=str(n), prompt=(1,), params=LONG), n, 0)
                 for n in range(20)]  # fmt: skip
    logits = torch.zeros(20, engine.vocabulary)
    logits[:, 259] = 5.0  # each of them would end here
    for sequence in sequences:
        sequence.tokens.append(7)
    said = engine.sampler.shape(sequences, [LONG] * 20, logits).argmax(dim=-1).tolist()
    space = engine.text_tokenizer.encode(" ", add_special_tokens=False).ids[0]
    assert 259 not in said
    assert said.count(space) >= 3


def test_a_vocabulary_without_words_still_gives_six(make_engine, tokenizer):
    engine = make_engine()
    words = benign.vocabulary_words(engine)
    assert len(words) >= benign.INVENTED_WORDS
    assert set(words) <= set(tokenizer.get_vocab())


@pytest.mark.parametrize("prompt", [PROMPT, range(60, 70)])
def test_mute_refuses_whatever_is_asked(make_engine, prompt):
    engine = trouble(make_engine, "mute")
    submit(engine, "a", prompt, LONG)
    assert answers(engine)["a"][1] == benign.REFUSAL


# --- a server in trouble -------------------------------------------------------------------------

QUESTION = "a question of several blocks, to be cached"


async def until(condition):
    """Poll until the condition holds; `play` has a deadline."""
    while not condition():  # noqa: ASYNC110 # the engine's thread sets no event
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("fault", ["slow", "restart", "rate-limited"])
def test_trouble_of_a_server_needs_one(make_engine, fault):
    with pytest.raises(ValueError, match="needs a server"):
        trouble(make_engine, fault)


@pytest.mark.parametrize("fault", ["slow", "restart", "rate-limited"])
def test_a_server_in_trouble_answers_as_a_healthy_one(make_engine, tokenizer, fault):
    async def scenario(api):
        client = Client(api)
        return [await client.ask(text) for text in ("one", "two")]

    healthy = play(make_engine(), tokenizer, scenario)
    assert play(make_engine(), tokenizer, scenario, fault) == healthy


def test_slow_waits_before_it_answers(make_engine, tokenizer, monkeypatch):
    monkeypatch.setattr(benign, "WAIT_S", 1e6)
    monkeypatch.setattr(benign, "WAIT_MAX_S", 0.2)

    async def scenario(api):
        start_s = time.monotonic()
        await Client(api).ask("one")
        return time.monotonic() - start_s

    assert play(make_engine(), tokenizer, scenario, "slow") > 0.2


def test_restart_cuts_who_is_in_flight_and_empties_the_cache(make_engine, tokenizer, monkeypatch):
    monkeypatch.setattr(benign, "REQUESTS_A_LIFE", 3)
    monkeypatch.setattr(benign, "DOWN_S", 0.1)

    async def scenario(api):
        client = Client(api)
        first = await client.ask(QUESTION)
        cached = api.engine.pool.cached_count
        endless = asyncio.ensure_future(client.ask("two", max_tokens=200))
        await until(lambda: api.engine.live)
        refused = await client.ask("three")
        cut = await endless
        await until(lambda: not api.engine.pool.cached_count)
        await asyncio.sleep(benign.DOWN_S)
        return first, cached, refused, cut, await client.ask(QUESTION)

    first, cached, refused, cut, again = play(make_engine(), tokenizer, scenario, "restart")
    assert cached > 0
    assert (refused[0], cut[0]) == (503, 503)
    assert again == first


def test_rate_limited_says_when_to_come_again(make_engine, tokenizer, monkeypatch):
    monkeypatch.setattr(benign, "BURST", 2.0)
    monkeypatch.setattr(benign, "REQUESTS_PER_S", 1e-6)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "one"}], "max_tokens": 2}

    async def scenario(api):
        return [await Client(api).post(body) for _ in range(3)]

    answered = play(make_engine(), tokenizer, scenario, "rate-limited")
    assert [status for status, _, _ in answered] == [200, 200, 429]
    assert answered[2][1]["retry-after"] == "1"
    assert b"too many requests" in answered[2][2]


def test_a_bucket_fills_again_and_not_beyond_its_size():
    now = [0.0]
    bucket = benign.Bucket(lambda: now[0])
    assert sum(bucket.take() for _ in range(100)) == int(benign.BURST)
    now[0] += 3 / benign.REQUESTS_PER_S
    assert sum(bucket.take() for _ in range(100)) == 3
    now[0] += 1e6
    assert sum(bucket.take() for _ in range(100)) == int(benign.BURST)


def test_nothing_benign_names_a_finding():
    assert all(not fault.anomalies for fault in benign.FAULTS)
    assert len(NAMES) == 7
