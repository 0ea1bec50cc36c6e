"""Tiny random models by name, and how any model of `inspect` is loaded. No torch before it is used.

`SPECIMENS` covers what caches differ in: multi-head, grouped-query and multi-query attention,
rotary and learned absolute positions, full attention and sliding windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakcheck.engine.values import EngineError

if TYPE_CHECKING:
    import torch

VOCABULARY = 256
COMMON = {
    "vocab_size": VOCABULARY,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROTARY = COMMON | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
SPECIMENS: dict[str, dict[str, Any]] = {
    "tiny-llama": ROTARY | {"model_type": "llama"},
    "tiny-mistral": ROTARY | {"model_type": "mistral", "sliding_window": 24},
    "tiny-gemma": ROTARY | {"model_type": "gemma", "num_key_value_heads": 1},
    "tiny-gemma2": ROTARY | {"model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 24},
    "tiny-qwen": ROTARY | {"model_type": "qwen2"},
    "tiny-gpt2": COMMON
    | {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 1024},
}
"""Configs by name. Gemma is multi-query, GPT-2 multi-head, Gemma 2 alternates windows."""

DTYPES = ("float32", "bfloat16", "float16")


def obtain(name: str, dtype: str | None, *, seed: int = 0) -> tuple[Any, Any]:
    """Model in evaluation mode and its tokenizer; `dtype` None: as it is loaded (float32 on a CPU).

    A specimen is made here, with random weights by `seed`. EngineError when it cannot be had.
    """
    import torch  # noqa: PLC0415 # the sizes of a specimen need no torch

    from leakcheck.engine import models  # noqa: PLC0415 # as torch

    torch.set_num_threads(1)
    if name.startswith("tiny-"):
        model, tokenizer = make(name, seed), byte_tokenizer()
    else:
        model, tokenizer = models.load(name)
    return (model if dtype is None else model.to(torch_dtype(dtype))), tokenizer


def make(name: str, seed: int) -> Any:
    """A specimen with random weights."""
    import torch  # noqa: PLC0415 # as above
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 # as torch

    fields = specimen(name)
    config = AutoConfig.for_model(**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call] # partly typed
        return model.eval()


def specimen(name: str) -> dict[str, Any]:
    """The config of a specimen; EngineError names those there are."""
    if name not in SPECIMENS:
        raise EngineError(f"there is no specimen {name!r}; it is one of {', '.join(SPECIMENS)}")
    return SPECIMENS[name]


def byte_tokenizer() -> Any:
    """A tokenizer of the 256 bytes: enough for an engine that only wants text to stream."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 # as torch
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 # as torch

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer)


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a name of `DTYPES`."""
    import torch  # noqa: PLC0415 # as above

    dtype: torch.dtype = getattr(torch, name)
    return dtype
