import asyncio
import itertools
import json
import re
import ssl
import subprocess
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from playing import observe, request, target, text

from leakcheck import backends
from leakcheck.backends import Broken, Turns, openai
from leakcheck.backends._answers import Answer
from leakcheck.backends._sse import Events
from leakcheck.errors import TargetError, UsageError
from leakcheck.records import Message, Sampling, Target, TokenLogprob, Usage

KEY = "sk-planted-0123456789"


def probe(aim):
    return openai.meet(aim, Turns())[1]


# --- server-sent events --------------------------------------------------------------------------


def parsed(*pieces):
    events = Events()
    return [data for piece in pieces for data in events.feed(piece)] + events.finish()


def pieces_of(raw, cuts):
    places = sorted({cut % (len(raw) + 1) for cut in cuts} | {0, len(raw)})
    return [raw[start:end] for start, end in itertools.pairwise(places)]


LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8)
EXTRA = st.sampled_from([": a comment", ":", "event: message", "id: 7", "retry: 10", "nonsense"])


@given(
    events=st.lists(
        st.tuples(st.lists(LINE, min_size=1, max_size=3), st.lists(EXTRA, max_size=2)), max_size=4
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    space=st.sampled_from(["", " "]),
    bom=st.booleans(),
    closed=st.booleans(),
    cuts=st.lists(st.integers(0, 500), max_size=12),
)
@example(
    events=[(["grün €"], [])], end="\r\n", space=" ", bom=True, closed=True, cuts=list(range(40))
)
def test_events_are_the_same_wherever_the_stream_is_cut(*, events, end, space, bom, closed, cuts):
    lines = ["\ufeff" * bom]
    for data, extras in events:
        lines += [line + end for line in extras]
        # a space in front of the data is the format's; one that belongs to the data needs another
        lines += [f"data:{space or ' ' * line.startswith(' ')}{line}{end}" for line in data]
        lines.append(end)
    raw = "".join(lines if closed else lines[:-1]).encode()
    expected = ["\n".join(data).encode() for data, _ in events if data != [""]]
    assert parsed(*pieces_of(raw, cuts)) == expected


@given(raw=st.binary(max_size=60) | st.text("da:t \r\n\ufeffü").map(str.encode),
       cuts=st.lists(st.integers(0, 60), max_size=20))  # fmt: skip
def test_any_bytes_are_read_the_same_in_one_piece_or_many(raw, cuts):
    assert parsed(*pieces_of(raw, cuts)) == parsed(raw)


def test_a_line_without_an_end_is_looked_through_once():
    events, piece = Events(), b"a" * 512
    begun = time.process_time()
    for _ in range(4_000):
        assert events.feed(piece) == []
    assert time.process_time() - begun < 6.0  # 20 s where each piece has all before it looked at


# --- answers -------------------------------------------------------------------------------------


def read(*documents):
    answer = Answer()
    return [chunk for document in documents for chunk in answer.read(json.dumps(document).encode())]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "choices delta message text content index usage logprobs id tool_calls "
                    "function arguments tokens token_logprobs top_logprobs token logprob "
                    "prompt_tokens prompt_tokens_details finish_reason"
                ).split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_whatever_json_a_target_sends_is_read_or_broken(document):
    try:
        for chunk in Answer().read(json.dumps(document).encode()):
            assert isinstance(chunk.text, str)
            assert len(chunk.logprobs) >= 0
    except Broken:
        pass


def test_every_field_of_a_chat_answer_gets_its_chunk():
    message = {
        "reasoning_content": "hm",
        "content": "yes",
        "tool_calls": [{"function": {"name": "look", "arguments": '{"a": 1}'}}],
    }
    chunks = read({"id": "x", "choices": [{"message": message, "finish_reason": "stop"}]})
    assert [(chunk.field, chunk.text) for chunk in chunks] == [
        ("reasoning", "hm"),
        ("content", "yes"),
        ("tool", "look"),
        ("tool", '{"a": 1}'),
    ]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert [chunk.target_id for chunk in chunks] == ["x", None, None, None]


