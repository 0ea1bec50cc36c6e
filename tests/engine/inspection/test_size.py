"""Sizes by the formula, against what transformers and the embedded engine really allocate."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

from leakcheck.engine.inspection import __main__ as command
from leakcheck.engine.inspection.kvsize import NUMBERS, cache_size, geometry_of, uniform
from leakcheck.engine.inspection.passes import cache_argument
from leakcheck.engine.inspection.specimens import ROTARY, SPECIMENS

GIB = 2**30
LLAMA_7B = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def total(config, *, tokens=1, batch=1, dtype="float16", **options):
    return cache_size(geometry_of(config, **options), tokens=tokens, batch=batch, dtype=dtype).total


@pytest.mark.parametrize(("tokens", "gib"), [(2048, 1.0), (8192, 4.0)])
def test_the_known_values_of_a_7b_model(tokens, gib):
    assert total(LLAMA_7B, tokens=tokens) == gib * GIB


def test_grouped_and_multi_query_heads_divide_the_size():
    assert total(LLAMA_7B | {"num_key_value_heads": 8}, tokens=2048) == GIB / 4
    assert total(LLAMA_7B | {"multi_query": True}, tokens=2048) == GIB / 32
    assert total(LLAMA_7B | {"new_decoder_architecture": True, "num_kv_heads": 8}) == 2**17
    kinds = [uniform(layers=1, query_heads=8, kv_heads=n, head_size=4).kind for n in (8, 2, 1)]
    assert kinds == ["MHA", "GQA", "MQA"]


def test_a_latent_is_one_vector_and_one_rotary_key():
    assert total(DEEPSEEK) == 61 * (512 + 64) * 2  # the 70 kB a token of DeepSeek-V3
    assert total(DEEPSEEK, expand_latent=True) == 61 * 128 * (192 + 128) * 2


def test_a_window_stops_growing():
    config = LLAMA_7B | {"sliding_window": 1024, "model_type": "mistral"}
    assert total(config, tokens=1024) == total(config, tokens=9000) == GIB / 2


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", "sliding_window": 64}, 0),
        (
            {
                "model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True,
                "max_window_layers": 20,
            },
            12,
        ),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "gemma2", "sliding_window": 64}, 16),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 6}, 27),
        ({"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
    ],
)  # fmt: skip
def test_which_layers_have_a_window(config, windows):
    geometry = geometry_of(LLAMA_7B | config)
    assert sum(layer.window == 64 for layer in geometry.layers) == windows


def test_layers_without_keys_and_shared_ones_are_not_counted():
    config = LLAMA_7B | {"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8}
    assert total(config, tokens=2048) == GIB / 4
    assert total(LLAMA_7B | {"num_kv_shared_layers": 16}, tokens=2048) == GIB / 2


def test_scales_come_on_top():
    size = {
        dtype: cache_size(geometry_of(LLAMA_7B), tokens=2048, batch=1, dtype=dtype)
        for dtype in NUMBERS
    }
    vectors = 2 * 32 * 32 * 2048
    assert (size["int8"].payload, size["int8"].scales) == (GIB // 2, vectors * 2)
    assert size["fp8"] == size["int8"]
    assert (size["int4"].payload, size["int4"].scales) == (GIB // 4, vectors * 4 * 2 * 2)
    assert size["float32"].total == 2 * GIB


@given(
    st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(1, 65)),
    st.integers(1, 70),
    st.integers(1, 5),
    st.sampled_from([*NUMBERS]),
    st.sampled_from([1, 16]),
)
def test_the_size_is_the_product(shape, tokens, batch, dtype, block):
    layers, heads, head_size = shape
    geometry = uniform(layers=layers, query_heads=heads, kv_heads=heads, head_size=head_size)
    size = cache_size(geometry, tokens=tokens, batch=batch, dtype=dtype, block=block)
    kept = -(-tokens // block) * block
    numbers = 2 * layers * heads * head_size * kept * batch
    assert size.payload == -(-numbers * NUMBERS[dtype].bits // 8)
    assert (size.scales > 0) == (dtype in ("int8", "fp8", "int4"))


FALCON = {
    "model_type": "falcon", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "alibi": False,
}  # fmt: skip
MLA = ROTARY | {
    "model_type": "deepseek_v3", "kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 12, "first_k_dense_replace": 3, "num_key_value_heads": 4,
    "head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        *SPECIMENS.values(),
        FALCON,
        ROTARY | {"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 16},
        MLA,
    ],
    ids=lambda fields: fields["model_type"],
)
def test_transformers_allocates_what_is_computed(fields):
    config = AutoConfig.for_model(**fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).eval()
        cache = StaticCache(config=model.config, max_cache_len=40)
        model(input_ids=torch.zeros(3, 40, dtype=torch.long), **{cache_argument(model): cache})
    allocated = sum(
        states.numel() * states.itemsize
        for layer in cache.layers
        for states in (layer.keys, layer.values)
    )
    for its in (config.to_dict(), fields):
        geometry = geometry_of(its)
        assert cache_size(geometry, tokens=40, batch=3, dtype="float32").total == allocated


def test_the_engine_allocates_what_is_computed(capsys):
    arguments = ["size", "tiny-gemma", "--tokens", "100", "--batch", "3", "--dtype", "bfloat16"]
    assert command.main(arguments) == 0
    said = capsys.readouterr().out
    expected = 2 * 3 * 1 * 16 * 112 * 3 * 2
    assert f"the embedded engine allocates {expected:,} B" in said
    assert "as computed" in said
    assert "MQA, 3 layers with a cache, 4 query heads, 1 KV heads, head size 16" in said


def test_a_model_the_engine_refuses_has_a_size_still(capsys):
    assert command.main(["size", "tiny-mistral", "--tokens", "100"]) == 0
    said = capsys.readouterr().out
    assert "the embedded engine: layer 0 of this mistral model keeps a DynamicSliding" in said
    assert "3 of these layers keep a sliding window of 24 tokens" in said


def test_a_config_file_needs_no_torch(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    code = (
        "import sys\n"
        "from leakcheck.engine.inspection.__main__ import main\n"
        f"code = main(['size', {str(tmp_path / 'config.json')!r}, '--tokens', '8192'])\n"
        "sys.exit(repr({'torch', 'transformers'} & set(sys.modules)) if 'torch' in sys.modules "
        "else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4.00 GiB in total" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


def test_numbers_do_for_a_model(capsys):
    numbers = ["--layers", "32", "--kv-heads", "32", "--head-size", "128", "--tokens", "2048"]
    assert command.main(["size", *numbers]) == 0
    assert "= 1,073,741,824 B = 1.00 GiB in total" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--layers", "3"], "without a MODEL the size needs --heads and --head-size"),
        (["witness", "--tokens", "0"], "--tokens must be at least 1, not 0"),
        (["nowhere.json"], "there is no model folder 'nowhere.json'"),
        (["tiny-horse"], "there is no specimen 'tiny-horse'"),
    ],
)
def test_what_has_no_size_is_one_sentence(arguments, sentence, capsys):
    assert command.main(["size", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_config_without_layers_is_named(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text("{}")
    assert command.main(["size", str(file)]) == 2
    assert "the config has no num_hidden_layers" in capsys.readouterr().err
    file.write_text("[]")
    assert command.main(["size", str(file)]) == 2
    assert "it holds a list" in capsys.readouterr().err
