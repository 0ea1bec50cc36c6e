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


def repeatable(places, *, unified):
    """Without the cache of prompts: what is left to compute of a prompt of which a part is cached
    has another shape, and is rounded otherwise, so that the same request alone differs from itself.
    Without flash attention: its kernel for 64 tokens and more rounds otherwise than that for fewer,
    and prompts that arrive together are cut to the length of the shortest.
    """
    return command(places, kv(unified), "cache_prompt=false", "flash_attn_type=0")


def kv(unified):
    """Whether all slots share one pool of cells, which a batch reads through one mask."""
    return f"kv_unified={str(unified).lower()}"


def engine(*, unified, grade, windows, seeds):
    return Engine(
        name=f"llama.cpp {kv(unified)}",
        environment=ENVIRONMENT,
        command=lambda places: command(places, kv(unified)),
        model="smollm2",
        metrics=True,
        cached_tokens=True,
        flags=("--api", "completions"),
        seeds=seeds,
        noise=Noise(
            grade=grade,
            windows=windows,
            command=lambda places: repeatable(places, unified=unified),
        ),
    )


ENGINES = (
    engine(unified=False, grade="D0", windows=4, seeds=(1, 2, 3)),
    engine(unified=True, grade="D1", windows=2, seeds=(1,)),
)
