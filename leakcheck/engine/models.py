"""Loads a model and refuses, in one sentence, what cannot run on blocks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.utils import logging as hub_logging
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.utils import logging

from leakcheck.engine.cache import Shape
from leakcheck.engine.smollm2 import smollm2_folder
from leakcheck.engine.values import EngineError

HUB_TIMEOUT_S = 3.0
WITNESS = Path(__file__).parent / "witness"
"""The model trained to be a good instrument, shipped with the package."""


def load(name: str) -> tuple[Any, Any]:
    """Model (evaluation mode, on CUDA when there) and tokenizer by name, path or hub id.

    Float32 on the CPU, the model's own type on CUDA. EngineError says what is wrong.
    """
    hush()
    source = resolve(name)
    how = how_to_load(name, source)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else "auto"
    try:
        refuse_encoders(name, AutoConfig.from_pretrained(source, **how))
        tokenizer = AutoTokenizer.from_pretrained(source, **how)
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **how)
    except EngineError:
        raise
    except Exception as error:  # a user's files make transformers raise anything
        raise EngineError(f"the model {name!r} cannot be loaded: {reason_of(error)}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise EngineError(f"the tokenizer of {name!r} has no fast form, which streaming needs")
    return model.to(device).eval(), tokenizer


def load_config(name: str) -> Any:
    """The config alone, of a name as `load` takes it. EngineError says what is wrong."""
    hush()
    source = resolve(name)
    how = how_to_load(name, source)
    try:
        return AutoConfig.from_pretrained(source, **how)
    except Exception as error:  # as in `load`
        reason = reason_of(error)
        raise EngineError(f"the config of {name!r} cannot be loaded: {reason}") from error


def hush() -> None:
    """What libraries would log here, an EngineError says in one sentence."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # partly typed
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # partly typed
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call] # as above


def how_to_load(name: str, source: str) -> dict[str, bool]:
    """Options of `from_pretrained`: a folder needs no network, and a model's own code never runs.

    A hub that does not answer is found out here in one request: transformers would try each file
    six times. What was downloaded before then has to do; EngineError when nothing was.
    """
    local = Path(source).is_dir()
    if not local:
        try:
            HfApi().model_info(source, timeout=HUB_TIMEOUT_S)
        except Exception as error:  # the HTTP client's own kinds of no answer
            if not isinstance(try_to_load_from_cache(source, "config.json"), str):
                raise EngineError(
                    f"there is no folder {name!r}, and the model hub does not give it:"
                    f" {reason_of(error)}"
                ) from error
            local = True
    return {"local_files_only": local, "trust_remote_code": False}


def reason_of(error: Exception) -> str:
    """The first sentence of a library's error, with its kind where it is hardly one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return said if " " in said else f"{type(error).__name__} {said}".strip()


def resolve(name: str) -> str:
    """The folder or hub id that a model name stands for."""
    if name == "witness":
        if not (WITNESS / "config.json").exists():
            raise EngineError("the witness model is missing from this installation of leakcheck")
        return str(WITNESS)
    if name == "smollm2-135m":
        return str(smollm2_folder())
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineError(f"{name!r} cannot be the folder of a model: {error}") from error
    if is_folder:
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
    if "local" in getattr(model.config, "attention_layers", ()):  # GPT-Neo: no cache shows it
        raise EngineError(
            f"some layers of this {kind} model see a window of tokens, by a mask of their own; the"
            " embedded engine runs models whose layers all use plain full attention"
        )
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
    try:
        model(input_ids=token, use_cache=True, **{cache_name: cache})
    except Exception as error:  # a config may describe a model that cannot run
        reason = reason_of(error)
        raise EngineError(f"this {kind} model cannot run over one token: {reason}") from error
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
