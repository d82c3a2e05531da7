"""A classifier from labelled text: it learns what there is, its batches are a function of the seed, and it
resumes to the same bits.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.tasks.classification_helpers import learned as learned
from tests.train.tasks.classification_helpers import place as place
from tests.train.tasks.classification_helpers import recipe, rows
from tests.train.test_resume import KILLED, Deadly, in_child, result

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.nn.loss import classification_loss
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.classification import ClassificationTask

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]

FILLING = ["a", "film", "plot", "with", "some", "actors", "and", "music"]


def test_it_learns_what_there_is_to_learn(learned: tuple[Path, Notes]) -> None:
    out, notes = learned
    assert notes.series("accuracy", "valid")[-1] >= 0.95
    run = ph.load(out)
    assert run.config.labels == ("bad", "good", "odd")
    assert "3 classes: bad " in " ".join(notes.said)
    found = run.classify(["a dull film", "lovely music and some actors", "queer plot"])
    assert [one.label for one in found] == ["bad", "good", "odd"]
    assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in found)
    assert run.classify([]) == []
    with pytest.raises(UserError, match="batch_tokens is 0; expected an integer, 1 or more"):
        run.classify([], batch_tokens=0)
    readme = (out / "README.md").read_text()
    assert "| test accuracy |" in readme and "| valid mcc |" in readme and "perplexity" not in readme
    assert "polyhead classify . input.txt" in readme


def test_the_checkpoint_with_the_best_accuracy_is_the_result(place: Path) -> None:
    notes = Notes()
    made = recipe(place, "best", train={"steps": 30, "eval_every": 3, "lr": 3e-2})
    run_training(made, report=notes)
    valid = [row for row in notes.rows if row["split"] == "valid"]
    best = max(row["accuracy"] for row in valid)
    (first,) = [int(row["step"]) for row in valid if row["accuracy"] == best][:1]
    assert f"| weights | checkpoint {first} |" in (made.out / "README.md").read_text()
    assert f"| valid accuracy | {best:.4f} |" in (made.out / "README.md").read_text()


def test_pairs_are_told_apart_by_segments(place: Path) -> None:
    data = {"text": ["text", "second"]}
    notes = Notes()
    run, _ = run_training(
        recipe(place, "pairs", data=data, model={"n_segments": 2}, train={"steps": 60}), report=notes
    )
    pairs = [("a dull film", "some music"), ("some music", "a dull film")]
    forward, back = run.classify(pairs)
    assert forward.probabilities != back.probabilities
    ids = run.tokenizer.encode(list(pairs[0]))
    t = run.tokenizer
    tokens = torch.tensor([[t.bos_id, *ids[0], t.eos_id, *ids[1], t.eos_id]])
    segments = (torch.arange(tokens.size(1)) >= len(ids[0]) + 2).long()[None]
    with torch.no_grad():
        wanted, without = (run.model(tokens, None, s).softmax(-1)[0].tolist() for s in (segments, None))
    assert [*forward.probabilities.values()] == pytest.approx(wanted, rel=1e-4)
    assert [*forward.probabilities.values()] != pytest.approx(without, rel=1e-4)
    with pytest.raises(UserError, match="texts and pairs of texts cannot be mixed"):
        run.classify([("a", "b"), "c"])
    with pytest.raises(UserError, match=r"^single texts; expected a list of pairs"):
        run.classify(["a dull film"])


def task_of(place: Path, tmp_path: Path, **options: Any) -> tuple[ClassificationTask, Tokenizer]:
    made = recipe(place, "unused", task={"name": "classification", **options}, data={"cache_dir": tmp_path})
    tokenizer = train_tokenizer(ClassificationTask.iter_texts(made), made.tokenizer.kind, 300)
    return TASK.get("classification").open(made, tokenizer, Notes()), tokenizer


def test_every_text_is_in_one_batch_of_an_epoch_in_an_order_of_the_seed_alone(
    place: Path, tmp_path: Path
) -> None:
    task, _ = task_of(place, tmp_path)
    epochs = [[batch.tolist() for batch in task.epoch_batches(epoch)] for epoch in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch) == list(range(300))
        for batch in epoch:
            assert len(batch) * max(task.train.lengths[batch]) <= 160
    assert task.count_labels(task.collate(np.arange(7))) == 7


def test_token_dropout_hides_tokens_of_the_text_alone(place: Path, tmp_path: Path) -> None:
    task, tokenizer = task_of(place, tmp_path, token_dropout=0.25)
    plain, _ = task_of(place, tmp_path)
    hidden = counted = 0
    torch.manual_seed(5)
    for batch in task.epoch_batches(0):
        found, wanted = task.collate(batch).inputs, plain.collate(batch).inputs
        special = torch.isin(
            wanted.tokens, torch.tensor([tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id])
        )
        changed = found.tokens != wanted.tokens
        assert not (changed & special).any()
        assert (found.tokens[changed] == tokenizer.mask_id).all()
        hidden, counted = hidden + int(changed.sum()), counted + int((~special).sum())
    assert hidden / counted == pytest.approx(0.25, abs=0.03)
    torch.manual_seed(9)
    first = task.collate(task.epoch_batches(0)[0]).inputs.tokens
    torch.manual_seed(9)
    assert torch.equal(first, task.collate(task.epoch_batches(0)[0]).inputs.tokens)
    assert torch.equal(
        task.valid.collate(np.arange(5), 0)[0].tokens, plain.valid.collate(np.arange(5), 0)[0].tokens
    )


def test_the_loss_is_smoothed_in_training_and_not_in_evaluation(place: Path, tmp_path: Path) -> None:
    made = recipe(place, "unused", data={"cache_dir": tmp_path}, train={"label_smoothing": 0.3})
    tokenizer = train_tokenizer(ClassificationTask.iter_texts(made), made.tokenizer.kind, 300)
    task = TASK.get("classification").open(made, tokenizer, Notes())
    model = ph.build(made.model.with_vocabulary(tokenizer.vocab_size, task.labels), 1).eval()
    batch = task.collate(task.epoch_batches(0)[0])
    logits = model(*batch.inputs.model_args(0))
    loss = task.loss(model, batch)
    reference = torch.nn.functional.cross_entropy(logits, batch.labels, label_smoothing=0.3, reduction="sum")
    assert float(loss.total.detach()) == pytest.approx(float(reference.detach()), rel=1e-5)
    assert float(loss.nll) == pytest.approx(
        float(classification_loss(logits, batch.labels).total.detach()), rel=1e-5
    )
    scores = task.compute_logits(model, batch)
    assert torch.allclose(scores.logits, logits) and torch.equal(scores.labels, batch.labels)
    assert len(scores.hidden_states) == int(task.train.lengths[task.epoch_batches(0)[0]].sum())
    everything = torch.cat(
        [model(*task.valid.collate([row], 0)[0].model_args(0)) for row in range(len(task.valid))]
    )
    mean = torch.nn.functional.cross_entropy(everything, torch.tensor(task.valid.labels, dtype=torch.int64))
    assert task.evaluate(model)["loss"] == pytest.approx(float(mean.detach()), rel=1e-4)


def test_a_killed_run_ends_with_the_same_bits(place: Path) -> None:
    task, train = {"name": "classification", "token_dropout": 0.2}, {"ema": 0.9}
    whole, killed = (recipe(place, out, task=task, train=dict(train)) for out in ("whole", "killed"))
    assert in_child(lambda: run_training(whole, report=Notes())) == 0
    assert in_child(lambda: run_training(killed, report=Deadly(13))) == KILLED
    assert in_child(lambda: run_training(killed, resume=True, report=Notes())) == 0
    assert result(killed) == result(whole)


def test_a_share_of_the_training_text_and_labels_unknown_and_cut_texts_are_told(place: Path) -> None:
    rng = np.random.default_rng(8)
    lines = [json.dumps({"text": a, "label": label}) for label, a, _ in rows(rng, 100)]
    (place / "some.jsonl").write_text(
        "\n".join([*lines, json.dumps({"text": "word " * 60, "label": "odd"})]) + "\n"
    )
    (place / "more.jsonl").write_text(
        "\n".join([*lines[:20], json.dumps({"text": "x", "label": "goood"})]) + "\n"
    )
    data = {"train": "some.jsonl", "valid": None, "valid_fraction": 0.1, "test": None}
    notes = Notes()
    run_training(recipe(place, "share", data=data, train={"steps": 2}), report=notes)
    texts = [*(json.loads(line)["text"] for line in lines), " ".join(["word"] * 60)]
    held = [text for text in texts if zlib.crc32(text.encode()) < 0.1 * 2**32]
    n = len(held)
    assert n and texts[-1] not in held
    assert f"train: some.jsonl: {101 - n} of {101 - n} texts; truncated 1 (first: line 101)" in notes.said
    assert f"valid: some.jsonl: {n} of {n} texts" in notes.said
    named = {"train": "some.jsonl", "valid": "more.jsonl", "test": None}
    run_training(recipe(place, "unknown", data=named, train={"steps": 2}), report=notes)
    assert (
        "valid: more.jsonl: 20 of 21 texts; skipped 1 with an unknown label (first: line 21, "
        "'goood', did you mean 'good'?)" in notes.said
    )


def test_a_share_that_lacks_a_class_is_warned_of(place: Path) -> None:
    """A class of one text, repeated 200 times, that is not held out."""
    data = {"train": "turns.jsonl", "valid": None, "valid_fraction": 0.3, "test": None}
    kept = next(word for word in map(str, range(99)) if zlib.crc32(word.encode()) >= 0.3 * 2**32)
    for n_texts, missing in ((1, ["l1"]), (200, [])):
        lines = [json.dumps({"text": f"word {i}", "label": "l0"}) for i in range(200)]
        lines += [
            json.dumps({"text": kept if n_texts == 1 else f"other {i}", "label": "l1"}) for i in range(200)
        ]
        (place / "turns.jsonl").write_text("\n".join(lines) + "\n")
        notes = Notes()
        run_training(recipe(place, f"turns{n_texts}", data=data, train={"steps": 1}), report=notes)
        told = [line for line in notes.said if line.startswith("warning: no validation text")]
        named = ", ".join(map(repr, missing))
        assert [f"the label {named}: data.valid_fraction" in line for line in told] == [True] * bool(missing)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"text": "txt"}}, "unknown column of train.tsv 'txt'; did you mean 'text'"),
        ({"data": {"text": []}}, "data.text"),
        (
            {"data": {"max_len": 2}},
            "data.max_len: 2 tokens are too few for a text: with special tokens at least 3",
        ),
        ({"data": {"text": ["a", "b", "c"]}}, "data.text"),
        (
            {"data": {"valid": None}},
            "data.valid is missing: set it to validation files, or set data.valid_fraction",
        ),
        (
            {"data": {"valid": None, "valid_fraction": 1e-9}},
            "data.valid_fraction is 1e-09: this selects none of the 300 texts in train.tsv; set at least ",
        ),
        (
            {"train": {"best_metric": "bleu"}},
            "train.best_metric: task 'classification' does not measure 'bleu'; it measures loss, "
            "accuracy, f1, mcc",
        ),
        ({"train": {"eval_bleu": True}}, "train.eval_bleu: task 'classification' does not measure 'bleu'"),
        (
            {"model": {"kind": "decoder", "pooling": None}},
            "task 'classification' trains a model of kind 'encoder', not 'decoder'",
        ),
        (
            {"task": {"name": "classification", "token_dropout": 1.0}},
            "token_dropout of task 'classification' must be a fraction from 0 ",
        ),
        ({"train": {"max_tokens": 4}}, "max_tokens is 4, but row"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_learned(
    place: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_training(recipe(place, "refused", **changes), report=Notes())
    assert not (place / "refused" / "checkpoints").exists()


def test_it_is_measured_later_as_it_was_at_the_end(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of texts longer than it learns from it reads as much, though the model could read on."""
    notes = Notes()
    made = recipe(place, "short", data={"max_len": 5, "cache_dir": None}, train={"steps": 6})
    run, _ = run_training(made, report=notes)
    assert run.generation.embed_max_len == 5 < run.config.max_len
    assert all(row["texts_per_s"] > 0 for row in notes.rows if row["split"] == "train")
    capsys.readouterr()
    assert main(["eval", str(made.out), "--split", "valid"]) == 0
    said = capsys.readouterr()
    assert "truncated to 5 tokens: " in said.err
    loss = re.search(r"loss\s+([\d.]+)", said.out)
    assert loss and float(loss[1]) == pytest.approx(notes.series("loss", "valid")[-1], abs=1e-3)
    own = made.model_copy(update={"generation": GenerationConfig(embed_max_len=None), "out": place / "all"})
    assert run_training(own, report=Notes())[0].generation.embed_max_len is None
