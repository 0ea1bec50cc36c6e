"""The OpenAI-compatible server, over HTTP, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os

import aiohttp
import pytest
from served import call, events, eventually, metrics, serving

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}
COMPLETION = {"model": "tiny", "prompt": "hello there", "max_tokens": 6, "ignore_eos": True}


def chat(server, **changes):
    return call(server["base_url"] + "/chat/completions", CHAT | changes)


def complete(server, **changes):
    return call(server["base_url"] + "/completions", COMPLETION | changes)


def ok(answer):
    status, text = answer
    assert status == 200, text
    return json.loads(text)


def refused(answer):
    status, text = answer
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["param"], error["message"]


# --- answers -------------------------------------------------------------------------------------


def test_the_one_model_is_listed(server):
    listed = ok(call(server["base_url"] + "/models"))
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert ok(call(server["base_url"] + "/models/tiny"))["max_model_len"] == 256


def test_a_chat_answer_has_openais_shape(server):
    answer = ok(chat(server))
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] in {"stop", "length"}
    assert choice["logprobs"] is None
    usage = answer["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


def test_text_parts_are_read_as_one_text(server):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "user", "content": parts}]
    assert ok(chat(server, messages=messages))["usage"] == ok(chat(server))["usage"] | {
        "prompt_tokens_details": {"cached_tokens": 16}
    }


def test_a_stream_carries_the_same_text_and_usage(server):
    whole = ok(chat(server, max_tokens=20))
    _, text = chat(server, max_tokens=20, stream=True, stream_options={"include_usage": True})
    chunks = events(text)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]
    streamed = "".join(delta.get("content", "") for delta in deltas)
    assert streamed == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_without_include_usage_a_stream_has_none(server):
    _, text = complete(server, stream=True)
    assert all("usage" not in chunk for chunk in events(text))


def test_chat_logprobs_have_alternatives_and_bytes(server):
    answer = ok(chat(server, logprobs=True, top_logprobs=3))
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    first = content[0]
    assert first["top_logprobs"][0]["token"] == first["token"]
    assert first["top_logprobs"][0]["logprob"] == first["logprob"] <= 0
    assert len(first["top_logprobs"]) == 3
    assert set(first) == {"token", "logprob", "bytes", "top_logprobs"}


def test_completion_logprobs_have_the_older_shape(server):
    logprobs = ok(complete(server, logprobs=2))["choices"][0]["logprobs"]
    assert {len(column) for column in logprobs.values()} == {6}
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert logprobs["text_offset"][0] == 0


def test_streamed_logprobs_are_those_of_the_whole_answer(server):
    whole = ok(complete(server, logprobs=1))["choices"][0]["logprobs"]
    chunks = events(complete(server, logprobs=1, stream=True)[1])
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for column in ("tokens", "text_offset"):
        assert [one for part in parts for one in part[column]] == whole[column]


def test_token_ids_are_those_of_the_tokens_streamed_or_not(server):
    whole = ok(complete(server, logprobs=0, return_token_ids=True))["choices"][0]
    chunks = events(complete(server, return_token_ids=True, stream=True)[1])
    assert len(whole["token_ids"]) == len(whole["logprobs"]["tokens"]) == 6
    parts = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert parts == whole["token_ids"]


def test_token_ids_are_given_only_where_they_are_asked_for(server):
    assert "token_ids" not in ok(complete(server))["choices"][0]


def test_several_prompts_and_choices_keep_their_order(server):
    single = [
        ok(complete(server, prompt=prompt))["choices"][0]["text"] for prompt in ("one", "two")
    ]
    answer = ok(complete(server, prompt=["one", "two"], n=2))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [single[0], single[0], single[1], single[1]]
    assert answer["usage"]["prompt_tokens"] == 6
    assert answer["usage"]["completion_tokens"] == 24


def test_token_ids_are_taken_as_they_are(server):
    answer = ok(complete(server, prompt=[[5, 6], [7, 8, 9]]))
    assert len(answer["choices"]) == 2
    assert answer["usage"]["prompt_tokens"] == 5
    assert ok(complete(server, prompt=[5, 6]))["choices"][0]["text"] == answer["choices"][0]["text"]


def test_a_stop_string_is_trimmed_whole_and_streamed(server):
    text = ok(complete(server, max_tokens=12))["choices"][0]["text"]
    stop = text[3:5]
    expected = text[: text.find(stop)]
    cut = ok(complete(server, max_tokens=12, stop=[stop]))["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (expected, "stop")
    chunks = events(complete(server, max_tokens=12, stop=stop, stream=True)[1])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_seed_repeats_and_choices_differ(server):
    hot = {"temperature": 1.5, "seed": 11, "n": 2, "max_tokens": 12}
    first, second = (ok(complete(server, **hot))["choices"] for _ in range(2))
    assert [its["text"] for its in first] == [its["text"] for its in second]
    assert first[0]["text"] != first[1]["text"]


def test_a_bias_forces_a_token(server, tokenizer):
    token = tokenizer("Z")["input_ids"][0]
    answer = ok(complete(server, logit_bias={str(token): 100}, max_tokens=4))
    assert answer["choices"][0]["text"] == "ZZZZ"


def test_cached_tokens_respect_the_salt(server):
    prompt = list(range(100, 130))

    def cached(salt):
        usage = ok(complete(server, prompt=prompt, cache_salt=salt))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [cached("mine"), cached("mine"), cached("yours")] == [0, 28, 0]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"max_tokens": "5"}, "max_tokens", "Expected `int"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"temperature": 3}, "temperature", "<= 2"),
        ({"n": 200}, "n", "<= 128"),
        ({"tool": 1}, "tool", "unrecognized request argument: tool"),
        ({"tools": [{}]}, "tools", "length <= 0"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "Invalid enum"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [{"role": "boss", "content": ""}]}, "messages[0].role", "Invalid enum"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs to be true"),
        ({"stream_options": {}}, "stream_options", "needs stream to be true"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "up to 4 strings"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "maps token ids to numbers"),
        ({"logit_bias": {"999": 1}}, "logit_bias", "beyond the last one, 259"),
        ({"max_tokens": 300}, None, "maximum context length is 256 tokens"),
    ],
)
def test_a_wrong_field_is_refused_by_name(server, changes, param, message):
    status, named, said = refused(chat(server, **changes))
    assert (status, named) == (400, param)
    assert message in said


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [5000]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"logprobs": 40}, "logprobs"),
    ],
)
def test_what_a_completion_cannot_have_is_refused_by_name(server, changes, param):
    assert refused(complete(server, **changes))[:2] == (400, param)


def test_a_missing_field_is_named(server):
    url = server["base_url"] + "/completions"
    assert refused(call(url, {"model": "tiny"})) == (400, "prompt", "you must provide prompt")


def test_one_refused_prompt_leaves_none_of_its_siblings_running(server):
    before = metrics(server)
    assert refused(complete(server, prompt=[[5, 6], [5000]], max_tokens=200))[0] == 400
    eventually(lambda: metrics(server)["running"] == 0)
    assert metrics(server)["aborted_total"] == before["aborted_total"] + 1


@pytest.mark.parametrize("raw", [b"{", b"", b"[1]", b'{"model": "\xff"}', b'"\\ud800"'])
def test_a_broken_body_is_refused(server, raw):
    assert refused(call(server["base_url"] + "/completions", raw=raw))[0] == 400


def test_a_huge_body_is_refused(server):
    status, _, message = refused(complete(server, prompt="x" * 9_000_000))
    assert (status, message) == (413, "the body is longer than 8000000 bytes")


def test_a_wrong_model_is_named_with_the_right_one(server):
    status, param, message = refused(chat(server, model="gpt-4"))
    assert (status, param) == (404, "model")
    assert message == "the model 'gpt-4' does not exist; this server has 'tiny'"


def test_unknown_paths_and_methods_have_openais_shape_too(server):
    assert refused(call(server["base_url"] + "/nothing"))[0] == 404
    assert refused(call(server["base_url"] + "/completions"))[0] == 405


def test_fields_that_change_nothing_are_accepted(server):
    ok(chat(server, user="me", metadata={"a": "b"}, store=False, service_tier="auto", tools=[]))


# --- clients that leave, metrics, keys -----------------------------------------------------------


def slow_request(server, **changes):
    """A request that runs for seconds unless it is aborted, on a fresh connection."""
    body = COMPLETION | {"max_tokens": 200, "n": 20, "prompt": "go"} | changes
    return body, server["base_url"] + "/completions"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_everything(server, stream):
    before = metrics(server)
    body, url = slow_request(server, stream=stream)

    async def leave_early():
        async with aiohttp.ClientSession() as session:
            task = asyncio.ensure_future(session.post(url, json=body))
            await asyncio.to_thread(eventually, lambda: metrics(server)["running"] == 20)
            if stream:
                response = await task
                await response.content.readany()
                response.close()
            else:
                task.cancel()

    asyncio.run(leave_early())
    eventually(lambda: metrics(server)["running"] == 0)
    after = metrics(server)
    assert after["aborted_total"] == before["aborted_total"] + 1
    assert after["blocks_used"] == after["waiting"] == 0
    assert after["blocks_free"] + after["blocks_cached"] == 256


def test_many_at_once_get_what_each_gets_alone(server):
    prompts = [f"{number} " * (3 + number) for number in range(12)]
    alone = [ok(complete(server, prompt=prompt))["choices"][0]["text"] for prompt in prompts]

    async def together():
        async with aiohttp.ClientSession() as session:

            async def one(prompt):
                body = COMPLETION | {"prompt": prompt}
                async with session.post(server["base_url"] + "/completions", json=body) as reply:
                    return (await reply.json())["choices"][0]["text"]

            return await asyncio.gather(*map(one, prompts))

    assert asyncio.run(together()) == alone


def test_health_and_metrics(server):
    assert ok(call(server["base_url"].removesuffix("/v1") + "/health")) == {"status": "ok"}
    before = metrics(server)
    usage = ok(complete(server, prompt=list(range(200, 221))))["usage"]
    after = metrics(server)
    assert after["requests_total"] - before["requests_total"] == 1
    assert after["finished_total"] - before["finished_total"] == 1
    assert after["prefix_queries_tokens_total"] - before["prefix_queries_tokens_total"] == 21
    generated = after["generated_tokens_total"] - before["generated_tokens_total"]
    assert generated == usage["completion_tokens"]
    assert after["blocks_used"] == 0


def test_with_a_key_only_its_bearer_is_served(model_folder):
    env = os.environ | {"LEAKCHECK_TEST_KEY": "hunter2"}
    with serving(model_folder, "--api-key-env", "LEAKCHECK_TEST_KEY", env=env) as ready:
        url = ready["base_url"] + "/models"
        assert refused(call(url))[0] == 401
        assert refused(call(url, headers={"Authorization": "Bearer wrong"}))[0] == 401
        ok(call(url, headers={"Authorization": "Bearer hunter2"}))
        assert call(ready["base_url"].removesuffix("/v1") + "/health")[0] == 200
