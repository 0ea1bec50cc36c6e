"""Loads a model and refuses, in one sentence, what cannot run on blocks."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.utils import logging

from leakcheck.engine.cache import Shape
from leakcheck.engine.smollm2 import smollm2_folder
from leakcheck.engine.values import EngineError

WITNESS = Path(__file__).parent / "witness"
"""The model trained to be a good instrument, shipped with the package."""


def load(name: str) -> tuple[Any, Any]:
    """Model (evaluation mode, on CUDA when there) and tokenizer by name, path or hub id.

    Float32 on the CPU, the model's own type on CUDA. EngineError says what is wrong.
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # partly typed
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # partly typed
    source = resolve(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        refuse_encoders(name, AutoConfig.from_pretrained(source))
        tokenizer = AutoTokenizer.from_pretrained(source)
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32 if device == "cpu" else "auto"
        )
    except (OSError, ValueError, ImportError, KeyError, json.JSONDecodeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EngineError(f"the model {name!r} cannot be loaded: {reason}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise EngineError(f"the tokenizer of {name!r} has no fast form, which streaming needs")
    return model.to(device).eval(), tokenizer


def resolve(name: str) -> str:
    """The folder or hub id that a model name stands for."""
    if name == "witness":
        if not (WITNESS / "config.json").exists():
            raise EngineError("the witness model is missing from this installation of leakcheck")
        return str(WITNESS)
    if name == "smollm2-135m":
        return str(smollm2_folder())
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise EngineError(
            f"there is no model folder {name!r}; a model is witness, smollm2-135m, a folder or a"
            " hub id such as org/name"
        )
    return name


def refuse_encoders(name: str, config: Any) -> None:
    """EngineError for what is not a decoder-only model."""
    if config.is_encoder_decoder:
        raise EngineError(
            f"{name!r} is an encoder-decoder model ({config.model_type}); the embedded engine runs"
            " decoder-only models"
        )


@torch.inference_mode()
def layer_shapes(model: Any) -> list[tuple[Shape, Shape]]:
    """(heads, head size) of every layer's keys and values, seen in a run over one token.

    EngineError when a layer's cache is not plain full attention: a sliding window, a recurrent
    state, keys shared with another layer.
    """
    kind = model.config.model_type
    refuse_encoders(kind, model.config)
    parameters = inspect.signature(model.forward).parameters
    cache_name = "cache" if "cache" in parameters else "past_key_values"
    needed = {cache_name, "position_ids", "attention_mask"} - set(parameters)
    if needed:
        raise EngineError(
            f"a {kind} model takes no {' or '.join(sorted(needed))}: the embedded engine cannot"
            " give it blocks"
        )
    cache = DynamicCache(config=model.config)
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    model(input_ids=token, use_cache=True, **{cache_name: cache})
    shapes = []
    for number, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer or layer.keys is None or layer.values is None:
            raise EngineError(
                f"layer {number} of this {kind} model keeps a {type(layer).__name__}; the embedded"
                " engine runs models whose layers all use plain full attention"
            )
        shapes.append(
            (
                (layer.keys.shape[1], layer.keys.shape[3]),
                (layer.values.shape[1], layer.values.shape[3]),
            )
        )
    return shapes
