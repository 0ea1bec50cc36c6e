"""What every backend promises, whatever it speaks: one test for all.

Each is played against a server of its own protocol in `servers/`; the `real` ones against engines.
What cannot apply to one is left out by name, with the reason on the line.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from backends.servers import anthropic, llamacpp, ollama, openai, tgi, wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playing import eventually, observe, request, text

from leakcheck import backends
from leakcheck.backends import Turns
from leakcheck.records import Chunk, Message, Sampling, Target, Tenant, Usage

KEY, OTHER_KEY = "sk-planted-0123456789", "sk-another-9876543210"
DIALECTS = {
    "openai": openai,
    "anthropic": anthropic,
    "ollama": ollama,
    "llamacpp": llamacpp,
    "tgi": tgi,
    "litellm": openai,
}
PLAIN = {"callable": "backends.servers.plain:answer", "command": "-m backends.servers.plain"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One backend as it is called, and what its protocol does not have."""

    backend: str
    api: str = "chat"
    target: str = ""
    lacks: tuple[str, ...] = ()

    @property
    def name(self):
        return f"{self.backend}-{self.api}{'-async' * ('async' in self.target)}"


CASES = [
    Case(backend="openai"),
    Case(backend="openai", api="completions"),
    Case(backend="openai", api="responses"),
    Case(backend="anthropic", lacks=("seed", "top_logprobs")),  # not in that API
    Case(backend="ollama", lacks=("cached",)),  # it tells none
    Case(backend="ollama", api="completions", lacks=("cached",)),
    Case(backend="llamacpp"),
    Case(backend="llamacpp", api="completions"),
    Case(backend="tgi", lacks=("cached", "prompt")),  # told in streams, or nowhere
    Case(backend="tgi", api="completions", lacks=("cached", "prompt")),
    Case(backend="callable", target=PLAIN["callable"]),
    Case(backend="callable", target=PLAIN["callable"] + "_async"),
    Case(backend="command", target=f"{sys.executable} {PLAIN['command']}"),
    Case(backend="litellm"),
]
ABSENT = None if importlib.util.find_spec("litellm") else "LiteLLM is not installed"
LITELLM = [
    pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT)),
    pytest.mark.filterwarnings("default"),  # those of its dependencies are not ours to heal
]


def contract(**exempt):
    """The test holds for every case but those of the backends that are named with a reason."""
    held = [
        pytest.param(
            case,
            id=case.name,
            marks=LITELLM if case.backend == "litellm" else [],
        )
        for case in CASES
        if case.backend not in exempt
    ]
    return pytest.mark.parametrize("case", held)


both_ways = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture(scope="module")
def servers():
    """A server for each dialect, started when it is first wanted."""
    started = {}

    def served(backend):
        dialect = DIALECTS[backend]
        if dialect not in started:
            started[dialect] = wire.Server(dialect).__enter__()
        return started[dialect]

    yield served
    for server in started.values():
        server.__exit__()


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", OTHER_KEY)


@pytest.fixture
def aimed(servers):
    """A function from a case to its target."""
    return lambda case, **fields: aim(servers, case, **fields)


def aim(servers, case, **fields):
    place = case.target
    if not place:
        port = servers(case.backend).port
        below = "/v1" if DIALECTS[case.backend] is openai else ""
        place = f"http://127.0.0.1:{port}{below}"
    given = {
        "base_url": place,
        "model": "openai/m" if case.backend == "litellm" else "m",
        "backend": case.backend,
        "api": case.api,
        "api_key_env": "MY_KEY",
        "tenants": (Tenant(name="other", api_key_env="OTHER_KEY"),),
        "timeout_s": 20.0,
    }
    return Target(**(given | fields))


def asking(prompt, **fields):
    """A request with this prompt."""
    messages = (Message(role="user", content=prompt),)
    return request("a", messages=messages, **fields)


def talk(target, *requests):
    """The chunks of each request, sent one after the other over one backend."""

    async def run():
        backend = backends.load(target.backend)(target)
        try:
            return [[chunk async for chunk in backend.stream(each)] for each in requests]
        finally:
            await backend.close()

    return asyncio.run(run())


