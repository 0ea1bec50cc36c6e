"""Replies that never end do not outlast the stated time; proxies and certificates."""

import asyncio
import ssl
import subprocess
import time

import pytest
from playing import observe, request

from leakcheck import backends
from leakcheck.backends import openai
from leakcheck.records import Target

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n"
EVENT = b'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "a "}}]}\n\n'


async def endless(writer, first, piece, pause_s):
    writer.write(first)
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_s)


def sent_to(serve, tmp_path, **fields):
    """One request to a server in this very process: its observation, and how long it took."""
    found = {}

    async def handle(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            await serve(writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def run():
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            aim = Target(base_url=f"http://127.0.0.1:{port}/v1", model="m", timeout_s=0.6, **fields)
            begun = time.monotonic()
            found["seen"] = await asyncio.to_thread(observe, tmp_path, aim, request("r"))
            found["took_s"] = time.monotonic() - begun

    asyncio.run(run())
    return found["seen"][-1], found["took_s"]


@pytest.mark.parametrize(
    ("first", "piece", "pause_s"),
    [
        (STREAM, EVENT, 0.02),
        (STREAM, b"d", 0.2),
        (STREAM, b"\n", 0.02),
        (JSON, b" ", 0.2),
        (b"HTTP/1.1 200 OK\r\n", b"x", 0.2),
        (b"", b"H", 0.2),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    ],
    ids=["events", "a byte now and then", "blanks", "json", "a slow header", "a slow line", "100s"],
)
def test_a_reply_that_never_ends_ends_within_the_time_of_a_request(first, piece, pause_s, tmp_path):
    seen, took_s = sent_to(lambda writer: endless(writer, first, piece, pause_s), tmp_path)
    assert seen.outcome == "unknown"
    assert took_s < 5
    assert seen.error


def test_endless_headers_are_not_taken_in(tmp_path):
    first = b"HTTP/1.1 200 OK\r\n"
    seen, took_s = sent_to(lambda w: endless(w, first, b"x-a: 1\r\n" * 100, 0.0), tmp_path)
    assert seen.outcome == "unknown"
    assert took_s < 5


def test_a_reply_above_its_size_is_given_up(tmp_path):
    seen, took_s = sent_to(
        lambda writer: endless(writer, STREAM, EVENT, 0.0), tmp_path, max_reply_bytes=20_000
    )
    assert "longer than 20000" in seen.error
    assert took_s < 5


# --- proxies and certificates --------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A private authority, and a certificate for 127.0.0.1 that it has signed."""
    folder = tmp_path_factory.mktemp("authority")
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()

    def run(*command):
        subprocess.run(command, check=True, capture_output=True, cwd=folder)

    run(*new, "-x509", "-subj", "/CN=private", "-keyout", "ca.key", "-out", "ca.pem")
    run(*new, *"-subj /CN=leaf -keyout leaf.key -out leaf.csr".split())
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    run(
        *"openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial".split(),
        *"-days 2 -extfile names -out leaf.pem".split(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "leaf.pem", folder / "leaf.key")
    return folder / "ca.pem", context


def looked_at(context, monkeypatch, **fields):
    """GET /models of an HTTPS server through a CONNECT proxy: the page or refusal, the tunnels."""
    tunnels = []

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"data": [{"id": "m"}]}'
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async def pump(reader, writer):
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def proxy(reader, writer):
        line = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0]
        tunnels.append(line)
        host, _, port = line.split()[1].partition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    async def run():
        async with (
            await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as https,
            await asyncio.start_server(proxy, "127.0.0.1", 0) as through,
        ):
            port, gate = (each.sockets[0].getsockname()[1] for each in (https, through))
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{gate}")
            for name in ("no_proxy", "NO_PROXY"):
                monkeypatch.delenv(name, raising=False)
            aim = Target(base_url=f"https://127.0.0.1:{port}/v1", model="m", **fields)
            backend = openai.connect(aim)
            try:
                return await backend.http.get(backend.http.url("models"))
            except backends.Refused as refused:
                return refused
            finally:
                await backend.close()

    return asyncio.run(run()), tunnels


def test_a_tunnel_of_the_proxy_leads_to_a_target_of_a_private_authority(authority, monkeypatch):
    ca, context = authority
    page, tunnels = looked_at(context, monkeypatch, ca_file=str(ca))
    assert page.status == 200
    assert tunnels[0].startswith("CONNECT 127.0.0.1:")


def test_a_certificate_is_checked_through_the_proxy_too(authority, monkeypatch):
    _, context = authority
    refused, tunnels = looked_at(context, monkeypatch)
    assert tunnels
    assert "certificate" in refused.message
    assert refused.lasting
    assert "\n" not in refused.message