def test_a_change_of_the_target_s_id_within_an_answer_is_kept():
    delta = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    chunks = read({"id": "x"} | delta, {"id": "x"} | delta, {"id": "y"} | delta)
    assert [chunk.target_id for chunk in chunks] == ["x", None, "y"]


def test_further_choices_have_fields_of_their_own():
    choices = [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}, {"index": 2, "text": "c"}]
    assert [(c.field, c.text) for c in read({"choices": choices})] == [
        ("content[1]", "b"),
        ("content", "a"),
        ("content[2]", "c"),
    ]


def test_logprobs_of_both_shapes_are_the_same_record():
    chat = {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "top_logprobs": [
                    {"token": "b", "logprob": -1.5},
                    {"token": "a", "logprob": -0.5},
                ],
            }
        ]
    }
    completions = {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"b": -1.5, "a": -0.5}],
    }
    expected = (TokenLogprob(token="a", logprob=-0.5, top=(("a", -0.5), ("b", -1.5))),)
    for choice in (
        {"delta": {"content": "a"}, "logprobs": chat},
        {"text": "a", "logprobs": completions},
    ):
        (chunk,) = read({"choices": [choice]})
        assert chunk.logprobs == expected


@pytest.mark.parametrize("hole", [None, "x", True])
def test_logprobs_with_a_hole_are_left_out(hole):
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0, hole]}
    (chunk,) = read({"choices": [{"text": "ab", "logprobs": logprobs}]})
    assert chunk.logprobs == ()


# --- what is sent --------------------------------------------------------------------------------

AIM = Target(base_url="http://h/v1", model="m")


def test_only_what_is_asked_for_is_sent():
    assert openai.body(AIM, request("a", stream=False)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "this is a"}],
        "max_tokens": 8,
        "temperature": 0.0,
        "stream": False,
    }


def test_every_sampling_parameter_is_sent():
    sampling = Sampling(max_tokens=3, top_p=0.5, seed=7, stop=("x",), top_logprobs=2)
    body = openai.body(AIM, request("a", sampling=sampling, cache_salt="pepper"))
    assert body.items() >= {"top_p": 0.5, "seed": 7, "logprobs": True, "top_logprobs": 2}.items()
    assert (body["stop"], body["cache_salt"]) == (["x"], "pepper")
    assert body["stream_options"] == {"include_usage": True}


def test_a_bias_of_tokens_is_an_object_from_id_to_bias():
    body = openai.body(AIM, request("a", sampling=Sampling(logit_bias=((7, -100.0), (11, 2.5)))))
    assert body["logit_bias"] == {"7": -100.0, "11": 2.5}


def test_a_conversation_is_sent_with_whose_it_is():
    body = openai.body(AIM, request("a", conversation="17", tenant="t03"))
    assert (body["metadata"], body["user"]) == ({"conversation_id": "17"}, "t03")
    assert not {"metadata", "user"} & set(openai.body(AIM, request("a", tenant="t03")))


@pytest.mark.parametrize("client_id", ["same-for-two", None])
def test_a_client_id_is_the_header_of_its_own_request_only(hostile, tmp_path, client_id):
    (seen,) = observe(tmp_path, target(hostile, "headers"), request("a", client_id=client_id))
    assert json.loads(text(seen)).get("x-request-id") == client_id


def test_system_messages_are_sent_as_such():
    messages = (Message(role="system", content="one"), Message(role="user", content="two"))
    assert openai.body(AIM, request("a", messages=messages))["messages"] == [
        {"role": "system", "content": "one"},
        {"role": "user", "content": "two"},
    ]


def test_completions_get_the_messages_as_prompt():
    messages = (Message(role="system", content="one"), Message(role="user", content="two"))
    aim = Target(base_url="http://h/v1", model="m", api="completions")
    body = openai.body(aim, request("a", messages=messages, sampling=Sampling(top_logprobs=5)))
    assert (body["prompt"], body["logprobs"]) == ("one\n\ntwo", 5)
    assert "messages" not in body


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://h/v1", "", "http://", "http://h:99999/v1"])
def test_a_base_url_that_is_none_is_refused(url):
    with pytest.raises(UsageError, match="is no URL like"):
        probe(Target(base_url=url, model="m"))


