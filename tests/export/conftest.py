"""Small random runs, every weight of them, and what onnxruntime makes of their graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the king of the sea", "a dog barks at two red dogs", "two kings went to sea and one came back"]
VOCABULARY = 290
SIZES = {"d_model": 24, "n_heads": 4, "n_layers": 1, "d_ff": 40, "max_len": 32}
Arrays = dict[str, Any]
Feed = dict[str, Tensor]


def made(seed: int = 1, **config: Any) -> Run:
    """A run whose weights are all random, biases and norms too."""
    model = build(ModelConfig(vocab_size=VOCABULARY, **(SIZES | config)), seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    tokenizer = train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY)
    return Run(model, tokenizer, GenerationConfig(beam_size=1, max_new_tokens=10, temperature=0))


def exported(run: Run, place: Path, *options: str) -> Path:
    """The run as the verb writes it."""
    run.save(place / "run")
    assert main(["export", str(place / "run"), str(place / "out"), *options]) == 0
    return place / "out"


class Session:
    """A graph by names, of tensors."""

    def __init__(self, path: Path) -> None:
        self.inner = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = {x.name: x.shape for x in self.inner.get_inputs()}
        self.outputs = {x.name: x.shape for x in self.inner.get_outputs()}

    def __call__(self, **feed: Tensor) -> Feed:
        found = self.inner.run(None, {name: x.numpy() for name, x in feed.items()})
        return {name: torch.from_numpy(np.asarray(x)) for name, x in zip(self.outputs, found, strict=True)}

    def empty(self, rows: int, kind: str = "") -> Feed:
        """The past of rows that have none."""
        return {
            name: torch.zeros(rows, shape[1], 0, shape[3])
            for name, shape in self.inputs.items()
            if name.startswith("past") and kind in name
        }


def kept(outputs: Feed) -> Feed:
    """What a step gives, as the next one takes it."""
    return {
        name.replace("present", "past_key_values"): x
        for name, x in outputs.items()
        if name.startswith("present")
    }


def padded(rows: int = 3, length: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, mask and positions of rows with padding on the left of the second and on the right of the
    third.
    """
    tokens = torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[1, :2], mask[2, 5:] = 0, 0
    return tokens, mask, (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Run, Path]]:
    """A run of a config and where it was exported to."""

    def one(*options: str, **config: Any) -> tuple[Run, Path]:
        run = made(**config)
        return run, exported(run, tmp_path_factory.mktemp("export"), *options)

    return one
