"""Shared by the tests of reading published checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.load import load_weights
from polyhead.hf.published_checkpoint import open_checkpoint
from polyhead.nn.state import materialize

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
REFUSALS = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text(encoding="utf-8"))


def load_mmap(directory):
    return load_weights(open_checkpoint(CheckpointFiles(directory)))


def load_model(directory):
    """The model alone in fp32, whatever the dtype of the files."""
    return materialize(load_mmap(directory))


def rename_as_pickle(directory):
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")


def run_script(script, environment, directory):
    """A process of its own, since huggingface_hub reads its settings once."""
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=environment, cwd=directory
    )


def read_rows(name):
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text().splitlines()]
