import itertools

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck import scenario
from leakcheck.errors import ScenarioError
from leakcheck.passphrase import FALSE_MATCH_LIMIT, load_words, require_entropy
from leakcheck.records import TargetFacts

GOOD = """
schema = 1
name = "example"
version = 1
summary = "An example."
[load]
windows = 3
[traffic]
use = "concurrent"
[checks.foreign_passphrase]
[gate]
min_windows = 1
"""
FACTS = TargetFacts(block_tokens=16, overhead_tokens=2)


def written(tmp_path, text):
    path = tmp_path / "example.toml"
    path.write_text(text)
    return path


def planned(path, seed=0, **overrides):
    read = scenario.read(path, overrides)
    return scenario.plan(read, seed=seed, facts=FACTS, words=load_words(), style="rare-token")


def test_a_valid_file_is_read(tmp_path):
    read = scenario.read(written(tmp_path, GOOD))
    assert (read.name, read.load.windows, read.traffic.name) == ("example", 3, "concurrent")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("windows = 3", "window = 3", r"load: unknown key 'window'; did you mean 'windows'\?"),
        ("windows = 3", 'windows = "3"', "load.windows: '3' is not of type integer"),
        ("windows = 3", "windows = 0", "load.windows: 0 is out of range; use 1 to 100000"),
        ("windows = 3", "windows = 99999999999999999999", "is out of range; use 1 to 100000"),
        ("windows = 3", "windows = 3\nworkers = 1000", "load.workers: 1000 is out of range"),
        ("min_windows = 1", "min_windows = 1\nmin_echo = nan", "nan is not of type number"),
        ('name = "example"', 'name = "a/b"', "name: 'a/b' is no name"),
        ("[checks.foreign_passphrase]", "[checks.arms]", "without it no leak would be seen"),
        ("windows = 3", "windows = 3\ncontrol = 1.5", "load.control: 1.5 is out of range"),
        ("windows = 3", "", "load.windows: missing"),
        ('use = "concurrent"', 'use = "concurent"', "did you mean 'concurrent'"),
        ('use = "concurrent"', "", "traffic.use: missing"),
        ('use = "concurrent"', 'use = "concurrent"\nelicit = 1', "did you mean 'eliciting'"),
        ("[checks.foreign_passphrase]", "[checks.foreign_pass]", "did you mean 'foreign_passphr"),
        ("schema = 1", "schema = 2", "schema: 2 is not supported; use 1"),
        ("version = 1", "", "version: None is not of type integer"),
        ("[gate]", "[gates]", r"unknown key 'gates'; did you mean 'gate'\?"),
        ("min_windows = 1", "min_windows = 9", "can never be reached with load.windows = 3"),
        ("[load]", "[load", "not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_file_and_key(tmp_path, old, new, sentence):
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ScenarioError, match=sentence) as caught:
        scenario.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value).replace("(at", "")


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        scenario.read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScenarioError, match=r"no scenario file at .*nothing\.toml"):
        scenario.find(str(tmp_path / "nothing.toml"))


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(ScenarioError, match="did you mean 'prefix-overlap'"):
        scenario.find("prefix-overlp")


def test_an_override_of_one_scenario_changes_no_other_and_comes_before_that_of_all(tmp_path):
    path = written(tmp_path, GOOD)
    both = {"example:load.windows": 7, "load.windows": 5, "other:load.windows": 9}
    assert scenario.read(path, both).load.windows == 7
    assert scenario.read(path, {"other:load.windows": 9}) == scenario.read(path)


def test_overrides_change_values_and_the_digest(tmp_path):
    path = written(tmp_path, GOOD)
    plain, changed = scenario.read(path), scenario.read(path, {"load.windows": 7})
    assert (changed.load.windows, plain.load.windows) == (7, 3)
    assert plain.digest != changed.digest


def test_equal_seeds_give_equal_plans_byte_for_byte(tmp_path):
    path = written(tmp_path, GOOD)
    assert orjson.dumps(planned(path, 5)) == orjson.dumps(planned(path, 5))
    assert orjson.dumps(planned(path, 5)) != orjson.dumps(planned(path, 6))


