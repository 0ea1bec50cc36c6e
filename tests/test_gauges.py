"""What the target says it is doing: its page of metrics, and what that means for overlap."""

import http.server
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import eventually
from shorthand import STEP_NS, history

from leakcheck import history as histories
from leakcheck import runfolder
from leakcheck.analyzer import exposure, judge
from leakcheck.errors import UsageError
from leakcheck.records import Gate, Gauges, Target
from leakcheck.run import gauges

GATE = Gate(min_windows=1, min_echo=0.1, min_overlap=0.1)

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m {odd, \\"name\\"}"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
vllm:num_preemptions_total{engine="1",model_name="m"} 3.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.5e+03
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 9.0
python_gc_objects_collected_total{generation="0"} 1e999x
"""
PAGES = {
    "vllm:num_requests_running": (VLLM, 5.0),
    "sglang:num_running_reqs": ('sglang:num_running_reqs{model_name="m"} 7\n', 7.0),
    "llamacpp:requests_processing": ("llamacpp:requests_processing 2\n", 2.0),
    "tgi_batch_current_size": ("tgi_batch_current_size 9 1719000000000\n", 9.0),
    "vllm_num_requests_running": ("vllm_num_requests_running 1\n", 1.0),
}


# --- a page --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_the_number_of_running_requests_is_found_on_every_known_page(name):
    text, running = PAGES[name]
    seen = gauges.read(text, 5)
    assert (seen.name, seen.running, seen.at_ns) == (name, running, 5)


def test_the_busiest_engine_counts_and_counters_are_summed():
    seen = gauges.read(VLLM, 0)
    assert (seen.running, seen.waiting, seen.preemptions) == (5.0, 2.0, 7.0)
    assert (seen.cached_tokens, seen.kv_usage) == (1500.0, 0.25)


def test_the_cache_of_the_embedded_engine_is_used_by_its_share_of_blocks():
    text = (
        "leakcheck_engine_running 1.0\nleakcheck_engine_blocks_used 3.0\n"
        "leakcheck_engine_blocks_free 8.0\nleakcheck_engine_blocks_cached 1.0\n"
    )
    assert gauges.read(text, 0).kv_usage == 0.25


@pytest.mark.parametrize(
    "text",
    ["", "<html>hello</html>", "vllm:num_requests_running", "vllm:num_requests_running{a 1\n",
     "vllm:num_requests_running NaN\n", "other_running 3\n", '{"detail": "not found"}'],
)  # fmt: skip
def test_a_page_without_the_number_says_nothing(text):
    assert gauges.read(text, 0) is None


@given(st.text(), st.sampled_from(["", "vllm:num_requests_running", "tgi_batch_current_size{"]))
def test_no_text_breaks_the_reader(text, prefix):
    seen = gauges.read(prefix + text, 0)
    assert seen is None or seen.running == seen.running


# --- where ---------------------------------------------------------------------------------------


def target(url, **more):
    return Target(base_url=url, model="m", **more)


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/metrics"),
        ("http://localhost:8000/a/v1?api-version=1", "http://localhost:8000/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000/metrics"),
        ("https://api.example.com/v1", None),
        ("http://10.0.0.7:8000/v1", None),
        ("http://localhost.example.com/v1", None),
    ],
)
def test_only_a_target_of_this_machine_is_asked_by_itself(url, page):
    source = gauges.source(target(url))
    assert (source.url if source else None) == page


def test_a_page_that_is_named_is_asked_wherever_it_is():
    page = gauges.source(target("https://api.example.com/v1"), "http://10.0.0.7:9000/metrics")
    assert page.url == "http://10.0.0.7:9000/metrics"


def test_nobody_is_asked_where_it_is_off():
    assert gauges.source(target("http://127.0.0.1:1/v1"), "off") is None


@pytest.mark.parametrize("where", ["on", "ftp://x/metrics", "http://u:p@x/metrics"])
def test_what_is_no_page_is_refused(where):
    with pytest.raises(UsageError, match=r"^--metrics: "):
        gauges.source(target("http://127.0.0.1:1/v1"), where)


KEY = "sk-very-secret"


@pytest.fixture
def keyed(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    return target("http://127.0.0.1:8000/v1", api_key_env="MY_KEY", headers_env={"X-Own": "MY_KEY"})


def test_the_key_goes_to_the_origin_of_the_target(keyed):
    assert gauges.source(keyed).headers == {"Authorization": f"Bearer {KEY}", "X-Own": KEY}


@pytest.mark.parametrize(
    "where",
    ["http://127.0.0.1:8001/metrics", "https://127.0.0.1:8000/metrics", "http://other/metrics"],
)
def test_the_key_goes_nowhere_else(keyed, where):
    assert gauges.source(keyed, where).headers == {}


def test_the_key_is_in_no_text(keyed):
    assert KEY not in repr(gauges.source(keyed))


# --- over the network ----------------------------------------------------------------------------


@contextmanager
def served(answer):
    """The address of a page, made by `answer(path, headers)`: status, headers, text."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, more, text = answer(self.path, dict(self.headers))
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            """Nothing on the screen."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_of_a_local_target_is_found(tmp_path):
    del tmp_path
    with served(lambda path, _: (200 if path == "/metrics" else 404, {}, VLLM)) as url:
        assert gauges.found(target(f"{url}/v1")).url == f"{url}/metrics"


@pytest.mark.parametrize("status", [204, 302, 401, 404, 500])
def test_a_target_without_a_page_is_not_asked_again(status):
    with served(lambda *_: (status, {"Location": "/"}, VLLM)) as url:
        assert gauges.found(target(f"{url}/v1")) is None


def test_a_named_page_that_says_nothing_is_one_sentence():
    with (
        served(lambda *_: (200, {}, "other 1\n")) as url,
        pytest.raises(UsageError, match="does not say how many requests are running"),
    ):
        gauges.found(target(f"{url}/v1"), f"{url}/stats")


def test_a_dead_target_has_no_page():
    assert gauges.found(target("http://127.0.0.1:9/v1")) is None


def test_a_redirection_does_not_take_the_key_elsewhere(keyed):
    asked = []

    def elsewhere(_path, headers):
        asked.append(headers)
        return 200, {}, VLLM

    with served(elsewhere) as other, served(lambda *_: (307, {"Location": other}, "")) as url:
        page = gauges.Source(url=f"{url}/metrics", headers=gauges.source(keyed).headers)
        assert gauges.look(page) is None
    assert asked == []


def test_the_page_is_read_into_the_run_folder_while_the_block_lasts(tmp_path):
    with (
        served(lambda *_: (200, {}, VLLM)) as url,
        gauges.sampled(tmp_path, gauges.Source(url=url)),
    ):
        eventually(lambda: len(runfolder.read_gauges(tmp_path)) >= 2)
    seen = runfolder.read_gauges(tmp_path)
    assert {each.running for each in seen} == {5.0}
    assert seen[1].at_ns - seen[0].at_ns >= 0.9e9 * gauges.EVERY_S  # at most two a second


def test_a_target_that_came_back_elsewhere_is_asked_there(tmp_path):
    with (
        served(lambda *_: (200, {}, "tgi_batch_current_size 1\n")) as first,
        served(lambda *_: (200, {}, "tgi_batch_current_size 2\n")) as second,
        gauges.sampled(tmp_path, gauges.Source(url=first)) as sampler,
    ):
        sampler.aim(gauges.Source(url=second))
        eventually(lambda: runfolder.read_gauges(tmp_path))
    assert {each.running for each in runfolder.read_gauges(tmp_path)} == {2.0}


def test_a_page_that_fails_is_asked_ever_more_seldom(tmp_path):
    times = []

    def failing(*_):
        times.append(time.monotonic())
        return 500, {}, ""

    with served(failing) as url, gauges.sampled(tmp_path, gauges.Source(url=url)):
        eventually(lambda: len(times) >= 3)
    assert times[2] - times[1] > 1.5 * (times[1] - times[0])


def test_a_run_folder_that_is_gone_stops_nobody(tmp_path, recwarn):
    asked = []
    with (
        served(lambda *_: (asked.append(1), (200, {}, VLLM))[1]) as url,
        gauges.sampled(tmp_path / "gone", gauges.Source(url=url)),
    ):
        eventually(lambda: len(asked) >= 2)
    assert not recwarn.list


def test_without_a_page_nothing_is_written(tmp_path):
    with gauges.sampled(tmp_path, None) as sampler:
        assert sampler is None
    assert list(tmp_path.iterdir()) == []


# --- on disk -------------------------------------------------------------------------------------


def reading(at, running=2.0, **more):
    return Gauges(at_ns=at, name="vllm:num_requests_running", running=running, **more)


def test_a_torn_last_reading_is_left_out_and_cut_by_the_next(tmp_path):
    runfolder.append_gauges(tmp_path, reading(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"at_ns": 2, "na')
    assert runfolder.read_gauges(tmp_path) == (reading(1),)
    runfolder.append_gauges(tmp_path, reading(3))
    assert runfolder.read_gauges(tmp_path) == (reading(1), reading(3))


def test_a_run_folder_without_readings_is_fine(tmp_path):
    assert runfolder.read_gauges(tmp_path) == ()


# --- what it means -------------------------------------------------------------------------------

LINE = "a> b> c> a=aA b=bB c=cC"
"""From step 2 to step 5 there are two or more in flight, from 3 to 4 three."""


def measured(*readings, line=LINE):
    h = history(line)
    run = h._run
    h = histories.build(
        run.plans, [], run.seen, provenance=run.provenance, events=run.events, gauges=readings
    ).scenario("tiny")
    return exposure.find(exposure.measure(h, GATE), "running"), h


def during(running, count=20):
    """So many readings, spread over the time in which two or more are in flight."""
    return [reading(int((2 + 2.9 * n / count) * STEP_NS), running) for n in range(count)]


def test_what_ran_in_the_target_stands_beside_what_the_client_had_in_flight():
    found, _ = measured(*during(3.0, 10), *during(1.0, 11))
    assert (found.measured, found.minimum, found.enough) == (3.0, None, None)
    assert found.text.startswith(
        "3 (most) and 1 (median) requests at one time in the target, by its own "
        "vllm:num_requests_running in 21 readings, of 3 (most) and "
    )


def test_a_target_that_is_given_one_at_a_time_was_not_tested():
    found, h = measured(*during(1.0))
    assert (found.minimum, found.enough) == (2.0, False)
    verdict = judge(h, h.plans[0])
    assert verdict.status == "inconclusive"
    assert any("lets in one request at a time" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("readings", [during(1.0, 9), [*during(1.0), reading(3 * STEP_NS, 2.0)]])
def test_few_readings_or_one_of_two_accuse_no_gateway(readings):
    assert measured(*readings)[0].enough is None


def test_a_client_that_had_one_in_flight_at_a_time_accuses_no_gateway():
    line = "a> a=aA b> b=bB"
    readings = [reading(int((1 + n / 20) * STEP_NS), 1.0) for n in range(20)]
    assert measured(*readings, line=line)[0].enough is None


def test_a_number_that_stays_at_zero_says_nothing():
    found, _ = measured(*during(0.0))
    assert found.enough is None
    assert "a number that stays at 0 says nothing" in found.text


@pytest.mark.parametrize("at", [0, 20 * STEP_NS])
def test_readings_beside_the_scenario_do_not_count(at):
    assert measured(reading(at))[0] is None


def test_without_readings_there_is_no_such_exposure():
    assert measured()[0] is None


def test_counters_are_told_by_their_growth():
    first = reading(2 * STEP_NS, preemptions=5, cached_tokens=100, kv_usage=0.5)
    last = reading(4 * STEP_NS, preemptions=7, cached_tokens=1300, kv_usage=0.25)
    text = measured(first, last)[0].text
    assert text.endswith(
        "; 2 preemptions, 1,200 cached prompt tokens, 50 % of the KV cache at most"
    )


def test_counters_of_a_target_that_was_started_anew_are_left_out():
    first, last = reading(2 * STEP_NS, preemptions=5), reading(4 * STEP_NS, preemptions=1)
    assert "preemptions" not in measured(first, last)[0].text
