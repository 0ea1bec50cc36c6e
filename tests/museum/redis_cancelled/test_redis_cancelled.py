"""redis-py asyncio: a cancelled command leaves a pooled connection one reply behind.

On 20 March 2023 users of ChatGPT saw titles of other users' conversations. A request that was
cancelled after its redis command had been sent, and before the reply was read, went back into the
pool; whoever got that connection next read the reply meant for the one before.

Sources: the post-mortem, https://openai.com/index/march-20-chatgpt-outage/ ; the report,
https://github.com/redis/redis-py/issues/2624 ; that the first repair (4.5.3) was of pipelines only,
https://github.com/redis/redis-py/issues/2665 ; repaired for all commands in 4.5.4, another way in
4.5.5, https://github.com/redis/redis-py/pull/2695 .
Advisories: GHSA-24wv-mv5m-xv4h, GHSA-8fww-64cx-x8p5.
"""

import contextlib
import shutil
import socket
import subprocess

import pytest
from museum import harness

pytestmark = [pytest.mark.museum, pytest.mark.timeout(1200)]

SERVICE = harness.EXHIBITS / "redis_cancelled" / "service.py"
AIOHTTP = "aiohttp==3.14.5"
ONE_WAY_S = 0.02
"""How far away redis is: another zone, under load."""


@contextlib.contextmanager
def redis_server(log):
    """The port of an empty redis-server of this machine."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [program, "--port", str(port), *quiet], stdout=output, stderr=output
        ) as process,
    ):
        try:
            harness.until_open(port)
            yield port
        finally:
            process.terminate()


def looked_at(release, out, *flags):
    """What leakcheck makes of the chat service with a release of redis-py."""
    python = harness.environment(f"redis=={release}", AIOHTTP)
    with (
        redis_server(out / "redis.log") as port,
        harness.engine(out / "engine.log") as engine,
        harness.serving(
            *(python, SERVICE, engine["base_url"], port, ONE_WAY_S), log=out / "service.log"
        ) as service,
    ):
        assert service["release"] == release
        return harness.leakcheck(
            service["base_url"], engine["model"], "abort-storm", out=out, flags=flags
        )


@pytest.mark.parametrize("release", ["4.5.1", "4.5.3"])
def test_sessions_reach_other_users_after_cancelled_commands(release, tmp_path):
    seen = looked_at(release, tmp_path)
    assert seen.status == "leak", seen.screen
    assert seen.exit_code == 1
    assert "foreign-passphrase" in seen.anomalies


@pytest.mark.parametrize("release", ["4.5.5"])
def test_nobody_reads_the_reply_of_a_cancelled_command_once_it_is_mended(release, tmp_path):
    seen = looked_at(release, tmp_path, "--detect", "10%", *harness.FEW)
    assert seen.status == "clean", seen.screen
