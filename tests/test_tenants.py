"""Several identities at one target, from the command line to what a report says of a leak."""

import asyncio
import collections
import itertools
import random
from dataclasses import replace

import desync
import pretending
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import request

from leakcheck import analyzer, backends, scenario, survey
from leakcheck.analyzer import judge
from leakcheck.analyzer.confirm import confirmations
from leakcheck.backends.openai import body
from leakcheck.cli import asked
from leakcheck.cli.parser import parser
from leakcheck.errors import UsageError
from leakcheck.history import boundaries
from leakcheck.passphrase import load_words
from leakcheck.records import BOUNDARIES, Target, TargetFacts, Tenant
from leakcheck.report import markdown, terminal
from leakcheck.report import plain as plain_words

SECRET = "sk-not-to-be-shown-0123456789"
KEYS = ("alice", "bob")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LEAKCHECK_TARGET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("ALICE", "key-of-alice"), ("BOB", "key-of-bob"), ("ORG", "org-1")):
        monkeypatch.setenv(name, value)


def target_of(*flags):
    given = ["run", "--target", "http://127.0.0.1:9/v1", "--model", "m", *flags]
    return asked.setup(parser().parse_args(given), None).target


# --- the command line ----------------------------------------------------------------------------


def test_a_tenant_has_a_key_headers_a_salt_and_a_user():
    aim = target_of(
        "--tenant", "alice=ALICE,OpenAI-Organization=ORG,salt=s1,user=a", "--tenant", "bob=BOB"
    )
    assert aim.tenants == (
        Tenant(
            name="alice",
            api_key_env="ALICE",
            headers_env={"OpenAI-Organization": "ORG"},
            cache_salt="s1",
            user="a",
        ),
        Tenant(name="bob", api_key_env="BOB"),
    )
    assert aim.api_key_env == "ALICE"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["alice"], "not of the form NAME=ENV_VAR"),
        (["=ALICE"], "not of the form NAME=ENV_VAR"),
        (["a b=ALICE"], "not of the form NAME=ENV_VAR"),
        ([f"alice={SECRET}"], "no environment variable .it is not repeated here"),
        (["alice=NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is not set; it should hold its API key"),
        (["alice=ALICE,X-Org"], "--tenant alice: a part after a comma is not of the form"),
        (["alice=ALICE,X-Org=NOT_SET"], "NOT_SET is not set; it should hold the header X-Org"),
        ([f"alice=ALICE,X-Org={SECRET}"], "--tenant alice: what is named for the header X-Org"),
        (["alice=ALICE,user=a,user=b"], "user is given twice"),
        (["alice=ALICE", "alice=BOB"], "'alice' is given twice; each tenant needs its own name"),
        (["alice=ALICE"], "'alice' is alone; give two or more"),
        (["alice=ALICE", "bob=ALICE"], "alice .ALICE. and bob .ALICE. have the same API key"),
    ],
)
def test_a_wrong_tenant_is_refused_in_one_sentence_without_its_key(flags, sentence):
    with pytest.raises(UsageError, match=sentence) as caught:
        target_of(*itertools.chain.from_iterable(("--tenant", flag) for flag in flags))
    said = str(caught.value)
    assert "\n" not in said
    assert SECRET not in said
    assert "key-of-alice" not in said


def test_the_embedded_engine_has_no_tenants():
    given = parser().parse_args(["run", "--embedded", "--tenant", "a=ALICE", "--tenant", "b=BOB"])
    with pytest.raises(UsageError, match="the embedded engine has no API keys"):
        asked.setup(given, None)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--replica-header", "X Y"], "--replica-header: 'X Y' is no name of a header"),
        (["--wait-ready", "0"], "--wait-ready: 0 is out of range"),
        (["--wait-ready", "nan"], "--wait-ready: nan is out of range"),
    ],
)
def test_other_flags_are_checked_too(flags, sentence):
    with pytest.raises(UsageError, match=sentence):
        target_of(*flags)


# --- dealing -------------------------------------------------------------------------------------


