import json
import re
import zlib

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes, user_error
from tests.train.tasks.classification_helpers import corpus_dir as corpus_dir
from tests.train.tasks.classification_helpers import random_rows, recipe
from tests.train.tasks.classification_helpers import trained_run as trained_run
from torch.nn.functional import cross_entropy

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.registry import TASK
from polyhead.nn.loss import classification_loss
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.text_labels import ClassificationTask

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]


def test_classes_are_learned(trained_run):
    run_dir, notes = trained_run
    assert notes.series("accuracy", "valid")[-1] >= 0.95
    run = ph.load(run_dir)
    assert run.config.labels == ("bad", "good", "odd")
    assert "3 classes: bad: " in " ".join(notes.lines)
    results = run.classify(["a dull film", "lovely music and some actors", "queer plot"])
    assert [result.label for result in results] == ["bad", "good", "odd"]
    assert all(sum(result.probabilities.values()) == pytest.approx(1) for result in results)
    assert run.classify([]) == []
    with user_error("batch_tokens is 0; expected an integer, 1 or more"):
        run.classify([], batch_tokens=0)
    card = (run_dir / "README.md").read_text()
    assert "| test accuracy |" in card and "| valid mcc |" in card and "perplexity" not in card
    assert "polyhead classify . input.txt" in card


def test_pairs_of_texts_have_segments(corpus_dir):
    options = {"data": {"text": ["text", "second"]}, "model": {"n_segments": 2}, "train": {"steps": 20}}
    run, _ = run_training(recipe(corpus_dir, "pairs", **options), report=Notes())
    pairs = [("a dull film", "some music"), ("some music", "a dull film")]
    forward, backward = ([*result.probabilities.values()] for result in run.classify(pairs))
    assert forward != backward
    t, (a, b) = run.tokenizer, run.tokenizer.encode(list(pairs[0]))
    tokens = torch.tensor([[t.bos_id, *a, t.eos_id, *b, t.eos_id]])
    segments = (torch.arange(tokens.size(1)) >= len(a) + 2).long()[None]
    with torch.no_grad():
        rows = [run.model(tokens, None, x).softmax(-1)[0].tolist() for x in (segments, None)]
    expected, without_segments = rows
    assert forward == pytest.approx(expected, rel=1e-4)
    assert forward != pytest.approx(without_segments, rel=1e-4)
    with user_error("text 2 is 'c', expected a pair of texts"):
        run.classify([("a", "b"), "c"])
    with user_error(r"^single texts; expected a list of pairs"):
        run.classify(["a dull film"])


@pytest.fixture
def open_task(corpus_dir, tmp_path):
    def open_task(train=None, **options):
        task = {"name": "classification", **options}
        config = recipe(corpus_dir, "unused", task=task, data={"cache_dir": tmp_path}, train=train or {})
        tokenizer = train_tokenizer(ClassificationTask.iter_texts(config), config.tokenizer.kind, 300)
        return TASK.get("classification").open(config, tokenizer, Notes()), tokenizer, config

    return open_task


def test_ambiguous_and_learned_texts_are_reported(tmp_path):
    rows = {"train": "good fine,bad dull,good a,bad a,good a,odd b,good b", "valid": "odd c,good fine,bad a"}
    rows["test"] = "odd d,good e,bad e"
    for split, text in rows.items():
        lines = [line.replace(" ", "\t") for line in text.split(",")]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["label\ttext", *lines]))
    notes, config = Notes(), recipe(tmp_path, "unused")
    tokenizer = train_tokenizer(ClassificationTask.iter_texts(config), config.tokenizer.kind, 300)
    TASK.get("classification").open(config, tokenizer, notes)
    assert [line for line in notes.lines if line.startswith("warning")] == [
        "warning: train: texts with several labels: 2 (first: line 5)",
        "warning: valid: 2 of 3 texts are also in the training text (first: line 3)",
        "warning: test: texts with several labels: 1 (first: line 4)",
    ]


def test_token_dropout_masks_only_text_in_training(open_task):
    (task, t, _), (plain, _, _) = open_task(token_dropout=0.25), open_task()
    n_masked = n_tokens = 0
    torch.manual_seed(5)
    for batch in task.epoch_batches(0):
        actual, expected = task.collate(batch).inputs.tokens, plain.collate(batch).inputs.tokens
        is_special = torch.isin(expected, torch.tensor([t.bos_id, t.eos_id, t.pad_id]))
        is_changed = actual != expected
        assert not (is_changed & is_special).any()
        assert (actual[is_changed] == t.mask_id).all()
        n_masked, n_tokens = n_masked + int(is_changed.sum()), n_tokens + int((~is_special).sum())
    assert n_masked / n_tokens == pytest.approx(0.25, abs=0.03)
    torch.manual_seed(9)
    first = task.collate(task.epoch_batches(0)[0]).inputs.tokens
    torch.manual_seed(9)
    assert torch.equal(first, task.collate(task.epoch_batches(0)[0]).inputs.tokens)
    rows = np.arange(5)
    assert torch.equal(*(x.valid.collate(rows, 0)[0].tokens for x in (task, plain)))


