"""Weights to start from that can already repeat.

Learning to repeat from random weights takes thousands of steps with 4000 tokens in the
vocabulary. The mechanism is known (an induction head: layer 0 notes at every token which token
came before it, layer 1 looks for the place that follows an earlier copy of the current token and
says what stands there), so it is written into the first two layers and training starts there.
"""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

_PREVIOUS_BIAS = 10.0  # attention logits: the previous token leads its neighbours by about 10
_PREVIOUS_GAIN = 0.15  # per head; two heads share a key-value group
_MATCH_GAIN = 2.5
_COPY_GAIN = 0.5
# Fast rotary pairs tell positions apart; the slow ones hardly turn within 500 tokens and so can
# compare contents at any distance.
_FAST_PAIRS, _SLOW_PAIRS_FROM = 6, 7


@torch.no_grad()
def install_repetition(model: LlamaForCausalLM, theta: float, generator: torch.Generator) -> None:
    """Overwrite the attention of layers 0 and 1 with a previous-token and an induction layer.

    `theta` is the base of the rotary positions.
    """
    config = model.config
    heads, groups = int(config.num_attention_heads), int(config.num_key_value_heads or 0)
    size = int(config.hidden_size) // heads
    half, share = size // 2, heads // groups
    read = groups * size  # residual directions that carry a token; the rest note its predecessor
    basis = torch.linalg.qr(
        torch.randn(config.hidden_size, config.hidden_size, generator=generator)
    ).Q.T
    token, before = basis[:read], basis[read : 2 * read]
    turn = theta ** (-torch.arange(_FAST_PAIRS) / half)
    slow = torch.tensor([d for d in range(size) if d % half >= _SLOW_PAIRS_FROM])
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    for projection in (first.q_proj, first.k_proj, second.q_proj, second.k_proj):
        projection.weight.mul_(0.1)
    first.v_proj.weight.copy_(token)
    second.v_proj.weight.copy_(token)
    for group in range(groups):
        rows = slice(group * size, (group + 1) * size)
        first.k_proj.bias[rows][:_FAST_PAIRS] = _PREVIOUS_BIAS * turn.cos()
        first.k_proj.bias[rows][half : half + _FAST_PAIRS] = _PREVIOUS_BIAS * turn.sin()
        second.k_proj.weight[rows][slow] += _MATCH_GAIN * before[rows][slow]
        for head in range(group * share, (group + 1) * share):
            own = slice(head * size, (head + 1) * size)
            first.q_proj.bias[own][:_FAST_PAIRS] = _PREVIOUS_BIAS
            first.o_proj.weight[:, own] = _PREVIOUS_GAIN * before[rows].T
            second.q_proj.weight[own][slow] += _MATCH_GAIN * token[rows][slow]
            second.o_proj.weight[:, own] = _COPY_GAIN * token[rows].T
