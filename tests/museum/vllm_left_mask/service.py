"""Real vLLM on the CPU, with the embedded engine's small model.

Run by the interpreter of an environment that has some release; knows nothing of leakcheck. Ends
when its standard input does.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from importlib import metadata

STARTING_S = 600
MODEL = "small"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def free_port():
    """A port that nothing listens at."""
    with socket.socket() as any_one:
        any_one.bind(("127.0.0.1", 0))
        return any_one.getsockname()[1]


def wait(server, url):
    """Until it answers; OSError when it does not, or has ended."""
    deadline = time.monotonic() + STARTING_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - http
        except OSError:
            if time.monotonic() > deadline or server.poll() is not None:
                raise
            time.sleep(0.2)
        else:
            return


def main(model):
    """Serve until standard input ends."""
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", model, "--served-model-name", MODEL, "--dtype", "float32",
        "--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager",
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    with subprocess.Popen(command, env=os.environ | QUIET, stdout=sys.stderr) as server:
        try:
            wait(server, f"http://127.0.0.1:{port}/health")
            ready = {
                "base_url": f"http://127.0.0.1:{port}/v1",
                "model": MODEL,
                "release": metadata.version("vllm-cpu"),
            }
            print("READY", json.dumps(ready), flush=True)  # noqa: T201 - how it says where it is
            sys.stdin.buffer.read()
        finally:
            server.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
