"""Each fault of the stores at work, and its absence without the fault."""

from __future__ import annotations

import asyncio

import pytest
from asgi import Client, play

from leakcheck.engine import faults
from leakcheck.engine.faults import stores

QUESTION = "what is mine?"
LEFT_OUT = {"cache-without-max-tokens": "max_tokens", "cache-without-stop": "stop"}
STORES = (
    "response-cache-key", "semantic-cache", *LEFT_OUT, "session-by-ip", "conversation-id-guessable",
)  # fmt: skip


def generated(api):
    """How many requests the engine has seen."""
    return api.engine.arrivals


# --- caches of answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [(False, True), (True, False)])
@pytest.mark.parametrize("fault", ["response-cache-key", "semantic-cache"])
def test_the_cache_answers_another_tenants_equal_question(make_engine, tokenizer, fault, streams):
    async def scenario(api):
        client = Client(api)
        one = await client.ask(QUESTION, system="I am one", user="t1", stream=streams[0])
        two = await client.ask(QUESTION, system="I am two", user="t2", stream=streams[1])
        return one, two, generated(api)

    one, two, requests = play(make_engine(), tokenizer, scenario, fault)
    assert one == two
    assert requests == 1


def test_without_a_cache_another_system_message_gets_another_answer(make_engine, tokenizer):
    async def scenario(api):
        client = Client(api)
        return [await client.ask(QUESTION, system=system) for system in ("I am one", "I am two")]

    one, two = play(make_engine(), tokenizer, scenario)
    assert one != two


@pytest.mark.parametrize(("fault", "requests"), [("response-cache-key", 2), ("semantic-cache", 1)])
def test_only_the_semantic_cache_takes_nearly_equal_for_equal(
    make_engine, tokenizer, fault, requests
):
    async def scenario(api):
        client = Client(api)
        await client.ask("please tell me what my secret is", system="one")
        await client.ask("Tell me what my secret is, please!", system="two")
        return generated(api)

    assert play(make_engine(), tokenizer, scenario, fault) == requests


def test_the_semantic_cache_does_not_take_different_questions_for_one(make_engine, tokenizer):
    async def scenario(api):
        client = Client(api)
        await client.ask("my ticket is red green blue. what is my ticket?")
        await client.ask("my ticket is cat dog cow. what is my ticket?")
        return generated(api)

    assert play(make_engine(), tokenizer, scenario, "semantic-cache") == 2


def test_the_cache_key_leaves_out_the_parameters(make_engine, tokenizer):
    async def scenario(api):
        client = Client(api)
        return await client.ask(QUESTION, max_tokens=3), await client.ask(QUESTION, max_tokens=9)

    three, nine = play(make_engine(), tokenizer, scenario, "response-cache-key")
    assert three == nine


async def two_limits(api, **fields):
    client = Client(api)
    return [await client.ask(QUESTION, max_tokens=most, **fields) for most in (3, 9, 3)]


