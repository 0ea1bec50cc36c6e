"""What a target refuses is found out by asking, and is not sent to it."""

import pytest
from answering import answering, only_chat, refused

from leakcheck.backends import openai
from leakcheck.backends._probe import first_named
from leakcheck.errors import TargetError
from leakcheck.records import Target

KNOWN = {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}


def strict(body):
    """Refuses, by name and one after the other, every field that it does not know."""
    for name in body:
        if name not in KNOWN:
            return 422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs are forbidden"}]}
    return None


def newer(body):
    """As reasoning models of OpenAI."""
    if "max_tokens" in body:
        return 400, refused(
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead."
        )
    if body.get("temperature", 1) != 1:
        return 400, refused("Unsupported value: 'temperature' does not support 0.0 here.")
    return None


def wordless(body):
    """Refuses salts without a word of why."""
    return (400, refused("bad request")) if "cache_salt" in body else None


def meeting(check):
    with answering(only_chat(check)) as (url, bodies):
        target, models = openai.meet(Target(base_url=url, model="m"))
    assert models == ("m",)
    return target, bodies


def test_a_target_that_takes_everything_is_asked_twice():
    target, bodies = meeting(lambda _body: None)
    assert (target.refuses, len(bodies)) == ((), 2)


def test_unknown_fields_are_left_out_one_by_one():
    target, _ = meeting(strict)
    assert set(target.refuses) == {
        *("top_p", "seed", "stop", "logprobs", "logit_bias", "cache_salt", "metadata", "user")
    }


def test_a_newer_model_gets_the_newer_name_of_the_limit_and_no_temperature():
    target, bodies = meeting(newer)
    assert set(target.refuses) == {"max_tokens", "temperature"}
    assert bodies[-1]["max_completion_tokens"] == 1
    assert not {"max_tokens", "temperature"} & set(bodies[-1])


def test_where_a_refusal_names_nothing_each_field_is_asked_for_alone():
    target, bodies = meeting(wordless)
    assert target.refuses == ("cache_salt",)
    assert len(bodies) < 12


def test_a_target_that_is_busy_for_a_moment_refuses_nothing():
    calls = []

    def busy(body):
        calls.append(body)
        return (429, refused("slow down")) if len(calls) in (1, 3) else None

    target, _ = meeting(busy)
    assert target.refuses == ()


def test_a_target_that_refuses_whatever_is_sent_is_no_target():
    with (
        answering(only_chat(lambda _body: (400, refused("no")))) as (url, _),
        pytest.raises(TargetError, match="refuses a tiny request with status 400: no"),
    ):
        openai.meet(Target(base_url=url, model="m"))


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.", "max_tokens"),
        ("use max_completion_tokens", None),
        ("top_logprobs and logprobs", "top_logprobs"),
        ("no", None),
    ],
)
def test_the_field_that_a_refusal_names_first_is_meant(message, name):
    assert first_named(message, ["logprobs", "top_logprobs", "max_tokens"]) == name
