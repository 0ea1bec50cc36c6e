"""transformers: GPT-Neo on a static cache, by `inspect cache`. Of this one no release is mended.

Every second layer of GPT-Neo sees a window of tokens only, by a mask of its own: rows of it are
picked by the number of keys, as if all of them had been filled. A static cache hands out all the
room it has from the start. So these layers see other tokens than they should, and generation with
`cache_implementation="static"` says something else than without: in 4.56.2, 4.57.6, 5.0.0, 5.3.0,
5.8.1, 5.12.1 and 5.24.0, which are those that were tried. We know of no report.

transformers itself is the witness: what leakcheck says has to agree with what `generate` does, so
that this exhibit stays true when the fault is mended.
"""

import subprocess
import sys

import pytest

from leakcheck.engine.inspection.specimens import byte_tokenizer

pytestmark = [pytest.mark.museum, pytest.mark.timeout(300)]


@pytest.fixture(params=[["global", "local"], ["global"]], ids=["with-windows", "without"])
def neo(request, tmp_path):
    """A small GPT-Neo of random weights, and the folder that it stands in."""
    torch = pytest.importorskip("torch")
    from transformers import GPTNeoConfig, GPTNeoForCausalLM  # noqa: PLC0415 - as torch

    kinds = [[request.param, 4 // len(request.param)]]
    config = GPTNeoConfig(
        vocab_size=256,
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        attention_types=kinds,
        window_size=24,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = GPTNeoForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return model, tmp_path


def generated(model, **cache):
    """Forty tokens, greedy."""
    import torch  # noqa: PLC0415 - as above

    prompt = torch.arange(16)[None] * 7
    limits = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    return model.generate(prompt, **limits, **cache)[0].tolist()


def test_inspect_cache_and_generate_agree_on_the_static_cache(neo):
    model, folder = neo
    wrong = generated(model, use_cache=False) != generated(
        model, cache_implementation="static", disable_compile=True
    )
    command = [sys.executable, "-m", "leakcheck.cli", "inspect", "cache", str(folder)]
    said = subprocess.run([*command, "--seconds", "0"], capture_output=True, text=True, check=False)
    screen = " ".join(said.stdout.split())
    assert said.returncode == int(wrong), said.stdout + said.stderr
    assert ("DIFFERENCE: StaticCache" in screen) == wrong
    assert ("likely cause mask" in screen) == wrong
    assert "DIFFERENCE: DynamicCache" not in screen
    assert "DIFFERENCE: left-padded batch" not in screen
