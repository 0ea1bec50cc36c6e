"""What a target echoes is measured before a run, kept for a day, and never more than is allowed."""

import itertools
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck import runfolder, scenario
from leakcheck.passphrase import styles
from leakcheck.records import (
    Caps,
    Chunk,
    Echo,
    Observation,
    Target,
    Usage,
)
from leakcheck.run import embedded, experiment, session
from leakcheck.run.session import Setup
from leakcheck.survey import audition

KINDS = {"digits": r"\d{4}( \d{4})+", "made-up": r"([b-z][aeiou]){3}( ([b-z][aeiou]){3})+"}


class Echoing(BaseHTTPRequestHandler):
    """Says ticket and passphrase of every prompt that its server is good at, else nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"data": [{"id": "m"}]})

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        messages = json.loads(self.rfile.read(size))["messages"]
        self.server.asked.append(messages)
        begun = messages[-1]["role"] == "assistant"
        status = 400 if begun and self.server.refuses_begun else self.server.status
        if status != 200:
            return self.answer({"error": {"message": "no"}}, status)
        text = " ".join(each["content"] for each in messages)
        said = [m[1] for m in re.finditer(r"My (?:ticket|passphrase) is ([^.]*)\.", text)]
        good = said and self.server.good(said[0], begun)
        answer = ". ".join(dict.fromkeys(said)) if good else "I cannot reveal passphrases."
        usage = {"prompt_tokens": 40, "completion_tokens": len(answer.split())}
        choice = {"index": 0, "finish_reason": "stop",
                  "message": {"role": "assistant", "content": answer}}  # fmt: skip
        return self.answer({"id": "x", "choices": [choice], "usage": usage})

    def answer(self, document, status=200):
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


@contextmanager
def echoing(good, status=200):
    """A server that echoes where `good(phrase, begun)`, and its target."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echoing)
    server.good, server.status, server.asked = good, status, []
    server.refuses_begun = False
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        yield server, Target(base_url=f"http://127.0.0.1:{port}/v1", model="m", timeout_s=20)
    finally:
        server.shutdown()
        server.server_close()


def of_kind(kind):
    return lambda phrase, _begun: re.fullmatch(KINDS[kind], phrase) is not None


def stage(**fields):
    words = styles.lists(None)
    given = {"words": words, "lengths": audition.lengths(words, 6, fixed=False),
             "seed": 7, "continues": False}  # fmt: skip
    return audition.Stage(**(given | fields))


def held(target, tmp_path, its):
    """An audition in a run folder of its own: what was heard, and what the folder has."""
    setup = Setup(target=target, out=tmp_path)
    load = scenario.read(scenario.find("rare-token-passphrase")).load
    with session.opened(setup) as opened:
        folder = runfolder.create(tmp_path, "x", 1)
        runfolder.write_provenance(folder, session.provenance(setup, opened, ()))
        runfolder.write_plans(folder, [])
        small = replace(load, workers=1, lanes=4)
        with session.started(folder, opened, [small], lambda *_: None) as live:
            keep = lambda plans: runfolder.write_plans(folder, plans)  # noqa: E731 - one line
            heard, ended = audition.hold(live, its, itertools.count(), keep)
    assert ended is None
    return heard, folder


def test_the_style_that_is_echoed_is_chosen_within_sixty_requests(tmp_path):
    with echoing(of_kind("digits")) as (server, target):
        heard, folder = held(target, tmp_path, stage())
    best = audition.best(heard)
    assert (best.style, best.phrasing) == ("digits", "asked")
    assert best.both == best.asked >= 6
    assert sum(each.asked for each in heard) == len(server.asked) <= audition.MOST
    assert {each.style for each in heard if each.both} == {"digits"}
    plans = runfolder.read_plans(folder)
    assert sum(len(plan.requests) for plan in plans) == len(server.asked)
    assert all(r.passphrase and r.ticket for plan in plans for r in plan.requests)


def test_a_phrasing_that_alone_works_is_chosen(tmp_path):
    with echoing(lambda _phrase, begun: begun) as (_, target):
        heard, _ = held(target, tmp_path, stage())
    assert audition.best(heard).phrasing == "begun"
    assert {each.phrasing for each in heard if each.both} == {"begun"}


