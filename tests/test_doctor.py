"""`leakcheck doctor` from the command line, against real sockets, and what its findings mean."""

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from answering import MODELS, answering, only_chat, refused, said
from backends.servers import anthropic, llamacpp, ollama, tgi, wire

from leakcheck import doctor, evidence, planning, scenario
from leakcheck.checks._mixed import Trial
from leakcheck.checks._trajectories import Comparison
from leakcheck.cli import main
from leakcheck.doctor.outlook import Known, outlooks
from leakcheck.records import Abilities, Diagnosis, Exposure, Noise, Target, TargetFacts
from leakcheck.report import diagnosis
from leakcheck.run.embedded import start
from leakcheck.run.session import Setup
from leakcheck.traffic.mixed_batch import ALONE, ALONE_AGAIN, NEUTRAL

ABLE = Abilities(base_url="http://h/v1", backend="openai", api="chat", model="m", pieces=16)
FACTS = TargetFacts(block_tokens=16, reports_cached_tokens=True, reports_logprobs=True)


# --- what findings mean --------------------------------------------------------------------------


def outlook(
    name,
    *,
    able=ABLE,
    facts=FACTS,
    echo=(20, 20),
    noise=None,
    hits=True,
    exposures=(),
    unmeasured=(),
    seen=None,
):
    known = Known(
        abilities=able,
        facts=facts,
        noise=noise,
        echo=None if echo is None else evidence.rate(*echo),
        cache_hits=hits,
        exposures=exposures,
        seen=seen,
        unmeasured=unmeasured,
    )
    (found,) = outlooks([scenario.read(scenario.find(name), {})], known)
    return found


def seen(events, trials):
    return planning.Seen(
        where="a run",
        echo=evidence.rate(events, trials),
        asked=0,
        recipients=0,
        trials=0,
        planted=0,
        requests_per_s=1.0,
        told=0,
        prompt_tokens=None,
        answer_tokens=None,
    )


def test_a_target_that_has_everything_can_be_judged_without_remarks():
    found = outlook("prefix-overlap")
    assert (found.can, found.reasons, found.remarks) == (True, (), ())
    assert found.requests > found.windows > 0


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        (
            "rare-token-passphrase",
            {"echo": (1, 20)},
            "repeat their own passphrase too seldom: 1 of",
        ),
        ("prefix-overlap", {"facts": TargetFacts()}, "does not report cached tokens"),
        ("prefix-overlap", {"hits": False}, "never reported a cache hit"),
        (
            "rare-token-passphrase",
            {
                "exposures": (
                    Exposure(
                        name="running",
                        measured=1.0,
                        minimum=2.0,
                        enough=False,
                        text="one at a time",
                    ),
                )
            },
            "serve one request at a time",
        ),
        (
            "parameter-twins",
            {
                "able": Abilities(
                    base_url="u",
                    backend="openai",
                    api="chat",
                    model="m",
                    seed=False,
                    stop=False,
                    refuses=("logit_bias",),
                )
            },
            "nothing to test",
        ),
        (
            "prefix-overlap",
            {
                "able": Abilities(
                    base_url="u", backend="openai", api="chat", model="m", context_tokens=64
                )
            },
            "and the target has 64",
        ),
    ],
)
def test_what_is_missing_makes_a_scenario_inconclusive_beforehand(name, fields, sentence):
    found = outlook(name, **fields)
    assert found.can is False
    assert any(sentence in reason for reason in found.reasons), found.reasons


def test_biases_are_tested_by_what_the_target_takes_of_them_whatever_else_it_follows():
    neither = replace(ABLE, refuses=("logit_bias",), unsaid=("allowed_token_ids",))
    found = outlook("row-turnover", able=neither)
    assert found.can is False
    assert found.reasons == (
        "it takes and follows none of logit_bias, allowed_token_ids: nothing to test",
    )
    one = outlook("row-turnover", able=replace(ABLE, seed=False, refuses=("allowed_token_ids",)))
    assert one.can is True
    assert any("allowed_token_ids" in each and "seed" not in each for each in one.remarks)


