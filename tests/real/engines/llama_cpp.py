"""llama.cpp: its own C++ server, from the wheel xllamacpp."""

from pathlib import Path

from real.engine import Engine, Environment

SERVER = Path(__file__).parents[1] / "servers" / "serve_llama_cpp.py"
SLOTS, CONTEXT_PER_SLOT = 8, 1024
ENVIRONMENT = Environment(name="llama-cpp", steps=(("install", "xllamacpp==2026.10.11549"),))


def command(places, *settings):
    """`settings` are fields of llama.cpp's CommonParams, as key=value."""
    sizes = (str(SLOTS), str(CONTEXT_PER_SLOT))
    return [
        str(places.python), str(SERVER), str(places.gguf()), str(places.port), *sizes, *settings
    ]  # fmt: skip


def engine(*, unified, noise):
    kv = f"kv_unified={str(unified).lower()}"
    return Engine(
        name=f"llama.cpp {kv}",
        environment=ENVIRONMENT,
        command=lambda places: command(places, kv),
        model="smollm2",
        metrics=True,
        cached_tokens=True,
        flags=("--api", "completions", "--max-tokens", "48"),
        noise=noise,
    )


ENGINES = (engine(unified=False, noise=None), engine(unified=True, noise=None))
