"""Training with data.augment: the same texts with any number of processes and after a resume."""

import json
import re

import pytest
import torch
from tests.train.conftest import Notes, small_recipe, user_error, with_data

from polyhead import Choice
from polyhead.config.recipe import Recipe
from polyhead.core.registry import AUGMENT
from polyhead.data.batching.collate import collate
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

PARTS = [{"name": name, "rate": 0.4} for name in AUGMENT.names()]


@pytest.fixture
def recipe(corpus_dir):
    return with_data(
        small_recipe(corpus_dir, max_tokens=96), augment=[AUGMENT.check(Choice.from_config(p)) for p in PARTS]
    )


def read_rows(task, rows):
    """The two token lists of each row of a batch."""
    batch = task.collate(rows)
    sides = batch.source.tolist(), batch.labels.tolist()
    ignored = {task.tokenizer.pad_id, task.tokenizer.eos_id, IGNORE_INDEX}
    return [
        tuple(tuple(i for i in row if i not in ignored) for row in pair) for pair in zip(*sides, strict=True)
    ]


def test_rows_do_not_depend_on_batches(recipe):
    tokenizer = train_tokenizer(TranslationTask.iter_texts(recipe), Choice("byte"), 320)
    task = TranslationTask.open(recipe, tokenizer, Notes())
    plain = TranslationTask.open(with_data(recipe, augment=[]), tokenizer, Notes())
    n_changed = 0
    for epoch in (0, 1, 2):
        plan = task.epoch_batches(epoch)
        assert sorted(row for batch in plan for row in batch.rows) == [*range(len(task.train))]
        for rows in plan:
            assert rows.epoch == epoch
            texts, whole = read_rows(plain, rows), read_rows(task, rows)
            parts = [read_rows(task, part) for part in task.shard(rows, 2)]
            assert [whole[rank::2] for rank in range(len(parts))] == parts == parts
            n_changed += sum(a != b for a, b in zip(texts, whole, strict=True))
    assert 0.5 * 3 * len(task.train) < n_changed < 3 * len(task.train)
    for split in ("train", "valid"):
        for (_, batch), (_, other) in zip(task.eval_batches(split), plain.eval_batches(split), strict=True):
            assert torch.equal(batch.source, other.source) and torch.equal(batch.labels, other.labels)
    rows = task.epoch_batches(0)[0]
    assert read_rows(task, rows) != read_rows(task, rows._replace(epoch=1))
    rows = plain.epoch_batches(0)[0]
    assert plain.collate(rows).labels.tolist() == collate(plain.train, rows.rows, tokenizer).labels.tolist()


def test_batches_are_planned_by_the_lengths_after_augmentation(recipe):
    tokenizer = train_tokenizer(TranslationTask.iter_texts(recipe), Choice("byte"), 320)
    task = TranslationTask.open(recipe, tokenizer, Notes())
    plain = TranslationTask.open(with_data(recipe, augment=[]), tokenizer, Notes())
    n_long = 0
    for epoch in (0, 1):
        for rows in task.epoch_batches(epoch):
            batch = task.collate(rows)
            assert max(batch.source.numel(), batch.target.numel()) <= recipe.train.max_tokens
        by_old_lengths = map(task.collate, plain.epoch_batches(epoch))
        n_long += sum(batch.target.numel() > recipe.train.max_tokens for batch in by_old_lengths)
    assert n_long > 3
    assert task.collate(task.largest_batch()).target.numel() > 0.9 * recipe.train.max_tokens


def test_resumed_training_reads_the_same_texts(recipe, tmp_path):
    def losses(out, *steps):
        for number, n_steps in enumerate(steps):
            settings = {"steps": n_steps, "eval_every": 4, "save_every": 2, "log_every": 1}
            part = recipe.model_copy(
                update={"out": tmp_path / out, "train": recipe.train.model_copy(update=settings)}
            )
            run_training(part, report=Notes(), resume=number > 0)
        lines = map(json.loads, (tmp_path / out / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row["loss"] for row in lines if row.get("split") == "train" and "loss" in row}

    whole, parts = losses("whole", 12), losses("parts", 7, 12)
    assert whole == parts and len(whole) == 12
    assert len({path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}) == 1
    changed = with_data(recipe, augment=[]).model_copy(update={"out": tmp_path / "whole"})
    with user_error("data.augment differ from"):
        run_training(changed, report=Notes(), resume=True)


@pytest.mark.parametrize(
    ("task", "part", "message"),
    [
        ("denoising", "caps", "data.augment is for task translation without distill; task 'denoising'"),
        ("translation", "cap", "unknown augment 'cap'; did you mean 'caps'?"),
    ],
)
def test_mistakes_are_named(task, part, message, corpus_dir):
    tree = small_recipe(corpus_dir).model_dump(exclude={"task"})
    tree["data"]["augment"] = [part]
    with pytest.raises(ValueError, match=re.escape(message)):
        Recipe.model_validate(tree | {"task": task})
