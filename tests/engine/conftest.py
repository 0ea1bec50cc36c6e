"""Engines and servers on tiny models, for every test of the engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from leakcheck.engine.engine import Engine
from leakcheck.engine.models import layer_shapes
from leakcheck.engine.values import EngineOptions

sys.path.insert(0, str(Path(__file__).parent))  # tests import `served` and `tiny` from here
from served import serving
from tiny import make_gpt2, make_llama, make_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def llama():
    return make_llama()


@pytest.fixture(scope="session")
def gpt2():
    return make_gpt2()


@pytest.fixture
def make_engine(llama, tokenizer):
    """An engine on the tiny Llama: `make_engine(num_blocks=8)`; `model=` for another model."""

    def make(model=None, **options):
        model = model or llama
        return Engine(model, tokenizer, layer_shapes(model), EngineOptions(**options))

    return make


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, llama, tokenizer):
    """The tiny Llama as a folder, named `tiny`."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    llama.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(model_folder):
    """READY fields of a server on the tiny Llama."""
    with serving(model_folder, "--block-size", "4", "--blocks", "256") as ready:
        yield ready
