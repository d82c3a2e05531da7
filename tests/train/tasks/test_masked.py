"""Masked tokens: what is asked in a batch, that it is learned, that a killed run goes on to the same bits."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.test_resume import KILLED, Deadly, in_child, result

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.models import MaskedLM
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.masked import MaskedLMTask

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]

ALPHABET = "abcdefgh"
STEPS = 30


def recipe(place: Path, out: str, *, steps: int = STEPS, **changes: Any) -> Recipe:
    model = {
        "d_model": 24,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 48,
        "dropout": 0.1,
        "max_len": 32,
        "norm_first": True,
    }
    train = {
        "steps": steps, "max_tokens": 256, "lr": 1e-2, "precision": "fp32", "ema": 0.9, "seed": 3,
        "log_every": 1,
        "eval_every": 10, "save_every": 7, "schedule": {"name": "cosine", "warmup": 5},
    }  # fmt: skip
    return Recipe.model_validate(
        {
            "task": changes.pop("task", "masked-lm"),
            "data": {"root": place, "train": "letters.txt", "valid_fraction": 0.1,
                "document_separator": "line", "max_len": 32,
                     "cache_dir": place / "cache"} | changes.pop("data", {}),
            "tokenizer": {"kind": "char"} | changes.pop("tokenizer", {}),
            "model": model | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "out": place / out,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same eight letters over and over, a line begins with any of them: two neighbours tell a third."""
    directory = tmp_path_factory.mktemp("letters")
    rng = np.random.default_rng(1)
    rows = [
        (ALPHABET * 3)[start : start + size]
        for start, size in zip(rng.integers(0, 8, 400), rng.integers(5, 14, 400), strict=True)
    ]
    (directory / "letters.txt").write_text("".join(f"{row}\n" for row in rows))
    (directory / "letters.tsv").write_text(
        "label\tletters\n" + "".join(f"{len(row) % 2}\t{row}\n" for row in rows)
    )
    return directory


def opened(made: Recipe) -> tuple[MaskedLMTask, Tokenizer]:
    part = TASK.get(made.task.name)
    part.check(made)
    tokenizer = train_tokenizer(part.iter_texts(made), made.tokenizer.kind, made.tokenizer.vocab_size)
    return part.open(made, tokenizer, Notes()), tokenizer


@pytest.fixture(scope="module")
def learned(unsynced: None, place: Path) -> tuple[Path, Notes]:
    notes = Notes()
    train = {"log_every": 50, "eval_every": 100, "save_every": 100, "max_tokens": 512, "lr": 5e-3}
    model = {"d_model": 32, "n_layers": 2, "dropout": 0.0, "position": "rope"}
    made = recipe(place, "learned", steps=250, model=model, train=train)
    run_training(made, report=notes)
    return made.out, notes


def test_it_learns_what_neighbours_tell(learned: tuple[Path, Notes]) -> None:
    """All but the loss that stays: one in ten tokens asked for looks like any other, and
    one may be another.
    """
    row = [row for row in learned[1].rows if row["split"] == "valid"][-1]
    assert row["loss"] < 0.15 and row["accuracy"] > 0.95
    assert row["ppl"] == pytest.approx(math.exp(row["loss"]))
    said = learned[1].said
    assert any(re.match(r"train: letters.txt: 3\d\d documents, 3\d\d lines", line) for line in said)
    assert any(line.endswith("of their tokens are not padding") for line in said)
    assert f"valid accuracy: {row['accuracy']:.4f}" in said
    assert "fill-mask" in (learned[0] / "README.md").read_text()
    assert type(ph.load(learned[0]).model) is MaskedLM


