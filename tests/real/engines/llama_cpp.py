"""llama.cpp: its own C++ server, from the wheel xllamacpp."""

from pathlib import Path

from real.engine import Engine, Environment, Noise

SERVER = Path(__file__).parents[1] / "servers" / "serve_llama_cpp.py"
SLOTS, CONTEXT_PER_SLOT = 8, 1024
ENVIRONMENT = Environment(name="llama-cpp", steps=(("install", "xllamacpp==2026.10.11549"),))


def command(places, *settings):
    """`settings` are fields of llama.cpp's CommonParams, as key=value."""
    sizes = (str(SLOTS), str(CONTEXT_PER_SLOT))
    return [
        str(places.python), str(SERVER), str(places.gguf()), str(places.port), *sizes, *settings
    ]  # fmt: skip


def repeatable(places, *settings):
    """Without the cache of prompts: what is left to compute of a prompt of which a part is cached
    has another shape, and is rounded otherwise, so that the same request alone differs from itself.
    """
    return command(places, "cache_prompt=false", *settings)


SHORT_STEPS = "n_ubatch=32"
"""Prompts that arrive together are cut where the shortest of them ends, and flash attention on the
CPU rounds otherwise from 64 tokens at a time on: with at most 32 it makes no difference.
"""


def kv(*, unified):
    """Whether all slots share one pool of cells, which a batch reads through one mask."""
    return f"kv_unified={str(unified).lower()}"


def engine(*, unified, seeds, noise):
    return Engine(
        name=f"llama.cpp {kv(unified=unified)}",
        environment=ENVIRONMENT,
        command=lambda places: command(places, kv(unified=unified)),
        model="smollm2",
        metrics=True,
        cached_tokens=True,
        prefix_windows=3,  # each slot has a cache of its own, and a pair may come to two of them
        flags=("--api", "completions"),
        # it does, and few of the chains of so small a set need an open one
        leaves_open=("the target closed every connection",),
        seeds=seeds,
        noise=noise,
    )


ENGINES = (
    engine(
        unified=False,
        seeds=(1, 2, 3),
        noise=Noise(
            grade="D0",
            windows=4,
            command=lambda places: repeatable(places, kv(unified=False), SHORT_STEPS),
        ),
    ),
    engine(
        unified=True,
        seeds=(1,),
        noise=Noise(grade="D1", command=lambda places: repeatable(places, kv(unified=True))),
    ),
)
