"""Which words a target can be tested with: planning, judging, and the whole command."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playing import eventually

from leakcheck import certify
from leakcheck.certify import Options, Planner, Tally
from leakcheck.passphrase import load_words
from leakcheck.run.session import Setup
from leakcheck.runfolder import read_plans

WORDS = load_words()[:40]
OPTIONS = Options(setup=Setup(), file=Path("unused.txt"))


def planner(continues=False, options=OPTIONS):
    return Planner(options, "phrase", continues=continues)


def parrot(requests, deaf=(), mute=()):
    """What a model says that repeats all words but the `deaf` ones; no answer with a `mute` one."""
    return {
        r.id: " ".join(w.upper() for w in r.passphrase.words if w not in deaf)
        for r in requests
        if not set(mute) & set(r.passphrase.words)
    }


def play(rounds, answer, words=WORDS, tally=None):
    """The tally after so many rounds, and the words each round asked for."""
    plans, asked = planner(), []
    tally = tally or Tally(words=words, repeats=20)
    for number in range(rounds):
        requests = plans.round(tally.open)
        asked.append([word for r in requests for word in r.passphrase.words])
        tally = tally.after(requests, answer(requests, number))
    return tally, asked


def test_a_round_asks_for_every_word_once_six_at_a_time_in_fresh_combinations():
    plans = planner()
    first, second = plans.round(WORDS), plans.round(WORDS)
    for requests in (first, second):
        words = [word for r in requests for word in r.passphrase.words]
        assert sorted(words) == sorted(WORDS)
        assert [len(r.passphrase.words) for r in requests] == [6] * 6 + [4]
    assert {r.passphrase.words for r in first}.isdisjoint(r.passphrase.words for r in second)
    assert len({r.id for r in (*first, *second)}) == 14


def test_the_ask_is_to_repeat_exactly_and_holds_the_words_alone():
    (request, *_) = planner().round(WORDS)
    assert request.messages[0].content == f"Repeat exactly: {request.passphrase.text}"


def test_a_target_that_continues_texts_is_given_a_text_to_continue():
    (request, *_) = planner(continues=True).round(WORDS)
    text = request.messages[0].content
    assert text.count(request.passphrase.text) == 2
    assert text.endswith("\nWORDS=")


def test_equal_seeds_plan_equal_requests():
    assert planner().round(WORDS) == planner().round(WORDS)
    assert planner().neutral(5) == planner().neutral(5)


def test_neutral_requests_hold_no_candidate_and_differ():
    texts = [r.messages[0].content for r in planner().neutral(100)]
    assert len(set(texts)) == 100
    said = set(re.findall(r"[a-z]+", " ".join(texts).lower()))
    assert not said & set(load_words())


def test_words_that_come_back_in_any_case_pass_after_twenty_tries():
    tally, _ = play(20, lambda requests, _: parrot(requests))
    assert tally.passed == WORDS
    assert tally.open == ()
    assert play(19, lambda requests, _: parrot(requests))[0].passed == ()


def test_nineteen_of_twenty_are_enough():
    bad = WORDS[3]
    tally, _ = play(20, lambda requests, n: parrot(requests, deaf={bad} if n == 7 else ()))
    assert bad in tally.passed


def test_a_word_that_failed_twice_is_not_asked_for_again():
    bad = WORDS[3]
    tally, asked = play(20, lambda requests, n: parrot(requests, deaf={bad} if n < 2 else ()))
    assert [bad in words for words in asked[:4]] == [True, True, False, False]
    assert set(tally.passed) == set(WORDS) - {bad}


def test_a_request_without_an_answer_is_no_try():
    tally, _ = play(20, lambda requests, n: parrot(requests, mute=WORDS[:1] if n == 0 else ()))
    assert WORDS[0] in tally.open
    assert tally.failures.total() == 0


def test_a_word_said_unasked_is_left_out():
    tally = Tally(words=WORDS, repeats=20).without(["I like", f"An {WORDS[5].title()}, I think."])
    assert WORDS[5] not in tally.open
    assert len(tally.open) == len(WORDS) - 1


def test_measuring_sends_no_more_than_was_announced():
    plans, sent = planner(), []

    def ask(requests):
        sent.extend(requests)
        return {r.id: r.passphrase.text if r.passphrase else "Fine." for r in requests}

    tally = certify.measure(OPTIONS, WORDS, plans, ask)
    assert tally.passed == WORDS
    assert len(sent) == certify.budget(len(WORDS), OPTIONS) == 100 + 20 * 7


def test_neutral_answers_that_did_not_come_are_asked_for_again():
    plans, heard = planner(), []

    def ask(requests):
        if requests[0].passphrase is not None:
            return parrot(requests)
        answers = {r.id: "Fine." for r in requests[: max(1, len(requests) // 2)]}
        heard.extend(answers)
        return answers

    assert certify.measure(OPTIONS, WORDS, plans, ask).passed == WORDS
    assert len(heard) == 100


def test_measuring_ends_when_the_user_has_had_enough():
    assert certify.measure(OPTIONS, WORDS, planner(), lambda _: None) is None


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (2200, "2200 of 2200 words passed"),
        (900, "a passphrase needs 7 words"),
        (60, "too few for the shipped scenarios, whatever the length"),
    ],
)
def test_the_verdict_says_what_passphrases_can_be_made(count, sentence):
    words = load_words()[:count]
    tally = Tally(words=words, repeats=1).after(*_one_round(words))
    assert sentence in certify.verdict(tally)


def _one_round(words):
    requests = planner().round(words)
    return requests, parrot(requests)


def test_the_list_names_model_counts_and_licence_and_can_be_read_back(tmp_path):
    tally, _ = play(20, lambda requests, _: parrot(requests, deaf=WORDS[:2]))
    tally = tally.without([WORDS[2]])
    text = certify.render(tally, OPTIONS, "some-model", "20260102T030405Z-words-0")
    (tmp_path / "words.txt").write_text(text)
    assert load_words(tmp_path / "words.txt") == WORDS[3:]
    for said in ("some-model", "37 of 40", "2 that were not echoed in 19 of 20", "and 1 that stood",
                 "CC BY 3.0 US", "EFF large word list"):  # fmt: skip
        assert said in text
    assert max(map(len, text.splitlines())) <= 110


# --- the whole command ---------------------------------------------------------------------------


def start(*arguments):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEAKCHECK_", "OPENAI_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "leakcheck.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean,
        start_new_session=True,
    )  # fmt: skip


def ended(process):
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def words_command(tmp_path, port, model, *flags):
    (tmp_path / "in.txt").write_text("\n".join(WORDS))
    return start(
        "words", "--target", f"http://127.0.0.1:{port}/v1", "--model", model,
        "--words", tmp_path / "in.txt", "--out", tmp_path / "out.txt",
        "--reports", tmp_path / "reports", *flags,
    )  # fmt: skip


def test_words_measured_on_the_witness_are_taken_by_a_run(tmp_path):
    (tmp_path / "in.txt").write_text("# Source: a test.\n" + "\n".join(load_words()[:72]))
    out = tmp_path / "out.txt"
    code, said, err = ended(
        start(
            "words",
            "--embedded",
            "--words",
            tmp_path / "in.txt",
            "--out",
            out,
            "--reports",
            tmp_path / "reports",
        )
    )
    assert code == 0, err
    assert f"at most {100 + 20 * 12} requests for 72 words" in err
    assert "of 72 words passed" in said
    assert "# Source: a test." in out.read_text()
    kept = load_words(out)
    assert len(kept) >= 60
    code, _, err = ended(
        start(
            "run",
            "rare-token-passphrase",
            "--embedded",
            "--words",
            out,
            "--windows",
            1,
            "--requests",
            2,
            "--set",
            "load.passphrase_words=12",
            "--out",
            tmp_path / "reports",
        )
    )
    assert code == 3, err  # one window is never enough
    (survey, plan) = read_plans(tmp_path / "reports" / "latest")
    assert set(plan.words) == set(survey.words) == set(kept)
    assert all(len(r.ticket.words) == 12 for r in plan.requests)


def test_a_model_that_echoes_nothing_is_named_and_no_list_is_written(tmp_path, hostile):
    code, _, err = ended(words_command(tmp_path, hostile, "same", "--neutral", "10"))
    assert code == 4
    assert "none of 40 words was echoed by same in at least 19 of 20 tries" in err
    assert not (tmp_path / "out.txt").exists()


def test_ctrl_c_leaves_no_half_list(tmp_path, hostile):
    process = words_command(tmp_path, hostile, "pause")
    shards = (tmp_path / "reports").glob
    eventually(lambda: sum(p.stat().st_size for p in shards("2*/observations-w*.jsonl")) > 5000)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert "no list of words was written" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.txt", "reports"]


def test_an_existing_list_is_replaced_whole_or_not_at_all(tmp_path, hostile):
    (tmp_path / "out.txt").write_text("kettle\n")
    assert ended(words_command(tmp_path, hostile, "same", "--neutral", "10"))[0] == 4
    assert (tmp_path / "out.txt").read_text() == "kettle\n"


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_sent(tmp_path, hostile):
    command = words_command(tmp_path, hostile, "same", "--out", tmp_path / "no" / "such.txt")
    code, _, err = ended(command)
    assert code == 2
    assert "name a file in an existing folder" in err
    assert not (tmp_path / "reports").exists()
