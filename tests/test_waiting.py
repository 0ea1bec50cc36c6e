"""A target that is still starting is waited for, and nothing is waited for in vain."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from playing import target

from leakcheck.errors import TargetError, UsageError
from leakcheck.records import Target
from leakcheck.run import waiting


def page(status, body=b'{"data": []}'):
    head = f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def serving(*pages, port=0, after_s=0.0):
    """Answer one connection after the other with these pages, the last one for ever."""
    seen, stop = [], threading.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        seen.append(1)
        writer.write(pages[min(len(seen), len(pages)) - 1])
        await writer.drain()
        writer.close()

    async def run():
        await asyncio.sleep(after_s)
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def test_a_target_is_not_asked_more_often_than_its_pace_allows():
    """Five times in the first four seconds without one."""
    port = free_port()
    with serving(page(503), port=port) as seen, pytest.raises(TargetError):
        waiting.until_ready(target(port, "m"), 2.0, lambda _: None, apart_s=1.5)
    assert len(seen) <= 2


def test_a_target_that_is_not_there_yet_is_waited_for_and_that_is_said():
    port, said = free_port(), []
    with serving(page(200), port=port, after_s=0.6):
        waiting.until_ready(target(port, "m"), 20, said.append)
    assert len(said) == 1
    assert "waiting for http://127.0.0.1:" in said[0]
    assert "Connection refused" in said[0]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_target_that_is_loading_is_waited_for(status):
    port, said = free_port(), []
    loading = page(status, b'{"error": {"message": "Loading model"}}')
    with serving(loading, loading, page(200), port=port) as seen:
        waiting.until_ready(target(port, "m"), 20, said.append)
    assert len(seen) == 3
    assert f"status {status} (Loading model)" in said[-1]


@pytest.mark.parametrize("status", [200, 401, 403, 404, 500])
def test_any_other_answer_ends_the_wait(status):
    port = free_port()
    with serving(page(status), port=port) as seen:
        waiting.until_ready(target(port, "m"), 20, lambda _: None)
    assert len(seen) == 1


def test_a_target_that_never_comes_is_named_in_one_sentence_in_time():
    begun = time.monotonic()
    with pytest.raises(TargetError, match=r"was not ready within 0\.8 s: .*Connection refused"):
        waiting.until_ready(target(free_port(), "m"), 0.8, lambda _: None)
    assert time.monotonic() - begun < 5


def test_what_has_no_url_is_not_waited_for():
    with pytest.raises(UsageError, match="--wait-ready: 'module:function' is no URL"):
        waiting.until_ready(Target(base_url="module:function", model="m"), 1, lambda _: None)
