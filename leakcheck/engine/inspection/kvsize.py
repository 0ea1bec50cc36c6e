"""Bytes of a KV cache from a config alone, for every shape of attention there is. No torch.

For each layer that keeps keys and values: 2 x KV heads x head size numbers a token. Multi-head
latent attention keeps one latent and one rotary key a token instead, if the engine absorbs the
projections (DeepSeek-V2, arXiv:2405.04434, section 2.1); one that does not keeps full heads. A
sliding window keeps at most its own length. Quantised caches keep scales beside the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from leakcheck.engine.values import EngineError

SCALE_BYTES = 2
"""A scale or a zero point is a float16."""
NUMBER_MAX = 10**6
"""More layers, heads or numbers of a head than any model has."""
GROUP = 32
"""Neighbouring numbers of a head that share an int4 scale and zero point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """How one number is kept: its `bits`, and `scales` of 16 bits for each `group` of a head.

    A `group` of 0 is the whole head; without `scales` none are kept.
    """

    bits: int
    scales: int = 0
    group: int = 0


NUMBERS = {
    "float32": Number(bits=32),
    "bfloat16": Number(bits=16),
    "float16": Number(bits=16),
    "fp8": Number(bits=8, scales=1),
    "int8": Number(bits=8, scales=1),
    "int4": Number(bits=4, scales=2, group=GROUP),
}
"""fp8 and int8: one scale a token and head. int4: scale and zero point for each 32 numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one layer keeps for each token: vectors of these sizes; at most `window` tokens."""

    vectors: tuple[int, ...]
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The caches of a model: `kind` is MHA, GQA, MQA or MLA. `notes` say what was assumed.

    `stateful` layers keep a state of fixed size instead (linear attention), which is not counted;
    `sharing` ones read another layer's cache.
    """

    kind: str
    query_heads: int
    kv_heads: int
    head_size: int
    layers: tuple[Layer, ...]
    stateful: int = 0
    sharing: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Bytes of the numbers and of their scales."""

    payload: int
    scales: int

    @property
    def total(self) -> int:
        """Both."""
        return self.payload + self.scales