@pytest.mark.parametrize("documents", ["line", "file"])
@pytest.mark.parametrize("whole_word", [False, True])
def test_every_token_stands_once_in_an_epoch(place: Path, documents: str, whole_word: bool) -> None:
    """And the batch is as the paper has it: framed, kept apart, labels only where is asked."""
    task, t = opened(
        recipe(
            place,
            "x",
            data={"document_separator": documents, "max_len": 16},
            task={"name": "masked-lm", "whole_word": whole_word},
        )
    )
    for epoch in (0, 1):
        texts, asked, hidden, n = [], 0, 0, 0
        for packed in task.epoch_batches(epoch):
            batch = task.collate(packed)
            assert batch.tokens.shape == batch.labels.shape and batch.tokens.shape[1] <= 16
            where = batch.labels != -100
            assert task.count_labels(batch) == int(where.sum())
            original = torch.where(where, batch.labels, batch.tokens)
            pos = torch.arange(original.size(1)).expand_as(original) if batch.pos is None else batch.pos
            assert ((pos == -1) == (original == t.pad_id)).all() and (
                (pos == 0) == (original == t.bos_id)
            ).all()
            special = original < 5
            assert not (where & special).any()
            for row, places in zip(original.tolist(), pos.tolist(), strict=True):
                assert [p for p in places if p >= 0] == [
                    i for piece in pieces(row, t) for i in range(len(piece) + 2)
                ]
                texts += pieces(row, t)
            per_row = where.sum(1)
            ordinary = (~special).sum(1)
            if not whole_word:
                assert per_row.tolist() == [max(1, round(0.15 * k)) for k in ordinary.tolist()]
            asked, hidden, n = (
                asked + int(where.sum()),
                hidden + int((batch.tokens == t.mask_id).sum()),
                n + int(ordinary.sum()),
            )
        wanted = "".join(t.decode([task.train.ids[task.train.ids >= 5]]))
        assert sorted("".join(t.decode(texts))) == sorted(wanted) and n == len(wanted)
        if documents == "line":
            lines = (place / "letters.txt").read_text().splitlines()[: task.train.report.documents]
            assert sorted(t.decode(texts)) == sorted(lines)  # none was cut
        if not whole_word:
            assert 0.72 < hidden / asked < 0.88 and 0.13 < asked / n < 0.17


def pieces(row: list[int], t: Tokenizer) -> list[list[int]]:
    """The texts of a row, which hold no special token."""
    found: list[list[int]] = []
    for token in row:
        if token == t.bos_id:
            found.append([])
        elif token not in (t.eos_id, t.pad_id):
            found[-1].append(token)
    return found


@pytest.mark.acceptance("A11")
def test_masks_follow_from_seed_epoch_and_row(place: Path) -> None:
    task, _ = opened(recipe(place, "x"))
    again, _ = opened(recipe(place, "x"))
    other, _ = opened(recipe(place, "x", train={"seed": 4}))
    wide, _ = opened(recipe(place, "x", train={"max_tokens": 512}))
    first = task.epoch_batches(0)[0]
    second = first._replace(epoch=1)  # the same rows
    assert torch.equal(task.collate(first).tokens, again.collate(again.epoch_batches(0)[0]).tokens)
    assert not torch.equal(task.collate(first).labels, task.collate(second).labels)
    assert not torch.equal(task.collate(first).labels, other.collate(first).labels)
    # rows keep their masks whatever batch they are in
    both = wide.collate(wide.epoch_batches(0)[0]).labels
    apart = [task.collate(packed).labels for packed in task.epoch_batches(0)[:2]]
    assert torch.equal(both[both != -100], torch.cat([labels[labels != -100] for labels in apart]))


def test_documents_of_a_row_are_apart(place: Path) -> None:
    """Features of a packed row are those of each text alone."""
    task, t = opened(recipe(place, "x"))
    model = ph.build(
        recipe(place, "x", model={"position": "learned"}).model.with_vocabulary(t.vocab_size), 1
    ).eval()
    batch = task.collate(task.epoch_batches(0)[0])
    assert batch.pos is not None and int((batch.pos == 0).sum(1).max()) > 1
    together = model.features(batch.tokens, batch.pos)
    for row in range(len(batch.tokens)):
        begins = torch.where(batch.pos[row] == 0)[0].tolist()
        ends = [*begins[1:], int((batch.pos[row] >= 0).sum())]
        for begin, end in zip(begins, ends, strict=True):
            alone = model.features(batch.tokens[row : row + 1, begin:end])
            torch.testing.assert_close(together[row, begin:end], alone[0], atol=1e-5, rtol=1e-4)


