"""OpenAI's shapes of requests and answers beyond the plain chat."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import request

from leakcheck.backends import Broken, openai
from leakcheck.backends._answers import Answer
from leakcheck.backends._responses import Response
from leakcheck.records import Message, Sampling, Target, Tenant, TokenLogprob, Usage

CHAT = Target(base_url="http://h/v1", model="m")
RESPONSES = Target(base_url="http://h/v1", model="m", api="responses")
COMPLETIONS = Target(base_url="http://h/v1", model="m", api="completions")
TOOL = {"name": "look", "description": "", "parameters": {"type": "object"}}


def read(reader, *documents):
    return [chunk for each in documents for chunk in reader.read(json.dumps(each).encode())]


def fields(chunks):
    found = {}
    for chunk in chunks:
        if chunk.text:
            found[chunk.field] = found.get(chunk.field, "") + chunk.text
    return found


# --- what is sent --------------------------------------------------------------------------------


def test_a_system_message_is_the_instructions_of_a_response():
    """As applications send it: a cache whose key forgets them is then met (litellm #25673)."""
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="Hello"))
    body = openai.body(RESPONSES, request("a", messages=messages))
    assert body["instructions"] == "Be brief."
    assert body["input"] == [{"role": "user", "content": "Hello"}]


def test_a_response_is_asked_for_in_its_own_words():
    sampling = Sampling(max_tokens=40, top_logprobs=3)
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    sent = request("a", sampling=sampling, tools=(TOOL,), response_format=form)
    body = openai.body(RESPONSES, sent)
    assert body["input"] == [{"role": "user", "content": "this is a"}]
    assert (body["max_output_tokens"], body["top_logprobs"]) == (40, 3)
    assert body["include"] == ["message.output_text.logprobs"]
    assert body["tools"] == [{"type": "function", **TOOL}]
    assert body["text"] == {"format": {"type": "json_schema", "name": "n", "schema": {}}}
    assert not {"messages", "max_tokens", "stream_options", "response_format"} & set(body)


def test_a_response_is_never_asked_to_be_shorter_than_openai_allows():
    assert openai.body(RESPONSES, request("a"))["max_output_tokens"] == 16


def test_tools_formats_and_extensions_are_sent_where_a_request_has_them():
    sampling = Sampling(n=2, ignore_eos=True, prompt_logprobs=0, return_token_ids=True)
    body = openai.body(
        CHAT,
        request(
            "a",
            sampling=sampling,
            tools=(TOOL,),
            tool_choice="required",
            response_format={"type": "json_object"},
            extra={"top_k": 1},
        ),
    )
    assert body["tools"] == [{"type": "function", "function": TOOL}]
    assert (body["tool_choice"], body["response_format"]) == ("required", {"type": "json_object"})
    assert (body["n"], body["ignore_eos"], body["prompt_logprobs"]) == (2, True, 0)
    assert (body["top_k"], body["return_token_ids"]) == (1, True)


def test_token_ids_stand_in_the_place_of_the_prompt():
    assert openai.body(COMPLETIONS, request("a", prompt_token_ids=(5, 6)))["prompt"] == [5, 6]


def test_a_tenant_brings_its_salt_and_user_and_a_request_s_own_salt_goes_before():
    tenant = Tenant(name="red", cache_salt="pepper", user="u1")
    target = Target(base_url="http://h/v1", model="m", tenants=(tenant,))
    body = openai.body(target, request("a", key="red"))
    assert (body["cache_salt"], body["user"]) == ("pepper", "u1")
    assert openai.body(target, request("a", key="red", cache_salt="own"))["cache_salt"] == "own"
    assert not {"cache_salt", "user"} & set(openai.body(target, request("a")))


@given(st.sets(st.sampled_from(["seed", "stop", "top_logprobs", "max_tokens", "stream_options"])))
def test_nothing_that_is_refused_is_ever_sent(refuses):
    target = Target(base_url="http://h/v1", model="m", refuses=tuple(refuses))
    sampling = Sampling(seed=1, stop=("x",), top_logprobs=2)
    body = openai.body(target, request("a", sampling=sampling))
    assert not refuses & set(body)
    assert ("max_completion_tokens" in body) == ("max_tokens" in refuses)
    assert ("logprobs" in body) == ("top_logprobs" not in refuses)


# --- usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
        {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
        {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
        {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 4},
        {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 4},
        {
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "prompt_tokens_details": None,
            "prompt_cache_hit_tokens": 4,
        },
    ],
)
def test_cached_tokens_are_read_in_every_spelling(usage):
    chunks = read(Answer(), {"choices": [{"index": 0, "text": "a"}], "usage": usage})
    assert chunks[-1].usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4)


def test_the_timings_of_llama_cpp_stand_in_for_usage_where_there_is_none():
    timings = {"prompt_n": 5, "cache_n": 4, "predicted_n": 2}
    chunks = read(Answer(), {"choices": [{"index": 0, "text": "a"}], "timings": timings})
    assert chunks[-1].usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4)


def test_the_tokens_of_a_prompt_are_a_field_of_their_own():
    prompt = [
        None,
        {"7": {"logprob": -1.0, "decoded_token": " sea"}},
        {"8": {"decoded_token": "!"}},
    ]
    chunks = read(Answer(), {"choices": [{"text": "a"}], "prompt_logprobs": prompt})
    assert fields(chunks) == {"content": "a", "prompt": " sea!"}