def test_credentials_in_a_base_url_are_refused_and_not_repeated():
    with pytest.raises(UsageError, match="holds credentials") as caught:
        probe(Target(base_url=f"http://me:{KEY}@h/v1", model="m"))
    assert KEY not in str(caught.value)


def test_a_certificate_file_that_is_none_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"certificate file .*none\.pem"):
        probe(Target(base_url="https://h/v1", model="m", ca_file=str(tmp_path / "none.pem")))


def test_a_backend_is_found_by_name_only():
    assert backends.load("openai") is openai.connect
    assert backends.load("leakcheck.backends.openai") is openai.connect
    with pytest.raises(UsageError, match="did you mean 'openai'"):
        backends.load("opnai")


# --- over real sockets ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_whole_answer_is_ok_in_every_form(hostile, tmp_path, api, stream):
    (seen,) = observe(tmp_path, target(hostile, "echo", api=api), request("a", stream=stream))
    assert (seen.outcome, seen.error, seen.finish_reason) == ("ok", None, "stop")
    assert text(seen) == "this is a "
    assert seen.usage == Usage(prompt_tokens=7, completion_tokens=4, cached_tokens=3)
    assert seen.start_ns < seen.first_chunk_ns <= seen.end_ns
    assert seen.target_id == "t"


def test_chunks_are_kept_as_they_arrived(hostile, tmp_path):
    (seen,) = observe(tmp_path, target(hostile, "same"), request("a"))
    assert [chunk.text for chunk in seen.chunks if chunk.text] == [
        "alpha ",
        "beta ",
        "gamma ",
        "delta ",
    ]


def test_what_is_sent_after_done_is_kept_and_a_stream_left_open_is_whole(hostile, tmp_path):
    (seen,) = observe(tmp_path, target(hostile, "open-after-done"), request("a"))
    assert (seen.outcome, text(seen)) == ("ok", "alpha")
    assert seen.end_ns - seen.start_ns < 5e9


async def _one_reply(server_reply, aim_of, **server):
    """Serve one connection with a fixed reply; the request's head, and what probing it said."""
    heads = []

    async def serve(reader, writer):
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(server_reply)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, **server)
    async with listening:
        backend = openai.connect(aim_of(listening.sockets[0].getsockname()[1]))
        try:
            page = await backend.http.get(backend.http.url("models"))
        except backends.Refused as refused:
            page = refused
        finally:
            await backend.close()
    return heads, page


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def test_keys_and_headers_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY + "\n")
    monkeypatch.setenv("MY_TEAM", "red")
    heads, _ = asyncio.run(
        _one_reply(
            OK,
            lambda port: target(port, "m", api_key_env="MY_KEY", headers_env={"X-Team": "MY_TEAM"}),
        )
    )
    assert f"Authorization: Bearer {KEY}\r\n" in heads[0]
    assert "X-Team: red\r\n" in heads[0]


