"""The blocks of a running engine, and the lives of blocks in a trace."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from random import Random

import pytest
from served import call, eventually, serving

from leakcheck.engine import faults, trace
from leakcheck.engine.inspection import lives
from leakcheck.engine.inspection.__main__ import main
from leakcheck.engine.inspection.pool import decoded, screen
from leakcheck.engine.latency import Latencies, percentiles
from leakcheck.engine.server import Api
from leakcheck.engine.snapshot import snapshot
from leakcheck.engine.values import EngineError, GenerateRequest, SamplingParams, Update


def ask(engine, name, prompt, **more):
    params = SamplingParams(max_tokens=more.pop("max_tokens", 4), ignore_eos=True)
    engine.submit(GenerateRequest(id=name, prompt=tuple(prompt), params=params, **more))


def look(engine):
    return snapshot(engine, model="tiny", latencies=Latencies().summary())


def command(capsys, *flags):
    code = main(["pool", *map(str, flags)])
    return code, *capsys.readouterr()


# --- the snapshot --------------------------------------------------------------------------------


def test_every_live_request_is_shown_with_its_blocks(make_engine):
    engine = make_engine(block_size=4)
    ask(engine, "a", range(10, 17))
    ask(engine, "b", range(30, 33))
    engine.step()
    a, b = look(engine).requests
    assert (a.id, a.state, a.prompt_tokens, a.computed_tokens) == ("a", "running", 7, 7)
    assert (a.table, b.table) == ((0, 1), (2,))


def test_shared_blocks_name_their_holders_and_hash(make_engine):
    engine = make_engine(block_size=4)
    ask(engine, "a", range(10, 17), max_tokens=9)
    engine.step()
    ask(engine, "b", range(10, 17))
    engine.step()
    (shared,) = look(engine).shared
    assert (shared.block, shared.references, shared.holders) == (0, 2, ("a", "b"))
    assert shared.hash == engine.prefix.by_block[0].digest.hex()


def test_a_healthy_pool_adds_up_at_every_step(make_engine):
    engine = make_engine(block_size=4, num_blocks=8)
    for number in range(6):
        ask(engine, str(number), range(10 * number, 10 * number + 6 + number), n=1 + number % 2)
    while engine.has_work:
        engine.step()
        state = look(engine)
        assert (state.leaked, state.dangling, state.lost) == ((), (), ())
        assert state.used + state.cached + state.free == 8


def test_a_reference_that_no_table_explains_is_a_leak(make_engine):
    engine = make_engine(block_size=4)
    ask(engine, "a", range(10, 17))
    engine.step()
    engine.pool.share(engine.live["a"][0].table[0])
    (leaked,) = look(engine).leaked
    assert (leaked.block, leaked.references, leaked.holders) == (0, 2, ("a",))


def test_a_block_freed_while_it_is_read_is_dangling(make_engine):
    engine = make_engine(block_size=4, prefix_cache=False)
    ask(engine, "a", range(10, 17))
    engine.step()
    engine.pool.release(engine.live["a"][0].table[1])
    (dangling,) = look(engine).dangling
    assert (dangling.block, dangling.references, dangling.holders) == (1, 0, ("a",))


def test_a_block_that_nobody_can_get_is_lost(make_engine):
    engine = make_engine(block_size=4, num_blocks=4)
    engine.pool.allocate()
    engine.pool.references[0] = 0
    assert look(engine).lost == (0,)


def test_positions_without_content_are_counted_once_a_block(make_engine):
    engine = make_engine(block_size=4)
    ask(engine, "a", range(10, 15), n=2)
    engine.step()
    state = look(engine)
    assert (state.held_positions, state.filled_positions) == (8, 5)


# --- latencies -----------------------------------------------------------------------------------


def test_percentiles_are_ranks():
    of = percentiles([float(n) for n in range(1, 1001)])
    assert (of.count, of.p50_s, of.p99_s, of.p999_s, of.max_s) == (1000, 500, 990, 999, 1000)
    assert percentiles([]).p50_s is None


def test_a_request_is_measured_to_its_first_token_and_to_its_end():
    latencies = Latencies()
    latencies.arrived("a", 0.0)
    latencies.stepped(0.0, [Update(id="a", index=0)], live={"a"})
    latencies.stepped(0.0, [Update(id="a", index=0, finish_reason="stop")], live={})
    assert (len(latencies.steps), len(latencies.first_tokens), len(latencies.requests)) == (2, 1, 1)


def test_an_aborted_request_is_not_measured():
    latencies = Latencies()
    latencies.arrived("a", 0.0)
    latencies.forget("a")
    latencies.stepped(0.0, [Update(id="a", index=0, finish_reason="abort")], live={})
    assert len(latencies.requests) == 0


# --- over HTTP -----------------------------------------------------------------------------------


def test_the_pool_of_a_running_engine_is_shown(server, capsys):
    base = server["base_url"]
    call(f"{base}/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 3})
    code, out, _ = command(capsys, base)
    assert code == 0
    assert "256 blocks of 4 tokens" in out
    assert "what does not add up: none" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_live_request_is_seen_from_outside(server, capsys):
    base = server["base_url"]
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 240, "ignore_eos": True, "n": 4}
    seen = threading.Event()

    def ask():
        while not seen.is_set():  # one request may be over before anybody looks
            call(f"{base}/completions", body)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        eventually(lambda: "running\n" in command(capsys, base)[1])
    finally:
        seen.set()
        asking.join()


def test_a_key_guards_the_pool_and_a_trace_is_announced(
    model_folder, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("POOL_KEY", "k-123")
    path = tmp_path / "trace.jsonl"
    flags = ("--api-key-env", "POOL_KEY")
    with serving(model_folder, *flags, "--trace", str(path)) as ready:
        url = ready["base_url"]
        code, _, err = command(capsys, url)
        assert (code, "--api-key-env" in err) == (2, True)
        assert command(capsys, url, *flags)[0] == 0
        assert call(url.removesuffix("/v1") + "/debug/pool")[0] == 401
        assert ready["trace"] == str(path)
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
        headers = {"X-Request-Id": "mine", "Authorization": "Bearer k-123"}
        _, text = call(f"{url}/completions", body, headers=headers)
    answer = json.loads(text)["id"]
    code, out, _ = command(capsys, "--trace", path, "--request", answer)
    assert (code, f"{answer} (its client calls it mine)" in out) == (0, True)


@contextmanager
def other_server(status, body):
    """Something that is no embedded engine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"{}", "answered with status 404"),
        (302, b"", "answered with status 302"),
        (200, b"<html>", "holds no pool"),
        (200, b"[]", "holds no pool"),
        (200, b'{"format": "leakcheck-pool-1"}', "holds no pool"),
        (200, b'{"ok": true}', "no embedded engine of this version"),
        (503, b'{"error": {"message": "it stopped"}}', "does not answer: it stopped"),
    ],
)
def test_what_is_no_embedded_engine_is_one_sentence(capsys, status, body, said):
    with other_server(status, body) as url:
        code, out, err = command(capsys, url)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["http://127.0.0.1:9/v1"], "nothing answers at http://127.0.0.1:9/v1"),
        (["https://127.0.0.1:9"], "no URL of an embedded engine"),
        (["http://127.0.0.1:port"], "no URL of an embedded engine"),
        ([], "give the URL"),
        (["http://127.0.0.1:9", "--watch", "0"], "--watch is a number of seconds above 0"),
        (["http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--trace", "/no/such/trace", "--request", "a"], "cannot be read"),
        (["--trace", "/no/such/trace"], "--trace FILE goes with --request ID"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(capsys, flags, said):
    code, _, err = command(capsys, *flags)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_an_engine_of_another_version_is_named():
    state = json.dumps({"format": "leakcheck-pool-9", "other": 1}).encode()
    with pytest.raises(EngineError, match="in the form leakcheck-pool-9, and this reads"):
        decoded("http://x", state)


def test_a_pool_with_control_characters_cannot_steer_the_terminal(make_engine):
    engine = make_engine(block_size=4)
    ask(engine, "\x1b[2J", range(10, 17))
    engine.step()
    assert "\x1b" not in "\n".join(screen(look(engine), "http://x"))


# --- lives of blocks -----------------------------------------------------------------------------


@pytest.fixture
def traced(make_engine, tokenizer, tmp_path):
    """`traced(fault)`: an engine that writes a trace, and the path of it."""

    def make(name=None, **options):
        engine = make_engine(block_size=4, **options)
        api = Api(engine, tokenizer, model="tiny")
        if name:
            seams = faults.Seams(engine=engine, delivery=api.delivery, api=api)
            faults.find(name).install(seams, 1.0, Random(0))
        path = tmp_path / "trace.jsonl"
        trace.start(api, path, fault=name, block_size=4)
        return engine, path

    return make


def tell(path, name):
    """The line that a server writes for a request."""
    line = {
        "event": "request", "t_s": 0, "id": name, "target_id": f"chatcmpl-{name}",
        "client_id": f"client-{name}", "prompt_tokens": 7, "choices": 1,
    }  # fmt: skip
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def play(engine, path, *requests):
    for name, prompt in requests:
        tell(path, name)
        ask(engine, name, prompt)
        while engine.has_work:
            engine.step()


def test_a_request_that_reads_its_own_blocks_has_nothing_odd(traced):
    engine, path = traced()
    play(engine, path, ("a", range(10, 17)))
    text = lives.render(path, ["chatcmpl-a"], everything=False)
    assert "3 its own and nobody else's: 0 1 2" in text
    assert "reuse" not in text


def test_a_shared_prefix_names_who_wrote_it(traced):
    engine, path = traced()
    play(engine, path, ("a", range(10, 17)), ("b", range(10, 17)))
    text = lives.render(path, ["client-b"], everything=False)
    assert "written by client-a, shared by the prefix cache or a fork: 0" in text
    assert "share   client-b" in text


def test_a_share_for_another_prefix_is_told_from_a_right_one(traced):
    engine, path = traced("prefix-length-only")
    play(engine, path, ("a", range(10, 17)), ("b", range(30, 37)))
    text = lives.render(path, ["b"], everything=False)
    assert "written by client-a, shared by the prefix cache for another prefix or salt" in text


def test_other_readers_of_a_block_are_counted_and_shown_on_demand(traced):
    engine, path = traced()
    play(engine, path, *((name, range(10, 17)) for name in "abcd"))
    short, whole = (lives.render(path, ["d"], everything=every) for every in (False, True))
    assert "and 6 events of 2 other requests" in short
    assert "client-b" not in short
    assert "client-b" in whole


def test_a_neighbours_block_is_read_without_a_reference(traced):
    engine, path = traced("mask-broadcast")
    for name, prompt in (("short", range(10, 13)), ("long", range(50, 70))):
        tell(path, name)
        ask(engine, name, prompt)
    while engine.has_work:
        engine.step()
    text = lives.render(path, ["short"], everything=False)
    assert "read without a reference to it; written by client-long" in text
    assert "the engine's fault: mask-broadcast" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_block_that_was_never_written_in_its_use_says_whose_it_was(traced):
    engine, path = traced(prefix_cache=False)
    play(engine, path, ("a", range(10, 17)))
    healthy = engine.scheduler.place

    def place(sequence, budget):
        done = healthy(sequence, budget)
        sequence.computed = 4  # the first block counts as filled
        return done

    engine.scheduler.place = place
    play(engine, path, ("b", range(30, 37)))
    text = lives.render(path, ["b"], everything=False)
    assert "nobody had written it since it was taken" in text
    assert "client-a wrote" in text


def test_all_blocks_are_shown_on_demand(traced):
    engine, path = traced()
    play(engine, path, ("a", range(10, 17)))
    text = lives.render(path, ["a"], everything=True)
    assert text.count("its own\n") == 3


def test_an_unknown_request_and_a_strange_file_are_named(traced, tmp_path):
    engine, path = traced()
    play(engine, path, ("a", range(10, 17)))
    with pytest.raises(EngineError, match="knows no request 'x'"):
        lives.render(path, ["x"], everything=False)
    other = tmp_path / "other"
    other.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(EngineError, match=r"line 1 of .* is no event"):
        lives.read(other)


def test_a_torn_last_line_is_left_out(traced):
    engine, path = traced()
    play(engine, path, ("a", range(10, 17)))
    with path.open("a") as file:
        file.write('{"event": "al')
    assert "blocks it read: 3" in lives.render(path, ["a"], everything=False)