def said(chunks, field="content"):
    return "".join(chunk.text for chunk in chunks if chunk.field == field)


# --- a whole answer ------------------------------------------------------------------------------

TRICKY = 'grün "quoted" \\ \n\r\n\ttab \u2028 data: [DONE] 東京 🦆\u200d {"error": 1} </s>'


@both_ways
@contract()
def test_a_whole_answer_arrives_unaltered_and_ends_normally(case, stream, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking(TRICKY, stream=stream))
    assert (seen.outcome, seen.error, seen.finish_reason) == ("ok", None, "stop")
    assert text(seen) == TRICKY
    assert len([c for c in seen.chunks if c.text]) > 5 or not stream


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda prompt: prompt.strip()[:1] not in ("", "!")))  # fmt: skip
@contract(command="a process an example would take minutes")
def test_any_text_arrives_unaltered(case, prompt, servers):
    assert [said(chunks) for chunks in talk(aim(servers, case), asking(prompt))] == [prompt]


@both_ways
@contract()
def test_usage_is_read_with_cached_tokens(case, stream, aimed):
    (chunks,) = talk(aimed(case), asking("hello", stream=stream))
    cached = None if "cached" in case.lacks else 3
    prompt = None if "prompt" in case.lacks and not stream else 7
    expected = Usage(prompt_tokens=prompt, completion_tokens=4, cached_tokens=cached)
    assert [chunk.usage for chunk in chunks if chunk.usage][-1] == expected


@both_ways
@contract(anthropic="its API has no logprobs")
def test_logprobs_are_read_with_their_alternatives(case, stream, aimed):
    sent = asking("hello duck", stream=stream, sampling=Sampling(top_logprobs=2))
    (chunks,) = talk(aimed(case), sent)
    found = [each for chunk in chunks for each in chunk.logprobs]
    assert [each.token for each in found if each.token != "</s>"] == ["hello", " duck"]
    assert found[0].top == (("hello", -0.5), ("hello0", -1.5))


NUMBERED = [c for c in CASES if c.backend in {"openai", "llamacpp"} and c.api != "responses"]


@both_ways
@pytest.mark.parametrize("case", NUMBERED, ids=lambda case: case.name)
def test_token_ids_are_asked_for_and_read(case, stream, aimed):
    sent = asking("hello duck", stream=stream, sampling=Sampling(return_token_ids=True))
    (chunks,) = talk(aimed(case), sent)
    assert [each for chunk in chunks for each in chunk.token_ids] == [0, 1]
    (chunks,) = talk(aimed(case), asking("hello duck", stream=stream))
    assert not any(chunk.token_ids for chunk in chunks)


FULL = Sampling(max_tokens=19, temperature=0.5, top_p=0.75, seed=17, stop=("x",), top_logprobs=2)


@contract()
def test_sampling_parameters_arrive_as_the_request_says(case, aimed):
    (chunks,) = talk(aimed(case), asking("!asked", sampling=FULL))
    found = json.loads(said(chunks))
    expected = {
        "max_tokens": 19,
        "temperature": 0.5,
        "top_p": 0.75,
        "seed": 17,
        "stop": ["x"],
        "top_logprobs": 2,
    }
    assert {n: found[n] for n in expected} == {
        name: None if name in case.lacks else value for name, value in expected.items()
    }


@contract()
def test_what_a_request_does_not_ask_for_is_left_out(case, aimed):
    (chunks,) = talk(aimed(case), asking("!asked", sampling=Sampling(max_tokens=19)))
    found = json.loads(said(chunks))
    assert [found[name] for name in ("top_p", "seed", "stop", "top_logprobs")] == [None] * 4
    assert (found["max_tokens"], found["temperature"]) == (19, 0.0)


@contract()
def test_identity_and_time_are_not_the_backend_s(case, aimed):
    (chunks,) = talk(aimed(case), asking("hello"))
    assert all(type(chunk) is Chunk for chunk in chunks)
    numbered = [place for place, chunk in enumerate(chunks) if chunk.connection is not None]
    assert numbered in ([0], []), "what tells the connection comes first, and says only that"