def test_what_was_not_measured_leaves_a_scenario_open():
    assert outlook("rare-token-passphrase", echo=None).can is None
    assert outlook("rare-token-passphrase", echo=(9, 20)).can is None


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("mixed-batch-differential", {"facts": TargetFacts()}, "texts are compared"),
        (
            "mixed-batch-differential",
            {
                "noise": Noise(
                    grade="D2",
                    windows=4,
                    alone_differ=2,
                    alone_compared=9,
                    company_differ=4,
                    company_compared=9,
                )
            },
            "does not repeat itself even alone",
        ),
        ("identity-twins", {}, "keeps cache salts apart is not known"),
        (
            "abort-storm",
            {"able": Abilities(base_url="u", backend="openai", api="chat", model="m", pieces=1)},
            "hang up by the clock only",
        ),
    ],
)
def test_what_is_weaker_is_a_remark(name, fields, sentence):
    found = outlook(name, **fields)
    assert found.can is True
    assert any(sentence in remark for remark in found.remarks), found.remarks


def trial(alone, company):
    return Trial(
        window=0,
        free=False,
        sent={ALONE: "a"},
        compared={ALONE_AGAIN: alone, NEUTRAL: company},
        neutrals=None,
    )


SAME, NEAR = Comparison(at=None, drift=0.0), Comparison(at=None, drift=0.2)
OTHER, TEXT = Comparison(at=3, drift=0.1), Comparison(at=None, unit="character")


@pytest.mark.parametrize(
    ("alone", "company", "grade"),
    [
        (SAME, SAME, "D0"),
        (SAME, NEAR, "D1"),
        (SAME, OTHER, "D1"),
        (OTHER, OTHER, "D2"),
        (TEXT, TEXT, None),
    ],
)
def test_the_grade_is_by_tokens_and_where_none_differs_by_log_probabilities(alone, company, grade):
    assert doctor.noise([trial(alone, company)]).grade == grade


def test_nothing_is_called_fit_that_was_not_measured():
    for part in ("survey", "abilities", "audition", "noise"):
        found = outlook("rare-token-passphrase", unmeasured=(part,))
        assert found.can is None
        assert found.reasons == (f"not measured: {diagnosis.PARTS[part]}",)


def test_what_does_not_need_company_is_open_to_none_of_the_noise():
    assert outlook("sequential-carry-over", unmeasured=("noise",)).can is True


def test_where_owners_may_repeat_too_seldom_the_windows_are_those_of_the_rate_that_was_seen():
    found = outlook("rare-token-passphrase", echo=(7, 10), seen=seen(7, 10))
    assert found.can is None
    assert "at least 39 %, and a run has to show 50 %" in found.reasons[0]
    assert found.windows is not None


# --- on the command line -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded():
    with start(("--model=witness",)) as started:
        yield started.ready["base_url"]