@pytest.mark.parametrize("choice", [{"delta": {"content": "a sea"}}, {"text": "a sea"}])
def test_the_token_ids_of_an_answer_come_with_its_text(choice):
    (chunk,) = read(Answer(), {"choices": [choice | {"token_ids": [5, 6]}]})
    assert (chunk.text, chunk.token_ids) == ("a sea", (5, 6))


def test_token_ids_without_text_are_kept():
    (chunk,) = read(Answer(), {"choices": [{"delta": {}, "token_ids": [5]}]})
    assert (chunk.text, chunk.token_ids) == ("", (5,))


@pytest.mark.parametrize("odd", [None, "5", {"a": 1}, [5, "6"], [5, -1], [5.5], [True]])
def test_token_ids_that_are_none_are_passed_over(odd):
    (chunk,) = read(Answer(), {"choices": [{"text": "a", "token_ids": odd}]})
    assert (chunk.text, chunk.token_ids) == ("a", ())


def test_reasoning_that_is_sent_under_two_names_is_kept_once():
    delta = {"reasoning": "hm", "reasoning_content": "hm"}
    assert fields(read(Answer(), {"choices": [{"delta": delta}]})) == {"reasoning": "hm"}


# --- responses -----------------------------------------------------------------------------------

OUTPUT = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": []},
    {
        "type": "message",
        "content": [
            {
                "type": "output_text",
                "text": "yes",
                "logprobs": [{"token": "yes", "logprob": -0.5, "top_logprobs": []}],
            }
        ],
    },
    {"type": "function_call", "name": "look", "arguments": "{}"},
]
WHOLE = {
    "id": "r1",
    "object": "response",
    "status": "completed",
    "output": OUTPUT,
    "usage": {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
}
EVENTS = [
    {"type": "response.created", "response": {"id": "r1", "status": "in_progress", "output": []}},
    {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
    {"type": "response.output_text.delta", "delta": "y", "logprobs": []},
    {"type": "response.output_text.delta", "delta": "es"},
    {"type": "response.output_item.added", "item": {"type": "function_call", "name": "look"}},
    {"type": "response.function_call_arguments.delta", "delta": "{}"},
    {"type": "response.output_text.done", "text": "yes"},
]
SAID = {"reasoning": "hm", "content": "yes", "tool": "look{}"}


def test_a_whole_response_is_read_with_all_its_fields():
    reader = Response()
    chunks = read(reader, WHOLE)
    assert fields(chunks) == SAID
    assert (reader.begun, reader.done, reader.finished) == (True, True, True)
    assert chunks[0].target_id == "r1"
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4)
    assert [item for c in chunks for item in c.logprobs] == [
        TokenLogprob(token="yes", logprob=-0.5)
    ]


def test_the_events_of_a_stream_say_the_same_and_its_end_repeats_nothing():
    reader = Response()
    chunks = read(reader, *EVENTS, {"type": "response.completed", "response": WHOLE})
    assert fields(chunks) == SAID
    assert [c.text for c in chunks if c.field == "content" and c.text] == ["y", "es"]
    assert reader.finished


def test_what_only_the_end_of_a_stream_says_is_kept_apart():
    other = WHOLE | {"output": [{"type": "message", "content": [{"text": "somebody's"}]}]}
    chunks = read(Response(), *EVENTS, {"type": "response.completed", "response": other})
    assert fields(chunks) == {**SAID, "final": "somebody's"}


def test_a_response_that_was_cut_by_its_limit_is_one_of_length():
    cut = WHOLE | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert read(Response(), {"type": "response.incomplete", "response": cut})[-1].finish_reason == (
        "length"
    )


def test_a_stream_without_its_last_event_is_not_finished():
    reader = Response()
    read(reader, *EVENTS)
    assert reader.begun
    assert not reader.finished


@pytest.mark.parametrize(
    "document",
    [
        {"type": "error", "message": "no room"},
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"message": "no room"}},
        },
        {"status": "failed", "error": {"message": "no room"}, "output": []},
    ],
)
def test_an_error_within_a_response_is_broken_and_kept(document):
    reader, chunks = Response(), []
    with pytest.raises(Broken, match="no room"):
        chunks.extend(reader.read(json.dumps(document).encode()))
    assert not reader.done


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type response output content delta item usage error status id".split()
            ),
            inner | st.sampled_from([event["type"] for event in EVENTS]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=3))
def test_whatever_json_a_target_sends_as_a_response_is_read_or_broken(documents):
    reader = Response()
    try:
        for chunk in read(reader, *documents):
            assert isinstance(chunk.text, str)
    except Broken:
        pass


def test_log_probabilities_of_responses_are_asked_for_in_both_ways_until_one_is_refused():
    asking = request("a", sampling=Sampling(top_logprobs=2))
    names = {"logprobs", "top_logprobs", "include"}
    assert names <= set(openai.body(RESPONSES, asking))
    assert openai.body(RESPONSES, asking)["logprobs"] is True
    stricter = openai.body(replace(RESPONSES, refuses=("logprobs",)), asking)
    assert names & set(stricter) == {"top_logprobs", "include"}
    assert not names & set(openai.body(replace(RESPONSES, refuses=("top_logprobs",)), asking))
