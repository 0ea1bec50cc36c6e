"""Whatever else is in flight, an answer is the one the model gives to that request alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from leakcheck.engine.engine import Engine
from leakcheck.engine.models import layer_shapes
from leakcheck.engine.values import EngineOptions, GenerateRequest, SamplingParams

LOGPROB_TOLERANCE = 1e-4
NEAR_TIE = 1e-4
EOS = 259


@dataclass(frozen=True)
class Arrival:
    """A request that arrives before some step, and perhaps leaves before another."""

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    salt: str
    abort_after: int | None


tokens = st.integers(0, EOS - 1)


@st.composite
def requests(draw, stem):
    """A request whose prompt begins with some of the stem."""
    head = stem[: draw(st.integers(0, len(stem)))]
    return Arrival(
        step=draw(st.integers(0, 8)),
        prompt=(*head, *draw(st.lists(tokens, min_size=1, max_size=12))),
        max_tokens=draw(st.integers(1, 14)),
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        salt=draw(st.sampled_from(["", "", "salt"])),
        abort_after=draw(st.none() | st.none() | st.integers(0, 10)),
    )


@st.composite
def traffic(draw):
    """Requests that share prompts' beginnings, and an engine from just big enough to roomy."""
    stem = draw(st.lists(tokens, min_size=1, max_size=30))
    arrivals = draw(st.lists(requests(stem), min_size=1, max_size=10))
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    longest = max(len(its.prompt) + its.max_tokens for its in arrivals)
    options = EngineOptions(
        block_size=block_size,
        num_blocks=-(-longest // block_size) + draw(st.sampled_from([0, 1, 3, 10, 60])),
        step_tokens=draw(st.sampled_from([3, 16, 200])),
        max_running=draw(st.sampled_from([3, 8])),
        prefix_cache=draw(st.sampled_from([True, True, False])),
        share_partial=draw(st.booleans()),
    )
    return arrivals, options


def drive(engine, arrivals):
    """Run the traffic step by step; {(request, choice): [tokens, logprobs, finish_reason]}."""
    answers, step = {}, 0
    coming = {f"r{number}": arrival for number, arrival in enumerate(arrivals)}
    leaving = {}
    while coming or engine.has_work:
        for name in [name for name, its in coming.items() if its.step <= step]:
            its = coming.pop(name)
            params = SamplingParams(max_tokens=its.max_tokens, logprobs=0)
            engine.submit(
                GenerateRequest(id=name, prompt=its.prompt, params=params, n=its.n, salt=its.salt)
            )
            if its.abort_after is not None:
                leaving[name] = step + its.abort_after
        for name in [name for name, at in leaving.items() if at <= step]:
            del leaving[name]
            collect(answers, engine.abort(name))
        collect(answers, engine.step())
        check_references(engine)
        step += 1
        assert step < 3000, "the engine makes no progress"
    return answers


def collect(answers, updates):
    for update in updates:
        answer = answers.setdefault((update.id, update.index), [[], [], None])
        answer[0] += [one.token for one in update.logprobs]
        answer[1] += [one.logprob for one in update.logprobs]
        answer[2] = update.finish_reason


def check_references(engine):
    """Every reference is one block table's, and nobody can write what another reads."""
    held = Counter(block for its in engine.scheduler.running for block in its.table)
    assert held == Counter(
        {block: count for block, count in enumerate(engine.pool.references) if count}
    )
    for its in engine.scheduler.running:
        for block in its.table[its.computed // engine.options.block_size :][1:]:
            assert engine.pool.writable(block)


def check_empty(engine):
    """Nothing is held; what is cached is exactly what the prefix cache knows."""
    pool = engine.pool
    assert not any(pool.references)
    assert pool.used_count == 0
    assert pool.free_count + pool.cached_count == pool.num_blocks
    assert sorted(engine.prefix.by_block) == sorted(pool._idle)
    assert len(engine.prefix.entries) == len(engine.prefix.by_block)
    assert not engine.live
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


@torch.inference_mode()
def check_answer(model, prompt, max_tokens, answer):
    """Each token is the plain model's best, or as good within a near tie; so is its logprob."""
    given_tokens, logprobs, reason = answer
    if given_tokens:
        whole = torch.tensor([[*prompt, *given_tokens]])
        plain = model(whole).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        own = plain.gather(1, whole[0, len(prompt) :, None])[:, 0]
        assert float((own - torch.tensor(logprobs)).abs().max()) < LOGPROB_TOLERANCE
        assert float((plain.max(dim=-1).values - own).max()) < NEAR_TIE
    assert EOS not in given_tokens[:-1]
    if reason == "stop":
        assert given_tokens[-1] == EOS
    elif reason == "length":
        assert len(given_tokens) == max_tokens
    else:
        assert reason == "abort"


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(drawn=traffic())
def test_answers_do_not_depend_on_company(family, request, tokenizer, drawn):
    arrivals, options = drawn
    model = request.getfixturevalue(family)
    engine = Engine(model, tokenizer, layer_shapes(model), options)
    answers = drive(engine, arrivals)
    event(f"preempted: {engine.scheduler.preemptions > 0}, evicted: {engine.pool.evictions > 0}")
    for number, its in enumerate(arrivals):
        for index in range(its.n):
            answer = answers[f"r{number}", index]
            check_answer(model, its.prompt, its.max_tokens, answer)
            if its.abort_after is None:
                assert answer[2] != "abort"
    check_empty(engine)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_greedy_tokens_are_those_of_generate(family, request, make_engine):
    model = request.getfixturevalue(family)
    engine = make_engine(model, num_blocks=60, block_size=4, step_tokens=20)
    prompts = [tuple(range(start, start + 7 * start + 3)) for start in range(1, 8)]
    arrivals = [
        Arrival(step=number, prompt=prompt, max_tokens=20, n=1, salt="", abort_after=None)
        for number, prompt in enumerate(prompts)
    ]
    answers = drive(engine, arrivals)
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        alone = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        assert answers[f"r{number}", 0][0] == alone[0, len(prompt) :].tolist()


def test_a_small_pool_preempts_and_evicts_and_still_answers_right(make_engine, llama):
    engine = make_engine(num_blocks=14, block_size=4, max_running=8)
    arrivals = [
        Arrival(
            step=number // 3,
            prompt=tuple(range(10, 22)) + (number,) * (number + 1),
            max_tokens=20,
            n=1 + number % 2,
            salt="",
            abort_after=None,
        )
        for number in range(9)
    ]
    answers = drive(engine, arrivals)
    assert engine.scheduler.preemptions > 0
    assert engine.pool.evictions > 0
    assert engine.scheduler.prefix_hits_tokens > 0
    for number, its in enumerate(arrivals):
        for index in range(its.n):
            check_answer(llama, its.prompt, its.max_tokens, answers[f"r{number}", index])
    check_empty(engine)


def test_half_precision_runs_too(llama, tokenizer):
    model = llama.__class__(llama.config).to(torch.bfloat16).eval()
    engine = Engine(model, tokenizer, layer_shapes(model), EngineOptions(num_blocks=20))
    arrivals = [Arrival(step=0, prompt=(5, 6, 7), max_tokens=4, n=1, salt="", abort_after=None)]
    assert len(drive(engine, arrivals)["r0", 0][0]) == 4
    assert engine.store.keys[0].dtype == torch.bfloat16