@given(
    tenants=st.integers(1, 40),
    keys=st.integers(2, 5),
    again=st.integers(0, 10),
    seed=st.integers(0, 99),
)
def test_a_tenant_of_the_plan_keeps_one_key_and_keys_are_dealt_evenly(tenants, keys, again, seed):
    names = [f"k{n}" for n in range(keys)]
    owners = [f"t{n % tenants}" for n in range(tenants + again)]
    requests = [request(f"r{n}", tenant=owner) for n, owner in enumerate(owners)]
    dealt = scenario.dealt(requests, names, random.Random(seed))
    key_of = {}
    for each in dealt:
        assert key_of.setdefault(each.tenant, each.key) == each.key
    counts = collections.Counter(dict.fromkeys(names, 0))
    counts.update(key_of.values())
    if tenants >= 2 * keys:
        assert max(counts.values()) - min(counts.values()) <= -(-tenants // keys)
        assert max(counts.values()) <= -(-tenants // keys)


def plan(name, windows=12, *, tenants=KEYS, seed=0):
    path = scenario.find(name)
    read = scenario.read(path, {"load.windows": windows})
    facts = TargetFacts(block_tokens=16, overhead_tokens=2, tenants=tenants)
    return scenario.plan(read, seed=seed, facts=facts, words=load_words(), style="phrase")


@pytest.mark.parametrize("path", scenario.shipped_files(), ids=lambda path: path.stem)
def test_every_shape_is_dealt_to_both_keys_and_twins_keep_theirs(path):
    of = plan(path.stem, windows=6)
    by_id = {each.id: each for each in of.requests}
    assert {each.key for each in of.requests} == set(KEYS)
    for each in of.requests:
        assert each.twin is None or by_id[each.twin].key == each.key
    assert of == plan(path.stem, windows=6)
    unkeyed = plan(path.stem, windows=6, tenants=())
    assert {each.key for each in unkeyed.requests} == {None}
    assert [each.messages for each in of.requests] == [each.messages for each in unkeyed.requests]


@pytest.mark.parametrize("name", ["sequential-carry-over", "duplicate-ids", "prefix-overlap"])
def test_partners_have_the_same_key_and_another_one(name):
    of = plan(name, windows=40)
    by_id = {each.id: each for each in of.requests}
    pairs = [(each, by_id[each.partner]) for each in of.requests if each.partner]
    assert {one.key == other.key for one, other in pairs} == {True, False}


def test_replays_keep_the_key():
    of = plan("rare-token-passphrase", windows=2)

    def forgets(sent, company):
        lost = len(company) > 1 and sent.id == of.requests[0].id
        return pretending.Reply(text="nothing" if lost else pretending.obedient(sent, ()).text)

    lost = pretending.played(of, forgets)
    replays = confirmations(lost)
    assert replays
    keys = {each.id: each.key for each in of.requests}
    assert all(each.key == keys[each.replays] for each in replays)


# --- what goes over the wire ---------------------------------------------------------------------


def test_each_request_is_sent_with_the_key_of_its_tenant():
    async def run():
        async with desync.served() as (server, port):
            aim = Target(
                base_url=f"http://127.0.0.1:{port}/v1",
                model="m",
                tenants=(
                    Tenant(name="alice", api_key_env="ALICE", headers_env={"X-Org": "ORG"}),
                    Tenant(name="bob", api_key_env="BOB"),
                ),
            )
            backend = backends.load("openai")(aim)
            for key in ("alice", "bob"):
                async for _ in backend.stream(request("r", key=key, stream=False)):
                    pass
            await backend.close()
        return server.heads

    one, other = asyncio.run(run())
    assert "bearer key-of-alice" in one
    assert "x-org: org-1" in one
    assert "bearer key-of-bob" in other
    assert "x-org" not in other


def test_the_user_and_salt_of_a_tenant_are_sent_where_the_request_says_none():
    aim = Target(
        base_url="http://h/v1",
        model="m",
        tenants=(Tenant(name="alice", api_key_env="A", cache_salt="s1", user="a"),),
    )
    sent = body(aim, request("r", key="alice"))
    assert (sent["user"], sent["cache_salt"]) == ("a", "s1")
    assert body(aim, request("r", key="alice", cache_salt="own"))["cache_salt"] == "own"
    assert "user" not in body(aim, request("r"))


def test_the_preflight_names_the_tenant_whose_key_does_not_work(monkeypatch):
    tried = []

    def meet(aim, _turns):
        tried.append(aim.api_key_env)
        if aim.api_key_env == "BOB":
            raise UsageError("the target does not accept the API key in BOB (401)")
        return aim, ("m",)

    monkeypatch.setattr("leakcheck.plugin.find", lambda *_: meet)
    aim = Target(
        base_url="http://h/v1",
        model="m",
        tenants=(Tenant(name="alice", api_key_env="ALICE"), Tenant(name="bob", api_key_env="BOB")),
    )
    with pytest.raises(UsageError, match=r"^tenant bob: the target does not accept the API key"):
        survey.meet(aim)
    assert tried == ["ALICE", "BOB"]


# --- what is said of a leak ----------------------------------------------------------------------


def swapped(sent, company):
    """Everybody is given the answer of somebody with another key, where there is one."""
    other = next((each for each in company if each.key != sent.key), sent)
    return pretending.Reply(text=pretending.obedient(other, ()).text)


def test_a_leak_names_both_keys_and_is_counted_among_the_pairs_of_its_boundary():
    of = plan("rare-token-passphrase", windows=2)
    verdict = judge(pretending.played(of, swapped), of)
    found = verdict.findings[0]
    assert found.evidence["boundary"] == boundaries.ANOTHER_KEY
    by, to = found.evidence["source_key"], found.evidence["recipient_key"]
    assert {by, to} == set(KEYS)
    assert f"a secret sent with the key of {by} was shown to {to}" in found.explanation
    _, *rows = verdict.tables[BOUNDARIES]
    counts = {row[0]: row[1:] for row in rows}
    leaks, together, apart = counts["another key"]
    assert 0 < leaks <= together + apart
    assert counts["same key"][0] == 0
    assert counts["same key"][1] > 0
    assert "sent with another API key" in plain_words.verdict(verdict).found


def test_no_leak_between_keys_has_its_denominator():
    of = plan("rare-token-passphrase", windows=2)
    verdict = judge(pretending.played(of, pretending.obedient), of)
    _, *rows = verdict.tables[BOUNDARIES]
    counts = {row[0]: row[1:] for row in rows}
    assert counts["another key"][0] == 0
    assert counts["another key"][1] > 0


def test_screen_and_markdown_say_which_keys():
    of = plan("rare-token-passphrase", windows=2)
    report = analyzer.analyze(pretending.played(of, swapped))
    tenants = tuple(Tenant(name=name, api_key_env=name.upper()) for name in KEYS)
    origin = replace(report.provenance, target=replace(report.provenance.target, tenants=tenants))
    report = replace(report, provenance=origin)
    screen = " ".join(terminal.render(report).split())
    assert "a secret sent with the key of" in screen
    assert "leaks between keys " in screen
    text = markdown.render(report)
    assert "| another key |" in text
