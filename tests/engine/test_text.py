"""Text as it grows: whole characters, trimmed stop strings, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck.engine.text import TextStream, TokenTexts, longest_stop_prefix
from leakcheck.engine.values import GenerateRequest, SamplingParams


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def pieces(tokenizer, text, stop=()):
    stream, out = TextStream(tokenizer.backend_tokenizer, [], stop), []
    for token in encode(tokenizer, text):
        out.append(stream.feed(token))
        if stream.stopped:
            return out, stream
    out.append(stream.finish())
    return out, stream


@given(st.text(max_size=30).filter(lambda text: "\ufffd" not in text))
def test_the_pieces_join_to_the_text_and_none_is_half_a_character(tokenizer, text):
    text = text.encode(errors="replace").decode()
    out, _ = pieces(tokenizer, text)
    assert "".join(out) == text
    assert "\ufffd" not in "".join(out)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1))
def test_a_stop_string_ends_the_text_before_it_and_nothing_else_does(tokenizer, text, stops):
    out, stream = pieces(tokenizer, text, tuple(stops))
    joined = "".join(out)
    ends = [text.find(stop) for stop in stops if stop in text]
    assert stream.stopped == bool(ends)
    if ends:
        first_complete = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert joined == text[: min(text[:first_complete].find(s) for s in stops
                                    if s in text[:first_complete])]  # fmt: skip
    else:
        assert joined == text


def test_a_possible_stop_string_is_held_back_until_it_is_none(tokenizer):
    out, _ = pieces(tokenizer, "ab!cab?", stop=("ab?",))
    assert out[:3] == ["", "", "ab!"]
    assert "".join(out) == "ab!c"


def test_an_incomplete_character_never_shows(tokenizer):
    stream = TextStream(tokenizer.backend_tokenizer, [], ())
    first, *_ = encode(tokenizer, "é")
    assert stream.feed(first) == ""
    assert stream.finish() == ""


@pytest.mark.parametrize(
    ("text", "held"), [("x", 0), ("xs", 1), ("xst", 2), ("xstx", 0), ("stst", 2), ("", 0)]
)
def test_what_may_become_a_stop_string_is_measured_from_the_end(text, held):
    assert longest_stop_prefix(text, ("sto",)) == held


def test_the_text_of_a_token_keeps_its_space_and_partial_bytes_have_a_name(tokenizer):
    texts = TokenTexts(tokenizer.backend_tokenizer)
    space, *_ = encode(tokenizer, " ")
    assert texts.text(space) == " "
    assert texts.raw_bytes(space) == [32]
    half, other = encode(tokenizer, "é")
    assert texts.raw_bytes(half) is None
    assert texts.text(half) != texts.text(other)


def test_logprobs_stop_where_the_text_stops(make_engine):
    engine = make_engine()

    def run(**given_params):
        params = SamplingParams(max_tokens=12, logprobs=0, ignore_eos=True, **given_params)
        engine.submit(GenerateRequest(id="x", prompt=(72, 73, 74), params=params))
        updates = []
        while engine.has_work:
            updates += engine.step()
        return updates

    whole = run()
    text = "".join(update.text for update in whole)
    stop = next(c for c in text[2:] if c not in text[:2])
    cut = run(stop=(stop,))
    assert "".join(update.text for update in cut) == text[: text.find(stop)]
    assert cut[-1].finish_reason == "stop"
    shown = [one for update in cut for one in update.logprobs]
    assert all(one.offset < text.find(stop) for one in shown)
    assert len(shown) < 12
    assert sum(len(update.logprobs) for update in whole) == 12
