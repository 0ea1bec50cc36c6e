"""What is asked of every real engine: healthy ones are acquitted, and their noise is graded.

The server of an engine lasts as long as its tests: three seeds against one server leave in its
cache what the next ones meet there. Run by `make test-real`; an engine that cannot be installed is
skipped, with the reason.
"""

import pytest
from real import environments
from real.engines import engines
from real.running import run
from real.serving import served

from leakcheck import scenario

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

SEEDS = (1, 2, 3)
SMALL = (
    "--windows", "1", "--requests", "5",
    "--set", "cache-pressure:traffic.working_set_tokens=1200",
    "--set", "concurrency-sweep:traffic.smallest=3",
    "--set", "connections:load.requests=2",
    "--set", "mixed-batch-differential:traffic.recipients=2",
    "--set", "parameter-twins:traffic.recipients=2",
    "--set", "parameter-twins:traffic.hot=2",
    "--set", "ragged-batch:load.windows=2",
)  # fmt: skip
"""One window of every scenario a seed (two of ragged-batch, whose first is of one request), about
140 requests: at one to four a second a minute or two. So few windows exclude no rate of leaks; what
is tried here is that nobody is accused.
"""
ALONE = {"first-request", "sequential-carry-over"}
"""Scenarios that send one request at a time."""
OPEN = ("windows", "answered", "echo", "tickets", "overlap", "arms", "cache hits", "the bound")
"""What so few requests may leave open: each is a share whose lower bound is low, or a count."""


def interpreter(engine):
    """The interpreter of an engine's environment; skips the test where there is none."""
    there = environments.found(engine.environment)
    if isinstance(there, environments.Missing):
        pytest.skip(f"{engine.name}: {there.reason}")
    return there


@pytest.fixture(scope="module", params=engines(), ids=lambda engine: engine.name)
def up(request, tmp_path_factory):
    """An engine and its server."""
    engine = request.param
    python = interpreter(engine)
    with served(engine, python, tmp_path_factory.mktemp("server")) as server:
        yield engine, server


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_engine_is_acquitted_by_the_whole_set(up, seed, tmp_path, record_property):
    engine, server = up
    done = run(engine, server, tmp_path, *SMALL, "--seed", str(seed))
    told(record_property, engine, f"all scenarios, seed {seed}", done)
    assert not done.found("leak", "corruption", "error")
    assert (done.code, done.report["status"]) in {(0, "clean"), (3, "inconclusive")}
    assert len(done.verdicts) == len(scenario.shipped_files())
    for name, verdict in done.verdicts.items():
        assert verdict["leak_rate"]["events"] == 0
        assert (verdict["status"] == "inconclusive") == bool(verdict["reasons"])
        for reason in verdict["reasons"]:
            assert any(each in reason.partition(":")[0] for each in OPEN), (name, reason)
        assert_exposed(engine, done.exposure(name), name)
    assert_cached(engine, done)
    assert done.cpu_s < engine.full_set_cpu_s


def assert_exposed(engine, exposure, name):
    """Requests overlapped, by the clock of the client and by what the server says of itself."""
    assert share(exposure["answered"]) >= 0.9, name
    if name in ALONE:
        return
    assert share(exposure["overlap"]) >= 0.5, name
    if engine.metrics and name == "rare-token-passphrase":
        assert exposure["running"]["measured"] > 1, name


def share(exposure):
    """Events over trials."""
    measured = exposure["measured"]
    return measured["events"] / measured["trials"]


def assert_cached(engine, done):
    """Prefixes that two requests share did come out of the cache."""
    if engine.cached_tokens:
        assert done.exposure("prefix-overlap")["cache hits"]["measured"]["events"] > 0


def told(record_property, engine, what, done):
    """A line of the table at the end."""
    counts = done.report["requests"]
    times = (f"{done.took_s:.0f}", f"{done.cpu_s:.0f}")
    row = (engine.name, what, done.report["status"], counts["attempts"], *times)
    record_property("run", row)


@pytest.mark.parametrize(
    "engine",
    [each for each in engines() if each.noise is not None],
    ids=lambda engine: engine.name,
)
def test_noise_is_graded_and_never_taken_for_a_leak(engine, tmp_path, record_property):
    """On a server of its own: some grades hold for other settings than the usual ones."""
    noise = engine.noise
    with served(engine, interpreter(engine), tmp_path, noise.command) as server:
        done = run(
            engine, server, tmp_path, "mixed-batch-differential", "--seed", "1", *noise.flags,
            "--windows", str(noise.windows), "--requests", str(noise.requests),
            "--max-tokens", str(noise.max_tokens),
            "--set", f"traffic.recipients={noise.recipients}",
        )  # fmt: skip
    told(record_property, engine, f"noise, {noise.grade} expected", done)
    assert not done.found("leak", "corruption", "error")
    graded = [note for note in done.notes("mixed-batch-differential") if "grade" in note]
    assert graded[0].startswith(f"grade {noise.grade}:"), graded
