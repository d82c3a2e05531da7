"""Classifiers, masked and denoising models and those that converse side by side: their measures against what training measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from polyhead.cli import main
from polyhead.compare import cost_metrics
from polyhead.compare.report.text_table import _LINE_WIDTH
from polyhead.compare.significance import class_statistics, draw_resamples, f1_from_sums, matthews_from_sums
from polyhead.compare.tasks.base import COMPARED_TASKS, PageWords, get_compared_task
from polyhead.compare.tasks.recovering import ComparedTokenPrediction
from polyhead.config.recipe import load_recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.evaluate.class_metrics import confusion_matrix, macro_f1, matthews_corrcoef
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.loggers import Reporters

SIZES = "model: {d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, max_len: 24, position: learned}\n"
TRAIN = "train: {steps: 12, max_tokens: 96, lr: 1e-2, precision: fp32, schedule: {name: inverse_sqrt, warmup: 1}, threads: 1}\n"
RECIPES = {
    "masked-lm": "data: {train: train.en, valid: valid.en, test: test.en, documents: line, max_len: 12}\ntokenizer: {kind: char}\n",
    "denoising": "data: {train: train.en, valid: valid.en, test: test.en, documents: line, max_len: 16}\ntokenizer: {kind: char}\n",
    "chat": "data: {train: train.jsonl, valid: valid.jsonl, test: test.jsonl, max_len: 80}\ntokenizer: {kind: char}\n",
    "classification": "data: {train: train.tsv, valid: valid.tsv, test: test.tsv, text: text, label: label, max_len: 16}\ntokenizer: {kind: char}\n",
}
OTHERS = sorted(RECIPES)


@pytest.fixture
def texts(place: Path) -> Path:
    """As ``place``, with its English side as classes and as conversations, and a recipe for each task."""
    for split in ("train", "valid", "test"):
        lines = (place / f"{split}.en").read_text().splitlines()
        rows = [
            f"{'long' if len(line) > 14 else 'cat' if 'cat' in line else 'other'}\t{line}" for line in lines
        ]
        (place / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
        talks = [
            [{"role": "user", "content": line[:6]}, {"role": "assistant", "content": line[6:12] or "!"}]
            for line in lines
        ]
        (place / f"{split}.jsonl").write_text(
            "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
        )
    for name, recipe in RECIPES.items():
        sizes = SIZES.replace("24", "80") if name == "chat" else SIZES
        (place / f"{name}.yaml").write_text(f"task: {name}\n{recipe}{sizes}{TRAIN}")
    return place


class Ready:
    """A recipe, its task and an untrained model that is wrong in many ways."""

    def __init__(self, name: str, *changes: str) -> None:
        self.recipe = load_recipe(f"{name}.yaml", [*changes, "data.cache=cache"])
        part = TASK.get(name)
        self.tokenizer = train_tokenizer(part.iter_texts(self.recipe), self.recipe.tokenizer.kind, 280)
        self.task: Any = part.open(self.recipe, self.tokenizer, Reporters())
        config = self.recipe.model.with_vocabulary(self.tokenizer.vocab_size, self.task.labels)
        self.model: Any = build(config, 1).eval()
        with torch.no_grad():
            torch.manual_seed(5)
            for p in self.model.parameters():
                p.add_(0.3 * torch.randn_like(p))
        self.run = Run(self.model, self.tokenizer, self.recipe.generation, self.recipe)
        self.part = get_compared_task(name)

    def quality(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.part.evaluate(self.run, self.recipe, self.task)


def test_every_task_that_is_trained_is_compared() -> None:
    """But for replaced tokens: each design is asked for those of its own generator."""
    assert set(COMPARED_TASKS.names()) == set(TASK.names()) - {"replaced-tokens"}
    with pytest.raises(UserError, match="task is 'replaced-tokens'; designs are compared by these tasks: "):
        get_compared_task("replaced-tokens")


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_quality_is_what_training_measures(name: str) -> None:
    ready = Ready(name)
    found, kept = ready.quality()
    assert found["split"] == "test"
    assert found["loss"] == pytest.approx(ready.task.evaluate(ready.model)["loss"], rel=1e-5)
    facts = ready.task.collect_facts(ready.run)
    for of in ready.part.measures[1:]:
        if name != "chat":  # training does not tell how often what the assistant says is right
            assert found[of.name] == pytest.approx(float(facts[f"test {of.name}"]), abs=6e-5)
    sums = {key: rows.sum(0)[None] for key, rows in ready.part.unit_statistics(kept, ready.recipe).items()}
    for of in ready.part.measures:
        assert float(of.score(sums[of.name])[0]) == pytest.approx(found[of.name], rel=1e-9)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_without_a_test_text_all_is_of_the_validation_text(name: str) -> None:
    found, _ = Ready(name, "data.test=null").quality()
    assert found["split"] == "valid"
    other, _ = Ready(name, f"data.test={Ready(name).recipe.data.valid[0]}").quality()
    for of in get_compared_task(name).measures:
        assert found[of.name] == other[of.name]


@pytest.mark.usefixtures("texts")
def test_the_share_of_right_answers_is_counted_token_by_token() -> None:
    ready = Ready("chat", "data.test=null")
    found, kept = ready.quality()
    right = asked = 0
    for i in range(len(ready.task.valid)):
        batch = ready.task.valid.collate(np.array([i]), ready.task.pad_id)
        with torch.no_grad():
            said = ready.model(batch.tokens).argmax(-1)
        mine = batch.labels >= 0
        n, good = int(mine.sum()), int((said == batch.labels)[mine].sum())
        assert kept["text"][i][1:] == [good, n]
        right, asked = right + good, asked + n
    assert 0 < right < asked, (right, asked)
    assert found["accuracy"] == right / asked


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_units_are_in_the_order_of_the_text_however_they_were_batched(name: str) -> None:
    few, many = Ready(name, "train.max_tokens=40"), Ready(name, "train.max_tokens=400")
    for of in few.part.measures:
        a, b = (r.part.unit_statistics(r.quality()[1], r.recipe)[of.name] for r in (few, many))
        assert len(a) > 3
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_units_are_told_by_number() -> None:
    logits = torch.tensor([[[5.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [0.0, 5.0]]])
    labels = torch.tensor([[0, -100], [1, 1]])

    def rows(*numbers: int) -> TokenWindows:
        chosen = list(numbers)
        return TokenWindows(torch.tensor(chosen), None, labels[chosen])

    part = ComparedTokenPrediction(
        PageWords("", ""),
        lambda *_: [],
        lambda model, batch: logits[batch.tokens],
        make_batch=Mock(),
        compute_logits=lambda model, x: x,
    )
    found = part.score_units(nn.Linear(1, 1), [(np.array([7, 3]), rows(0, 1)), (np.array([5]), rows(1))])
    assert [(one.n_correct, one.n_tokens) for one in found] == [(1, 2), (1, 2), (1, 1)]


@pytest.mark.parametrize("classes", [2, 5])
def test_resampled_f1_and_correlation_are_those_of_the_resampled_texts(classes: int) -> None:
    rng = np.random.default_rng(2)
    given, wanted = rng.integers(0, classes, 40), rng.integers(0, classes - 1, 40)
    given[:25] = wanted[:25]
    counts = draw_resamples(40)[:50]
    sums = counts @ class_statistics(given.tolist(), wanted.tolist(), classes)
    for n, f1, mcc in zip(counts, f1_from_sums(sums), matthews_from_sums(sums), strict=True):
        drawn = confusion_matrix(np.repeat(given, n), np.repeat(wanted, n), classes)
        assert f1 == pytest.approx(macro_f1(drawn))
        assert mcc == pytest.approx(matthews_corrcoef(drawn))


def test_where_one_class_is_all_there_is_the_correlation_is_none() -> None:
    sums = class_statistics([0, 0], [0, 0], 2).sum(0)[None]
    assert (float(matthews_from_sums(sums)[0]), float(f1_from_sums(sums)[0])) == (0.0, 1.0)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", ["masked-lm", "classification"])
def test_flops_are_those_of_the_closed_form(name: str) -> None:
    ready = Ready(name)
    piece = ready.part.typical_batch(ready.task)
    V, C, F, L = ready.tokenizer.vocab_size, 16, 32, 3
    if name == "masked-lm":
        _, batch = next(ready.task.eval_batches(ready.task.valid))
        B, T = batch.tokens.shape
        head = piece.n_tokens * (C * C + C * V)
        assert piece.n_tokens < B * T / 3
    else:
        lengths, batches = ready.task.valid.lengths, ready.task.valid_batches
        rows = sorted(batches, key=lambda rows: int(lengths[rows].max()))[len(batches) // 2]
        B, T = len(rows), int(lengths[rows].max())
        head = B * (C * C + C * L)  # the pooler is a map as well
        assert piece.n_tokens == B
    products = B * (4 * T * C * C + 2 * T * T * C + 2 * T * C * F) + head
    assert cost_metrics.flops_per_token(ready.model, piece) == pytest.approx(2 * products / piece.n_tokens)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_what_a_step_predicts_is_counted(name: str) -> None:
    ready = Ready(name)
    counts = [ready.task.count_labels(ready.task.collate(chosen)) for chosen in ready.task.epoch_batches(0)]
    assert len(counts) > 1
    assert ready.part.tokens_per_step(ready.task) == pytest.approx(np.mean(counts))


@pytest.mark.usefixtures("texts", "in_process", "unjudged")
@pytest.mark.parametrize("name", OTHERS)
def test_a_whole_comparison(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", f"{name}.yaml", "--vary", "norm=rmsnorm", "--seeds", "2", "--match", "params"]
    assert main([*command, "--budget", "4steps"]) == 0
    shown = capsys.readouterr().out
    out = Path(f"runs/compare-{name}")
    base, other = (
        next(row for row in json.loads((out / "compare.json").read_text())["rows"] if row["base"] is is_base)
        for is_base in (True, False)
    )
    table = shown.split("\n\n")[:2]
    for line in (line for part in table for line in part.splitlines()[1:]):
        assert len(line) <= _LINE_WIDTH
        assert " base " in line or " norm=rmsnorm " in line
    assert table[0].count("95 %") == 1  # three would be too wide for a line; the page has them all
    decodes = name in ("chat", "denoising")
    assert (base["cache_per_token"] is not None) == decodes == ("cache B/tok" in shown)
    assert "decode/s" not in shown
    assert ("ppl" in shown) == (name != "classification") == ("FLOPs/tok" in shown)
    for of in get_compared_task(name).measures:
        low, high = other[f"{of.name}_interval"]
        assert low <= other[of.name] <= high
        assert 0 < other[f"{of.name}_p"] <= 1
        assert other[f"{of.name}_spread"] is not None
    assert base["dead"] is not None
    assert other["parameters"] == pytest.approx(base["parameters"], rel=0.01)
    if name == "classification":  # 32 of 3,203: within 1 % only where the classes are counted
        assert (base["parameters"], other["parameters"], other["note"]) == (3203, 3171, "")
    page = (out / "compare.html").read_text()
    assert ("Perplexity" in page) == (name != "classification")
    assert "Cache: of one sequence" in page if decodes else "Cache" not in page


def compared_rows(name: str, *options: str) -> dict[str, dict[str, Any]]:
    assert main(["compare", f"{name}.yaml", "--budget", "1steps", *options]) == 0
    found = json.loads(Path(f"runs/compare-{name}/compare.json").read_text())["rows"]
    return {row["name"]: row for row in found}


@pytest.mark.usefixtures("texts", "in_process")
def test_a_design_that_leaves_conversations_out_says_so_and_comes_last() -> None:
    rows = compared_rows("chat", "--design", "short: data.max_len=29 train.lr=0.05 train.schedule.warmup=1")
    kept = rows["short"]["units"]["loss"]
    assert 0 < kept < 12 == rows["base"]["units"]["loss"]
    assert f"loss of {kept} of 12 conversations, the others are too long for it" in rows["short"]["note"]
    assert rows["short"]["loss"] < rows["base"]["loss"]  # of the easier conversations
    assert list(rows) == ["base", "short"]
    assert "too long" not in rows["base"]["note"]


@pytest.mark.usefixtures("texts", "in_process")
def test_of_one_text_nothing_is_called_significant() -> None:
    lines = Path("valid.tsv").read_text().splitlines()
    Path("one.tsv").write_text("\n".join(lines[:2]) + "\n")
    rows = compared_rows("classification", "data.valid=one.tsv", "data.test=null", "--vary", "norm=rmsnorm")
    for row in rows.values():
        for of in get_compared_task("classification").measures:
            assert row[f"{of.name}_interval"] == [pytest.approx(row[of.name])] * 2
            assert row[f"{of.name}_p"] is None


def test_what_is_the_mean_of_a_token_does_not_compare_across_tokenizers() -> None:
    apart = {
        name: [of.name for of in get_compared_task(name).measures if not of.across_tokenizers]
        for name in COMPARED_TASKS.names()
    }
    recovered = ["loss", "accuracy"]
    assert apart == {
        "translation": ["loss"], "language-model": ["loss"], "classification": [],
        "masked-lm": recovered, "denoising": recovered, "chat": recovered,
    }  # fmt: skip


@pytest.mark.usefixtures("texts", "in_process")
def test_all_that_does_not_compare_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    compared_rows("masked-lm", "--vary", "tokenizer.kind=byte")
    assert "\nloss, accuracy: not to be compared where tokens differ.\n" in capsys.readouterr().out


@pytest.mark.usefixtures("texts", "in_process")
def test_texts_of_an_unknown_label_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("test.tsv").open("a") as file:
        file.write("never\ta dog\n")
    rows = compared_rows("classification", "--vary", "norm=rmsnorm")
    said = "8 of 9 texts; skipped 1 of an unknown label (first: "
    assert all(said in row["note"] for row in rows.values())
    assert "of an unknown" in capsys.readouterr().out
    assert main(["train", "classification.yaml", "out=run"]) == 0
    assert said in Path("run/README.md").read_text()


@pytest.mark.usefixtures("texts", "in_process")
def test_a_task_option_that_nobody_knows_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "classification.yaml", "--vary", "task.token_dropuot=0,0.1"]) == 2
    assert "did you mean 'token_dropout'?" in capsys.readouterr().err
    rows = compared_rows("classification", "--vary", "task.token_dropout=0.5,1.5")
    assert rows["token_dropout=1.5"]["status"] == "refused"
    assert "not 1.5" in rows["token_dropout=1.5"]["message"]
    assert rows["token_dropout=0.5"]["status"] == "done"
