"""Shared by the tests of evaluation."""

from __future__ import annotations

from pathlib import Path

from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import recipe_of

from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.tasks.base import Task


def opened(recipe: Recipe) -> tuple[Run, Task]:
    """The task of a recipe, and a model that has learned nothing."""
    part = TASK.get(recipe.task.name)
    vocabulary = recipe.tokenizer
    tokenizer = train_tokenizer(part.iter_texts(recipe), vocabulary.kind, vocabulary.vocab_size)
    task: Task = part.open(recipe, tokenizer, Notes())
    model = build(recipe.model.with_vocabulary(tokenizer.vocab_size, task.labels), 1)
    return Run(model, tokenizer, recipe.generation, recipe), task


def large(place: Path, kind: str) -> Recipe:
    """With texts of many batches to be measured by, one of them to be tested by."""
    recipe = recipe_of(place, kind, f"large-{kind}", max_tokens=40, eval_bleu=kind == "translation")
    files = {"valid": recipe.data.train, "test": recipe.data.train}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=files)})
