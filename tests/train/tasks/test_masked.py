import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.tasks.text_recipes import text_recipe
from torch.nn.functional import cross_entropy

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.models import MaskedLM
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
ALPHABET = "abcdefgh"
N_SPECIAL = 5


def recipe(directory: Path, out: str, *, task: Any = "masked-lm", **changes: Any) -> Recipe:
    data = {"train": "letters.txt", "max_len": 32} | changes.pop("data", {})
    return text_recipe(directory, out, task, data=data, **changes)


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("letters")
    rng = np.random.default_rng(1)
    starts, sizes = rng.integers(0, 8, 400), rng.integers(5, 14, 400)
    rows = [(ALPHABET * 3)[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    (directory / "letters.txt").write_text("".join(f"{row}\n" for row in rows))
    table = "".join(f"{len(row) % 2}\t{row}\n" for row in rows)
    (directory / "letters.tsv").write_text("label\tletters\n" + table)
    return directory


def open_task(recipe: Recipe) -> Any:
    part = TASK.get(recipe.task.name)
    part.check(recipe)
    config = recipe.tokenizer
    tokenizer = train_tokenizer(part.iter_texts(recipe), config.kind, config.vocab_size)
    return part.open(recipe, tokenizer, Notes()), tokenizer


def test_masked_letters_are_learned(corpus_dir):
    """But for one in ten masked tokens, which looks like any other and may be another one."""
    train = {"log_every": 50, "eval_every": 200, "save_every": 200, "max_tokens": 512, "lr": 1e-2}
    model = {"d_model": 32, "n_layers": 2, "dropout": 0.0, "position": "rope"}
    config, notes = recipe(corpus_dir, "trained", steps=200, model=model, train=train), Notes()
    run_training(config, report=notes)
    row = [row for row in notes.rows if row["split"] == "valid"][-1]
    assert row["loss"] < 0.2 and row["accuracy"] > 0.94
    assert row["ppl"] == pytest.approx(math.exp(row["loss"]))
    lines = notes.lines
    assert any(re.match(r"train: letters.txt: 3\d\d documents, 3\d\d lines", line) for line in lines)
    assert any(line.endswith("of their tokens are not padding") for line in lines)
    card = (config.out / "README.md").read_text()
    assert f"| valid accuracy | {row['accuracy']:.4f} |" in card and "fill-mask" in card
    assert type(ph.load(config.out).model) is MaskedLM


def split_texts(row, t) -> list[list[int]]:
    texts = []
    for token in row:
        if token == t.bos_id:
            texts.append([])
        elif token not in (t.eos_id, t.pad_id):
            texts[-1].append(token)
    return texts


@pytest.mark.parametrize("separator", ["line", "file"])
@pytest.mark.parametrize("whole_word", [False, True])
def test_every_token_is_once_in_an_epoch(separator, whole_word, corpus_dir):
    data = {"document_separator": separator, "max_len": 16}
    task, t = open_task(
        recipe(corpus_dir, "x", data=data, task={"name": "masked-lm", "whole_word": whole_word})
    )
    for epoch in (0, 1):
        texts, n_labels, n_masks, n_tokens = [], 0, 0, 0
        for packed_rows in task.epoch_batches(epoch):
            batch = task.collate(packed_rows)
            assert batch.tokens.shape == batch.labels.shape and batch.tokens.shape[1] <= 16
            is_label = batch.labels != -100
            assert task.count_labels(batch) == int(is_label.sum())
            tokens = torch.where(is_label, batch.labels, batch.tokens)
            pos = torch.arange(tokens.size(1)).expand_as(tokens) if batch.pos is None else batch.pos
            assert ((pos == -1) == (tokens == t.pad_id)).all()
            assert ((pos == 0) == (tokens == t.bos_id)).all()
            is_special = tokens < N_SPECIAL
            assert not (is_label & is_special).any()
            for row, positions in zip(tokens.tolist(), pos.tolist(), strict=True):
                row_texts = split_texts(row, t)
                expected = [i for text in row_texts for i in range(len(text) + 2)]
                assert [p for p in positions if p >= 0] == expected
                texts += row_texts
            counts = (~is_special).sum(1)
            if not whole_word:
                assert is_label.sum(1).tolist() == [max(1, round(0.15 * k)) for k in counts.tolist()]
            n_labels += int(is_label.sum())
            n_masks += int((batch.tokens == t.mask_id).sum())
            n_tokens += int(counts.sum())
        expected = "".join(t.decode([task.train.ids[task.train.ids >= N_SPECIAL]]))
        assert sorted("".join(t.decode(texts))) == sorted(expected) and n_tokens == len(expected)
        if separator == "line":
            lines = (corpus_dir / "letters.txt").read_text().splitlines()[: task.train.report.documents]
            assert sorted(t.decode(texts)) == sorted(lines)  # none was cut
        if not whole_word:
            assert 0.72 < n_masks / n_labels < 0.88 and 0.13 < n_labels / n_tokens < 0.17


@pytest.mark.acceptance("A11")
def test_masks_follow_from_seed_epoch_and_row(corpus_dir):
    options = ({}, {}, {"seed": 4}, {"max_tokens": 512})
    task, same_task, other, wide = (open_task(recipe(corpus_dir, "x", train=train))[0] for train in options)
    batches = task.epoch_batches(0)
    first = task.collate(batches[0])
    assert torch.equal(first.tokens, same_task.collate(same_task.epoch_batches(0)[0]).tokens)
    assert not torch.equal(first.labels, task.collate(batches[0]._replace(epoch=1)).labels)  # the same rows
    assert not torch.equal(first.labels, other.collate(batches[0]).labels)
    # rows keep their masks in whatever batch they are
    both = wide.collate(wide.epoch_batches(0)[0]).labels
    single = [task.collate(packed_rows).labels for packed_rows in batches[:2]]
    assert torch.equal(both[both != -100], torch.cat([labels[labels != -100] for labels in single]))
    model = ph.build(recipe(corpus_dir, "x").model.with_vocabulary(task.tokenizer.vocab_size), 1).eval()
    assert task.evaluate(model) == other.evaluate(model) == task.evaluate(model)


def test_documents_of_a_row_do_not_interact(corpus_dir):
    task, t = open_task(recipe(corpus_dir, "x"))
    config = recipe(corpus_dir, "x", model={"position": "learned"}).model.with_vocabulary(t.vocab_size)
    model, batch = ph.build(config, 1).eval(), task.collate(task.epoch_batches(0)[0])
    assert batch.pos is not None and int((batch.pos == 0).sum(1).max()) > 1
    features = model.features(batch.tokens, batch.pos)
    for row in range(len(batch.tokens)):
        starts = torch.where(batch.pos[row] == 0)[0].tolist()
        ends = [*starts[1:], int((batch.pos[row] >= 0).sum())]
        for start, end in zip(starts, ends, strict=True):
            single = model.features(batch.tokens[row : row + 1, start:end])
            torch.testing.assert_close(features[row, start:end], single[0], atol=1e-5, rtol=1e-4)


def test_loss_is_that_of_masked_tokens(corpus_dir):
    task, t = open_task(recipe(corpus_dir, "x"))
    model = ph.build(recipe(corpus_dir, "x").model.with_vocabulary(t.vocab_size), 1).eval()
    batch = task.collate(task.epoch_batches(0)[0])
    loss, logits = task.loss(model, batch), model(batch.tokens, batch.pos)
    labels = batch.labels.flatten()
    expected = cross_entropy(logits.flatten(0, 1), labels, reduction="sum", ignore_index=-100)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.count == task.count_labels(batch)
    scores = task.compute_logits(model, batch)
    assert torch.equal(scores.labels, batch.labels[batch.labels != -100])
    torch.testing.assert_close(scores.logits, logits[batch.labels != -100])
    assert len(scores.hidden_states) == int((batch.pos >= 0).sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"max_len": 64}}, "data.max_len is 64, more than model.max_len=32: rows do not fit; set"),
        ({"data": {"max_len": 2}}, "data.max_len is 2; with special tokens the minimum is 3"),
        ({"train": {"max_tokens": 10}}, "train.max_tokens is 10, less than a row of data.max_len=32 tokens"),
        ({"task": {"name": "masked-lm", "mask": 0.0}}, "must be a fraction above 0 and at most 1, not 0.0"),
        ({"task": {"name": "masked-lm", "mask": 15}}, "at most 1, not 15.0; BERT uses 0.15"),
        ({"model": {"lm_head": False}}, "has no vocabulary logits, which task 'masked-lm' requires"),
        ({"model": {"kind": "decoder"}}, "task 'masked-lm' trains a model of kind 'encoder', not 'decoder'"),
        ({"train": {"best_metric": "bleu"}}, "does not measure 'bleu'; it measures loss, accuracy"),
        ({"train": {"eval_bleu": True}}, "'masked-lm' does not measure 'bleu'; it measures loss, accuracy"),
        ({"data": {"train": "letters.tsv", "text": "leters"}}, "'leters'; did you mean 'letters'"),
    ],
)
def test_unsuitable_recipe_is_refused(changes, message, corpus_dir):
    with pytest.raises(ValueError, match=message):
        run_training(recipe(corpus_dir, "refused", **changes), report=Notes())
    assert not (corpus_dir / "refused" / "checkpoints").exists()