def cache_size(geometry: Geometry, *, tokens: int, batch: int, dtype: str, block: int = 1) -> Size:
    """The size for `batch` sequences of `tokens` each, in blocks of `block` tokens."""
    number = NUMBERS[dtype]
    payload_bits = scales = 0
    for layer in geometry.layers:
        kept = tokens if layer.window is None else min(tokens, layer.window)
        kept = -(-kept // block) * block
        for size in layer.vectors:
            groups = -(-size // number.group) if number.group else 1
            payload_bits += kept * batch * size * number.bits
            scales += kept * batch * groups * number.scales * SCALE_BYTES
    return Size(payload=-(-payload_bits // 8), scales=scales)


def geometry_of(config: dict[str, Any], *, expand_latent: bool = False) -> Geometry:
    """The geometry of a config of transformers. EngineError names what is missing.

    `expand_latent`: MLA kept as full heads, as engines do that do not absorb the projections;
    transformers keeps the latent.
    """
    config = config.get("text_config") or config
    layers = number_of(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = number_of(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    if config.get("kv_lora_rank"):
        made = latent(config, layers, heads, expand=expand_latent)
    else:
        made = plain(config, layers, heads)
    return by_layer_type(config, made)


def number_of(config: dict[str, Any], *names: str) -> int:
    """The first of these fields; EngineError when none is a whole number."""
    found = [config[name] for name in names if isinstance(config.get(name), int)]
    if not found:
        raise EngineError(f"the config has no {names[0]} (nor {', '.join(names[1:])})")
    if not 0 <= found[0] <= NUMBER_MAX:
        raise EngineError(f"the config's {names[0]} is {found[0]}, not from 0 to {NUMBER_MAX}")
    return int(found[0])


def plain(config: dict[str, Any], layers: int, heads: int) -> Geometry:
    """Keys and values in heads."""
    kv_heads = kv_heads_of(config, heads)
    head_size = config.get("head_dim")
    if not isinstance(head_size, int):
        head_size = number_of(config, "hidden_size", "n_embd", "d_model") // heads
    return uniform(layers=layers, query_heads=heads, kv_heads=kv_heads, head_size=head_size)


def uniform(*, layers: int, query_heads: int, kv_heads: int, head_size: int) -> Geometry:
    """All layers alike: full attention in heads."""
    kind = "MHA" if kv_heads == query_heads else "MQA" if kv_heads == 1 else "GQA"
    layer = Layer(vectors=(head_size,) * 2 * kv_heads)
    return Geometry(
        kind=kind,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_size=head_size,
        layers=(layer,) * layers,
    )


def kv_heads_of(config: dict[str, Any], heads: int) -> int:
    """KV heads under the names that models have given them; without any, one a query head."""
    one = config.get("multi_query", config.get("model_type") == "falcon")
    if one and not config.get("new_decoder_architecture"):
        return 1  # Falcon, whose default it is, and GPT-BigCode
    for name in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"):
        if isinstance(config.get(name), int):
            return int(config[name])
    return heads


def latent(config: dict[str, Any], layers: int, heads: int, *, expand: bool) -> Geometry:
    """Multi-head latent attention: compressed, or as full heads."""
    rank = number_of(config, "kv_lora_rank")
    rope = number_of(config, "qk_rope_head_dim")
    if not expand:
        return Geometry(
            kind="MLA", query_heads=heads, kv_heads=1, head_size=rank + rope,
            layers=(Layer(vectors=(rank, rope)),) * layers,
            notes=(f"one latent of {rank} and one rotary key of {rope} a token and layer",),
        )  # fmt: skip
    key = number_of(config, "qk_nope_head_dim") + rope
    value = number_of(config, "v_head_dim")
    return Geometry(
        kind="MLA, expanded", query_heads=heads, kv_heads=heads, head_size=key,
        layers=(Layer(vectors=(key,) * heads + (value,) * heads),) * layers,
        notes=(f"kept as {heads} heads of {key} (keys) and {value} (values)",),
    )  # fmt: skip


def by_layer_type(config: dict[str, Any], geometry: Geometry) -> Geometry:
    """Windows, layers with a state of fixed size, layers that share another one's cache."""
    types = layer_types(config, len(geometry.layers))
    shared = config.get("num_kv_shared_layers") or 0
    own = types[: len(types) - shared]
    window = config.get("sliding_window") or config.get("attention_chunk_size")
    layers, notes = [], list(geometry.notes)
    for layer, kind in zip(geometry.layers, own, strict=False):
        if kind in ("sliding_attention", "chunked_attention"):
            layers.append(replace(layer, window=window))
        elif kind == "full_attention":
            layers.append(layer)
    stateful = len(own) - len(layers)
    if stateful:
        notes.append(f"{stateful} layers keep a state of fixed size instead: not counted")
    if shared:
        notes.append(f"the last {shared} layers share another layer's cache: counted once")
    return replace(
        geometry, layers=tuple(layers), stateful=stateful, sharing=shared, notes=tuple(notes)
    )


def layer_types(config: dict[str, Any], layers: int) -> list[str]:
    """What each layer's attention is, by the config's own list or by the model's convention."""
    given = config.get("layer_types")
    if given:
        return [str(kind) for kind in given]
    kind = config.get("model_type", "")
    used = config.get("use_sliding_window", not kind.startswith("qwen"))
    if not config.get("sliding_window") or not used:
        return ["full_attention"] * layers
    every = config.get("sliding_window_pattern") or {"gemma2": 2, "gemma3_text": 6}.get(kind)
    if every:
        return [
            "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
            for layer in range(layers)
        ]
    first = config.get("max_window_layers", 0) if kind.startswith("qwen") else 0
    return ["full_attention"] * min(first, layers) + ["sliding_attention"] * (layers - first)