@pytest.fixture(scope="module")
def printed(embedded):
    """The record of the embedded engine, as printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["doctor", embedded.removesuffix("/v1"), "--json", "--seed=7"]) == 0
    return json.loads(out.getvalue())


def test_the_embedded_engine_is_found_to_be_what_it_is(printed):
    able = printed["abilities"]
    assert (able["model"], able["apis"]) == ("witness", ["chat", "completions"])
    assert (able["logprobs"], able["salts"], able["context_tokens"]) == (5, "apart", 1024)
    assert able["metrics"] == "leakcheck_engine_running"
    assert printed["facts"]["block_tokens"] == 16
    assert printed["noise"]["alone_differ"] == 0


def test_every_shipped_scenario_has_an_outlook_and_on_the_embedded_engine_all_can_be_judged(
    printed,
):
    names = [each["scenario"] for each in printed["outlooks"]]
    assert names == [path.stem for path in scenario.shipped_files()]
    assert {each["can"] for each in printed["outlooks"]} == {True}


def test_the_screen_names_everything_and_fits_its_width(printed):
    screen = diagnosis.render(msgspec.convert(printed, Diagnosis), width=90)
    assert max(map(len, screen.splitlines())) <= 90
    for name in ("engine", "endpoints", "models", "log-probs", "salts", "noise", "echo", "limits"):
        assert re.search(rf"^{name} ", screen, re.MULTILINE), name
    assert "None" not in screen


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (lambda *_: (200, "<html>hello</html>"), 4, "no OpenAI API at .*a web page"),
        (lambda *_: (401, refused("who are you?")), 2, "wants an API key"),
        (
            lambda *_: (200, {"data": [{"id": "a"}, {"id": "b"}]}),
            2,
            "has 2 models, name one of a, b",
        ),
    ],
)
def test_what_is_no_target_is_said_in_one_sentence(capsys, answer, code, sentence):
    with answering(answer) as (url, _):
        named = [] if code == 2 and "models" in sentence else ["--model=m"]
        assert main(["doctor", url, *named]) == code
    complaint = [line for line in capsys.readouterr().err.splitlines() if "leakcheck: " in line]
    assert len(complaint) == 1
    assert re.search(sentence, complaint[0])


def test_a_dead_address_is_said_in_one_sentence(capsys):
    assert main(["doctor", "http://127.0.0.1:9"]) == 4
    assert "no connection to http://127.0.0.1:9: Connection refused" in capsys.readouterr().err


def test_nothing_is_sent_to_somebody_else_s_machine_without_permission(capsys):
    assert main(["doctor", "http://192.0.2.1/v1"]) == 2
    assert "192.0.2.1 is not this machine" in capsys.readouterr().err


def test_a_target_without_anything_is_examined_all_the_same(capsys):
    def bare(body):
        unknown = set(body) - {"model", "messages", "max_tokens", "temperature", "stream"}
        if unknown:
            return 400, refused(f"unknown: {max(unknown)}")
        return 200, said(body["messages"][-1]["content"])

    with answering(only_chat(bare)) as (url, _):
        assert MODELS["data"][0]["id"] == "m"
        assert main(["doctor", url, "--seed=7"]) == 0
    screen = capsys.readouterr().out
    assert re.search(r"^log-probs +none$", screen, re.MULTILINE)
    assert re.search(r"^cached tokens +not reported$", screen, re.MULTILINE)
    assert re.search(r"^prefix-overlap +no ", screen, re.MULTILINE)
    assert "left out" in screen


@pytest.mark.parametrize(
    ("part", "missing"),
    [("audition", ("audition", "noise")), ("mixed-batch-differential", ("noise",))],
)
def test_a_target_that_is_lost_on_the_way_is_no_target_that_was_examined(
    monkeypatch, part, missing
):
    monkeypatch.setattr("leakcheck.survey.audition.most", lambda _cap: 24)
    begun = set()

    def dying(_body):
        return (500, refused("the engine has crashed")) if part in begun else None

    with answering(only_chat(dying)) as (url, _):
        setup = Setup(target=Target(base_url=url, model="m"), seed=7)
        found = doctor.examine(setup, lambda name, *_: begun.add(name))
    assert (found.exit_code, found.unmeasured, found.ended[0]) == (4, missing, "target-lost")
    needy = {"rare-token-passphrase", "mixed-batch-differential", "abort-storm"}
    assert not [each for each in found.outlooks if each.scenario in needy and each.can]
    screen = " ".join(diagnosis.render(found).split())
    assert screen.count("The target was lost while it was examined: ") == 2
    assert "the engine has crashed. Not or not wholly measured: " in screen
    assert diagnosis.PARTS["noise"] in screen


def test_what_was_not_measured_in_company_is_not_said_to_be(printed):
    found = replace(msgspec.convert(printed, Diagnosis), echo=None)
    line = re.search(r"^echo .*$", diagnosis.render(found), re.MULTILINE)[0]
    assert "in company not measured" in line


@pytest.mark.parametrize("backend", ["anthropic", "ollama", "llamacpp", "tgi", "callable"])
def test_other_backends_are_examined_too(capsys, monkeypatch, backend):
    dialect = {"anthropic": anthropic, "ollama": ollama, "llamacpp": llamacpp, "tgi": tgi}
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    named = ["--backend", backend, "--model=m", "--seed=7"]
    if backend == "callable":
        assert main(["doctor", "backends.servers.plain:answer", *named]) == 0
    else:
        with wire.Server(dialect[backend]) as server:
            assert main(["doctor", f"http://127.0.0.1:{server.port}", *named]) == 0
    screen = capsys.readouterr().out
    assert f"backend {backend}" in screen.splitlines()[0]
    assert ("answers as token ids" in screen) == (backend == "llamacpp")
    assert ("this API has none" in screen) == (backend != "callable")


def test_what_was_not_measured_is_no_no():
    unasked = replace(ABLE, pieces=None)
    assert "not measured" in outlook("abort-storm", able=unasked).remarks[0]
    found = outlook("prefix-overlap", hits=None, facts=TargetFacts())
    assert found.can is None
    assert "was not measured" in found.reasons[0]
    assert "not: temperature" in diagnosis._sampling(ABLE, replace(FACTS, samples=False))


def test_a_target_that_repeats_nothing_cannot_be_judged_by_any_scenario():
    found = outlook("first-request", echo=(0, 20))
    assert found.can is False
    assert "0 of 20 answers" in found.reasons[0]
