"""Trainings of every task on one process and on several, and their comparison."""

import json
from collections.abc import Callable
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import CLOCK_KEYS, Notes, small_recipe, with_data, write_corpus
from tests.train.ranks import outputs_of
from tests.train.task_runs import TASKS as TASKS
from torch import Tensor

from polyhead import build
from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.run_training import run_training
from polyhead.train.tasks.base import Task
from polyhead.viz.run_record import read_metrics

STEPS = 4
KINDS = {"language-model": "decoder", "chat": "decoder", "denoising": "encoder-decoder"}
EXACT_KEYS = {"split", "step", "skipped", "epoch", "lr", "best"}


def write_task_texts(directory: Path) -> Path:
    write_corpus(directory)
    source, target = ((directory / f"train.{side}").read_text().splitlines() for side in ("de", "en"))
    rows = [f"{line}\t{'many' if len(line) > 18 else 'few'}\n" for line in target]
    (directory / "labels.tsv").write_text("text\tlabel\n" + "".join(rows))
    spans = [{"text": line, "spans": [[0, len(line.split()[0]), "first"]]} for line in target]
    (directory / "spans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spans))
    pairs = zip(source, target, strict=True)
    chats = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in pairs]
    (directory / "chats.jsonl").write_text("".join(json.dumps({"messages": x}) + "\n" for x in chats))
    return directory


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task_texts(tmp_path_factory.mktemp("ranks"))


def recipe_of(directory: Path, task: str, out: str, **train: Any) -> Recipe:
    """A recipe of that task without anything random in its model."""
    # an eps that is large next to rounding, or Adam would make steps of gradients that are only rounding
    train = {"optimizer": {"name": "adamw", "eps": 1e-3}, "schedule": {"name": "constant"}} | train
    train = {"steps": STEPS, "log_every": 1, "eval_every": STEPS // 2, "save_every": STEPS // 2} | train
    model = {"dropout": 0.0} | train.pop("model", {})
    recipe = small_recipe(directory, out, model=model, **train).model_dump(mode="json")
    data: dict[str, Any] = {
        "chat": {"train": ["chats.jsonl"], "valid": ["chats.jsonl"], "max_len": 32},
        "classification": {"train": ["labels.tsv"], "valid": ["labels.tsv"], "document_separator": "file"},
        "embedding": {"train": ["train.de", "train.en"], "valid": ["train.de", "train.en"]},
        "token-classification": {"train": ["spans.jsonl"], "valid": ["spans.jsonl"], "label": "spans"},
    }
    if task != "translation":
        text = {"train": ["train.en"], "valid": ["valid.en"], "document_separator": "line", "max_len": 16}
        recipe["task"], recipe["train"]["label_smoothing"] = {"name": task}, None
        recipe["data"] |= text | data.get(task, {})
        recipe["model"]["kind"] = KINDS.get(task, "encoder")
    if task == "embedding":
        recipe["model"]["lm_head"] = False
    if task == "replaced-token-detection":
        recipe["model"] |= {"generator_layers": 1, "lm_head": False}
    if recipe["model"]["kind"] != "encoder-decoder":
        recipe["generation"] = {}
    return Recipe.model_validate(recipe)


def large_recipe(directory: Path, task: str) -> Recipe:
    recipe = recipe_of(directory, task, f"large-{task}", max_tokens=40, eval_bleu=task == "translation")
    return with_data(recipe, valid=recipe.data.train, test=recipe.data.train)


def open_task(recipe: Recipe) -> tuple[Run, Task]:
    part, config = TASK.get(recipe.task.name), recipe.tokenizer
    tokenizer = train_tokenizer(part.iter_texts(recipe), config.kind, config.vocab_size)
    task: Task = part.open(recipe, tokenizer, Notes())
    model = build(recipe.model.with_vocabulary(tokenizer.vocab_size, task.labels), 1)
    return Run(model, tokenizer, recipe.generation, recipe), task


def train_all(recipes: list[Recipe], world_size: int, resume: bool = False) -> list[dict[str, Any]]:
    """Train in one launch of so many processes; returns metrics, final weights and the last checkpoint."""

    def work(ranks: ProcessGroup) -> None:
        for recipe in recipes:
            run_training(recipe, resume=resume, report=Notes(), ranks=ranks)

    if world_size == 1:
        work(SINGLE_PROCESS)
    else:
        outputs_of(world_size, work)
    return [read_result(recipe.out) for recipe in recipes]


def train(recipe: Recipe, world_size: int, resume: bool = False) -> dict[str, Any]:
    return train_all([recipe], world_size, resume)[0]


def read_result(run_dir: Path) -> dict[str, Any]:
    step = checkpoint.list_steps(run_dir / "checkpoints")[-1]
    return {
        "metrics": read_metrics(run_dir / "metrics.jsonl"),
        "final": load_file(run_dir / "model.safetensors"),
        "last": checkpoint.read_checkpoint(run_dir / "checkpoints" / f"step-{step}"),
    }


def assert_same_run(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Equal within rounding: metrics, weights, the state of the optimizer and the average."""
    assert len(a["metrics"]) == len(b["metrics"]) > STEPS
    for actual, expected in zip(a["metrics"], b["metrics"], strict=True):
        assert actual.keys() == expected.keys()
        for key in actual.keys() - CLOCK_KEYS - {"steps"}:
            if key in EXACT_KEYS:
                assert actual[key] == expected[key], key
            else:  # a reward of hundredths is a difference of log-probabilities of tens
                assert actual[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-6), key
    assert_close(a["final"], b["final"])
    assert a["last"].tensors.keys() == b["last"].tensors.keys() == {"model", "optimizer_0", "ema"}
    for group, tensors in a["last"].tensors.items():
        assert_close(tensors, b["last"].tensors[group])
    counters = [run["last"].state["progress"] | {"sums": None, "best": None} for run in (a, b)]
    assert counters[0] == counters[1]
    assert a["last"].state["optimizers"] == b["last"].state["optimizers"]
    assert a["last"].extra == b["last"].extra


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=1e-5, atol=1e-5, msg=name)


def on_call(n: int, function: Callable[..., Any], action: Callable[[], Any]) -> Callable[..., Any]:
    """The function; its nth call, or each if n is 0, does something else first."""
    numbers = count(1)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if n in (0, next(numbers)):
            action()
        return function(*args, **options)

    return call
