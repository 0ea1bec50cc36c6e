"""What a process of `inspect` leaves behind: exit code 1 means contamination, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from leakcheck.engine.inspection import __main__, command, quant

INSPECT = [sys.executable, "-m", "leakcheck.engine.inspection"]
SIZE = ["size", "--layers", "2", "--heads", "2", "--head-size", "4"]


def run(*flags, stdout=subprocess.PIPE, **options):
    return subprocess.run(
        [*INSPECT, *flags],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


def piped_to_nobody(*flags):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return run(*flags, stdout=writing)
    finally:
        os.close(writing)


@pytest.mark.parametrize("flags", [SIZE, ["--help"], ["size", "--help"]], ids=" ".join)
def test_a_full_disk_is_one_sentence_and_an_error(flags):
    with open("/dev/full", "w") as full:  # noqa: PTH123 # a device
        done = run(*flags, stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "standard output cannot be written: No space left on device" in done.stderr


def test_a_closed_output_is_an_error():
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *INSPECT, *SIZE],
        stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (4, "leakcheck inspect: standard output is closed\n")


def test_a_complaint_that_nobody_takes_changes_no_exit_code():
    script = 'exec "$@" 2>/dev/full'
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *INSPECT, "kv"],
        stdout=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_reader_that_left_is_no_error():
    done = piped_to_nobody(*SIZE)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_verdict_is_returned_though_its_reader_left():
    done = piped_to_nobody("leak", "--fault", "one-layer-bleed", "--model", "tiny-llama")
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interruption_while_modules_load_has_no_traceback():
    asked = [sys.executable, "-v", "-m", "leakcheck.engine.inspection", "cache", "witness"]
    with subprocess.Popen(
        asked, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        said = []
        for line in process.stderr:  # -v names each module as it is imported
            said.append(line)
            if line.startswith("import 'torch._C'") or "torch/__init__" in line:
                process.send_signal(signal.SIGINT)
                break
        said.extend(process.stderr)
        assert process.wait(timeout=60) == 130
    assert "Traceback" not in "".join(said)


def test_an_interruption_at_work_has_no_traceback(tmp_path):
    os.mkfifo(tmp_path / "config.json")  # opening it waits for a writer, in the middle of the work
    with subprocess.Popen(
        [*INSPECT, "pool", "--trace", str(tmp_path / "config.json"), "--request", "a"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        writer = opened_for_writing(tmp_path / "config.json")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        os.close(writer)
    assert (process.returncode, out, err) == (130, "", "")


def opened_for_writing(fifo):
    """The descriptor, as soon as somebody reads."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
    raise AssertionError("nobody reads")


def test_what_nobody_foresaw_is_an_error_with_its_traceback(monkeypatch, capsys):
    def broken(_given):
        raise ZeroDivisionError("by\nnought")

    monkeypatch.setattr(quant, "main", broken)
    assert __main__.main(["quant", "witness"]) == 4
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert "this should not have happened: ZeroDivisionError: by nought" in said.splitlines()[-1]
    assert command.main(["quant", "witness"], heard=[signal.SIGINT]) == 130


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": "x"},
        {"num_hidden_layers": -1},
        {"num_attention_heads": 0},
        {"model_type": ["llama"]},
        {"model_type": "no-such-model"},
        {"auto_map": {"AutoConfig": "code.Config"}, "model_type": "own"},
    ],
    ids=json.dumps,
)
def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path, capsys, fields):
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    assert __main__.main(["cache", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"leakcheck inspect cache: the model '{tmp_path}' cannot be loaded: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": -1},
        {"num_attention_heads": 0},
        {"text_config": "x"},
        {"layer_types": 7},
        {"num_kv_shared_layers": "x"},
        {"sliding_window": "x", "model_type": "mistral"},
    ],
    ids=json.dumps,
)
def test_a_config_without_a_size_is_one_sentence(tmp_path, capsys, fields):
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    assert __main__.main(["size", str(tmp_path / "config.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_hub_that_does_not_answer_is_one_quick_sentence():
    begun = time.monotonic()
    done = run("size", "nosuch/none", env=os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no folder 'nosuch/none', and the model hub does not give it" in done.stderr
    assert time.monotonic() - begun < 20  # the six tries of transformers wait 23 s on their own


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["cache", "tiny-llama", "--seconds", "-1"], "--seconds must be at least 0, not -1.0"),
        (["cache", "tiny-llama", "--seconds", "nan"], "--seconds must be at least 0, not nan"),
        (["cache", "tiny-llama", "--seed", "-1"], "--seed must be at least 0, not -1"),
        (["quant", "tiny-llama", "--seed", str(2**64)], "--seed must be at least 0 and at most"),
        (["quant", "tiny-llama", "--sequences", "-3"], "--sequences must be at least 1, not -3"),
        (["pool", "http://127.0.0.1:9", "--watch", "inf"], "--watch is a number of seconds"),
        ([*SIZE, "--batch", str(10**30)], "--batch must be at least 1 and at most 1000000, not"),
        (["leak", "--fault", "mask-broadcast", "--fault-rate", "nan"], "--fault-rate is a share"),
        (["size", "~nobody-of-this-name"], "cannot be a model or its config"),
        (["size", "x" * 5000], "File name too long"),
        (["cache", "~nobody-of-this-name"], "cannot be the folder of a model"),
        (["quant", "./" + "x" * 5000], "File name too long"),
    ],
)
def test_a_wrong_number_or_name_is_one_sentence(flags, sentence, capsys):
    assert __main__.main(flags) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_text_is_as_wide_as_the_terminal_and_numbers_stay_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert __main__.main(SIZE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line.rstrip()) > 60 and "  " not in line] == []
    assert any("query heads" in line for line in lines[1:3])
    assert any(line.split() == ["int4", *["96.00", "KiB"] * 2, "48.0", "B", "64.00", "KiB"]
               for line in lines)  # fmt: skip
    assert __main__.main(["--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_help_says_what_the_exit_codes_mean(capsys):
    assert __main__.main(["--help"]) == 0
    with pytest.raises(SystemExit):
        __main__.main(["cache", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("1 contamination was found, 2 wrong flags") == 2