NO_HEADERS = {
    "callable": "a function sends no headers",
    "command": "a program sends no headers",
    "litellm": "the library does not hand them on",
}


@both_ways
@pytest.mark.parametrize("name", ["x-request-id", "request-id", "apim-request-id"])
@contract(**NO_HEADERS)
def test_the_id_that_the_target_gives_its_reply_is_recorded(case, name, stream, aimed, tmp_path):
    sent = asking(f"!header {name} req_{KEY}", stream=stream)
    (seen,) = observe(tmp_path, aimed(case), sent)
    assert (seen.outcome, seen.reply_id) == ("ok", f"req_{'*' * len(KEY)}")


@contract(**NO_HEADERS)
def test_the_id_of_a_reply_that_is_an_error_is_recorded_too(case, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking("!status 500"))
    assert (seen.outcome, seen.reply_id) == ("unknown", "req-500")


# --- nothing is retried, cached or shared --------------------------------------------------------

_A_TEMPLATE_EACH = {"llamacpp": 2, "tgi": 2}
"""Requests for each one in a chat: its template is applied by the server, with one more."""


@pytest.mark.parametrize("prompt", ["hello", "!status 500", "!status 429", "!cut"])
@contract(callable="a function is called, not sent to", command="no server counts its lines")
def test_one_request_is_sent_for_one_request(case, prompt, aimed, servers, tmp_path):
    count = _A_TEMPLATE_EACH.get(case.backend, 1) if case.api == "chat" else 1
    target = aimed(case)
    before = len(servers(case.backend).seen)
    for _ in range(3):
        observe(tmp_path, target, asking(prompt))
    assert len(servers(case.backend).seen) - before == 3 * count


@contract(callable="a function has no connection")
def test_a_lane_keeps_one_connection_and_two_lanes_share_none(case, aimed, servers):
    target = aimed(case)

    async def run():
        lanes = [backends.load(case.backend)(target) for _ in range(2)]
        try:
            return [
                [chunk.connection or said([chunk]) async for chunk in lane.stream(asking("!asked"))]
                for lane in lanes * 3
            ]
        finally:
            for lane in lanes:
                await lane.close()

    server = None if case.backend == "command" else servers(case.backend)
    start = len(server.seen) if server else 0
    assert [numbers[0] for numbers in asyncio.run(run())] == [1] * 6
    if server:
        assert len({each.connection for each in server.seen[start:]}) == 2


@contract()
def test_two_lanes_answer_at_the_same_time_each_its_own(case, aimed):
    target = aimed(case)

    async def one(name):
        backend = backends.load(case.backend)(target)
        try:
            return [
                said([c async for c in backend.stream(asking(f"{name} {n}"))]) for n in range(3)
            ]
        finally:
            await backend.close()

    async def run():
        return await asyncio.gather(*(one(name) for name in "abcd"))

    assert asyncio.run(run()) == [[f"{name} {n}" for n in range(3)] for name in "abcd"]


@contract()
def test_a_request_is_sent_with_the_key_of_its_tenant(case, aimed):
    sent = [asking("!asked"), asking("!asked", key="other")]
    found = [json.loads(said(chunks))["key"] for chunks in talk(aimed(case), *sent)]
    assert found == [KEY, OTHER_KEY]


# --- refused and broken --------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("status", [400, 429])
@contract()
def test_a_4xx_is_refused_and_429_says_how_long_to_wait(case, stream, status, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking(f"!status {status}", stream=stream))
    assert (seen.outcome, seen.status) == ("failed", status)
    assert seen.retry_after_s == (wire.RETRY_AFTER_S if status == 429 else None)
    assert f"status {status} for " in seen.error


@both_ways
@pytest.mark.parametrize("status", [500, 529])
@contract()
def test_a_5xx_is_broken(case, stream, status, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking(f"!status {status}", stream=stream))
    assert seen.outcome == "unknown"
    assert f"status {status}" in seen.error


