"""What is asked of every real engine: healthy ones are acquitted, and their noise is graded.

The server of an engine lasts as long as its runs of all scenarios: three seeds against one server
leave in its cache what the next ones meet there. Run by `make test-real`; an engine that cannot be
installed is skipped, with the reason.
"""

import contextlib

import pytest
from real import environments
from real.engines import engines
from real.running import run
from real.serving import served

from leakcheck import doctor, history, scenario
from leakcheck.checks import _mixed

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

SMALL = (
    "--windows", "1", "--requests", "4",
    "--max-tokens", "32", "--set", "load.passphrase_words=5",
    "--set", "cache-pressure:traffic.working_set_tokens=1200",
    "--set", "concurrency-sweep:traffic.smallest=3",
    "--set", "connections:load.requests=2",
    "--set", "mixed-batch-differential:traffic.recipients=1",
    "--set", "multi-turn:traffic.kinds=2",
    "--set", "parameter-twins:load.requests=5",
    "--set", "parameter-twins:traffic.recipients=2",
    "--set", "parameter-twins:traffic.hot=2",
    "--set", "prefix-overlap:load.requests=6",
    "--set", "ragged-batch:load.windows=2",
    "--set", "row-turnover:load.requests=7",
)  # fmt: skip
"""One window of every scenario a seed (two of ragged-batch, the first of one request), about 150
requests and their replays. So few windows exclude no rate of leaks; what is tried here is that
nobody is accused.
"""
ALONE = {"first-request", "sequential-carry-over"}
"""Scenarios that send one request at a time."""
OPEN = (
    *("windows", "answered", "echo", "tickets", "overlap", "arms", "cache hits", "the bound"),
    "no bias was tested",
)
"""What so few requests may leave open: each is a share whose lower bound is low, or a count. One
token that is drawn for a bias has no two letters, by which its answer would be known, in a tenth.
"""
NOISE = "mixed-batch-differential"


def interpreter(engine):
    """The interpreter of an engine's environment; skips the test where there is none."""
    there = environments.found(engine.environment)
    if isinstance(there, environments.Missing):
        pytest.skip(f"{engine.name}: {there.reason}")
    return there


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """A function from an engine to its server, which runs until that of another is asked for."""
    running = {}
    with contextlib.ExitStack() as stack:

        def server_of(engine):
            if engine.name not in running:
                stack.close()
                running.clear()
                starting = served(engine, interpreter(engine), tmp_path_factory.mktemp("server"))
                running[engine.name] = stack.enter_context(starting)
            return running[engine.name]

        yield server_of


def by_seed():
    """Every engine with each of its seeds."""
    for engine in engines():
        for seed in engine.seeds:
            yield pytest.param(engine, seed, id=f"{engine.name}, seed {seed}")


@pytest.mark.parametrize(("engine", "seed"), [*by_seed()])
def test_a_healthy_engine_is_acquitted_by_the_whole_set(
    up, engine, seed, tmp_path, record_property
):
    server = up(engine)
    played = [path.stem for path in scenario.shipped_files() if path.stem not in engine.breaks]
    prefixes = ("--set", f"prefix-overlap:load.windows={engine.prefix_windows}")
    done = run(engine, server, tmp_path, *played, *SMALL, *prefixes, "--seed", str(seed))
    told(record_property, engine, f"all scenarios, seed {seed}", done)
    assert not done.found("leak", "corruption", "error")
    assert (done.code, done.report["status"]) in {(0, "clean"), (3, "inconclusive")}
    assert sorted(done.verdicts) == sorted(played)
    for name, verdict in done.verdicts.items():
        assert verdict["leak_rate"]["events"] == 0
        assert (verdict["status"] == "inconclusive") == bool(verdict["reasons"])
        for reason in verdict["reasons"]:
            known = (*OPEN, *engine.leaves_open)
            assert any(each in reason.partition(":")[0] for each in known), (name, reason)
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


def noisy():
    """Every engine whose noise is known beforehand."""
    for engine in engines():
        if engine.noise is not None:
            yield pytest.param(engine, id=engine.name)


@pytest.mark.parametrize("engine", [*noisy()])
def test_noise_is_graded_and_never_taken_for_a_leak(engine, tmp_path, record_property):
    """On a server of its own, as grades hold for other settings than the usual ones. Few windows
    are graded by log-probabilities, as `leakcheck doctor` does.
    """
    expected = engine.noise
    with served(engine, interpreter(engine), tmp_path, expected.command) as server:
        done = run(
            engine, server, tmp_path, NOISE, "--seed", "1", "--windows", str(expected.windows),
            "--requests", "6", "--set", "traffic.recipients=2",
        )  # fmt: skip
    seen = doctor.noise(_mixed.trials(history.read(done.folder).scenario(NOISE)))
    told(record_property, engine, f"noise: {seen.grade}, in company {drift(seen)}", done)
    assert not done.found("leak", "corruption", "error")
    assert seen.company_compared > 0
    assert seen.grade == expected.grade, seen


def drift(seen):
    """What the log-probabilities differed by, in words."""
    return f"{seen.company_differ} of {seen.company_compared}, {seen.company_drift_nats:.2g} nats"