def test_a_target_that_refuses_every_request_is_asked_no_more_than_planned(tmp_path):
    with echoing(of_kind("digits"), status=400) as (server, target):
        heard, _ = held(target, tmp_path, stage())
    assert len(server.asked) <= audition.MOST
    assert not any(each.echoed or each.returned for each in heard)
    assert audition.best(heard) == heard[0]
    assert "answered no request" in audition.sentence(heard, kept=False)


def test_a_phrasing_that_is_refused_is_not_chosen_and_has_no_answers(tmp_path):
    with echoing(lambda _phrase, begun: not begun) as (server, target):
        server.refuses_begun = True
        heard, _ = held(target, tmp_path, stage())
    assert {each.asked for each in heard if each.phrasing == "begun"} == {0}
    assert audition.best(heard).phrasing != "begun"


def test_a_small_budget_is_kept(tmp_path):
    with echoing(of_kind("digits")) as (server, target):
        heard, _ = held(target, tmp_path, stage(most=audition.most(120)))
    assert len(server.asked) <= 12
    assert len(heard) == 6


@given(cap=st.none() | st.integers(0, 10_000))
def test_at_most_a_tenth_of_a_budget_is_spent(cap):
    most = audition.most(cap)
    assert 0 <= most <= audition.MOST
    assert cap is None or most <= cap / 10
    assert len(stage(most=most).cells) <= most // 2


def test_the_model_of_the_embedded_engine_knows_its_own_words_and_sentences_best(tmp_path):
    with embedded.start(["--model=witness", "--seed=1"]) as engine:
        ready = engine.ready
        target = Target(base_url=ready["base_url"], model=ready["model"])
        heard, _ = held(target, tmp_path, stage())
    best = audition.best(heard)
    assert (best.style, best.phrasing) == ("phrase", "asked")
    assert best.both > audition.ENOUGH * best.asked


# --- choosing ------------------------------------------------------------------------------------

ECHO = Echo(style="phrase", phrasing="asked", asked=9, echoed=9, returned=9, both=9, words=6)


def test_among_equals_the_usual_way_is_kept():
    other = replace(ECHO, style="digits", tokens=1.0)
    assert audition.best([ECHO, other]) == ECHO


def test_among_equals_that_are_not_usual_the_shorter_answer_is_chosen():
    bad = replace(ECHO, both=0, echoed=0)
    long, short = (replace(ECHO, phrasing="begun", tokens=t) for t in (40.0, 20.0))
    assert audition.best([bad, long, replace(short, style="made-up")]).style == "made-up"


def test_many_answers_are_worth_more_than_a_few():
    few = replace(ECHO, asked=3, echoed=3, returned=3, both=3)
    many = replace(ECHO, style="digits", asked=9, echoed=8, returned=8, both=8)
    assert audition.best([few, many]) == many


def test_a_lost_ticket_counts_as_much_as_a_lost_passphrase():
    tickets = replace(ECHO, echoed=9, returned=2, both=2)
    both = replace(ECHO, style="digits", echoed=6, returned=6, both=5)
    assert audition.best([tickets, both]) == both


def test_an_echo_counts_as_the_matcher_matches():
    its = stage()
    requests = audition._Planner(its, itertools.count()).round(its.cells[:1])
    (request,) = requests
    said = f"{'-'.join(request.passphrase.words).upper()} {request.ticket.text}"
    seen = Observation(
        request_id=request.id, attempt=0, worker=0, lane=0, outcome="ok", start_ns=0, end_ns=1,
        chunks=(Chunk(text=said),), usage=Usage(completion_tokens=31),
    )  # fmt: skip
    (heard,) = audition.judged(its.cells[:1], [(request, its.cells[0], seen)])
    assert (heard.asked, heard.both, heard.tokens) == (1, 1, 31.0)


# --- for a day -----------------------------------------------------------------------------------

TARGET = Target(base_url="http://somewhere.example/v1", model="m", api_key_env="A_SECRET")


def heard_by(its):
    return tuple(replace(cell, asked=3, echoed=2, returned=3, both=2) for cell in its.cells)


def cache_file(tmp_path):
    (path,) = (tmp_path / "leakcheck").iterdir()
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_what_was_measured_serves_for_a_day():
    its = stage()
    audition.keep(TARGET, its, heard_by(its), now=1000.0)
    assert audition.kept(TARGET, its, now=1000.0 + 86_399) == heard_by(its)
    assert audition.kept(TARGET, its, now=1000.0 + 86_401) is None
    assert audition.kept(TARGET, its, now=999.0) is None  # a clock set back