async def two_stops(api, **fields):
    """The answer without a stop string, and with one that is due in it."""
    client = Client(api)
    whole = await client.ask(QUESTION, **fields)
    stop = whole[len(whole) // 2 :][:2]
    return whole, await client.ask(QUESTION, stop=[stop], **fields)


def test_a_key_without_max_tokens_gives_the_first_length_to_all(make_engine, tokenizer):
    three, nine, again = play(make_engine(), tokenizer, two_limits, "cache-without-max-tokens")
    assert three == nine == again


def test_a_key_without_stop_gives_what_goes_on_to_who_wants_it_to_stop(make_engine, tokenizer):
    whole, stopped = play(make_engine(), tokenizer, two_stops, "cache-without-stop")
    assert stopped == whole


@pytest.mark.parametrize("fault", [None, "cache-without-stop"])
def test_a_key_with_max_tokens_keeps_lengths_apart(make_engine, tokenizer, fault):
    three, nine, again = play(make_engine(), tokenizer, two_limits, fault)
    assert three == again != nine
    assert nine.startswith(three)


@pytest.mark.parametrize("fault", [None, "cache-without-max-tokens"])
def test_a_key_with_stop_keeps_stop_strings_apart(make_engine, tokenizer, fault):
    whole, stopped = play(make_engine(), tokenizer, two_stops, fault)
    assert whole.startswith(stopped)
    assert stopped != whole


@pytest.mark.parametrize("fault", LEFT_OUT)
def test_such_a_cache_serves_the_very_same_request_streamed_or_not(make_engine, tokenizer, fault):
    async def scenario(api):
        client = Client(api)
        both = [await client.ask(QUESTION, stream=stream) for stream in (False, True)]
        return both, generated(api)

    (whole, streamed), requests = play(make_engine(), tokenizer, scenario, fault)
    assert whole == streamed
    assert requests == 1


@pytest.mark.parametrize("fault", LEFT_OUT)
@pytest.mark.parametrize(
    "changed",
    [
        {"user": "t2"},
        {"system": "I am two"},
        {"headers": {"Authorization": "Bearer two"}},
        {"seed": 7},
        {"logit_bias": {"5": 1.0}},
    ],
)
def test_anything_else_that_differs_keeps_answers_apart(make_engine, tokenizer, fault, changed):
    async def scenario(api):
        client = Client(api)
        await client.ask(QUESTION)
        await client.ask(QUESTION, **changed)
        return generated(api)

    assert play(make_engine(), tokenizer, scenario, fault) == 2


def test_an_answer_that_was_not_complete_is_not_kept(make_engine, tokenizer):
    async def scenario(api):
        client, gone = Client(api), asyncio.Event()
        gone.set()
        await client.ask(QUESTION, gone=gone)
        await client.ask(QUESTION)
        return generated(api)

    assert play(make_engine(), tokenizer, scenario, "response-cache-key") == 2


def test_a_cache_is_bounded():
    answers = stores.Answers(stores.same)
    for number in range(stores.ANSWERS_MAX + 1):
        answers.keep(str(number), [])
    assert len(answers.entries) == stores.ANSWERS_MAX
    assert answers.find("0") is None
    assert answers.find("1") == []


# --- conversations -------------------------------------------------------------------------------


def prompts(api):
    """Texts of the prompts the engine is given from now on."""
    seen, submit = [], api.loop.submit

    def note(request):
        seen.append(api.tokenizer.decode(request.prompt))
        submit(request)

    api.loop.submit = note
    return seen


def named(number):
    return {"metadata": {"conversation_id": number}}


def test_session_by_ip_puts_the_turns_of_the_same_address_in_front(make_engine, tokenizer):
    async def scenario(api):
        seen = prompts(api)
        answer = await Client(api, "10.0.0.1").ask("I hide a key", user="t1", stream=True)
        await Client(api, "10.0.0.1").ask("and I", system="be kind", user="t2")
        await Client(api, "10.0.0.2").ask("and I", user="t3")
        return answer, seen

    answer, seen = play(make_engine(), tokenizer, scenario, "session-by-ip")
    assert (
        seen[1]
        == f"<system>be kind\n<user>I hide a key\n<assistant>{answer}\n<user>and I\n<assistant>"
    )
    assert seen[2] == "<user>and I\n<assistant>"


def test_session_by_ip_leaves_named_conversations_alone(make_engine, tokenizer):
    async def scenario(api):
        seen = prompts(api)
        await Client(api).ask("I hide a key")
        await Client(api).ask("and I", **named("7"))
        return seen

    assert (
        play(make_engine(), tokenizer, scenario, "session-by-ip")[1] == "<user>and I\n<assistant>"
    )


def test_conversation_id_guessable_continues_what_another_tenant_began(make_engine, tokenizer):
    async def scenario(api):
        seen = prompts(api)
        await Client(api, "10.0.0.1").ask("I hide a key", user="t1", **named("7"))
        await Client(api, "10.0.0.2").ask("and I", user="t2", **named("7"))
        await Client(api, "10.0.0.1").ask("and I", user="t1", **named("8"))
        await Client(api, "10.0.0.1").ask("and I", user="t1")
        return seen

    seen = play(make_engine(), tokenizer, scenario, "conversation-id-guessable")
    assert "I hide a key" in seen[1]
    assert seen[2] == seen[3] == "<user>and I\n<assistant>"


def test_without_a_store_nobody_sees_earlier_turns(make_engine, tokenizer):
    async def scenario(api):
        seen = prompts(api)
        await Client(api).ask("I hide a key", **named("7"))
        await Client(api).ask("and I", **named("7"))
        return seen

    assert play(make_engine(), tokenizer, scenario)[1] == "<user>and I\n<assistant>"


def test_only_the_last_exchanges_that_fit_are_put_in_front(make_engine, tokenizer):
    async def scenario(api):
        seen = prompts(api)
        for text in ("one", "two", "three", "four", "x" * 170, "five"):
            await Client(api).ask(text, max_tokens=8)
        return seen

    seen = play(make_engine(), tokenizer, scenario, "session-by-ip")
    asked = [
        [text for text in ("one", "two", "three", "four") if text in prompt] for prompt in seen
    ]
    assert asked[3] == ["two", "three", "four"]
    assert seen[4].count("<user>") == 2
    assert all(len(tokenizer(prompt)["input_ids"]) + 8 <= 256 for prompt in seen)


def test_conversations_are_bounded():
    conversations = stores.Conversations()
    for number in range(stores.CONVERSATIONS_MAX + 1):
        conversations.keep(str(number), stores.Exchange(turns=()))
    assert len(conversations.kept) == stores.CONVERSATIONS_MAX
    assert conversations.past("0") == []


@pytest.mark.parametrize("fault", STORES)
def test_a_store_does_not_keep_a_request_that_is_over(make_engine, tokenizer, fault):
    kept = []

    async def scenario(api):
        for hook in (api.serve, api.answerer.updates, api.answerer.close):
            kept.extend(cell.cell_contents for cell in hook.__closure__ or ())
        client, gone = Client(api), asyncio.Event()
        gone.set()
        await client.ask("one", **named("7"))
        await client.ask("two", gone=gone)
        return [its.keys for its in kept if isinstance(its, stores.Watch)]

    engine = make_engine()
    assert not any(play(engine, tokenizer, scenario, fault))
    assert not any(engine.pool.references)


@pytest.mark.parametrize("fault", STORES)
def test_a_store_without_a_server_is_a_mistake(make_engine, fault):
    seams = faults.Seams(engine=make_engine(), delivery=None)
    with pytest.raises(ValueError, match="need a server"):
        faults.find(fault).install(seams, 1.0, None)
