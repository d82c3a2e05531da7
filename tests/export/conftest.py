"""Small random runs and what onnxruntime makes of their graphs."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from torch import Tensor

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the king of the sea", "a dog barks at two red dogs", "two kings went to sea and one came back"]
VOCABULARY = 290
CONFIGS = yaml.safe_load((Path(__file__).parent / "configs.yaml").read_text(encoding="utf-8"))
BASES = CONFIGS["bases"]
SIZES = {"d_model": 24, "n_heads": 4, "n_layers": 1, "d_ff": 40, "max_len": 32}
Feed = dict[str, Tensor]
ExportedRun = tuple[Run, Path]
ExportModel = Callable[..., ExportedRun]


@cache
def small_tokenizer():
    return train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY)


def random_run(seed=1, **config):
    model = build(ModelConfig(vocab_size=VOCABULARY, **(SIZES | config)), seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    generation = GenerationConfig(beam_size=1, max_new_tokens=10, temperature=0)
    return Run(model, small_tokenizer(), generation)


def export_run(run, directory, *options):
    run.save(directory / "run")
    assert main(["export", str(directory / "run"), str(directory / "exported"), *options]) == 0
    return directory / "exported"


class Session:
    def __init__(self, path):
        self.inner = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = {x.name: x.shape for x in self.inner.get_inputs()}
        self.outputs = {x.name: x.shape for x in self.inner.get_outputs()}

    def __call__(self, **feed):
        arrays = self.inner.run(None, {name: x.numpy() for name, x in feed.items()})
        return {name: torch.from_numpy(np.asarray(x)) for name, x in zip(self.outputs, arrays, strict=True)}

    def empty_past(self, rows, kind=""):
        shapes = {name: shape for name, shape in self.inputs.items() if name.startswith("past")}
        return {
            name: torch.zeros(rows, shape[1], 0, shape[3]) for name, shape in shapes.items() if kind in name
        }


def next_past(outputs):
    states = {name: x for name, x in outputs.items() if name.startswith("present")}
    return {name.replace("present", "past_key_values"): x for name, x in states.items()}


def padded_batch(rows=3, length=7):
    """Tokens, mask and positions; the second row has padding on the left, the third on the right."""
    tokens = torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[1, :2], mask[2, 5:] = 0, 0
    return tokens, mask, (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)


def read_refused_configs(target):
    from tests.hf.tables import read_table

    rows = read_table(Path(__file__).parent / "refused_configs.txt", json_column=1)
    return [pytest.param(*row.values[1:], id=row.id) for row in rows if row.values[0] == target]


@pytest.fixture(scope="session")
def export_model(tmp_path_factory):
    """A run of a config and the directory of its export, written once a session; tests only read them."""
    exports = {}

    def export(*options, **config):
        key = repr((options, sorted(config.items())))
        if key not in exports:
            run = random_run(**config)
            exports[key] = run, export_run(run, tmp_path_factory.mktemp("export"), *options)
        return exports[key]

    return export
