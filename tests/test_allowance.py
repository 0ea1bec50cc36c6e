"""What a target says it still takes is kept, as far as it can be meant."""

import itertools
import threading
import time

from answering import MODELS, answering, refused, said
from hypothesis import example, given
from hypothesis import strategies as st
from playing import play, windows

from leakcheck.records import Caps, Pace, Quota, Target, Use
from leakcheck.runner.allowance import Allowance
from leakcheck.runner.governor import Governor, Over


def left(requests, reset_s=10.0):
    return Quota(requests=requests, reset_s=reset_s)


def told(*each, max_wait_s=120.0):
    """After these replies: what is left, when it was sent, when the reply came."""
    allowance = Allowance(max_wait_s)
    for quota, sent_s, now_s in each:
        allowance.told(quota, sent_s=sent_s, now_s=now_s)
    return allowance


def test_with_nothing_left_nothing_goes_until_the_reset():
    allowance = told((left(0), 0.0, 1.0))
    assert allowance.wait_s(1.0) == 10.0
    assert allowance.wait_s(4.0) == 7.0
    assert allowance.wait_s(11.0) == 0


def test_no_more_are_in_flight_than_are_left():
    allowance = told((left(3), 0.0, 1.0))
    assert [allowance.wait_s(1.0, flying) for flying in range(5)] == [0, 0, 0, None, None]


def test_the_lowest_figure_counts_as_replies_come_in_any_order():
    assert told((left(1), 0.0, 1.0), (left(5), 0.0, 1.1)).wait_s(1.2, 1) is None


def test_no_pause_is_longer_than_the_patience():
    assert told((left(0, 9999.0), 0.0, 1.0), max_wait_s=60.0).wait_s(1.0) == 60.0


def test_a_target_that_always_says_that_nothing_is_left_is_not_believed_for_long():
    allowance = Allowance(120.0)
    now_s, pauses = 0.0, []
    for _ in range(9):
        allowance.told(left(0), sent_s=now_s, now_s=now_s + 1)
        pauses.append(allowance.wait_s(now_s + 1))
        now_s += 1 + pauses[-1]
    assert pauses == [10.0, 10.0] + [0.0] * 7
    allowance.told(left(5), sent_s=now_s, now_s=now_s)
    allowance.told(left(0), sent_s=now_s, now_s=now_s)
    assert allowance.wait_s(now_s) == 10.0


def test_replies_that_were_in_flight_together_are_one_pause():
    allowance = told(*((left(0), 0.0, 1.0 + n / 100) for n in range(9)))
    assert allowance.wait_s(2.0) > 0


@given(
    limit=st.integers(8, 20),
    lanes=st.integers(1, 8),
    latencies=st.lists(st.floats(0.01, 1.5), min_size=80, max_size=80),
)
@example(limit=8, lanes=8, latencies=[*([1.0] * 7 + [0.5]) * 10])
@example(limit=8, lanes=8, latencies=[1.0, *([1.0] * 7 + [0.5]) * 9, *[1.0] * 7])
def test_a_target_that_tells_the_truth_never_has_to_refuse(limit, lanes, latencies):
    """A limit on a window of 5 s that begins with its first request. (Of a limit below what may be
    in flight at one time, what goes together after a reset is not known before an answer came.)
    """
    governor = Governor(Caps(), Pace(in_flight=lanes))
    now_s, taken, resets_s, refused, flying = 0.0, 0, 0.0, 0, {}
    numbers = itertools.count()
    todo = iter(latencies)
    use = Use(requests=1, prompt_tokens=1, answer_tokens=1)

    def send(latency_s):
        nonlocal taken, resets_s, refused
        key = (0, next(numbers))
        governor.ask(key, use, again=False)
        assert dict(governor.decide(now_s)) == {key: True}
        if now_s >= resets_s:
            taken, resets_s = 0, now_s + 5.0
        taken += 1
        refused += taken > limit
        flying[key] = now_s + latency_s, left(limit - min(taken, limit), resets_s - now_s)

    def end(key):
        nonlocal now_s
        at_s, quota = flying.pop(key)
        now_s = max(now_s, at_s)
        governor.over(key, Over(outcome="ok", use=use, status=200, quota=quota), now_s)

    send(next(todo))
    end((0, 0))
    for latency_s in todo:
        while (wait_s := governor._throttle.wait_s(now_s)) != 0:
            over = sorted(flying, key=lambda key: flying[key][0])
            if wait_s is None:
                end(over[0])
                continue
            now_s += wait_s + 1e-9
            for key in over:
                if flying[key][0] <= now_s:
                    end(key)
        send(latency_s)
    assert refused == 0


class Limited:
    """Takes so many requests, says what is left, refuses more, and starts again after a while."""

    def __init__(self, limit, reset_s):
        self.limit, self.reset_s = limit, reset_s
        self.lock = threading.Lock()
        self.taken, self.resets_s, self.refused = 0, 0.0, 0

    def __call__(self, _method, path, body):
        if path == "/v1/models":
            return 200, MODELS
        with self.lock:
            now_s = time.monotonic()
            if now_s >= self.resets_s:
                self.taken, self.resets_s = 0, now_s + self.reset_s
            self.taken += 1
            if self.taken > self.limit:
                self.refused += 1
                return 429, refused("slow down"), {"retry-after": "1"}
            headers = {
                "x-ratelimit-remaining-requests": str(self.limit - self.taken),
                "x-ratelimit-reset-requests": f"{1000 * (self.resets_s - now_s):.0f}ms",
            }
        return 200, said(body["messages"][-1]["content"]), headers


def test_lanes_of_all_workers_wait_when_an_answer_says_that_nothing_is_left(tmp_path):
    limited = Limited(8, 1.5)
    with answering(limited) as (url, _):
        played, shards = play(
            tmp_path, Target(base_url=url, model="m"), *windows(6), workers=2, lanes=2, retries=2
        )
    assert played.windows_done == 6
    assert limited.refused == 0
    assert {each.quota.requests for each in shards.observations} == set(range(8))
