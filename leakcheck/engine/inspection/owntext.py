"""Text that a model finds likely: sampled from the model itself, so that it needs no corpus."""

from __future__ import annotations

from typing import Any

import torch

from leakcheck.engine.inspection.passes import cache_argument, fresh_cache
from leakcheck.engine.values import EngineError

START = 4
"""Random tokens before the model's own."""


@torch.inference_mode()
def sample_text(model: Any, count: int, *, rows: int, seed: int) -> torch.Tensor:
    """[rows, count] tokens sampled at temperature 1. EngineError when the model is too short."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or count
    if count > limit:
        raise EngineError(f"--tokens {count} is more than the {limit} this model has positions for")
    numbers = torch.Generator().manual_seed(seed)
    head = torch.randint(0, config.vocab_size, (rows, min(START, count)), generator=numbers)
    text, cache = head, fresh_cache(model)
    part = head
    while text.shape[1] < count:
        output = model(
            input_ids=part.to(model.device), use_cache=True, **{cache_argument(model): cache}
        )
        chances = output.logits[:, -1].float().softmax(-1).cpu()
        part = torch.multinomial(chances, 1, generator=numbers)
        text = torch.cat([text, part], dim=1)
    return text.to(model.device)
