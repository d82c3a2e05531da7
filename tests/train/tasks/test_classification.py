"""A classifier from labelled text: it learns what there is, its batches are a function of the seed, and it resumes to the same bits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.test_resume import KILLED, Deadly, in_child, result

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.readers.labeled import read_labeled
from polyhead.evaluate.class_metrics import class_measures
from polyhead.evaluate.classify import ClassPrediction, measure_classes
from polyhead.models import Classifier
from polyhead.nn.loss import classification_loss
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.classification import ClassificationTask, open_split_labeled

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]

WORDS = {
    "good": ["fine", "great", "lovely"],
    "bad": ["dull", "awful", "weak"],
    "odd": ["strange", "weird", "queer"],
}
FILLING = ["a", "film", "plot", "with", "some", "actors", "and", "music"]


def recipe(place: Path, out: str, *, task: Any = "classification", **changes: Any) -> Recipe:
    model = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 32,
        "dropout": 0.1,
        "max_len": 32,
        "norm_first": True,
        "pooling": "max",
    }
    train = {
        "steps": 24, "max_tokens": 160, "lr": 1e-2, "precision": "fp32", "seed": 3, "log_every": 1, "eval_every": 6,
        "save_every": 5, "schedule": {"name": "cosine", "warmup": 4}, "metric": "accuracy",
    }  # fmt: skip
    data = {
        "root": place,
        "train": "train.tsv",
        "valid": "valid.tsv",
        "test": "test.tsv",
        "cache": place / "cache",
    }
    return Recipe.model_validate(
        {
            "task": task,
            "data": data | {"text": "text", "label": "label"} | changes.pop("data", {}),
            "tokenizer": {"vocab_size": 300},
            "model": model | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "out": place / out,
        }
    )  # fmt: skip


def rows(rng: np.random.Generator, count: int) -> list[tuple[str, str, str]]:
    """A text whose class one word tells, and a second text whose class says whether both are alike."""
    out = []
    for _ in range(count):
        labels = [str(rng.choice(list(WORDS))) for _ in range(2)]
        sides = []
        for label in labels:
            words = [*rng.choice(FILLING, int(rng.integers(1, 6))), rng.choice(WORDS[label])]
            sides.append(" ".join(map(str, rng.permutation(words))))
        out.append((labels[0], *sides))
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(1)
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        lines = "".join(f"{label}\t{a}\t{b}\n" for label, a, b in rows(rng, count))
        (directory / f"{split}.tsv").write_text("label\ttext\tsecond\n" + lines)
    return directory


@pytest.fixture(scope="module")
def learned(unsynced: None, place: Path) -> tuple[Path, Notes]:
    notes = Notes()
    made = recipe(place, "learned", train={"steps": 150, "eval_every": 50, "save_every": 50, "log_every": 50})
    run_training(made, report=notes)
    return made.out, notes


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
    with pytest.raises(UserError, match="batch_tokens is 0; wanted a whole number, 1 or more"):
        run.classify([], batch_tokens=0)
    readme = (out / "README.md").read_text()
    assert "| test accuracy |" in readme and "| valid mcc |" in readme and "perplexity" not in readme
    assert "polyhead classify . input.txt" in readme


def test_measures_are_those_of_one_text_after_another(learned: tuple[Path, Notes]) -> None:
    out, notes = learned
    run = ph.load(out)
    assert run.recipe is not None and isinstance(run.model, Classifier)
    examples, _ = read_labeled(open_split_labeled(run.recipe, "valid"))
    log_p = []
    for example in examples:
        ids = [run.tokenizer.bos_id, *run.tokenizer.encode(example.texts)[0], run.tokenizer.eos_id]
        with torch.no_grad():
            log_p.append(run.model(torch.tensor([ids]))[0].log_softmax(-1))
    wanted = [run.config.labels.index(example.label) for example in examples]
    naive = {"loss": -sum(float(row[w]) for row, w in zip(log_p, wanted, strict=True)) / len(wanted)}
    naive |= class_measures([int(row.argmax()) for row in log_p], wanted, run.config.labels)
    measured = measure_classes(run.members, examples, run.generation, 256)
    assert measured.measures == pytest.approx(naive, rel=1e-4)
    best = max(
        (row for row in notes.rows if row["split"] == "valid"),
        key=lambda row: (row["accuracy"], -row["step"]),
    )
    assert {name: best[name] for name in naive} == pytest.approx(naive, rel=1e-4)
    each = run.classify([example.texts[0] for example in examples])
    assert [[*one.probabilities.values()] for one in each] == [
        pytest.approx(row.exp().tolist(), rel=1e-4) for row in log_p
    ]
    assert run.classify([examples[0].texts[0]])[0].label == each[0].label
    with pytest.raises(UserError, match=r"^pairs of texts; wanted a text or a list"):
        run.classify([("a dull film", "some music")])
    assert isinstance(each[0], ClassPrediction)


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
        recipe(place, "pairs", data=data, model={"segments": 2}, train={"steps": 60}), report=notes
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
    with pytest.raises(UserError, match="some texts are pairs and some are not"):
        run.classify([("a", "b"), "c"])
    with pytest.raises(UserError, match=r"^single texts; wanted a list of pairs"):
        run.classify(["a dull film"])


def task_of(place: Path, tmp_path: Path, **options: Any) -> tuple[ClassificationTask, Tokenizer]:
    made = recipe(place, "unused", task={"name": "classification", **options}, data={"cache": tmp_path})
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
    made = recipe(place, "unused", data={"cache": tmp_path}, train={"label_smoothing": 0.3})
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
    data = {"train": "some.jsonl", "valid": None, "valid_share": 0.1, "test": None}
    notes = Notes()
    run_training(recipe(place, "share", data=data, train={"steps": 2}), report=notes)
    assert "train: some.jsonl: 91 of 91 texts; cut 1 (first: line 101)" in notes.said
    assert "valid: some.jsonl: 10 of 10 texts" in notes.said
    named = {"train": "some.jsonl", "valid": "more.jsonl", "test": None}
    run_training(recipe(place, "unknown", data=named, train={"steps": 2}), report=notes)
    assert (
        "valid: more.jsonl: 20 of 21 texts; skipped 1 of an unknown label (first: line 21, 'goood', did you mean 'good'?)"
        in notes.said
    )


def test_a_share_that_lacks_a_class_is_warned_of(place: Path) -> None:
    data = {"train": "turns.jsonl", "valid": None, "valid_share": 0.1, "test": None}
    for size, turns, missing in (
        (100, 2, ["l0"]),
        (300, 5, ["l0", "l1", "l2", "l3"]),
        (100, 3, []),
        (30, 5, []),
    ):
        lines = [json.dumps({"text": f"word {i}", "label": f"l{i % turns}"}) for i in range(size)]
        (place / "turns.jsonl").write_text("\n".join(lines) + "\n")
        notes = Notes()
        run_training(recipe(place, f"turns{size}-{turns}", data=data, train={"steps": 1}), report=notes)
        told = [line for line in notes.said if line.startswith("warning: no validation text")]
        named = ", ".join(map(repr, missing))
        assert [f"the label {named}: data.valid_share" in line for line in told] == [True] * bool(missing)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"text": "txt"}}, "unknown column of train.tsv 'txt'; did you mean 'text'"),
        ({"data": {"text": []}}, "data.text"),
        (
            {"data": {"max_len": 2}},
            "data.max_len: 2 tokens have no room for a text: with special ones it takes 3",
        ),
        ({"data": {"text": ["a", "b", "c"]}}, "data.text"),
        (
            {"data": {"valid": None}},
            "data.valid is missing: name files to measure progress on, or give data.valid_share",
        ),
        (
            {"data": {"valid": None, "valid_share": 0.001}},
            "data.valid_share is 0.001: of the 300 texts in train.tsv that is none; "
            "0.0034 or more would hold out one, or name files in data.valid",
        ),
        (
            {"train": {"metric": "bleu"}},
            "train.metric: task 'classification' does not measure 'bleu'; it has loss, accuracy, f1, mcc",
        ),
        ({"train": {"eval_bleu": True}}, "train.eval_bleu: task 'classification' does not measure 'bleu'"),
        (
            {"model": {"kind": "decoder", "pooling": None}},
            "task 'classification' trains a model of kind 'encoder', not 'decoder'",
        ),
        (
            {"task": {"name": "classification", "token_dropout": 1.0}},
            "token_dropout of task 'classification' is a share from 0 ",
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


def test_a_classifier_does_nothing_else_and_nothing_else_classifies(learned: tuple[Path, Notes]) -> None:
    run = ph.load(learned[0])
    with pytest.raises(
        UserError, match="this takes a language model, and the run is a classifier: use classify, "
    ):
        run.generate(["a"])
    with pytest.raises(
        UserError, match="this takes an encoder-decoder or a language model, and the run is a classifier"
    ):
        run.score(["a"], ["b"])


def test_it_is_measured_later_as_it_was_at_the_end(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of texts longer than it learns from it reads as much, though the model could read on."""
    notes = Notes()
    made = recipe(place, "short", data={"max_len": 5, "cache": None}, train={"steps": 6})
    run, _ = run_training(made, report=notes)
    assert run.generation.max_text_len == 5 < run.config.max_len
    assert all(row["texts_per_s"] > 0 for row in notes.rows if row["split"] == "train")
    capsys.readouterr()
    assert main(["eval", str(made.out), "--split", "valid"]) == 0
    said = capsys.readouterr()
    assert "cut to 5 tokens: " in said.err
    loss = re.search(r"loss\s+([\d.]+)", said.out)
    assert loss and float(loss[1]) == pytest.approx(notes.series("loss", "valid")[-1], abs=1e-3)
    own = made.model_copy(update={"generation": GenerationConfig(max_text_len=None), "out": place / "all"})
    assert run_training(own, report=Notes())[0].generation.max_text_len is None
