"""Before a model is served: it must compute on blocks what it computes by itself.

A model can take the right arguments and still ignore them (positions read off the mask, say). What
differs here is refused, so that whatever leakcheck sees later is not the engine's own mistake.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from leakcheck.engine.cache import Shape
from leakcheck.engine.engine import Engine
from leakcheck.engine.values import EngineError, EngineOptions, GenerateRequest, SamplingParams

LENGTHS = (3, 21, 12)
"""Prompt lengths, in tokens: ragged, across block borders, in several chunks."""
NEW_TOKENS = 4
TOLERANCE = {torch.float32: 1e-3}
"""In log-probability, by the model's type; half precision rounds differently by batch shape."""
TOLERANCE_HALF = 0.5


def refuse_differences(model: Any, tokenizer: Any, shapes: list[tuple[Shape, Shape]]) -> None:
    """EngineError when log-probabilities on blocks are not those of a plain forward pass."""
    kind = model.config.model_type
    try:
        worst = largest_difference(model, tokenizer, shapes)
    except Exception as error:
        # It is the model's own code that met arguments it was not made for: any error is possible.
        raise EngineError(
            f"this {kind} model cannot run on blocks: {type(error).__name__}: {error}"
        ) from error
    limit = TOLERANCE.get(model.dtype, TOLERANCE_HALF)
    if not worst <= limit:  # a NaN is a difference too
        raise EngineError(
            f"this {kind} model computes something else on blocks than by itself"
            f" (log-probabilities differ by {worst:.2g}); the embedded engine cannot serve it"
        )


def largest_difference(model: Any, tokenizer: Any, shapes: list[tuple[Shape, Shape]]) -> float:
    """The largest difference in log-probability over a small mixed run on a pool of its own."""
    options = EngineOptions(num_blocks=48, block_size=4, step_tokens=16)
    engine = Engine(model, tokenizer, shapes, options)
    numbers = Random(0)
    params = SamplingParams(max_tokens=NEW_TOKENS, logprobs=0, ignore_eos=True)
    prompts = [
        tuple(numbers.randrange(engine.vocabulary) for _ in range(length)) for length in LENGTHS
    ]
    for number, prompt in enumerate(prompts):
        engine.submit(GenerateRequest(id=str(number), prompt=prompt, params=params))
    seen: list[list[tuple[int, float]]] = [[] for _ in prompts]
    while engine.has_work:
        for update in engine.step():
            seen[int(update.id)] += [(one.token, one.logprob) for one in update.logprobs]
    differences = [
        plain_logprobs(model, prompt, [token for token, _ in answer])
        - torch.tensor([logprob for _, logprob in answer])
        for prompt, answer in zip(prompts, seen, strict=True)
    ]
    return float(torch.cat(differences).abs().max())


@torch.inference_mode()
def plain_logprobs(model: Any, prompt: tuple[int, ...], answer: list[int]) -> torch.Tensor:
    """Log-probability of each answer token, from one forward pass over the whole."""
    tokens = torch.tensor([[*prompt, *answer]], device=model.device)
    logprobs = model(input_ids=tokens).logits[0].float().log_softmax(dim=-1)
    picked = logprobs[len(prompt) - 1 : -1].gather(1, tokens[0, len(prompt) :, None])
    alone: torch.Tensor = picked[:, 0].cpu()
    return alone
