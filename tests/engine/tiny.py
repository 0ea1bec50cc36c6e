"""Tiny random models and a tokenizer, made here: no test of the engine needs a download."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer():
    """A byte-level tokenizer of 260 tokens: bytes, a few merges and an end of sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    vocabulary["<eos>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.chat_template = TEMPLATE
    return fast


def make_llama(seed=0):
    """Grouped-query attention, rotary positions; sharp enough weights that greedy text varies."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.3, bos_token_id=None, eos_token_id=259, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def make_gpt2(seed=0):
    """Absolute learned positions, fused projections, one key head a query head."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=260, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3,
        bos_token_id=None, eos_token_id=259, pad_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()
