"""What a target refuses is found out by asking, and is not sent to it."""

import contextlib
import itertools

import pytest
from answering import answering, only_chat, refused

from leakcheck import survey
from leakcheck.backends import Turns, openai
from leakcheck.backends._probe import first_named
from leakcheck.budget import spending
from leakcheck.errors import TargetError, UsageError
from leakcheck.records import Target, Tenant

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
        target, models = openai.meet(Target(base_url=url, model="m"), Turns())
    assert models == ("m",)
    return target, bodies


def test_a_target_that_takes_everything_is_asked_twice():
    target, bodies = meeting(lambda _body: None)
    assert (target.refuses, len(bodies)) == ((), 2)


def test_unknown_fields_are_left_out_one_by_one():
    target, _ = meeting(strict)
    assert set(target.refuses) == {
        *("top_p", "seed", "stop", "logprobs", "logit_bias", "allowed_token_ids"),
        *("return_token_ids", "cache_salt", "metadata", "user"),
    }


def test_a_newer_model_gets_the_newer_name_of_the_limit_and_no_temperature():
    target, bodies = meeting(newer)
    assert set(target.refuses) == {"max_tokens", "temperature"}
    assert bodies[-1]["max_completion_tokens"] == 1
    assert not {"max_tokens", "temperature"} & set(bodies[-1])


def test_where_a_refusal_names_nothing_each_field_is_asked_for_alone():
    target, bodies = meeting(wordless)
    assert target.refuses == ("cache_salt",)
    assert len(bodies) < 13


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
        openai.meet(Target(base_url=url, model="m"), Turns())


def test_a_temperature_that_is_too_high_is_learned_and_those_below_are_sent_on():
    def mild(body):
        if body.get("temperature", 0) > 1:
            return 400, refused("temperature: range: 0..1")
        return None

    target, bodies = meeting(mild)
    assert (target.refuses, target.hottest) == ((), 1.0)
    assert bodies[-1]["temperature"] == 1.0


def test_a_target_that_refuses_high_temperatures_without_a_word_is_asked_for_them_alone():
    target, _ = meeting(
        lambda body: (400, refused("bad")) if body.get("temperature", 0) > 1 else None
    )
    assert (target.refuses, target.hottest) == ((), 1.0)


def never_named(_body):
    return 400, refused("bad request")


def only_tiny(body):
    """Refuses everything beyond what every request has, and names nothing."""
    return None if set(body) <= KNOWN and not body["temperature"] else never_named(body)


def one_by_one(body):
    """Names every optional field in its turn, and the last two never."""
    names = [name for name in body if name not in {*KNOWN, "metadata", "user"}]
    return (400, refused(f"unknown {names[0]}")) if names else only_tiny(body)


def forgetful(body):
    """Names what every request has too."""
    left = [name for name in ("stream_options", "temperature", "max_tokens") if name in body]
    return (400, refused(f"unknown {left[0]}")) if left else one_by_one(body)


def busy(_body):
    return 429, refused("slow down")


@pytest.mark.parametrize("check", [never_named, only_tiny, one_by_one, forgetful, busy, strict])
def test_however_a_target_refuses_it_is_met_with_no_more_requests_than_are_reckoned_with(
    check, monkeypatch
):
    monkeypatch.setattr("leakcheck.backends._probe._PAUSES_S", (0.0, 0.0))
    for name in ("ONE", "TWO", "THREE"):
        monkeypatch.setenv(name, "k")
    tenants = tuple(Tenant(name=name.lower(), api_key_env=name) for name in ("ONE", "TWO", "THREE"))
    received, chat = [], only_chat(check)

    def counted(*asked):
        received.append(asked)
        return chat(*asked)

    for keys in ((), tenants):
        received.clear()
        turns = Turns()
        with answering(counted) as (url, _):
            aim = Target(base_url=url, model="m", tenants=keys)
            with contextlib.suppress(TargetError):
                survey.meet(aim, turns)
        assert len(turns.sent_s) == len(received) <= spending.MEETING * max(1, len(keys))


def test_no_more_is_sent_than_the_run_may():
    turns = Turns(5)
    with answering(only_chat(only_tiny)) as (url, bodies):
        target, _ = survey.meet(Target(base_url=url, model="m"), turns)
    assert len(turns.sent_s) == 1 + len(bodies) == 5
    assert target.model == "m"


def test_the_pace_is_kept_from_the_first_request_on():
    turns = Turns(pause_s=0.05)
    with answering(only_chat(only_tiny)) as (url, _):
        survey.meet(Target(base_url=url, model="m"), turns)
    gaps = [later - sooner for sooner, later in itertools.pairwise(turns.sent_s)]
    assert min(gaps) >= 0.05


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


def test_names_of_models_are_short_and_on_one_line_in_a_sentence():
    names = ["a\nb\x1b[31m", "c" * 5_000]

    def answer(_method, path, _body):
        if path == "/v1/models":
            return 200, {"data": [{"id": name} for name in names]}
        return 400, refused("no such model")

    with answering(answer) as (url, _), pytest.raises(UsageError, match="offers no model") as wrong:
        openai.meet(Target(base_url=url, model="m"), Turns())
    assert str(wrong.value).isprintable()
    assert len(str(wrong.value)) < 1_000
