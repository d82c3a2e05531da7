import json

import numpy as np
import pytest
import torch
from tests.serve.conftest import serve_run
from tests.train.conftest import Notes, user_error
from tests.train.tasks.classification_helpers import FILLERS, WORDS, recipe
from tests.train.test_resume import assert_resumes
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

import polyhead as ph
from polyhead.cli import main
from polyhead.core.registry import TASK
from polyhead.explain.document import check_explainable
from polyhead.nn.loss import multi_label_loss, squared_error
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
GRADES = {"good": 2.0, "bad": -1.5, "odd": 0.25}
METRIC = {"multi-label": "micro_f1", "regression": "pearson"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Texts with words of any of three labels, and the sum of the grades of their labels."""
    folder, rng = tmp_path_factory.mktemp("labels"), np.random.default_rng(4)
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        lines = []
        for _ in range(count):
            labels = [label for label in WORDS if rng.random() < 0.4]
            words = [*rng.choice(FILLERS, 3), *(rng.choice(WORDS[label]) for label in labels)]
            row = {"text": " ".join(map(str, rng.permutation(words))), "label": labels}
            lines.append(json.dumps(row | {"grade": sum(GRADES[label] for label in labels)}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def task_recipe(directory, out, task, **train):
    data = {split: f"{split}.jsonl" for split in ("train", "valid", "test")}
    data |= {"label": "label" if task == "multi-label" else "grade"}
    train = {"best_metric": METRIC[task], "lr": 2e-2, "steps": 90, "eval_every": 45, "save_every": 45} | train
    return recipe(directory, out, task=task, data=data, train=train)


@pytest.fixture(scope="module", params=["multi-label", "regression"])
def trained_run(request, directory, no_fsync):
    config = task_recipe(directory, request.param, request.param)
    run, _ = run_training(config, report=Notes())
    return request.param, run, config


def read_rows(directory, split="test"):
    return [json.loads(line) for line in (directory / f"{split}.jsonl").read_text().splitlines()]


def test_texts_are_learned_and_evaluated(trained_run, directory, capsys):
    task, run, config = trained_run
    rows = read_rows(directory)
    predictions = run.classify([row["text"] for row in rows])
    (loaded,) = ph.load(config.out).classify([rows[0]["text"]])
    assert loaded.labels == predictions[0].labels
    assert loaded.probabilities == pytest.approx(predictions[0].probabilities, rel=1e-5)
    assert main(["eval", str(config.out)]) == 0
    table, hardest = capsys.readouterr().out.split("\n\n")
    values = {line.split()[0]: float(line.split()[1]) for line in table.splitlines()}
    if task == "multi-label":
        assert run.config.labels == ("bad", "good", "odd")
        right = sum(set(p.labels) == set(row["label"]) for p, row in zip(predictions, rows, strict=True))
        assert values["accuracy"] == pytest.approx(right / 40, abs=1e-3) and right > 30
        assert values["micro_f1"] > 0.9
        p = torch.tensor([list(p.probabilities.values()) for p in predictions])
        y = torch.tensor([[float(label in row["label"]) for label in run.config.labels] for row in rows])
        expected = torch.nn.functional.binary_cross_entropy(p, y)
    else:
        assert run.config.labels == ("grade",) and run.generation.score_activation == "identity"
        numbers = torch.tensor([p.probabilities["grade"] for p in predictions])
        grades = torch.tensor([row["grade"] for row in rows])
        expected = mse_loss(numbers, grades)
        assert values["pearson"] > 0.9
        assert values["pearson"] == pytest.approx(float(np.corrcoef(numbers, grades)[0, 1]), abs=1e-3)
    assert values["loss"] == pytest.approx(float(expected), abs=1e-3)
    assert len(hardest.splitlines()) == 6
    alike = config.out / "alike.jsonl"
    alike.write_text(json.dumps({"text": "a film", config.data.label: rows[0][config.data.label]}) + "\n")
    assert main(["eval", str(config.out), str(alike)]) == 0
    assert "every text" not in capsys.readouterr().err  # that is for classes
    card = (config.out / "README.md").read_text()
    assert f"| test {METRIC[task]} |" in card and "baseline" in card


def test_output_of_the_command_line_and_the_server(trained_run, capsys):
    task, run, config = trained_run
    text = "great dull film"
    (prediction,) = run.classify([text])
    assert main(["classify", str(config.out), text]) == 0
    cells = capsys.readouterr().out.strip().split("\t")
    with serve_run(run) as client:
        (data,) = client.ask("/v1/classify", {"input": text}).json()["data"]
        assert data["scores"] == pytest.approx(prediction.probabilities)
        assert client.ask("/v1/rerank", {"query": "a", "documents": ["b"]}).status_code == 400
    if task == "multi-label":
        assert cells[::2] == list(prediction.labels) == data["labels"] == ["bad", "good"]
        threshold = run.generation.model_copy(update={"threshold": 1.0})
        assert run.classify([text])[0].labels and not _classify(run, threshold, text).labels
    else:
        assert cells == [f"{prediction.probabilities['grade']:.6f}"]
        assert prediction.probabilities["grade"] == pytest.approx(0.5, abs=0.7)
    with user_error("explain shows classifiers of one label per text"):
        check_explainable(run)


def _classify(run, generation, text):
    old, run.generation = run.generation, generation
    try:
        return run.classify([text])[0]
    finally:
        run.generation = old


@pytest.mark.parametrize("task", METRIC)
def test_killed_run_resumes_bit_for_bit(task, directory):
    assert_resumes(lambda name, **train: task_recipe(directory, f"{task}-{name}", task, **train))


def test_losses_are_those_of_torch():
    torch.manual_seed(0)
    logits, labels = torch.randn(5, 3), (torch.rand(5, 3) < 0.5).float()
    labels[2] = torch.nan
    known = torch.tensor([0, 1, 3, 4])
    for smoothing in (0.0, 0.2):
        loss = multi_label_loss(logits, labels, smoothing)
        smoothed = labels[known] * (1 - smoothing) + smoothing / 2
        expected = binary_cross_entropy_with_logits(logits[known], smoothed) * 4
        assert float(loss.total) == pytest.approx(float(expected)) and loss.count == 4
        plain = binary_cross_entropy_with_logits(logits[known], labels[known]) * 4
        assert float(loss.nll) == pytest.approx(float(plain))
    numbers = labels[:, :1] * 3
    loss = squared_error(logits[:, :1], numbers)
    expected = mse_loss(logits[known, :1], numbers[known], reduction="sum")
    assert (float(loss.total), loss.count) == (pytest.approx(float(expected)), 4)


def open_lines(tmp_path, task, lines, valid=(), **train):
    for split, rows in (("train", lines), ("valid", valid or lines)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"train": "train.jsonl", "valid": "valid.jsonl", "test": None, "cache_dir": tmp_path}
    changes = {"data": data, "train": {"best_metric": "loss"} | train}
    notes, config = Notes(), recipe(tmp_path, "unused", task=task, **changes)
    TASK.get(task).check(config)
    tokenizer = train_tokenizer(TASK.get(task).iter_texts(config), config.tokenizer.kind, 300)
    return TASK.get(task).open(config, tokenizer, notes), notes


def test_labels_are_lists_or_text_with_commas(tmp_path):
    labels = [["b", "a"], "c, a", [], "", None, [1.0, True], "a,a"]
    rows = [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]
    rows += [{"text": "x", "label": {"a": 1}}]
    task, notes = open_lines(tmp_path, "multi-label", rows, [*rows[:2], {"text": "y", "label": "z"}])
    assert task.labels == ("1", "a", "b", "c", "true")
    expected = [[0, 1, 1, 0, 0], [0, 1, 0, 1, 0], [0] * 5, [0] * 5, [0] * 5, [1, 0, 0, 0, 1], [0, 1, 0, 0, 0]]
    assert task.train.targets(range(7)).tolist() == expected
    assert task.train.targets(np.array([5, 0])).tolist() == [expected[5], expected[0]]
    assert any("skipped 1 with an unknown label (first: line 3, 'z')" in line for line in notes.lines)


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        ("multi-label", [[], []], "no text has a label; there is nothing to learn"),
        ("multi-label", [1, 1], "expected a list of labels, or text with commas"),
        ("regression", [2, 2], "every text has the number 2; there is nothing to"),
        ("regression", ["x", True], "label 'x', expected a number"),
    ],
)
def test_unsuitable_texts_are_refused(task, labels, message, tmp_path):
    with user_error(message):
        open_lines(tmp_path, task, [{"text": "a", "label": label} for label in labels])