def test_label_smoothing_only_in_training(open_task):
    task, tokenizer, config = open_task(train={"label_smoothing": 0.3})
    model = ph.build(config.model.with_vocabulary(tokenizer.vocab_size, task.labels), 1).eval()
    batch = task.collate(task.epoch_batches(0)[0])
    logits = model(*batch.inputs.model_args(0))
    loss = task.loss(model, batch)
    expected = cross_entropy(logits, batch.labels, label_smoothing=0.3, reduction="sum")
    assert float(loss.total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    nll = classification_loss(logits, batch.labels).total
    assert float(loss.nll) == pytest.approx(float(nll.detach()), rel=1e-5)
    scores = task.compute_logits(model, batch)
    assert torch.allclose(scores.logits, logits) and torch.equal(scores.labels, batch.labels)
    assert len(scores.hidden_states) == int(task.train.lengths[task.epoch_batches(0)[0]].sum())
    rows = [model(*task.valid.collate([row], 0)[0].model_args(0)) for row in range(len(task.valid))]
    mean = cross_entropy(torch.cat(rows), torch.tensor(task.valid.labels, dtype=torch.int64))
    assert task.evaluate(model)["loss"] == pytest.approx(float(mean.detach()), rel=1e-4)


def test_class_weights_and_focal_loss_follow_their_equations(open_task):
    weights = {"good": 3.0, "odd": 0.5}
    for options in (
        {"class_weights": "balanced"},
        {"class_weights": weights, "loss": "focal"},
        {"loss": "focal", "focal_gamma": 0.5},
    ):
        task, tokenizer, config = open_task(**options)
        model = ph.build(config.model.with_vocabulary(tokenizer.vocab_size, task.labels), 1).eval()
        batch = task.collate(task.epoch_batches(0)[0])
        logits = model(*batch.inputs.model_args(0))
        loss = task.loss(model, batch)
        counts = [list(task.train.labels).count(i) for i in range(3)]
        w = {"balanced": [sum(counts) / 3 / count for count in counts], "none": [1.0] * 3}.get(
            str(options.get("class_weights", "none")), [weights.get(label, 1.0) for label in task.labels]
        )
        mean = sum(a * b for a, b in zip(w, counts, strict=True)) / sum(counts)
        gamma = options.get("focal_gamma", 2.0) if "loss" in options else 0
        expected = sum(
            -w[y] / mean * (1 - row.softmax(-1)[y]) ** gamma * row.log_softmax(-1)[y]
            for row, y in zip(logits.double(), batch.labels.tolist(), strict=True)
        )
        assert float(loss.total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        assert float(loss.nll) == pytest.approx(
            float(cross_entropy(logits, batch.labels, reduction="sum").detach())
        )
    with user_error("unknown label in class_weights 'goood'; did you mean 'good'"):
        open_task(class_weights={"goood": 2.0})


def test_calibration_lowers_the_validation_loss_only(corpus_dir):
    options = {"train": {"steps": 12, "label_smoothing": 0.4, "best_metric": "loss"}}
    runs = {}
    for calibrate in (False, True):
        task = {"name": "classification", "calibrate": calibrate}
        config = recipe(corpus_dir, f"calibrate-{calibrate}", task=task, **options)
        run, _ = run_training(config, report=Notes())
        card = (config.out / "README.md").read_text()
        runs[calibrate] = run, float(re.search(r"valid loss \| ([\d.]+)", card)[1]), card
    (plain, loss, card), (run, calibrated_loss, calibrated_card) = runs[False], runs[True]
    temperature = float(
        re.search(r"temperature \| ([\d.]+) \(ECE of the validation text", calibrated_card)[1]
    )
    assert "temperature" not in card and calibrated_loss < loss
    weights, calibrated = plain.model.classifier.weight, ph.load(run.recipe.out).model.classifier.weight
    assert torch.allclose(weights / temperature, calibrated, rtol=2e-3)
    assert torch.equal(plain.model.encoder.embedding.token.weight, run.model.encoder.embedding.token.weight)


def test_valid_fraction_unknown_labels_and_truncation_are_counted(corpus_dir):
    rng = np.random.default_rng(8)
    lines = [json.dumps({"text": a, "label": label}) for label, a, _ in random_rows(rng, 100)]
    long, unknown = ({"text": "word " * 60, "label": "odd"}, {"text": "x", "label": "goood"})
    (corpus_dir / "some.jsonl").write_text("\n".join([*lines, json.dumps(long)]) + "\n")
    (corpus_dir / "more.jsonl").write_text("\n".join([*lines[:20], json.dumps(unknown)]) + "\n")
    data, notes = {"train": "some.jsonl", "valid": None, "valid_fraction": 0.1, "test": None}, Notes()
    run_training(recipe(corpus_dir, "share", data=data, train={"steps": 2}), report=notes)
    texts = [*(json.loads(line)["text"] for line in lines), " ".join(["word"] * 60)]
    valid = [text for text in texts if zlib.crc32(text.encode()) < 0.1 * 2**32]
    n = len(valid)
    assert n and texts[-1] not in valid
    assert f"train: some.jsonl: {101 - n} of {101 - n} texts; truncated 1 (first: line 101)" in notes.lines
    assert f"valid: some.jsonl: {n} of {n} texts" in notes.lines
    data = {"train": "some.jsonl", "valid": "more.jsonl", "test": None}
    run_training(recipe(corpus_dir, "unknown", data=data, train={"steps": 2}), report=notes)
    skipped_text = "skipped 1 with an unknown label (first: line 21, 'goood', did you mean 'good'?)"
    assert f"valid: more.jsonl: 20 of 21 texts; {skipped_text}" in notes.lines


@pytest.mark.parametrize(("n_texts", "is_warned"), [(1, True), (200, False)])
def test_valid_fraction_without_a_class_is_a_warning(n_texts, is_warned, corpus_dir):
    """A class of one text, repeated 200 times, that is not held out."""
    text = next(word for word in map(str, range(99)) if zlib.crc32(word.encode()) >= 0.3 * 2**32)
    others = [text if n_texts == 1 else f"other {i}" for i in range(200)]
    lines = [f"l0\tword {i}\nl1\t{other}\n" for i, other in enumerate(others)]
    (corpus_dir / "turns.tsv").write_text("label\ttext\n" + "".join(lines))
    data, notes = {"train": "turns.tsv", "valid": None, "valid_fraction": 0.3, "test": None}, Notes()
    run_training(recipe(corpus_dir, f"turns{n_texts}", data=data, train={"steps": 1}), report=notes)
    warnings = [line for line in notes.lines if line.startswith("warning: no validation text")]
    assert ["the label 'l1': data.valid_fraction" in line for line in warnings] == [True] * is_warned


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"text": "txt"}}, "unknown column of train.tsv 'txt'; did you mean 'text'"),
        ({"data": {"text": []}}, "data.text"),
        ({"data": {"max_len": 2}}, "data.max_len: 2 tokens are too few for a text: with special tokens at"),
        ({"data": {"text": ["a", "b", "c"]}}, "data.text"),
        ({"data": {"valid": None}}, "valid is missing: set it to validation files, or set data.valid_fracti"),
        (
            {"data": {"valid": None, "valid_fraction": 1e-9}},
            "data.valid_fraction is 1e-09: this selects none of the 300 texts in train.tsv; set at least ",
        ),
        ({"train": {"best_metric": "bleu"}}, "does not measure 'bleu'; it measures loss, accuracy, f1, mcc"),
        ({"train": {"eval_bleu": True}}, "train.eval_bleu: task 'classification' does not measure 'bleu'"),
        ({"model": {"kind": "decoder", "pooling": None}}, "trains a model of kind 'encoder', not 'decoder'"),
        (
            {"task": {"name": "classification", "token_dropout": 1.0}},
            "token_dropout of task 'classification' must be a fraction from 0 ",
        ),
        ({"train": {"max_tokens": 4}}, "max_tokens is 4, but row"),
    ],
)
def test_unsuitable_recipe_is_refused(changes, message, corpus_dir):
    with pytest.raises(ValueError, match=message):
        run_training(recipe(corpus_dir, "refused", **changes), report=Notes())
    assert not (corpus_dir / "refused" / "checkpoints").exists()


