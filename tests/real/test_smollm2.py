"""A real general-purpose model, SmolLM2-135M-Instruct, in the embedded engine.

It is slow (about 14 tokens a second alone) and weak: asked in a chat it hardly ever repeats
anything, so it is given texts to continue (`--api completions`). Run by `make test-real`; the
first time the model is downloaded and converted into the user's cache.
"""

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

MODEL = "smollm2-135m"
TOKENS = 24
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small harbour by the sea, and in it lived a man who",
    "Once upon a time there was a small harbour by the sea, and in it stood a house that",
    "WORDS=copper lantern meadow\nWORDS=copper lantern meadow\nWORDS=",
    "List of fruit: apple, pear,",
    "We saw 12 ships, then 345 ships, and the next day",
)
"""Of different lengths, two with a common prefix of more than a block, one with digits."""


@pytest.fixture(scope="module")
def served():
    """What `leakcheck serve` says of itself once it answers."""
    command = [sys.executable, "-m", "leakcheck.cli", "serve", "--model", MODEL]
    with subprocess.Popen(
        [*command, "--exit-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline()
        assert line.startswith("READY "), line
        yield json.loads(line.removeprefix("READY "))
        process.stdin.close()


def completed(ready, prompt):
    """The text that the server continues a prompt with, and how many tokens that took."""
    fields = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    request = urllib.request.Request(  # noqa: S310 - a local server
        ready["base_url"] + "/completions",
        data=json.dumps(fields).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as reply:  # noqa: S310 - as above
        answer = json.load(reply)
    return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


@pytest.fixture(scope="module")
def alone(served):
    """What `model.generate` says to each prompt alone, in float32."""
    import torch  # noqa: PLC0415 - only for these tests
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - as torch

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(served["tokenizer"])
    model = AutoModelForCausalLM.from_pretrained(served["tokenizer"], dtype=torch.float32).eval()
    answers = {}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        whole = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0]
        new = whole[ids.shape[1] :].tolist()
        answers[prompt] = (tokenizer.decode(new, skip_special_tokens=True), len(new))
    return answers


def test_greedy_answers_under_concurrency_are_those_of_the_model_alone(served, alone):
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for _ in range(2):  # the second time with a warm prefix cache
            said = pool.map(lambda prompt: completed(served, prompt), PROMPTS)
            answers = dict(zip(PROMPTS, said, strict=True))
            assert answers == alone


def test_digits_are_single_tokens_as_in_the_original_tokenizer(served):
    from transformers import AutoTokenizer  # noqa: PLC0415 - only for these tests

    tokenizer = AutoTokenizer.from_pretrained(served["tokenizer"])
    assert len(tokenizer("12345").input_ids) == 5


def run(tmp_path, *flags):
    """Exit code and report of a small run against this model."""
    command = [
        sys.executable, "-m", "leakcheck.cli", "run", *flags, "--embedded", "--model", MODEL,
        "--api", "completions", "--requests", "8", "--workers", "2", "--lanes", "4",
        "--max-tokens", "48", "--phantoms", "99", "--set", "gate.min_windows=2",
        "--set", "gate.detect=1.0",
        "--timeout-s", "300", "--set", "load.timeout_s=300.0", "--out", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads((tmp_path / "latest" / "report.json").read_text())


def test_the_healthy_engine_shows_no_leak_and_says_what_it_saw(tmp_path):
    code, report = run(tmp_path, "rare-token-passphrase", "prefix-overlap", "--windows", "2")
    assert (code, report["status"]) in {(0, "clean"), (3, "inconclusive")}
    seen = {
        verdict["scenario"]: {each["name"]: each for each in verdict["exposure"]}
        for verdict in report["verdicts"]
    }
    for verdict in report["verdicts"]:
        assert verdict["leak_rate"]["events"] == 0
        exposure = seen[verdict["scenario"]]
        assert exposure["overlap"]["enough"]
        echo = exposure["echo"]["measured"]
        assert echo["events"] >= 0.5 * echo["trials"] > 0
        if verdict["status"] == "inconclusive":  # with so few requests a lower bound is low
            few = ("echo", "tickets", "cache hits")
            assert all(reason.startswith(few) for reason in verdict["reasons"])
    assert seen["prefix-overlap"]["cache hits"]["measured"]["events"] > 0


@pytest.mark.parametrize(
    "flags",
    [
        ["rare-token-passphrase", "--windows", "3", "--fault", "response-swap",
         "--engine-flag=--fault-rate=0.5"],
        ["rare-token-passphrase", "prefix-overlap", "--windows", "4",
         "--fault", "prefix-length-only"],
    ],
    ids=["response-swap", "prefix-length-only"],
)  # fmt: skip
def test_a_fault_is_found(tmp_path, flags):
    """A wrong prefix mostly makes this model talk nonsense: it takes some windows to name names."""
    code, report = run(tmp_path, *flags)
    assert (code, report["status"]) == (1, "leak")
    findings = [each for verdict in report["verdicts"] for each in verdict["findings"]]
    leaks = [each for each in findings if each["severity"] == "leak"]
    assert leaks
    assert all(each["source"] not in (None, each["recipient"]) for each in leaks)