@pytest.mark.parametrize("how", ["!cut", "!unfinished"])
@contract(callable="nothing can cut what a function gives")
def test_a_cut_stream_is_broken(case, how, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking(how))
    assert seen.outcome == "unknown"
    assert seen.error
    assert text(seen).startswith("alpha ")


@contract(callable="nothing can cut what a function gives", command="a line is whole or no line")
def test_a_cut_reply_is_broken(case, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking("!cut", stream=False))
    assert seen.outcome == "unknown"


@contract()
def test_an_error_inside_a_stream_is_broken_and_its_text_kept(case, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking("!error-inside"))
    assert seen.outcome == "unknown"
    assert text(seen).startswith("alpha ")
    assert "out of blocks" in text(seen, "error")


@both_ways
@contract()
def test_an_answer_that_is_too_long_is_broken(case, stream, aimed, tmp_path):
    target = aimed(case, max_reply_bytes=20_000)
    (seen,) = observe(tmp_path, target, asking("!long", stream=stream))
    assert seen.outcome == "unknown"
    assert "longer than 20000 bytes" in seen.error


@both_ways
@contract(litellm="its library gives up before we see the bytes; that is Broken, tested below")
def test_bytes_that_are_no_text_are_kept_as_such_and_broken(case, stream, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking("!no-text", stream=stream))
    assert seen.outcome == "unknown"
    assert "�" in text(seen)
    assert text(seen).startswith("a gr")


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT))
def test_bytes_that_are_no_text_are_broken_by_litellm_too(aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(Case(backend="litellm")), asking("!no-text"))
    assert seen.outcome == "unknown"


@both_ways
@pytest.mark.parametrize("prompt", ["!status 401", "!status 500", "!error-inside"])
@contract()
def test_keys_are_in_no_exception(case, prompt, stream, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking(prompt, stream=stream))
    assert KEY not in repr(seen)
    assert "*" * len(KEY) in repr(seen)


# --- given up ------------------------------------------------------------------------------------


async def _first_text(target, prompt, *, stream=True):
    """Take the first text of an answer and close the generator; the backend is closed after."""
    backend = backends.load(target.backend)(target)
    async with aclosing(backend.stream(asking(prompt, stream=stream))) as chunks:
        async for chunk in chunks:
            if chunk.text:
                break
    return backend


@contract(callable="a function is no connection; its iterator is closed, tested in test_callable",
          command="it has a process, which is tested in test_command")  # fmt: skip
def test_closing_the_generator_early_closes_the_connection(case, aimed, servers):
    server = servers(case.backend)

    async def run():
        backend = await _first_text(aimed(case), "!hang")
        await asyncio.to_thread(eventually, lambda: number() in server.closed)
        await backend.close()

    def number():
        return server.seen[-1].connection

    asyncio.run(run())
    assert number() in server.closed


@both_ways
@contract()
def test_a_planned_abort_is_one(case, stream, aimed, tmp_path):
    (seen,) = observe(tmp_path, aimed(case), asking("!hang", stream=stream, abort_after_s=0.3))
    assert seen.outcome == "aborted"


@contract()
def test_the_next_answer_after_one_that_was_given_up_is_its_own(case, aimed):
    async def run():
        backend = await _first_text(aimed(case), "!hang")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2), aclosing(backend.stream(asking("!hang"))) as chunks:
                async for _ in chunks:
                    pass
        again = [chunk async for chunk in backend.stream(asking("hello"))]
        await backend.close()
        return said(again)

    assert asyncio.run(run()) == "hello"


# --- usable or not -------------------------------------------------------------------------------


@contract()
def test_a_usable_target_is_found_to_be_so(case, aimed):
    from leakcheck import survey  # noqa: PLC0415 - heavy

    turns, aim = Turns(), aimed(case)
    met, found = survey.meet(aim, turns)
    assert found in (("m",), ()) or "m" in str(found)
    assert (met.refuses, met.hottest) == ((), 2.0)
    assert len(turns.sent_s) <= 3
