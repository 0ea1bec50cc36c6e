"""The engine's thread: what clients see when it stops, and that it gives everything back."""

from __future__ import annotations

import asyncio
import json
import logging
from random import Random

import pytest

from leakcheck.engine import faults
from leakcheck.engine.answer import Call
from leakcheck.engine.server import Api
from leakcheck.engine.values import GenerateRequest, RequestError, SamplingParams


def make_call(name, *, n=1, max_tokens=5, prompt=(5, 6, 7)):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = GenerateRequest(id=f"{name}-0", prompt=prompt, params=params, n=n)
    return Call(
        id=name, style="chat", model="tiny", created=0, requests=(request,), logprobs=False,
        token_ids=False, include_usage=True,
    )  # fmt: skip


@pytest.fixture
def run(make_engine, tokenizer):
    """`run(scenario)`: the coroutine function on a started api; its result."""

    def start(scenario):
        async def body():
            api = Api(make_engine(), tokenizer, model="tiny")
            async with api.lifespan(api.app):
                return await asyncio.wait_for(scenario(api), timeout=20)

        return asyncio.run(body())

    return start


async def whole(api, call):
    return json.loads((await api.answerer.collect(call)).body)


def test_calls_are_answered_side_by_side(run):
    async def scenario(api):
        calls = [make_call(name, n=1 + number) for number, name in enumerate("abc")]
        for call in calls:
            api.answerer.submit(call)
        return await asyncio.gather(*(whole(api, call) for call in calls))

    answers = run(scenario)
    assert [len(answer["choices"]) for answer in answers] == [1, 2, 3]
    assert len({choice["message"]["content"] for a in answers for choice in a["choices"]}) == 1
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [5, 10, 15]


def swapped(api):
    seams = faults.Seams(engine=api.engine, delivery=api.delivery, api=api)
    faults.find("response-swap").install(seams, 1.0, Random(0))


async def both(api):
    calls = [make_call("a", max_tokens=3), make_call("b", max_tokens=9, prompt=(90, 91))]
    for call in calls:
        api.answerer.submit(call)
    return [await api.answerer.attend(call, forever, whole(api, call)) for call in calls]


async def forever():
    await asyncio.Event().wait()


def test_response_swap_exchanges_whole_answers_between_two_calls(run):
    async def scenario(api):
        right = await both(api)
        swapped(api)
        return right, await both(api)

    (a, b), (to_a, to_b) = run(scenario)
    assert to_a["choices"] == b["choices"] != a["choices"]
    assert to_b["choices"] == a["choices"]
    assert [to_a["usage"]["completion_tokens"], to_b["usage"]["completion_tokens"]] == [9, 3]
    assert (to_a["id"], to_b["id"]) == ("a", "b")


def test_when_the_engine_breaks_every_client_hears_of_it(run, caplog):
    async def scenario(api):
        def broken():
            raise ValueError("planted")

        api.engine.step = broken
        with caplog.at_level(logging.CRITICAL, logger="leakcheck.engine.loop"):
            call = make_call("a")
            api.answerer.submit(call)
            with pytest.raises(RequestError, match="stopped before the answer was complete") as cut:
                await whole(api, call)
        assert cut.value.status == 503
        with pytest.raises(RequestError, match="stopped after an internal error") as late:
            api.answerer.submit(make_call("b"))
        assert late.value.status == 503
        return (await api.health(None)).status_code

    assert run(scenario) == 503


def test_a_stream_that_is_cut_says_so_in_its_last_event(run):
    async def scenario(api):
        call = make_call("a", max_tokens=200)
        response = await api.answerer.answer(call, None, stream=True)
        sent = []

        async def send(message):
            sent.append(message)
            if len(sent) == 3:
                api.loop.abort_all()

        await response({}, forever, send)
        return [message.get("body", b"") for message in sent]

    bodies = run(scenario)
    assert b"stopped before the answer was complete" in bodies[-2]
    assert not any(b"[DONE]" in body for body in bodies)


def test_stopping_gives_every_block_back(make_engine, tokenizer):
    engine = make_engine()

    async def scenario():
        api = Api(engine, tokenizer, model="tiny")
        async with api.lifespan(api.app):
            api.answerer.submit(make_call("a", n=3, max_tokens=200))

    asyncio.run(scenario())
    assert not any(engine.pool.references)
    assert not engine.live
