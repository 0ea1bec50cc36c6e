"""Readers of answers: bytes cut anywhere give the same answer, and no JSON is too odd for them."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress

import pytest
from backends.servers import anthropic, llamacpp, ollama, openai, pieces, tgi
from backends.servers.wire import Asked
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck.backends import Broken, Refused, _answers, _plain
from leakcheck.backends import anthropic as of_anthropic
from leakcheck.backends import llamacpp as of_llamacpp
from leakcheck.backends import ollama as of_ollama
from leakcheck.backends import tgi as of_tgi
from leakcheck.backends._http import Lines
from leakcheck.backends._sse import Events


class plain:  # noqa: N801 - stands where the other servers are modules
    STREAM = "application/jsonl"

    @staticmethod
    def pieces(text, _asked):
        found = [{"piece": piece} for piece in pieces.words(text)]
        return [json.dumps(each).encode() + b"\n" for each in [*found, {"done": True}]]


READERS = {
    "openai": (openai, _answers.Answer),
    "anthropic": (anthropic, of_anthropic.Answer),
    "ollama": (ollama, of_ollama.Answer),
    "llamacpp": (llamacpp, of_llamacpp.Answer),
    "tgi": (tgi, of_tgi.Answer),
    "plain": (plain, _plain.Answer),
}
every_reader = pytest.mark.parametrize(("dialect", "reader"), READERS.values(), ids=READERS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def chunks(answer, dialect, parts):
    """All chunks of a stream that comes in these parts."""
    events = Lines() if "json" in dialect.STREAM else Events()
    documents = [data for part in parts for data in events.feed(part)] + events.finish()
    return [chunk for data in documents for chunk in answer.read(data)]


@every_reader
@settings(max_examples=30)
@given(text=TEXT, cuts=st.lists(st.integers(0, 5_000), max_size=20), logprobs=st.booleans())
def test_a_stream_cut_anywhere_is_the_same_answer(dialect, reader, text, cuts, logprobs):
    asked = Asked(prompt="", stream=True, top_logprobs=2 if logprobs else None)
    raw = b"".join(dialect.pieces(text, asked))
    places = sorted({cut % (len(raw) + 1) for cut in cuts} | {0, len(raw)})
    answers = [reader(), reader()]
    whole = chunks(answers[0], dialect, [raw])
    assert (
        chunks(answers[1], dialect, [raw[start:end] for start, end in itertools.pairwise(places)])
        == whole
    )
    assert "".join(chunk.text for chunk in whole) == text
    assert answers[1].begun
    assert answers[1].finished


@every_reader
@settings(max_examples=30)
@given(text=TEXT.filter(bool), share=st.floats(0, 1))
def test_a_stream_that_ends_early_is_no_whole_answer(dialect, reader, text, share):
    raw = dialect.pieces(text, Asked(prompt="", stream=True))
    end = 3 if dialect is openai else 1  # finish reason, usage and [DONE] are three
    answer = reader()
    kept = raw[: round(share * (len(raw) - end))]
    said = "".join(chunk.text for chunk in chunks(answer, dialect, kept))
    assert text.startswith(said)
    assert not answer.done
    assert not answer.finished


NAMES = (
    "type message content text index usage delta id name input error stop_reason thinking "
    "partial_json content_block input_tokens output_tokens role done done_reason response "
    "tool_calls function arguments logprobs token logprob top_logprobs stop stop_type timings "
    "cache_n completion_probabilities generated_text details top_tokens special tokens piece field "
    "status retry_after_s finish_reason choices"
).split()
KINDS = ("message", "message_start", "content_block_start", "content_block_delta",
         "message_delta", "text", "tool_use", "overloaded")  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from(KINDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)
    ),
    max_leaves=20,
)


@every_reader
@settings(max_examples=50)
@given(documents=st.lists(JSON, max_size=3))
def test_whatever_json_a_target_sends_is_read_refused_or_broken(dialect, reader, documents):
    assert dialect.STREAM
    answer = reader()
    with suppress(Broken, Refused):
        for document in documents:
            for chunk in answer.read(json.dumps(document).encode()):
                assert isinstance(chunk.text, str)
                assert chunk.field


@every_reader
@settings(max_examples=50)
@given(raw=st.binary(max_size=40).filter(lambda raw: raw.strip() != b"[DONE]"))
def test_bytes_that_are_no_json_object_are_kept_and_broken(dialect, reader, raw):
    assert dialect.STREAM
    stream = reader().read(b"[" + raw)
    assert next(stream).field == "error"
    with pytest.raises(Broken):
        next(stream)


# --- what only one protocol has ------------------------------------------------------------------


def read(reader, *documents):
    answer = reader()
    return [chunk for each in documents for chunk in answer.read(json.dumps(each).encode())]


def test_anthropic_s_blocks_get_their_fields():
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "yes"},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
        {"type": "web_search_tool_result", "content": [{"title": "found"}]},
    ]
    whole = {"type": "message", "id": "m1", "content": content, "stop_reason": "tool_use"}
    found = read(of_anthropic.Answer, whole)
    assert [(chunk.field, chunk.text) for chunk in found if chunk.text][:4] == [
        ("reasoning", "hm"),
        ("content", "yes"),
        ("tool", "look"),
        ("tool", '{"a":1}'),
    ]
    assert "found" in "".join(chunk.text for chunk in found if chunk.field == "tool")
    assert found[-1].finish_reason == "tool_calls"


def test_anthropic_s_deltas_get_their_fields():
    def delta(**fields):
        return {"type": "content_block_delta", "index": 0, "delta": fields}

    found = read(
        of_anthropic.Answer,
        delta(type="thinking_delta", thinking="hm"),
        delta(type="signature_delta", signature="c2ln"),
        delta(type="text_delta", text="yes"),
        delta(type="input_json_delta", partial_json='{"a":'),
    )
    assert [(chunk.field, chunk.text) for chunk in found] == [
        ("reasoning", "hm"),
        ("content", "yes"),
        ("tool", '{"a":'),
    ]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("stop_sequence", "stop"), ("refusal",) * 2],
)
def test_anthropic_s_stop_reasons_have_the_words_that_checks_know(theirs, ours):
    (end,) = read(of_anthropic.Answer, {"type": "message_delta", "delta": {"stop_reason": theirs}})
    assert end.finish_reason == ours


def test_ollama_s_thinking_and_tools_get_their_fields():
    call = {"function": {"name": "look", "arguments": {"a": 1}}}
    message = {"thinking": "hm", "content": "yes", "tool_calls": [call]}
    found = read(of_ollama.Answer, {"message": message, "done": True, "done_reason": "stop"})
    assert [(chunk.field, chunk.text) for chunk in found if chunk.text] == [
        ("reasoning", "hm"),
        ("content", "yes"),
        ("tool", "look"),
        ("tool", '{"a":1}'),
    ]


def test_a_stream_of_tgi_that_begins_with_a_refusal_is_refused():
    with pytest.raises(Refused, match="overloaded") as caught:
        read(of_tgi.Answer, {"error": "Model is overloaded", "error_type": "overloaded"})
    assert caught.value.status == 429
    token = {"token": {"text": "a", "logprob": -1.0}}
    with pytest.raises(Broken):
        read(of_tgi.Answer, token, {"error": "Model is overloaded", "error_type": "overloaded"})


def test_a_whole_text_of_tgi_that_its_tokens_did_not_say_is_kept():
    token = {"token": {"text": "mine", "logprob": -1.0}, "generated_text": "somebody else's"}
    found = read(of_tgi.Answer, token)
    assert [(c.field, c.text) for c in found if c.text] == [
        ("content", "mine"),
        ("content[1]", "somebody else's"),
    ]
