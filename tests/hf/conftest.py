"""Small random checkpoints of the reference implementation, saved as it saves them, with a tokenizer."""

import atexit
import copy
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from polyhead import Choice, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the king of the sea", "a dog barks at two red dogs", "two kings went to sea and one came back"]
VOCABULARY = 300
Builder = Callable[..., Any]


def build_once(build):
    """``build(directory, ...)`` of the same arguments runs once a process; later calls copy files and model.

    The copy of the model takes longer than that of the files; ``files_only`` leaves it out. The random state
    goes on as if the model had been built, so that a test draws the same numbers alone and after others.
    """
    checkpoints = {}

    @functools.wraps(build)
    def copy_checkpoint(directory, *args, files_only=False, **kwargs):
        key = repr((args, sorted(kwargs.items())))
        if key not in checkpoints:
            origin = Path(tempfile.mkdtemp(dir=_cache_dir()))
            model = build(origin, *args, **kwargs)
            checkpoints[key] = model, origin, torch.get_rng_state()
        model, origin, random_state = checkpoints[key]
        shutil.copytree(origin, directory, dirs_exist_ok=True)
        torch.set_rng_state(random_state)
        return None if files_only else copy.deepcopy(model)

    return copy_checkpoint


@functools.cache
def _cache_dir():
    directory = tempfile.mkdtemp(prefix="polyhead-checkpoints-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@functools.cache
def small_tokenizer():
    return train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY)


@build_once
def make(directory, config, seed=0, dtype=torch.float32, auto="AutoModelForCausalLM", **sizes):
    """The reference model of a config, every weight random, biases and norms too; saved with a tokenizer."""
    torch.manual_seed(seed)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    reference_config = getattr(transformers, config)(**{"vocab_size": VOCABULARY, **ids, **sizes})
    model = getattr(transformers, auto).from_config(reference_config, attn_implementation="eager").eval()
    with torch.no_grad():
        # tables of sinusoids need no gradient and stay
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.to(dtype)
    if model.can_generate():
        model.generation_config = transformers.GenerationConfig(eos_token_id=2, bos_token_id=1)
    model.save_pretrained(directory)
    small_tokenizer().save(directory)
    return model


def edit_json(path, remove=(), **values):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: content[key] for key in content if key not in remove} | values))


def edit_weights(directory, change):
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def random_run(config, generation=None, noise=0.0):
    model = build(config, seed=1)
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            parameter.add_(torch.randn_like(parameter) * noise)
    return Run(model, small_tokenizer(), generation or GenerationConfig())


def export_run(run, directory):
    run.save(directory / "run")
    assert main(["export", str(directory / "run"), str(directory / "exported"), "--to", "hf"]) == 0
    return directory / "exported"


@pytest.fixture
def gpt2(tmp_path):
    make(tmp_path / "gpt2", "GPT2Config", n_embd=16, n_layer=2, n_head=2, n_positions=32)
    return tmp_path / "gpt2"
