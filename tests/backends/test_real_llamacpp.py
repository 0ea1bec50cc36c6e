"""The native llama.cpp backend against llama.cpp itself, where its wheel is at hand.

`LEAKCHECK_LLAMACPP_URL` names a server that runs (docs/engines says how to start one).
"""

import asyncio
import os

import pytest
from playing import request

from leakcheck import survey
from leakcheck.backends import llamacpp
from leakcheck.records import Message, Sampling, Target

URL = os.environ.get("LEAKCHECK_LLAMACPP_URL", "")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not URL, reason="LEAKCHECK_LLAMACPP_URL names no running llama.cpp server"),
]


def talk(target, *requests):
    async def run():
        backend = llamacpp.connect(target)
        try:
            return [[chunk async for chunk in backend.stream(each)] for each in requests]
        finally:
            await backend.close()

    return asyncio.run(run())


def asking(words, **fields):
    return request("a", messages=(Message(role="user", content=words),), **fields)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_same_greedy_answer_comes_streamed_and_whole_with_cached_tokens(api):
    target = Target(base_url=URL, model="m", backend="llamacpp", api=api)
    sampling = Sampling(max_tokens=8, top_logprobs=2)
    sent = [
        asking("Once upon a time there was a small harbour", stream=stream, sampling=sampling)
        for stream in (True, False, True)
    ]
    found = talk(target, *sent)
    texts = ["".join(chunk.text for chunk in chunks) for chunks in found]
    assert texts[0]
    assert len(set(texts)) == 1
    for chunks in found:
        tokens = [each for chunk in chunks for each in chunk.logprobs]
        assert len(tokens) == 8
        assert all(len(each.top) == 2 for each in tokens)
        assert chunks[-1].finish_reason == "length"
        assert chunks[-1].usage.completion_tokens == 8
    assert found[-1][-1].usage.cached_tokens > 0


def test_a_conversation_is_sent_to_one_slot_and_answered():
    target = Target(base_url=URL, model="m", backend="llamacpp")
    (chunks,) = talk(target, asking("Say hello.", conversation="c17"))
    assert chunks[-1].usage is not None


def test_the_probe_finds_the_model():
    assert len(survey.meet(Target(base_url=URL, model="m", backend="llamacpp"))[1]) == 1
