"""One kept cache for all conversations: whose words the next turn is computed on."""

from __future__ import annotations

import asyncio

import pytest
from asgi import Client, play

from leakcheck.engine import faults
from leakcheck.engine.faults import conversation

KEPT = ("kept-cache-race", "kept-cache-alike")


def prompts(api):
    """Texts of the prompts the engine is given from now on."""
    seen, submit = [], api.loop.submit

    def note(request):
        seen.append(api.tokenizer.decode(request.prompt))
        submit(request)

    api.loop.submit = note
    return seen


def chat(*said):
    """Messages of a user and of an assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]


async def send(api, *said, max_tokens=4, gone=None):
    body = {"model": "tiny", "messages": chat(*said), "max_tokens": max_tokens, "ignore_eos": True}
    await Client(api).post(body, gone=gone)


def test_the_cache_of_who_ended_last_serves_the_next_turn_of_who_came_last(make_engine, tokenizer):
    async def scenario(api):
        seen = prompts(api)
        long = asyncio.create_task(send(api, "the key is red", max_tokens=20))
        while not seen:  # noqa: ASYNC110 - the engine's own list, which sets no event
            await asyncio.sleep(0)
        await send(api, "is it", max_tokens=1)
        await long
        await send(api, "is it", "no", "what do you see, then, of all that there was?" * 2)
        return seen[-1]

    assert "the key is red" in play(make_engine(), tokenizer, scenario, "kept-cache-race")
    assert "the key is red" not in play(make_engine(), tokenizer, scenario)


def test_one_after_the_other_the_race_does_not_happen(make_engine, tokenizer):
    async def scenario(api):
        seen = prompts(api)
        await send(api, "the key is red")
        await send(api, "is it")
        await send(api, "is it", "no", "what do you see, then, of all that there was?" * 2)
        return seen[-1]

    assert "the key is red" not in play(make_engine(), tokenizer, scenario, "kept-cache-race")


@pytest.mark.parametrize(("fault", "foreign"), [("kept-cache-alike", True), (KEPT[0], False)])
def test_whose_roles_alone_are_compared_goes_on_with_anybodys_words(
    make_engine, tokenizer, fault, foreign
):
    async def scenario(api):
        seen = prompts(api)
        await send(api, "the key is red")
        await send(api, "is it", "no", "what do you see, then, of all that there was?" * 2)
        return seen[-1]

    assert ("the key is red" in play(make_engine(), tokenizer, scenario, fault)) == foreign


@pytest.mark.parametrize("fault", KEPT)
def test_a_conversation_of_as_many_turns_as_the_last_one_continues_nothing(
    make_engine, tokenizer, fault
):
    async def scenario(api):
        seen = prompts(api)
        await send(api, "the key is red")
        await send(api, "is it, and what do you see, then, of all that there was?")
        return seen[-1]

    assert "the key is red" not in play(make_engine(), tokenizer, scenario, fault)


@pytest.mark.parametrize("fault", KEPT)
def test_a_prompt_that_is_no_longer_than_what_was_kept_is_computed_as_it_is(
    make_engine, tokenizer, fault
):
    async def scenario(api):
        seen = prompts(api)
        await send(api, "i", max_tokens=150)
        await send(api, "i", "no", "why")
        return seen[-1]

    told = play(make_engine(), tokenizer, scenario, fault)
    assert told == "<user>i\n<assistant>no\n<user>why\n<assistant>"


@pytest.mark.parametrize("fault", KEPT)
def test_what_was_hung_up_on_is_not_kept(make_engine, tokenizer, fault):
    async def scenario(api):
        gone, seen = asyncio.Event(), prompts(api)
        gone.set()
        await send(api, "the key is red", gone=gone)
        await send(api, "the key is red", "no", "what do you see?")
        return seen[-1]

    told = play(make_engine(), tokenizer, scenario, fault)
    assert told == "<user>the key is red\n<assistant>no\n<user>what do you see?\n<assistant>"


@pytest.mark.parametrize("fault", KEPT)
def test_a_kept_cache_without_a_server_is_a_mistake(make_engine, fault):
    seams = faults.Seams(engine=make_engine(), delivery=None)
    with pytest.raises(ValueError, match="need a server"):
        faults.find(fault).install(seams, 1.0, None)


def test_a_conversation_goes_on_only_where_it_has_more_messages():
    first = chat("a", "b", "c")
    assert conversation.equal(first[:1], first)
    assert not conversation.equal(first, first)
    assert not conversation.equal(chat("b"), first)
    assert conversation.alike(chat("b"), first)
    assert not conversation.alike([{"role": "system", "content": "a"}], first)
