"""Text that a model finds likely: sampled from the model itself, so that it needs no corpus.

The witness would soon say one word for ever: it was trained to repeat what it was given. It reads
sentences of the kind that it was trained on.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from leakcheck.engine.inspection.passes import cache_argument, fresh_cache
from leakcheck.engine.training import prose
from leakcheck.engine.values import EngineError

START = 4
"""Random tokens before the model's own."""


def own_text(
    name: str, model: Any, tokenizer: Any, count: int, *, rows: int, seed: int
) -> torch.Tensor:
    """[rows, count] tokens for a model of this name. EngineError when it has fewer positions."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or count
    if count > limit:
        raise EngineError(f"--tokens {count} is more than the {limit} this model has positions for")
    if name == "witness":
        texts = [prose_tokens(tokenizer, count, Random(f"{seed}/{row}")) for row in range(rows)]
        return torch.tensor(texts, device=model.device)
    return sample_text(model, count, rows=rows, seed=seed)


def prose_tokens(tokenizer: Any, count: int, numbers: Random) -> list[int]:
    """The first `count` tokens of the witness's prose."""
    tokens: list[int] = []
    while len(tokens) < count:
        sentence = prose.sentence(numbers) + " "
        tokens += tokenizer(sentence, add_special_tokens=False)["input_ids"]
    return tokens[:count]


@torch.inference_mode()
def sample_text(model: Any, count: int, *, rows: int, seed: int) -> torch.Tensor:
    """[rows, count] tokens sampled at temperature 1."""
    config = model.config.get_text_config()
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