def test_the_loss_is_that_of_the_tokens_asked_for(place: Path) -> None:
    """Beside the logits of all tokens."""
    task, t = opened(recipe(place, "x"))
    model = ph.build(recipe(place, "x").model.with_vocabulary(t.vocab_size), 1).eval()
    batch = task.collate(task.epoch_batches(0)[0])
    loss = task.loss(model, batch)
    logits = model(batch.tokens, batch.pos)
    wanted = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), reduction="sum", ignore_index=-100
    )
    assert loss.total.item() == pytest.approx(wanted.item(), rel=1e-5) and loss.count == task.count_labels(
        batch
    )
    scores = task.compute_logits(model, batch)
    assert torch.equal(scores.labels, batch.labels[batch.labels != -100])
    torch.testing.assert_close(scores.logits, logits[batch.labels != -100])
    assert len(scores.hidden_states) == int((batch.pos >= 0).sum())


def test_evaluations_of_any_seed_ask_for_the_same(place: Path) -> None:
    tasks = [opened(recipe(place, "x", train={"seed": seed}))[0] for seed in (1, 2)]
    model = ph.build(recipe(place, "x").model.with_vocabulary(tasks[0].tokenizer.vocab_size), 1).eval()
    first, second = (task.evaluate(model) for task in tasks)
    assert first == second == tasks[0].evaluate(model)


def test_a_killed_run_ends_with_the_same_bits(place: Path) -> None:
    whole, killed = recipe(place, "whole"), recipe(place, "killed")
    assert in_child(lambda: run_training(whole, report=Notes())) == 0
    assert in_child(lambda: run_training(killed, report=Deadly(18))) == KILLED
    assert in_child(lambda: run_training(killed, resume=True, report=Notes())) == 0
    assert result(killed) == result(whole)


def test_the_text_of_a_table_is_learned_from_as_well(place: Path) -> None:
    table = recipe(
        place,
        "table",
        steps=3,
        data={"train": "letters.tsv", "text": "letters", "document_separator": "file"},
    )
    plain = recipe(place, "plain", steps=3)
    losses = []
    for made in (table, plain):
        notes = Notes()
        run_training(made, report=notes)
        losses.append(notes.series("loss"))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"max_len": 64}},
            "data.max_len is 64, more than model.max_len=32: rows do not fit; set data.max_len=32",
        ),
        (
            {"data": {"max_len": 2}},
            "data.max_len is 2; with special tokens the minimum is 3",
        ),
        ({"train": {"max_tokens": 10}}, "train.max_tokens is 10, less than a row of data.max_len=32 tokens"),
        (
            {"task": {"name": "masked-lm", "mask": 0.0}},
            "mask of task 'masked-lm' must be a fraction above 0 and at most 1, not 0.0",
        ),
        ({"task": {"name": "masked-lm", "mask": 15}}, "at most 1, not 15.0; BERT uses 0.15"),
        (
            {"model": {"lm_head": False}},
            "model.lm_head=false has no vocabulary logits, which task 'masked-lm' requires",
        ),
        ({"model": {"kind": "decoder"}}, "task 'masked-lm' trains a model of kind 'encoder', not 'decoder'"),
        (
            {"train": {"best_metric": "bleu"}},
            "task 'masked-lm' does not measure 'bleu'; it measures loss, accuracy",
        ),
        (
            {"train": {"eval_bleu": True}},
            "train.eval_bleu: task 'masked-lm' does not measure 'bleu'; it measures loss, accuracy",
        ),
        (
            {"data": {"train": "letters.tsv", "text": "leters"}},
            "unknown column of letters.tsv 'leters'; did you mean 'letters'",
        ),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_learned(
    place: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_training(recipe(place, "refused", **changes), report=Notes())
    assert not (place / "refused" / "checkpoints").exists()