def test_more_windows_leave_the_earlier_ones_as_they_were(tmp_path):
    path = written(tmp_path, GOOD)
    short, long = planned(path).requests, planned(path, **{"load.windows": 5}).requests
    assert long[: len(short)] == short


SHIPPED = scenario.shipped_files()


def test_these_scenarios_are_shipped():
    assert [path.stem for path in SHIPPED] == [
        "abort-storm", "cache-pressure", "concurrency-sweep", "connections", "control-group",
        "duplicate-ids", "first-request", "identity-twins", "mixed-batch-differential",
        "multi-turn", "parameter-twins", "prefix-overlap", "ragged-batch", "rare-token-passphrase",
        "row-turnover", "sequential-carry-over",
    ]  # fmt: skip


def test_a_scenario_that_claims_to_exclude_no_rate_is_asked_for_none(tmp_path):
    modest = GOOD.replace("[gate]", "[gate]\ndetect = 1.0", 1)
    path = written(tmp_path, modest)
    assert scenario.read(path, {"gate.detect": 0.05}).gate.detect == 1.0


CHAINS = {"connections", "row-turnover"}
"""Some of their lanes send one request after the other on purpose."""


@pytest.mark.parametrize("path", [p for p in SHIPPED if p.stem not in CHAINS], ids=lambda p: p.stem)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_two_requests_of_a_phase_share_a_lane_only_where_one_is_aimed_at_the_other(path, seed):
    plan = planned(path, seed, **{"load.windows": 2})
    for _, group in itertools.groupby(plan.requests, key=lambda r: (r.window, r.phase)):
        taken = {}
        for r in group:
            before = taken.setdefault((r.worker, r.lane), r)
            if before is not r:
                assert (r.partner, r.start_offset_s > 0) == (before.id, True)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_request_carries_its_own_phrases_and_nobody_elses(path, seed):
    requests = planned(path, seed, **{"load.windows": 3}).requests
    texts = {r.id: " ".join(m.content for m in r.messages) for r in requests}
    phrases = [
        (r.id, r.twin, p.text)
        for r in requests
        for p in (r.ticket, r.passphrase, r.withheld)
        if p is not None
    ]
    withheld = {r.withheld.text for r in requests if r.withheld is not None}
    for reader, text in texts.items():
        for owner, twin, phrase in phrases:
            mine = reader in (owner, twin) or requests_are_twins(requests, reader, owner)
            assert (phrase in text) == (mine and phrase not in withheld)


def requests_are_twins(requests, one, other):
    by_id = {r.id: r for r in requests}
    root = {i: by_id[i].twin or i for i in (one, other)}
    return root[one] == root[other]


def windows_for(path, per_word, count=3):
    of = scenario.read(path)
    facts = TargetFacts(tokens_per_phrase_word=per_word)
    ids = itertools.count()
    return [
        request
        for index in range(count)
        for request in scenario.plan_window(
            of, index, seed=5, facts=facts, words=load_words(), style="phrase", ids=ids
        )
    ]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_who_is_asked_has_room_for_its_ticket_its_own_phrase_and_anothers(path):
    for request in windows_for(path, 1.9):
        if request.ask == "eliciting" and request.ticket is not None:
            needed = 3 * len(request.ticket.words) * 1.9
            assert request.sampling.max_tokens >= needed + 5


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_one_token_a_word_needs_no_more_than_the_scenarios_give(path):
    load = scenario.read(path).load
    assert scenario.room(load, TargetFacts()) <= load.max_tokens
    assert windows_for(path, 1.0) == windows_for(path, 0.5)


def test_one_run_of_all_scenarios_has_room_for_tokenizers_of_many_tokens_a_word():
    """A tenth of the windows: chances grow with phrases times characters."""
    facts, words, ids = TargetFacts(tokens_per_phrase_word=5.0), load_words(), itertools.count()
    read = [scenario.read(path) for path in SHIPPED]
    fewer = [
        scenario.read(path, {"load.windows": -(-each.load.windows // 10)})
        for path, each in zip(SHIPPED, read, strict=True)
    ]
    plans = [
        scenario.plan(each, seed=0, facts=facts, words=words, style="phrase", ids=ids)
        for each in fewer
    ]
    assert 100 * require_entropy(plans, limit=1.0) < FALSE_MATCH_LIMIT