def test_a_proxy_of_the_environment_is_used(monkeypatch):
    def aim(port):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        return Target(base_url="http://far-away.invalid/v1", model="m")

    heads, page = asyncio.run(_one_reply(OK, aim))
    assert heads[0].startswith("GET http://far-away.invalid/v1/models ")
    assert page.status == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, pem = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes").split(),
            *("-days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1").split(),
            *("-keyout", str(key), "-out", str(pem)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return pem, context


def _https(pem):
    return lambda port: Target(
        base_url=f"https://127.0.0.1:{port}/v1", model="m", ca_file=pem and str(pem)
    )


def test_a_private_authority_is_trusted_when_named(certificate):
    pem, context = certificate
    _, page = asyncio.run(_one_reply(OK, _https(pem), ssl=context))
    assert page.status == 200


def test_an_unknown_certificate_is_refused(certificate):
    _, context = certificate
    heads, refused = asyncio.run(_one_reply(OK, _https(None), ssl=context))
    assert (heads, refused.status) == ([], None)
    assert "self-signed certificate" in refused.message


# --- probe ---------------------------------------------------------------------------------------


def test_probe_tells_the_models(hostile):
    assert {"echo", "cut"} <= set(probe(target(hostile, "echo")))


def test_probe_takes_a_target_that_lists_no_models(hostile):
    assert probe(Target(base_url=f"http://127.0.0.1:{hostile}/unlisted/v1", model="echo")) == ()


@pytest.mark.parametrize(
    ("path", "model", "kind", "sentence"),
    [
        ("/v1", "ecko", UsageError, r"no model 'ecko'; did you mean 'echo'\? Offered: echo, "),
        ("", "echo", UsageError, r"no OpenAI API at \S+, but one at http://127.0.0.1:\d+/v1"),
        ("/unlisted/v1", "nope", UsageError, r"404 .*'nope'.*`nope` does not exist"),
        ("/elsewhere", "echo", UsageError, "404 .*address or the model is wrong"),
        ("/locked/v1", "echo", UsageError, r"wants an API key \(401: .*OPENAI_API_KEY"),
        ("/v1", "unauthorized", UsageError, r"wants an API key \(401: "),
        ("/html/v1", "echo", TargetError, "no OpenAI API at .*a web page"),
        ("/invalid/v1", "echo", TargetError, r"no OpenAI API at .*\{not JSON"),
        ("/broken/v1", "echo", TargetError, "status 500: the engine has crashed"),
        ("/v1", "broken", TargetError, "status 500: the engine has crashed"),
        ("/v1", "busy", TargetError, "refuses a tiny request with status 429: slow down"),
        ("/v1", "moved", TargetError, "redirected to https://elsewhere.example/v1"),
        ("/v1", "page", TargetError, "invalid JSON.*doctype"),
        ("/v1", "not-http", TargetError, "not HTTP"),
        ("/v1", "hangs-up", TargetError, "connection was cut"),
        ("/silent/v1", "echo", TargetError, r"does not answer within 0\.4 s"),
        ("/v1", "silent", TargetError, r"does not answer within 0\.4 s"),
    ],
)
def test_probe_names_what_is_wrong_in_one_sentence(hostile, path, model, kind, sentence):
    aim = Target(base_url=f"http://127.0.0.1:{hostile}{path}", model=model, timeout_s=0.4)
    with pytest.raises(kind, match=sentence) as caught:
        probe(aim)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.1:9/v1", "no connection to http://127.0.0.1:9: Connection refused"),
        ("http://localhost:9/v1", "no connection to http://localhost:9: Connection refused"),
        ("http://no-such-host.invalid/v1", "name no-such-host.invalid does not resolve"),
    ],
)
def test_probe_names_a_dead_target_in_one_sentence(url, sentence):
    with pytest.raises(TargetError, match=sentence):
        probe(Target(base_url=url, model="m"))


def test_a_key_variable_that_is_not_set_is_named(hostile, monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(UsageError, match="MY_KEY, named for the API key, is not set"):
        probe(target(hostile, "echo", api_key_env="MY_KEY"))


def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(hostile, monkeypatch):
    monkeypatch.setenv("MY_KEY", f"{KEY}\nX-Evil: 1")
    with pytest.raises(UsageError, match=r"MY_KEY, .*no HTTP header can carry") as caught:
        probe(target(hostile, "echo", api_key_env="MY_KEY"))
    assert KEY not in str(caught.value)


def test_probe_names_the_variable_of_a_wrong_key_and_not_the_key(hostile, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(UsageError, match="environment variable MY_KEY") as caught:
        probe(target(hostile, "unauthorized", api_key_env="MY_KEY"))
    assert re.search(r"wrong key: Bearer \*+", str(caught.value))
    assert KEY not in str(caught.value)
