"""Start llama.cpp's server: `serve_llama_cpp.py GGUF PORT SLOTS CONTEXT_PER_SLOT [key=value ...]`.

It runs in the environment of the engine. `key=value` sets any field of llama.cpp's CommonParams,
such as kv_unified=true. One thread computes; /health answers 200 once the model is loaded.
"""

import json
import signal
import sys

import xllamacpp


def main(gguf, port, slots, context, *settings):
    """Serve until a signal comes."""
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = int(slots)
    params.n_ctx = int(context) * int(slots)
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    for setting in settings:
        name, _, value = setting.partition("=")
        setattr(params, name, json.loads(value))
    server = xllamacpp.Server(params)
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