@pytest.mark.usefixtures("cache")
def test_another_target_model_or_list_is_measured_anew():
    its = stage()
    audition.keep(TARGET, its, heard_by(its))
    for other in ("base_url", "model", "backend"):
        assert audition.kept(replace(TARGET, **{other: "other"}), its) is None
    words = {**its.words, "phrase": its.words["phrase"][1:]}
    assert audition.kept(TARGET, replace(its, words=words)) is None
    assert audition.kept(TARGET, replace(its, most=20)) is None


def test_the_cache_names_no_host_model_or_key(cache, monkeypatch):
    monkeypatch.setenv("A_SECRET", "sk-very-secret")
    its = stage()
    audition.keep(TARGET, its, heard_by(its))
    text = str(cache_file(cache)) + cache_file(cache).read_text()
    assert not any(word in text for word in ("somewhere", "example", "secret", "SECRET"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', None])
def test_a_damaged_cache_is_passed_over(cache, content):
    its = stage()
    audition.keep(TARGET, its, heard_by(its))
    path = cache_file(cache)
    if content is None:
        lying = json.loads(path.read_text())
        lying["echoes"][0]["both"] = 99
        content = json.dumps(lying).encode()
    path.write_bytes(content)
    assert audition.kept(TARGET, its) is None
    audition.keep(TARGET, its, heard_by(its))
    assert audition.kept(TARGET, its) == heard_by(its)


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    its = stage()
    audition.keep(TARGET, its, heard_by(its))
    assert audition.kept(TARGET, its) is None


def test_silence_is_not_kept(cache):
    its = stage()
    audition.keep(TARGET, its, its.cells)
    assert not (cache / "leakcheck").exists()


# --- in a run ------------------------------------------------------------------------------------


def run(target, tmp_path, **fields):
    setup = Setup(target=target, out=tmp_path, seed=5, **({"style": "auto"} | fields))
    overrides = {"load.windows": 2, "load.requests": 4, "load.workers": 1, "load.lanes": 4}
    options = experiment.Options(
        scenarios=(scenario.find("rare-token-passphrase"),), overrides=overrides, setup=setup
    )
    return experiment.run(options, lambda *_: None)


def test_a_run_is_planned_with_what_was_chosen_and_says_so(tmp_path):
    with echoing(of_kind("made-up")) as (server, target):
        report, folder = run(target, tmp_path)
        asked = len(server.asked)
        again, second = run(target, tmp_path)
        assert len(server.asked) - asked < asked - 30  # the second run measured nothing
        fresh, _ = run(target, tmp_path, fresh=True)
    facts = report.provenance.facts
    assert (facts.style, facts.phrasing) == ("made-up", "asked")
    assert len(facts.echoes) == 15
    assert facts.notes[0].startswith("passphrases are of the style made-up")
    assert "less than a day ago" in again.provenance.facts.notes[0]
    assert "less than a day ago" not in fresh.provenance.facts.notes[0]
    *_, plan = runfolder.read_plans(folder)
    assert plan.style == "made-up"
    assert plan.scenario.load.passphrase_words == 5
    (survey, other) = runfolder.read_plans(second)
    assert survey.style == other.style == "made-up"
    assert report.status == "inconclusive"  # two windows: and nothing is amiss


def test_a_run_without_a_wish_measures_nothing(tmp_path):
    with echoing(of_kind("made-up")) as (_, target):
        report, folder = run(target, tmp_path, style=None)
    assert report.provenance.facts.echoes == ()
    assert len(runfolder.read_plans(folder)) == 2


def test_a_style_that_was_asked_for_is_used_though_another_is_echoed(tmp_path):
    with echoing(of_kind("made-up")) as (_, target):
        report, _ = run(target, tmp_path, style="digits")
    assert report.provenance.facts.style == "digits"
    assert "hardly echoes" in report.provenance.facts.notes[0]
    assert {each.style for each in report.provenance.facts.echoes} == {"digits"}


def test_a_tiny_budget_leaves_no_room_to_measure(tmp_path):
    with echoing(of_kind("digits")) as (_, target):
        report, _ = run(target, tmp_path, caps=Caps(requests=39))
    assert sum(each.asked for each in report.provenance.facts.echoes) <= 3
