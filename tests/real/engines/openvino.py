"""OpenVINO GenAI: a library, behind a small server of ours."""

from pathlib import Path

from real.engine import Engine, Environment, Noise

SERVER = Path(__file__).parents[1] / "servers" / "serve_openvino.py"


def command(places, *options):
    """`options` of the server."""
    return [str(places.python), str(SERVER), str(places.gguf()), str(places.port), *options]


ENGINES = (
    Engine(
        name="OpenVINO GenAI",
        environment=Environment(
            name="openvino", steps=(("install", "openvino-genai==2026.4.1.0"),)
        ),
        command=command,
        model="smollm2",
        metrics=False,
        cached_tokens=False,
        patience_s=180,
        flags=("--api", "completions"),
        noise=Noise(grade="D1", command=lambda places: command(places, "--no-prefix-caching")),
    ),
)
