"""Translations learned from tokens that are now one and now two: what a step reads, where a row ends, how a
run goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes, small_recipe, write_corpus
from tests.train.test_resume import KILLED, Deadly, in_child, result

import polyhead as ph
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.data.batching.collate import collate
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

SPLIT = Choice("translation", token_split=0.5)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("split")
    write_corpus(directory)
    return directory


def recipe(place: Path, out: str, task: Choice = SPLIT, **train: Any) -> Recipe:
    given = small_recipe(place, out, log_every=1, steps=12, max_tokens=96, **train)
    return given.model_copy(update={"task": task})


def ids(rows: torch.Tensor, *around: int) -> list[list[int]]:
    return [[i for i in row if i not in around] for row in rows.tolist()]


def test_every_batch_says_the_same_in_other_tokens(place: Path) -> None:
    given = recipe(place, "unused")
    given = given.model_copy(update={"data": given.data.model_copy(update={"max_len": 12})})
    files = [path.read_text().split("\n")[:-1] for path in given.data.split_paths("train")]
    source, target = (train_tokenizer(lines, Choice("bpe"), 320) for lines in files)
    tokenizer = Tokenizer(source._inner, target_tokenizer=target)  # each side is cut in its own way
    task = TranslationTask.open(given, tokenizer, Notes())
    torch.manual_seed(1)
    longer = total = longest = 0
    for rows in [rows for epoch in (0, 1) for rows in task.epoch_batches(epoch)]:
        batch = task.collate(rows)
        lines = task.train.line_numbers[rows] - 1
        read = ids(batch.source, tokenizer.pad_id, tokenizer.eos_id)
        said = ids(batch.labels, IGNORE_INDEX, tokenizer.eos_id)
        assert source.decode(read) == [files[0][line] for line in lines]
        assert target.decode(said) == [files[1][line] for line in lines]
        assert [[tokenizer.bos_id, *row] for row in said] == ids(batch.target, tokenizer.pad_id)
        assert task.count_labels(batch) == sum(map(len, said)) + len(rows)
        longest = max(longest, *map(len, read + said))
        longer, total = longer + task.count_labels(batch), total + sum(task.train.target_lengths[rows])
    assert longest + 1 == 12  # with its end
    assert 1.1 * total < longer < 1.5 * total


def test_it_is_drawn_anew_from_the_seed_and_only_while_it_learns(place: Path) -> None:
    given = recipe(place, "unused")
    tokenizer = train_tokenizer(TranslationTask.iter_texts(given), Choice("bpe"), 320)
    task, plain = (
        TranslationTask.open(given.model_copy(update={"task": one}), tokenizer, Notes())
        for one in (SPLIT, Choice("translation", token_split=0.0))
    )
    rows = task.epoch_batches(0)[0]
    torch.manual_seed(1)
    first, second = task.collate(rows), task.collate(rows)
    torch.manual_seed(1)
    assert first.source.tolist() == task.collate(rows).source.tolist() != second.source.tolist()
    assert plain.collate(rows).labels.tolist() == collate(plain.train, rows, tokenizer).labels.tolist()
    model = ph.build(given.model.with_vocabulary(tokenizer.vocab_size), 1).eval()
    assert task.evaluate(model) == plain.evaluate(model)


def test_a_killed_run_ends_with_the_same_bits(place: Path) -> None:
    whole, killed = (recipe(place, name) for name in ("whole", "killed"))
    assert in_child(lambda: run_training(whole, report=Notes())) == 0
    assert in_child(lambda: run_training(killed, report=Deadly(9))) == KILLED
    assert in_child(lambda: run_training(killed, resume=True, report=Notes())) == 0
    assert result(killed) == result(whole)
    plain = recipe(place, "plain", Choice("translation", token_split=0.0))
    run_training(plain, report=Notes())
    assert result(plain)["metrics"] != result(whole)["metrics"]


@pytest.mark.parametrize(
    ("option", "kind", "message"),
    [
        (1.5, "bpe", "token_split of task 'translation'"),
        (
            0.1,
            "byte",
            "no token of this vocabulary consists of two others; remove token_split, or train a "
            "larger vocabulary",
        ),
    ],
)
def test_what_cannot_be_is_told_first(
    option: float, kind: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = {split: [f"{split}.de", f"{split}.en"] for split in ("train", "valid")}
    task, given = {"name": "translation", "token_split": option}, place / f"{kind}.yaml"
    given.write_text(
        json.dumps({"task": task, "data": sides, "tokenizer": {"kind": kind}, "train": {"steps": 1}})
    )
    assert main(["train", str(given), f"data.root={place}", f"out={place / 'refused'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (place / "refused" / "model.safetensors").exists()
