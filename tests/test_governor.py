"""Budget, pace and breaker: pure rules, with a clock of their own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck.budget.spending import Purse
from leakcheck.records import Caps, Pace, Use
from leakcheck.runner.breaker import REFUSALS
from leakcheck.runner.governor import Governor, Over
from leakcheck.runner.pace import Throttle

ONE = Use(requests=1, prompt_tokens=60, answer_tokens=40)
OK = Over(outcome="ok", use=Use(requests=1, prompt_tokens=30, answer_tokens=10), status=200)
ERROR = Over(outcome="unknown", use=Use(requests=1), status=500, error="status 500: broken")


def refusal(retry_after_s=None):
    return Over(outcome="failed", use=Use(requests=1), status=429, retry_after_s=retry_after_s)


def go(governor, key, now_s=0.0, *, again=False):
    """Whether an attempt is let go, denied, or (None) kept waiting."""
    governor.ask(key, ONE, again=again)
    return dict(governor.decide(now_s)).get(key)


@settings(max_examples=60)
@given(
    st.integers(1, 8),
    st.integers(1, 5),
    st.lists(st.tuples(st.floats(0, 0.4), st.sampled_from(["ok", "429", "500"])), max_size=60),
)
def test_no_span_has_more_than_the_pace_and_no_moment_more_than_in_flight(most, together, answers):
    throttle = Throttle(Pace(requests=most, per_s=1.0, in_flight=together))
    now_s, sent, flying = 0.0, [], []
    for latency_s, answer in answers:
        while (wait_s := throttle.wait_s(now_s)) != 0:
            end = (
                min(flying)[0]
                if flying and (wait_s is None or min(flying)[0] < now_s + wait_s)
                else None
            )
            now_s = now_s + wait_s if end is None else max(now_s, end)
            for item in [each for each in flying if each[0] <= now_s]:
                flying.remove(item)
                throttle.over()
                if item[1] == "429":
                    throttle.refused(item[2], now_s, None)
                else:
                    throttle.answered()
        throttle.sent(now_s)
        sent.append(now_s)
        flying.append((now_s + latency_s, answer, now_s))
        assert len(flying) <= together
        assert sum(now_s - 1.0 < at <= now_s for at in sent) <= most


def test_requests_go_together_as_far_as_the_pace_allows():
    throttle = Throttle(Pace(requests=60, per_s=60.0, in_flight=16))
    for _ in range(16):
        assert throttle.wait_s(0.0) == 0
        throttle.sent(0.0)
    assert throttle.wait_s(0.0) is None


def test_refusals_slow_everybody_down_and_answers_bring_the_pace_back():
    throttle = Throttle(Pace(requests=60, per_s=60.0))
    throttle.sent(0.0)
    throttle.sent(0.0)
    throttle.refused(0.0, 1.0, 5.0)
    throttle.refused(0.0, 1.0, 5.0)  # in flight together: one round
    assert (throttle.distance_s, throttle.refusals) == (1.0, 1)
    assert throttle.wait_s(1.0) == 5.0
    throttle.sent(6.0)
    throttle.refused(6.0, 7.0, None)
    assert throttle.distance_s == 2.0
    for _ in range(100):
        throttle.answered()
    assert throttle.distance_s == 0.0


def test_no_attempt_exceeds_the_cap_of_requests():
    governor = Governor(Caps(requests=2), None)
    governor.firsts = 3
    assert [go(governor, (0, n)) for n in range(3)] == [True, True, False]
    assert governor.ended == (
        "spent",
        "the budget of requests was used up before the end of a window",
    )


def test_a_retry_takes_nothing_from_requests_that_have_not_been_sent():
    governor = Governor(Caps(requests=2), None)
    governor.firsts = 2
    assert go(governor, (0, 1))
    governor.over((0, 1), refusal(0.0), 0.0)
    assert go(governor, (0, 2), 10.0, again=True) is False
    assert governor.ended is None
    assert go(governor, (0, 3), 10.0)


def test_what_is_in_flight_counts_at_its_worst_until_it_is_over():
    governor = Governor(Caps(tokens=150), None)
    governor.firsts = 9
    assert go(governor, (0, 1))
    assert go(governor, (0, 2)) is None  # 100 + 100 at worst
    governor.over((0, 1), OK, 1.0)
    assert dict(governor.decide(1.0)) == {(0, 2): True}  # 40 + 100
    governor.over((0, 2), OK, 2.0)
    assert go(governor, (0, 3), 2.0) is False
    assert governor.ended[1].startswith("the budget of tokens was used up")


def test_a_hidden_prompt_is_reckoned_with_once_it_was_seen():
    purse = Purse(Caps(tokens=1000), Use())
    purse.reserve((0, 1), ONE)
    purse.settle((0, 1), Use(requests=1, prompt_tokens=460, answer_tokens=40))
    assert purse.lacks(ONE) is None  # 500 + 100 + 400
    assert purse.lacks(ONE + Use(answer_tokens=1)) == "tokens"


def test_money_is_a_cap_like_any_other():
    caps = Caps(cost_usd=1e-4, prompt_usd=1.0, answer_usd=1.0)
    governor = Governor(caps, None)
    governor.firsts = 2
    assert go(governor, (0, 1))
    governor.over((0, 1), OK, 0.0)
    assert go(governor, (0, 2)) is False
    assert "the budget of cost" in governor.ended[1]


def test_what_a_dead_worker_had_in_flight_counts_at_its_worst():
    governor = Governor(Caps(), None)
    assert go(governor, (3, 1))
    governor.bury(3, 0.0)
    assert governor.purse.used == ONE


def test_the_breaker_opens_above_the_share_and_never_before_twenty_attempts():
    governor = Governor(Caps(), Pace(max_errors=0.5))
    for n in range(20):
        assert governor.ended is None
        assert go(governor, (0, n))
        governor.over((0, n), ERROR if n % 9 else OK, 0.0)
    kind, detail = governor.ended
    assert kind == "breaker"
    assert detail.startswith("17 of the last 20 attempts failed, more than 50 % (--max-errors)")
    assert go(governor, (0, 99)) is False


def test_refusals_that_are_obeyed_are_no_errors():
    governor = Governor(Caps(), Pace(max_errors=0.1))
    for n in range(60):
        assert go(governor, (0, n), 10.0 * n)
        governor.over((0, n), refusal(0.1) if n % 2 else OK, 10.0 * n + 1)
    assert governor.ended is None


def test_a_pause_longer_than_the_patience_ends_the_run():
    governor = Governor(Caps(), Pace(max_wait_s=60.0))
    assert go(governor, (0, 1))
    governor.over((0, 1), refusal(3600.0), 0.0)
    kind, detail = governor.ended
    assert kind == "told-to-wait"
    assert "left alone for 3600 s, and the run waits at most 60 s (--max-wait-s)" in detail


def test_refusals_without_end_end_the_run():
    governor, now_s = Governor(Caps(), Pace()), 0.0
    for n in range(REFUSALS):
        assert governor.ended is None
        assert go(governor, (0, n), now_s)
        governor.over((0, n), refusal(), now_s + 1)
        now_s += 1000.0
    assert governor.ended[0] == "told-to-wait"


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_waits_for_tokens_is_woken_by_no_clock(worker):
    governor = Governor(Caps(tokens=150), None)
    governor.firsts = 2
    assert go(governor, (worker, 1))
    assert go(governor, (worker, 2)) is None
    assert governor.wait_s(0.0, 0.1) == 0.1
