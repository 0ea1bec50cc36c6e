"""llama.cpp: its own C++ server, from the wheel xllamacpp."""

from pathlib import Path

from real.engine import NEARLY_TIED, Engine, Environment, Noise

SERVER = Path(__file__).parents[1] / "servers" / "serve_llama_cpp.py"
SLOTS, CONTEXT_PER_SLOT = 8, 1024
ENVIRONMENT = Environment(name="llama-cpp", steps=(("install", "xllamacpp==2026.10.11549"),))


def command(places, *settings):
    """`settings` are fields of llama.cpp's CommonParams, as key=value."""
    sizes = (str(SLOTS), str(CONTEXT_PER_SLOT))
    return [
        str(places.python), str(SERVER), str(places.gguf()), str(places.port), *sizes, *settings
    ]  # fmt: skip


def repeatable(*, unified):
    """Without the cache of prompts: what is left to compute of a prompt of which a part is cached
    has another shape, and is rounded otherwise, so that the same request alone differs from itself.
    """
    return lambda places: command(places, kv(unified), "cache_prompt=false")


def kv(unified):
    """Whether all slots share one pool of cells, which a batch reads through one mask."""
    return f"kv_unified={str(unified).lower()}"


def engine(*, unified, noise):
    return Engine(
        name=f"llama.cpp {kv(unified)}",
        environment=ENVIRONMENT,
        command=lambda places: command(places, kv(unified)),
        model="smollm2",
        metrics=True,
        cached_tokens=True,
        flags=("--api", "completions"),
        noise=noise,
    )


ENGINES = (
    engine(
        unified=False,
        noise=Noise(
            grade="D0",
            windows=100,
            requests=2,
            recipients=1,
            max_tokens=32,
            flags=("--set", "traffic.free=0.0", "--set", "traffic.max_filler_words=20"),
            command=repeatable(unified=False),
        ),
    ),
    engine(
        unified=True,
        noise=Noise(
            grade="D1",
            windows=4,
            requests=8,
            recipients=4,
            max_tokens=32,
            flags=NEARLY_TIED,
            command=repeatable(unified=True),
        ),
    ),
)
