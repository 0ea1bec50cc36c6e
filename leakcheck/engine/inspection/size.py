"""`inspect size MODEL`: bytes of the KV cache from the config, beside what the engine allocates."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from leakcheck.engine.inspection import screen
from leakcheck.engine.inspection.kvsize import (
    GROUP,
    NUMBERS,
    Geometry,
    Size,
    cache_size,
    geometry_of,
    uniform,
)
from leakcheck.engine.inspection.specimens import DTYPES, SPECIMENS, obtain, specimen
from leakcheck.engine.inspection.terminal import require_number
from leakcheck.engine.values import EngineError

ALLOCATE_AT_MOST = 2**30
"""More is laid out without memory behind it."""
MOST = {
    "tokens": 10**8,
    "batch": 10**6,
    "block_size": 10**6,
    "layers": 10**4,
    "heads": 10**4,
    "kv_heads": 10**4,
    "head_size": 10**6,
}
"""What each number may be at most: more is a slip, and bytes that no integer of torch holds."""
BY_HAND = ("layers", "heads", "head_size")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    names = ", ".join(SPECIMENS)
    parser.add_argument(
        "model",
        nargs="?",
        help=f"witness, smollm2-135m, a folder, a config.json, a hub id, {names}; or the numbers:",
    )
    parser.add_argument("--layers", type=int, help="instead of a model")
    parser.add_argument("--heads", type=int, help="query heads (default: --kv-heads)")
    parser.add_argument("--kv-heads", type=int, help="heads of keys and values (default: --heads)")
    parser.add_argument("--head-size", type=int)
    parser.add_argument("--tokens", type=int, default=2048, help="of each sequence (2048)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (1)")
    parser.add_argument("--dtype", choices=[*NUMBERS], default="float16", help="(float16)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a block (16)")
    parser.add_argument(
        "--config-only", action="store_true", help="do not load the model to compare"
    )


def main(given: argparse.Namespace) -> int:
    """Print the sizes; 0."""
    for name, most in MOST.items():
        value = getattr(given, name)
        if value is not None:
            require_number(f"--{name.replace('_', '-')}", value, 1, most)
    console = screen.console()
    if given.model is None:
        print_sizes(console, given, by_hand(given), "these numbers")
        return 0
    config = read_config(given.model)
    try:
        geometry = geometry_of(config)
        expanded = geometry_of(config, expand_latent=True) if geometry.kind == "MLA" else None
        size(given, geometry, given.dtype)
    except EngineError:
        raise
    except Exception as error:  # a user's config holds anything in any field
        reason = f"{type(error).__name__}: {error}"
        raise EngineError(f"the config of {given.model} has no size: {reason}") from error
    print_sizes(console, given, geometry, given.model)
    if expanded is not None:
        print_expanded(console, given, expanded)
    if not given.config_only and not Path(given.model).is_file():
        print_engine(console, given, geometry)
    return 0


def by_hand(given: argparse.Namespace) -> Geometry:
    """A geometry from flags; EngineError when one is missing.

    Query heads cost nothing in the cache, so KV heads alone will do.
    """
    given.heads = given.heads or given.kv_heads
    missing = [f"--{name.replace('_', '-')}" for name in BY_HAND if getattr(given, name) is None]
    if missing:
        raise EngineError(f"without a MODEL the size needs {' and '.join(missing)}")
    return uniform(
        layers=given.layers,
        query_heads=given.heads,
        kv_heads=given.kv_heads or given.heads,
        head_size=given.head_size,
    )


def read_config(name: str) -> dict[str, Any]:
    """The config of a model by name, folder or file; a hub id is looked up by transformers."""
    if name.startswith("tiny-"):
        return specimen(name)
    try:
        path = Path(name).expanduser()
        if name == "witness":
            path = Path(__file__).parents[1] / "witness"
        if path.is_dir():
            path /= "config.json"
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineError(f"{name!r} cannot be a model or its config: {error}") from error
    if is_file:
        return read_json(path)
    from leakcheck.engine import models  # noqa: PLC0415 # loads torch, which a file does not need

    source = Path(models.resolve(name)) / "config.json"
    return read_json(source) if source.is_file() else hub_config(name)


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object; EngineError names a file that is none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} is no config: {error}") from error
    if not isinstance(config, dict):
        raise EngineError(f"{path} is no config: it holds a {type(config).__name__}")
    return config


def hub_config(name: str) -> dict[str, Any]:
    """The config of a hub id."""
    from leakcheck.engine import models  # noqa: PLC0415 # as above

    found: dict[str, Any] = models.load_config(name).to_dict()
    return found


def print_sizes(console: Any, given: argparse.Namespace, its: Geometry, name: str) -> None:
    """The geometry, the formula with its numbers, and every type beside the one asked for."""
    console.print(
        f"inspect size {name}: {its.kind}, {len(its.layers)} layers with a cache, {its.query_heads}"
        f" query heads, {its.kv_heads} KV heads, head size {its.head_size}"
    )
    windows = sorted({layer.window for layer in its.layers if layer.window is not None})
    for window in windows:
        count = sum(layer.window == window for layer in its.layers)
        console.print(f"{count} of these layers keep a sliding window of {window} tokens")
    for note in its.notes:
        console.print(note)
    asked = size(given, its, given.dtype)
    console.print(formula(given, its, asked))
    rows = [
        (
            f"{dtype}{' <' if dtype == given.dtype else ''}",
            screen.amount(each.total),
            screen.amount(each.total // given.batch),
            f"{each.total / given.batch / given.tokens:,.1f} B",
            screen.amount(each.scales) if each.scales else "none",
        )
        for dtype in NUMBERS
        for each in [size(given, its, dtype)]
    ]
    headings = ("dtype", ">in total", ">a sequence", ">a token, all layers", ">of that scales")
    console.print()
    screen.show(console, screen.table(headings, rows))
    console.print(
        "scales are float16: one a token, KV head and K or V (fp8, int8); scale and zero point for"
        f" each {GROUP} numbers (int4)"
    )
    paged = size(given, its, given.dtype, block=given.block_size)
    console.print(
        f"in blocks of {given.block_size} tokens, {given.dtype}: {screen.amount(paged.total)}"
    )


def size(given: argparse.Namespace, its: Geometry, dtype: str, block: int = 1) -> Size:
    """For what was asked."""
    return cache_size(its, tokens=given.tokens, batch=given.batch, dtype=dtype, block=block)


def sequences(count: int) -> str:
    """`1 sequence`, `4 sequences`."""
    return f"{count} sequence{'s' if count > 1 else ''}"


def formula(given: argparse.Namespace, its: Geometry, asked: Size) -> str:
    """The multiplication, where it is one."""
    whole = f"{asked.total:,} B = {screen.amount(asked.total)} in total"
    bits = NUMBERS[given.dtype].bits
    number = f"{bits // 8} B" if bits >= 8 else f"{bits / 8} B"  # noqa: PLR2004 # bits of a byte
    plain = its.kind in ("MHA", "GQA", "MQA") and all(one.window is None for one in its.layers)
    if not plain:
        return f"{given.tokens} tokens x {sequences(given.batch)} in {given.dtype}: {whole}"
    product = (
        f"2 x {len(its.layers)} layers x {its.kv_heads} KV heads x {its.head_size} x {given.tokens}"
        f" tokens x {sequences(given.batch)} x {number}"
    )
    return f"{product}{' + scales' if asked.scales else ''}\n= {whole}"


def print_expanded(console: Any, given: argparse.Namespace, its: Geometry) -> None:
    """An engine that does not absorb the projections keeps full heads."""
    kept = size(given, its, given.dtype)
    console.print(
        f"an engine that expands the latent ({its.notes[0]}): {screen.amount(kept.total)} in total"
    )


def print_engine(console: Any, given: argparse.Namespace, its: Geometry) -> None:
    """What the embedded engine allocates for the same, or why it cannot."""
    if given.dtype not in DTYPES:
        console.print(f"the embedded engine keeps no {given.dtype}: nothing to compare with")
        return
    blocks = given.batch * -(-given.tokens // given.block_size)
    try:
        allocated, in_memory = allocate(given, blocks)
    except EngineError as error:
        console.print(f"the embedded engine: {error}")
        return
    expected = size(given, its, given.dtype, block=given.block_size).total
    difference = allocated - expected
    how = "allocates" if in_memory else "would allocate (laid out, not filled)"
    verdict = "as computed" if not difference else f"{difference:+,} B against the computed size"
    console.print(
        f"the embedded engine {how} {allocated:,} B = {screen.amount(allocated)} in {blocks}"
        f" blocks, {verdict}\n(and one block more for what padding writes)"
    )


def allocate(given: argparse.Namespace, blocks: int) -> tuple[int, bool]:
    """Bytes of the engine's store without its padding block, and whether memory was behind it."""
    import torch  # noqa: PLC0415 # a config needs none

    from leakcheck.engine.cache import KVStore  # noqa: PLC0415 # as torch
    from leakcheck.engine.inspection.specimens import torch_dtype  # noqa: PLC0415 # as torch
    from leakcheck.engine.models import layer_shapes  # noqa: PLC0415 # as torch

    model, _ = obtain(given.model, None)
    shapes = layer_shapes(model)
    dtype = torch_dtype(given.dtype)
    numbers = sum(heads * size for pair in shapes for heads, size in pair)
    expected = numbers * (blocks + 1) * given.block_size * dtype.itemsize
    in_memory = expected <= ALLOCATE_AT_MOST
    device = torch.device("cpu" if in_memory else "meta")
    store = KVStore(shapes, blocks, given.block_size, dtype=dtype, device=device)
    taken = sum(
        tensor.untyped_storage().nbytes() if in_memory else tensor.numel() * tensor.itemsize
        for tensor in (*store.keys, *store.values)
    )
    return taken * blocks // (blocks + 1), in_memory
