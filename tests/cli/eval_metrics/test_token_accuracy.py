"""Tests of cli/eval_metrics/token_accuracy.py: masked and denoising models."""

import pytest
import torch
from tests.cli.eval_baselines_helpers import card
from tests.train.conftest import Notes

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.train.run_training import run_training

NAMES = ["anna", "bert", "carl", "dora"]


@pytest.fixture(scope="module", params=["masked-lm", "denoising"])
def directory(request, tmp_path_factory):
    """A trained run and its text."""
    path = tmp_path_factory.mktemp(request.param)
    for name, step in (("train", 1), ("test", 3)):
        lines = [f"{NAMES[i * step % 4]} and {NAMES[(i * step + i // 4 + 1) % 4]}\n" for i in range(60)]
        (path / f"{name}.txt").write_text("".join(lines))
    data = {"root": path, "train": "train.txt", "valid_fraction": 0.2, "test": "test.txt"}
    recipe = {
        "task": request.param,
        "data": data | {"document_separator": "line", "max_len": 32},
        "tokenizer": {"kind": "char"},
        "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_len": 32},
        "train": {"steps": 5, "max_tokens": 256, "precision": "fp32"},
        "out": path / "run",
    }
    run_training(Recipe.model_validate(recipe), report=Notes())
    return path


@pytest.fixture
def measure(cli):
    """A function that returns the values of `eval` by name."""

    def run(*arguments):
        lines = cli("eval", *arguments).out.splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines}

    return run


def test_values_are_those_of_the_training(directory, measure):
    facts = card(directory / "run")
    files = [directory / "test.txt"]
    for arguments, split in (([], "test"), (["--split", "valid"], "valid"), (files, "test")):
        values = measure(directory / "run", *arguments)
        assert values.keys() == {"loss", "perplexity", "accuracy"}
        for name in ("loss", "accuracy"):
            assert values[name] == pytest.approx(float(facts[f"{split} {name}"]), abs=6e-4)


def test_loss_and_rows_of_an_ensemble(directory, tmp_path, measure):
    """Of two equal runs it is that of one; of others it is lower, as the logarithm is concave."""
    run = ph.load(directory / "run")
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    run.save(tmp_path / "second")
    first, second = directory / "run", tmp_path / "second"
    a, b = measure(first)["loss"], measure(second)["loss"]
    assert measure(first, "--ensemble", first)["loss"] == a
    assert min(a, b) - 0.7 < measure(first, "--ensemble", second)["loss"] < (a + b) / 2 - 0.05
    # With a model of 12 positions, the first run is measured as if its own max_len were 12.
    run = ph.load(directory / "run")
    config = run.config.model_copy(update={"position": Choice("learned"), "max_len": 12})
    Run(build(config, 1), run.tokenizer, run.generation, run.recipe).save(tmp_path / "short")
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"max_len": 12})})
    Run(run.model, run.tokenizer, run.generation, recipe).save(tmp_path / "narrow")
    expected = measure(tmp_path / "narrow", "--ensemble", tmp_path / "short")
    assert measure(directory / "run", "--ensemble", tmp_path / "short") == expected
    assert measure(directory / "run", "--ensemble", directory / "run") != expected
