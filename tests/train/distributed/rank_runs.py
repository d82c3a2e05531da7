"""Shared by the tests of process_group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import Notes, small_recipe, write_corpus
from tests.train.several import together
from torch import Tensor

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

STEPS = 8

EXACT = {"dropout": 0.0}

SAME = {"split", "step", "skipped", "epoch", "lr", "best"}


@pytest.fixture(scope="module")
def place(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    write_corpus(directory)
    labelled = [
        f"{line}\t{'many' if len(line) > 18 else 'few'}"
        for line in (directory / "train.en").read_text().split("\n")[:-1]
    ]
    (directory / "labelled.tsv").write_text("\n".join(["text\tlabel", *labelled]) + "\n")
    pairs = zip(
        *((directory / f"train.{side}").read_text().split("\n")[:-1] for side in ("de", "en")), strict=True
    )
    talks = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
        for asked, said in pairs
    ]
    (directory / "talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    return directory


def recipe_of(place: Path, kind: str, out: str, **train: Any) -> Recipe:
    """A recipe of that task without anything random in its model."""
    # an eps that is large beside rounding, or Adam would make steps of gradients that are 0 but for it
    train = {"steps": STEPS, "log_every": 1, "eval_every": 4, "save_every": 4, "optimizer": {"name": "adamw",
        "eps": 1e-3},
             "schedule": {"name": "constant"}} | train  # fmt: skip
    recipe = small_recipe(place, out, model=EXACT | train.pop("model", {}), **train).model_dump(mode="json")
    if kind != "translation":
        recipe["task"] = {"name": kind}
        recipe["data"] |= {
            "train": ["train.en"],
            "valid": ["valid.en"],
            "document_separator": "line",
            "max_len": 16,
        }
        recipe["model"]["kind"] = {"language-model": "decoder", "denoising": "encoder-decoder"}.get(
            kind, "encoder"
        )
        recipe["train"]["label_smoothing"] = None
    if kind == "replaced-token-detection":
        recipe["model"] |= {"generator_layers": 1, "lm_head": False}
    if kind == "chat":
        recipe["data"] |= {"train": ["talks.jsonl"], "valid": ["talks.jsonl"], "max_len": 32}
        recipe["model"]["kind"] = "decoder"
    if kind == "classification":
        recipe["data"] |= {"train": ["labelled.tsv"], "valid": ["labelled.tsv"], "document_separator": "file"}
    if recipe["model"]["kind"] != "encoder-decoder":
        recipe["generation"] = {}
    return Recipe.model_validate(recipe)


def trained(recipe: Recipe, world: int, resume: bool = False) -> dict[str, Any]:
    """What comes of it: metrics, and weights."""

    def work(ranks: ProcessGroup) -> None:
        run_training(recipe, resume=resume, report=Notes(), ranks=ranks)

    if world == 1:
        run_training(recipe, resume=resume, report=Notes())
    else:
        ends = together(world, work)
        assert [end.code for end in ends] == [0] * world, ends
    steps = checkpoint.list_steps(recipe.out / "checkpoints")
    return {
        "metrics": read_metrics(recipe.out / "metrics.jsonl"),
        "final": load_file(recipe.out / "model.safetensors"),
        "last": checkpoint.read_checkpoint(recipe.out / "checkpoints" / f"step-{steps[-1]}"),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal within rounding: what was measured, the weights, the state of the optimiser and the average."""
    assert len(one["metrics"]) == len(other["metrics"]) > STEPS
    for a, b in zip(one["metrics"], other["metrics"], strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"tokens_per_s", "texts_per_s", "ms_per_step", "seconds", "steps"}:
            assert (
                a[name] == b[name] if name in SAME else a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-7)
            ), name
    assert_close(one["final"], other["final"])
    assert one["last"].tensors.keys() == other["last"].tensors.keys() == {"model", "optimizer_0", "ema"}
    for group, tensors in one["last"].tensors.items():
        assert_close(tensors, other["last"].tensors[group])
    counters = [
        {name: value for name, value in run["last"].state["progress"].items() if name not in ("sums", "best")}
        for run in (one, other)
    ]
    assert counters[0] == counters[1]
    assert one["last"].state["optimizers"] == other["last"].state["optimizers"]
    assert one["last"].extra == other["last"].extra


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-5, msg=name)
