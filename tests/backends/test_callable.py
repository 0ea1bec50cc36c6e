"""A Python function as a target, as far as the contract does not say it."""

import asyncio
import importlib
import threading
import time
from contextlib import aclosing, suppress

import pytest
from playing import observe, request, text

from leakcheck import backends
from leakcheck.backends import Refused, Turns
from leakcheck.backends import callable as calling
from leakcheck.errors import TargetError, UsageError
from leakcheck.records import Message, Target

HERE = "backends.test_callable"
CLOSED = threading.Event()
GO_ON = threading.Event()


def thread(_asked):
    return str(threading.get_ident())


def waits(asked):
    """Returns once the other lane has been here."""
    if asked["messages"][-1]["content"] == "wait":
        assert GO_ON.wait(20)
    GO_ON.set()
    return "done"


def fails(_asked):
    raise ValueError("no such thing\nwith a second line")


def fails_late(_asked):
    yield "alpha "
    raise KeyError("beta")


def exits(_asked):
    raise SystemExit(3)


def stops(_asked):
    raise StopIteration


def refuses(_asked):
    raise Refused("too much at once", status=429, retry_after_s=2.0)


def counts(_asked):
    return 7


def lists(_asked):
    return ["alpha"]


def nothing(_asked):
    return iter(())


async def awaited(asked):
    await asyncio.sleep(0)
    return {"text": asked["messages"][-1]["content"], "id": "a1"}


def coroutine(asked):
    return awaited(asked)


def endless(_asked):
    try:
        while True:
            yield "and so on "
    finally:
        CLOSED.set()


def hangs(_asked):
    time.sleep(30)


class Engine:
    @staticmethod
    def answer(asked):
        return asked["tenant"]


def aim(name, **fields):
    return Target(base_url=f"{HERE}:{name}", model="m", backend="callable", **fields)


def talk(target, *requests):
    async def run():
        backend = backends.load("callable")(target)
        try:
            return [[chunk async for chunk in backend.stream(each)] for each in requests]
        finally:
            await backend.close()

    return asyncio.run(run())


def test_a_lane_has_one_thread_for_all_its_requests_and_it_is_not_the_loop_s():
    first, second = talk(aim("thread"), request("a"), request("b"))
    assert first == second
    assert first[0].text != str(threading.get_ident())


def test_a_function_that_waits_does_not_hold_up_another_lane():
    async def run():
        lanes = [backends.load("callable")(aim("waits")) for _ in range(2)]

        async def one(lane, words):
            sent = request("a", messages=(Message(role="user", content=words),))
            return [chunk.text async for chunk in lane.stream(sent)]

        return await asyncio.gather(one(lanes[0], "wait"), one(lanes[1], "go"))

    importlib.import_module(HERE).GO_ON.clear()
    assert asyncio.run(run()) == [["done"], ["done"]]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fails", "the function raised ValueError: no such thing"),
        ("fails_late", "the function raised KeyError: 'beta'"),
        ("exits", "the function raised RuntimeError: SystemExit 3"),
        ("stops", "the function raised RuntimeError: StopIteration"),
        ("counts", "the target sent JSON that is no answer: 7"),
        ("lists", 'the target sent JSON that is no answer: ["alpha"]'),
        ("nothing", "the function ended without an answer"),
    ],
)
def test_what_a_function_does_wrong_is_said_in_one_sentence(tmp_path, name, error):
    (seen,) = observe(tmp_path, aim(name), request("a"))
    assert (seen.outcome, seen.error) == ("unknown", error)


def test_a_function_can_refuse(tmp_path):
    (seen,) = observe(tmp_path, aim("refuses"), request("a"))
    assert (seen.outcome, seen.status, seen.retry_after_s) == ("failed", 429, 2.0)


@pytest.mark.parametrize("name", ["awaited", "coroutine"])
def test_what_a_function_gives_may_be_awaited(tmp_path, name):
    (seen,) = observe(tmp_path, aim(name), request("a"))
    assert (seen.outcome, text(seen), seen.target_id) == ("ok", "this is a", "a1")


def test_a_function_may_stand_in_a_class(tmp_path):
    (seen,) = observe(tmp_path, aim("Engine.answer"), request("a"))
    assert text(seen) == "t00"


def test_an_iterator_that_is_given_up_is_closed():
    async def run():
        backend = calling.connect(aim("endless"))
        async with aclosing(backend.stream(request("a"))) as chunks:
            async for _ in chunks:
                break
        await backend.close()

    closed = importlib.import_module(HERE).CLOSED  # pytest's own copy of this module is another
    closed.clear()
    asyncio.run(run())
    assert closed.wait(20)


def test_a_function_that_hangs_is_left_behind_and_the_next_one_called():
    async def run():
        backend = calling.connect(aim("hangs"))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                async for _ in backend.stream(request("a")):
                    pass
        backend._function = thread
        found = [chunk.text async for chunk in backend.stream(request("b"))]
        await backend.close()
        return found

    start = time.monotonic()
    assert len(asyncio.run(run())) == 1
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("json", "'json' names no function; write it as module:function"),
        ("json:", "names no function"),
        ("json:x y", "names no function"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("json:lods", "there is no function 'lods' in the module json"),
        ("json:__doc__", "there is no function"),
    ],
)
def test_what_is_no_function_is_named_in_one_sentence(name, sentence):
    with pytest.raises(UsageError, match=sentence):
        calling.find(name)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [("def f(:", "cannot be imported: SyntaxError: "), ("1 / 0", "ZeroDivisionError: division")],
)
def test_a_module_that_is_broken_is_named_in_one_sentence(code, sentence, tmp_path, monkeypatch):
    (tmp_path / "broken_of_mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        calling.find("broken_of_mine:f")


def test_a_function_object_has_a_name_that_workers_can_import():
    import json  # noqa: PLC0415 - a function of a module that everybody can import

    assert calling.name(json.loads) == "json:loads"
    with pytest.raises(UsageError, match="cannot be imported by name"):
        calling.name(lambda asked: asked)


def test_the_meeting_says_what_the_function_raises():
    with pytest.raises(TargetError, match="is broken: the function raised ValueError"):
        calling.meet(aim("fails"), Turns())


def test_the_key_itself_is_not_handed_on(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-planted-0123456789")
    asked = calling.document(aim("thread", api_key_env="MY_KEY"), request("a"))
    assert asked["api_key_env"] == "MY_KEY"
    assert "sk-planted" not in repr(asked)
