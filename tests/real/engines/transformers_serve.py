"""transformers serve: continuous batching over a paged cache with shared blocks."""

from real.engine import Engine, Environment

NAME = "smollm2-135m"
"""Of the folder with the model, by which the server is asked for it."""
ENVIRONMENT = Environment(
    name="transformers-serve",
    steps=(
        ("install", "torch==2.13.0"),
        ("install", "transformers[serving]==5.24.0", "accelerate"),
    ),
)


def command(places, parent=None):
    """`parent`: the folder that has the model's folder in it, in place of the usual one."""
    return [
        "env", f"--chdir={parent or places.folder().parent}",
        str(places.python.with_name("transformers")), "serve", NAME,
        "--continuous-batching", "--device", "cpu", "--dtype", "float32",
        "--attn-implementation", "sdpa", "--cb-num-blocks", "512", "--cb-block-size", "32",
        "--cb-max-batch-tokens", "512", "--host", "127.0.0.1", "--port", str(places.port),
    ]  # fmt: skip


ENGINES = (
    Engine(
        name="transformers serve",
        environment=ENVIRONMENT,
        command=command,
        model=NAME,
        metrics=False,
        cached_tokens=False,
        patience_s=180,
        flags=("--api", "completions", "--max-tokens", "48"),
        breaks=("duplicate-ids",),  # see test_guilty.py
        # with `do_sample: false` in its folder it never samples, whatever a request asks for
        leaves_open=("hot requests are answered greedily", "no sampling parameter was tested"),
        environ={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
    ),
)