def test_eval_truncates_texts_as_training_does(corpus_dir, capsys):
    train, notes = {"steps": 18, "eval_every": 3, "lr": 3e-2}, Notes()
    config = recipe(corpus_dir, "short", data={"max_len": 5, "cache_dir": None}, train=train)
    run, _ = run_training(config, report=notes)
    assert run.generation.embed_max_len == 5 < run.config.max_len
    assert all(row["texts_per_s"] > 0 for row in notes.rows if row["split"] == "train")
    capsys.readouterr()
    assert main(["eval", str(config.out), "--split", "valid"]) == 0
    streams = capsys.readouterr()
    assert "truncated to 5 tokens: " in streams.err
    loss = re.search(r"loss\s+([\d.]+)", streams.out)
    best = max((row for row in notes.rows if row["split"] == "valid"), key=lambda row: row["accuracy"])
    assert float(loss[1]) == pytest.approx(best["loss"], abs=1e-3)
    card = (config.out / "README.md").read_text()
    assert f"| weights | checkpoint {best['step']:.0f} |" in card
    assert f"| valid accuracy | {best['accuracy']:.4f} |" in card
    changes_of_limit = {"generation": GenerationConfig(embed_max_len=None), "out": corpus_dir / "all"}
    run, _ = run_training(config.model_copy(update=changes_of_limit), report=Notes())
    assert run.generation.embed_max_len is None
