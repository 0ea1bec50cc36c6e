"""What a target can do is found out by asking it, and by nothing else."""

import asyncio
import random

import pytest
from answering import MODELS, answering, only_chat, refused, said

from leakcheck.backends import Turns
from leakcheck.records import Target
from leakcheck.survey import abilities, address
from leakcheck.survey.asking import Asker

WORDS = "sea wave ship wind sand gull salt foam".split()


def asked(answer, **fields):
    with answering(answer) as (url, bodies):
        target = Target(base_url=url, model="m", **fields)
        return abilities.ask(target, ("m",), MODELS), bodies


def able(answer, **fields):
    return asked(answer, **fields)[0]


def bare(_body):
    """Answers with text alone, whatever is asked."""
    return 200, said("one two three four five six seven")


class Rich:
    """Follows everything; caches by salt unless it is told to ignore salts."""

    def __init__(self, *, salts=True):
        self.salts, self.cache = salts, set()

    def __call__(self, body):
        rng = random.Random(body.get("seed"))
        text = body["messages"][-1]["content"].removeprefix("Repeat exactly: ")
        if body.get("temperature"):
            text = " ".join(rng.choices(WORDS, k=8))
        for stop in body.get("stop", ()):
            text = text.partition(stop)[0]
        reply = said(text)
        choice = reply["choices"][0]
        reply["choices"] = [choice | {"index": number} for number in range(body.get("n", 1))]
        if body.get("logprobs"):
            top = [{"token": w, "logprob": -1.0} for w in WORDS[: body["top_logprobs"]]]
            item = {"token": text, "logprob": -1.0, "top_logprobs": top}
            reply["choices"][0]["logprobs"] = {"content": [item]}
        if body.get("return_token_ids"):
            reply["choices"][0]["token_ids"] = [5, 6]
        if body.get("tools"):
            call = {"function": {"name": "get_weather", "arguments": "{}"}}
            reply["choices"][0]["message"] = {"content": None, "tool_calls": [call]}
        if body.get("response_format"):
            reply["choices"][0]["message"] = {"content": '{"colour": "red"}'}
        key = (text, body.get("cache_salt") if self.salts else None)
        cached = len(text.split()) if key in self.cache else 0
        self.cache.add(key)
        reply["usage"] = {
            "prompt_tokens": len(text.split()),
            "completion_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return 200, reply


def test_a_target_that_follows_everything_is_found_to():
    found = able(only_chat(Rich()))
    assert (found.temperature, found.seed, found.stop, found.n) == (True, True, True, True)
    assert (found.tools, found.response_format) == ("called", "followed")
    assert (found.logprobs, found.usage, found.cached_tokens) == (5, True, True)
    assert (found.salts, found.token_ids) == ("apart", True)


def test_a_target_that_ignores_salts_shares_prefixes():
    assert able(only_chat(Rich(salts=False))).salts == "together"


def test_what_a_target_takes_and_does_not_do_is_no_ability():
    found = able(only_chat(bare))
    assert (found.temperature, found.seed, found.stop, found.n) == (False, False, False, False)
    assert (found.tools, found.response_format) == ("accepted", "ignored")
    assert (found.logprobs, found.usage, found.salts) == (0, False, None)
    assert found.token_ids is False


def test_what_is_refused_is_told_from_what_is_ignored():
    def picky(body):
        for name in ("tools", "response_format", "n"):
            if name in body:
                return 400, refused(f"{name} is not supported")
        return None

    found = able(only_chat(picky))
    assert (found.tools, found.response_format, found.n) == ("refused", "refused", False)


def test_only_the_addresses_that_are_there_are_called_so():
    found = able(only_chat(bare))
    there = [each.path for each in found.endpoints if each.there]
    assert there == ["chat/completions"]
    assert all(each.there is False for each in found.endpoints if each.path not in there)
    assert found.apis == ("chat",)


def test_a_server_that_answers_everything_alike_says_nothing_of_its_addresses():
    chat = only_chat(bare)

    def alike(method, path, body):
        if path == "/v1/models" or "messages" in body:
            return chat(method, path, body)
        return 401, refused("who are you?")

    found = able(alike)
    assert {each.there for each in found.endpoints} == {None}
    assert "says nothing of the others" in found.notes[0]


def test_a_web_page_is_no_endpoint():
    chat = only_chat(bare)

    def page(method, path, body):
        return (200, "<html>hello</html>") if method == "GET" else chat(method, path, body)

    assert not [each for each in able(page).endpoints if each.method == "GET" and each.there]


def test_an_engine_is_named_by_what_it_says_and_its_context_is_taken():
    chat = only_chat(bare)

    def llama(method, path, body):
        if path == "/props":
            return 200, {"default_generation_settings": {"n_ctx": 512}, "build_info": "b1"}
        return chat(method, path, body)

    found = able(llama)
    assert (found.engine, found.context_tokens) == ("llama.cpp b1", 512)


def test_every_request_is_counted_and_there_are_few():
    found, bodies = asked(only_chat(Rich()))
    posts = sum(each.method == "POST" for each in found.endpoints)
    gets = sum(each.method == "GET" for each in found.endpoints) + 1  # one that nobody has
    assert found.requests == len(bodies) + gets
    assert posts < found.requests < abilities.MOST


def test_a_target_that_is_always_busy_is_asked_no_more_than_so_often():
    found = able(lambda *_: (429, refused("slow down")))
    assert found.requests <= abilities.MOST
    assert found.limits == {"retry-after": "0"}


def test_nothing_is_sent_beyond_the_limit_of_requests():
    async def go(url):
        asker = Asker(Target(base_url=url, model="m"), Turns(), most=2)
        pages = [await asker.page("GET", asker.http.base) for _ in range(4)]
        await asker.close()
        return [page is not None for page in pages], asker.used.requests

    with answering(only_chat(bare)) as (url, _):
        assert asyncio.run(go(url)) == ([True, True, False, False], 2)


@pytest.mark.parametrize("cap", [0, 300, 3_000])
def test_nothing_is_asked_that_could_exceed_the_limit_of_tokens(cap):
    with answering(only_chat(Rich())) as (url, bodies):
        found = abilities.ask(Target(base_url=url, model="m"), ("m",), MODELS, tokens=cap)
    assert found.tokens <= cap
    assert (found.tokens > 0) == (len([each for each in bodies if "messages" in each]) > 0)


def test_tokens_are_those_that_the_target_counts_where_it_does():
    told = able(only_chat(Rich())).tokens
    assert 0 < told < able(only_chat(bare)).tokens


def test_the_only_model_is_taken_and_the_address_below_the_one_given():
    with answering(only_chat(bare)) as (url, _):
        turns = Turns()
        target, listed = address.reach(
            Target(base_url=url.removesuffix("/v1"), model=address.UNNAMED), turns
        )
    assert (target.base_url, target.model, len(turns.sent_s)) == (url, "m", 1)
    assert listed == MODELS


@pytest.mark.parametrize(
    ("models", "sentence"),
    [(["a", "b"], "has 2 models, name one of a, b"), ([], "lists no models, so name the one")],
)
def test_a_model_that_has_to_be_chosen_is_asked_for(models, sentence):
    listed = {"data": [{"id": name} for name in models]}
    with answering(lambda *_: (200, listed)) as (url, _), pytest.raises(Exception, match=sentence):
        address.reach(Target(base_url=url, model=address.UNNAMED), Turns())


def test_another_api_is_tried_where_chats_are_not_there():
    def answer(_method, path, body):
        if path == "/v1/models":
            return 200, MODELS
        if path == "/v1/completions" and "prompt" in body:
            return 200, {"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]}
        return 404, refused("Not Found")

    with answering(answer) as (url, _):
        target, models = address.answering(Target(base_url=url, model="m"), Turns())
    assert (target.api, models) == ("completions", ("m",))


def test_limits_are_read_off_the_headers_of_answers():
    def limited(_body):
        limits = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-tokens": "149,984"}
        return 200, said("one two"), limits

    assert able(only_chat(limited)).limits == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-tokens": "149,984",
    }


def test_limits_that_are_no_text_are_text_on_one_line_in_the_end():
    def limited(_body):
        return 200, said("one two"), {"x-ratelimit-foo": "\xff\x1b[31m 7"}

    limits = able(only_chat(limited)).limits
    assert limits["x-ratelimit-foo"].encode().isascii()
    assert limits["x-ratelimit-foo"].isprintable()


def test_what_a_backend_has_no_words_for_is_not_asked_and_not_called_missing():
    sent = []

    def messages(method, _path, body):
        if method == "GET" or "messages" not in body:
            return 404, refused("Not Found")
        sent.append(body)
        text = [{"type": "text", "text": "one two three"}]
        return 200, {"type": "message", "id": "x", "content": text, "stop_reason": "end_turn"}

    found = able(messages, backend="anthropic", hottest=1.0)
    bare = {"seed", "top_logprobs", "logit_bias", "allowed_token_ids", "n", "response_format"}
    assert set(found.unsaid) == {*bare, "cache_salt", "return_token_ids"}
    assert (found.seed, found.n, found.response_format) == (None, None, None)
    assert (found.tools, found.temperature) == ("accepted", False)
    assert max(body.get("temperature", 0) for body in sent) == 1.0
