"""Real `transformers serve`, with a copy of the embedded engine's small model in a folder.

The copy says of itself what releases 4 and 5 of transformers both understand. Run by the
interpreter of an environment that has some release; knows nothing of leakcheck. Ends when its
standard input does.
"""

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

STARTING_S = 180


def copied(model, folder):
    """The model once more, without what only release 5 reads."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "model_max_length": config["max_position_embeddings"],
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


def free_port():
    """A port that nothing listens at."""
    with socket.socket() as any_one:
        any_one.bind(("127.0.0.1", 0))
        return any_one.getsockname()[1]


def wait(server, base_url):
    """Until it answers; OSError when it does not, or has ended."""
    deadline = time.monotonic() + STARTING_S
    while True:
        try:
            urllib.request.urlopen(f"{base_url}/health", timeout=5).close()  # noqa: S310 - http
        except OSError:
            if time.monotonic() > deadline or server.poll() is not None:
                raise
            time.sleep(0.1)
        else:
            return


def main(model, folder):
    """Serve until standard input ends."""
    served, port = copied(Path(model), Path(folder)), free_port()
    command = [Path(sys.executable).with_name("transformers"), "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--dtype", "float32"]
    home = Path(f"{folder}-home")  # offline, and listing what is there: it has to be a folder
    (home / "hub").mkdir(parents=True)
    surrounding = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    with subprocess.Popen(command, env=surrounding, stdout=sys.stderr) as server:
        try:
            wait(server, f"http://127.0.0.1:{port}")
            ready = {
                "base_url": f"http://127.0.0.1:{port}/v1",
                "model": str(served),
                "release": importlib.metadata.version("transformers"),
            }
            print("READY", json.dumps(ready), flush=True)  # noqa: T201 - how it says where it is
            sys.stdin.buffer.read()
        finally:
            server.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
