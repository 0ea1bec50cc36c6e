"""Each row is sampled by its own parameters, whoever its neighbours are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch

from leakcheck.engine.sampling import Sampler
from leakcheck.engine.values import GenerateRequest, SamplingParams

GREEDY = SamplingParams()


@pytest.fixture
def sequence(make_engine):
    """A sequence with a prompt of one token and this output."""
    engine = make_engine()

    def make(params=GREEDY, output=(), order=0):
        request = GenerateRequest(id="x", prompt=(1,), params=params)
        its = engine.new_sequence(request, order, 0)
        its.tokens += output
        return its

    return make


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def tokens(sequences, rows):
    return [pick.token for pick in Sampler().sample(sequences, rows)]


def test_temperature_zero_takes_the_best(sequence):
    assert tokens([sequence()], logits([0.0, 2.0, 1.0])) == [1]


def test_a_bias_moves_only_its_own_row(sequence):
    biased = sequence(SamplingParams(logit_bias=((0, 100.0),)))
    rows = logits([0.0, 2.0], [0.0, 2.0])
    assert tokens([biased, sequence()], rows) == [0, 1]
    assert rows.tolist() == [[0.0, 2.0], [0.0, 2.0]]


def test_penalties_count_what_was_generated_but_not_the_prompt(sequence):
    presence = SamplingParams(presence_penalty=1.5)
    frequency = SamplingParams(frequency_penalty=0.6)
    rows = logits(*[[0.0, 1.0, 0.0]] * 4)
    its = [sequence(presence, [1]), sequence(presence), sequence(frequency, [1]),
           sequence(frequency, [1, 1])]  # fmt: skip
    assert tokens(its, rows) == [0, 1, 1, 0]


def test_a_seed_gives_the_same_tokens_in_any_company(sequence):
    params = SamplingParams(temperature=1.0, seed=7)
    row = torch.randn(50, generator=torch.Generator().manual_seed(0)).tolist()

    def draw(company):
        its, others = sequence(params, order=company), [sequence() for _ in range(company)]
        rows = logits(*[row] * (company + 1))
        return [tokens([*others, its], rows)[-1] for _ in range(10)]

    assert draw(0) == draw(3)


def test_sampling_follows_the_distribution(sequence):
    its = sequence(SamplingParams(temperature=1.0))
    its.rng = Random(5)
    row = torch.tensor([[0.5, 0.3, 0.2]]).log()
    counts = Counter(tokens([its] * 4000, row.expand(4000, -1)))
    assert [counts[token] / 4000 for token in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_top_p_keeps_the_smallest_nucleus(sequence):
    its = sequence(SamplingParams(temperature=1.0, top_p=0.7))
    row = torch.tensor([[0.2, 0.5, 0.3]]).log()
    assert set(tokens([its] * 300, row.expand(300, -1))) == {1, 2}
    narrow = sequence(SamplingParams(temperature=2.0, top_p=0.0))
    assert tokens([narrow], row) == [1]


def test_logprobs_are_the_models_own_and_only_where_asked(sequence):
    shaped = SamplingParams(logprobs=2, logit_bias=((0, 100.0),), temperature=0.5)
    picks = Sampler().sample([sequence(), sequence(shaped)], logits([1.0, 3.0], [1.0, 3.0]))
    raw = logits([1.0, 3.0]).log_softmax(-1)[0].tolist()
    assert picks[0].logprob is None
    assert picks[1].token == 0
    assert picks[1].logprob == pytest.approx(raw[0])
    assert picks[1].top == ((1, pytest.approx(raw[1])), (0, pytest.approx(raw[0])))


def test_zero_alternatives_still_report_the_chosen_token(sequence):
    picks = Sampler().sample([sequence(SamplingParams(logprobs=0))], logits([1.0, 3.0]))
    assert picks[0].logprob is not None
    assert picks[0].top == ()


def test_choices_of_one_seed_differ_from_each_other(make_engine):
    engine = make_engine()
    request = GenerateRequest(
        id="x", prompt=(1,), params=replace(GREEDY, seed=3, temperature=1.0), n=2
    )
    first, second = (engine.random(request, 0, index).random() for index in range(2))
    assert first != second
    assert engine.random(request, 9, 0).random() == first
