"""Every training leaves a report that says what it learned, and learns the same bits
with it as without it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.train.conftest import Notes
from tests.train.several import together
from tests.train.task_runs import TASKS, task_recipe, write_texts
from tests.viz.html_pages import Page

from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train import report
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.report import RunReport
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_run

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory)
    return directory


@pytest.fixture(scope="module", params=TASKS)
def finished(request: Any, unsynced: None, place: Path) -> tuple[Path, Run, Notes]:
    """A run of each task."""
    recipe, notes = task_recipe(place, request.param, place / request.param), Notes()
    run, _ = run_training(recipe, report=notes)
    return recipe.out, run, notes


def test_each_task_shows_examples_and_errors_and_says_so_in_the_last_line(
    finished: tuple[Path, Run, Notes],
) -> None:
    out, _, notes = finished
    assert notes.said[-1] == f"report: {out}/report.html"
    assert not [line for line in notes.said if "the report is incomplete" in line]
    record = read_run(out)
    samples = record.samples
    assert record.state == "done" and samples.examples and samples.breakdowns
    assert all(
        group.size > 0 and math.isfinite(group.value) for b in samples.breakdowns for group in b.groups
    )
    page = Page((out / "report.html").read_text())
    for example in samples.examples[:2]:
        for text in (example["source"], example["reference"]):
            assert " ".join(text.split()) in " ".join(page.words().split())
    headings = [text for tag, text in page.texts if tag == "h2"]
    for heading in ("Result", "Loss", "Predicted and actual time", "Examples", "Errors by group", "Recipe"):
        assert heading in headings
    assert samples.attention
    for one in samples.attention:
        assert np.allclose(np.asarray(one.weights).sum(-1), 1, atol=0.02)


def test_the_page_draws_the_loss_without_smoothing_as_it_is_logged(finished: tuple[Path, Run, Notes]) -> None:
    out, _, notes = finished
    loss = Page((out / "report.html").read_text()).data()[0]
    rows = [[[row["step"], row["nll"]] for row in notes.rows if row["split"] == "train"]]
    valid = [row for row in notes.rows if row["split"] == "valid"]
    rows.append([[row["step"], math.log(row["ppl"]) if "ppl" in row else row["loss"]] for row in valid])
    assert [[step for step, _ in curve] for curve in loss] == [[step for step, _ in curve] for curve in rows]
    for drawn, logged in zip(loss, rows, strict=True):
        assert [y for _, y in drawn] == pytest.approx([y for _, y in logged], rel=1e-3)


@pytest.mark.parametrize("task", ["translation", "language-model", "classification"])
def test_weights_are_equal_to_the_byte_with_the_report_and_without_it(
    task: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"ema": 0.9, "label_smoothing": 0.1}
    with_report = task_recipe(place, task, place / f"{task}-with", **more)
    run_training(with_report, report=Notes())
    for name in ("update", "finish"):
        monkeypatch.setattr(RunReport, name, lambda *args: None)
    without = task_recipe(place, task, place / f"{task}-without", **more)
    run_training(without, report=Notes())
    for name in ("model.safetensors", "checkpoints/step-6/model.safetensors"):
        files = [next(run.out.glob(name), None) for run in (with_report, without)]
        assert [file is None for file in files] in ([False, False], [True, True])
        if files[0] is not None:
            assert files[0].read_bytes() == files[1].read_bytes()
    assert read_run(with_report.out).samples.examples and not read_run(without.out).samples.examples
    metrics = [read_run(run.out).rows("valid") for run in (with_report, without)]
    assert [row["loss"] for row in metrics[0]] == [row["loss"] for row in metrics[1]]


def test_the_logged_nll_is_that_of_an_independent_computation(place: Path) -> None:
    """The first step reads the initial weights; without dropout all of it can be computed from them."""
    recipe = task_recipe(place, "translation", place / "nll", steps=1, label_smoothing=0.2, log_every=1)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dropout": 0.0})})
    notes = Notes()
    run_training(recipe, report=notes)
    tokenizer = Tokenizer.load(recipe.out)
    task = TASK.get("translation").open(recipe, tokenizer, Notes())
    model = build(recipe.model.with_vocabulary(tokenizer.vocab_size, ()), recipe.train.seed)
    batch = task.collate(task.epoch_batches(0)[0])
    with torch.no_grad():
        logits = model(batch.source, batch.target, batch.source_pos, batch.target_pos).flatten(0, 1)
    labels = batch.labels.flatten()
    plain = F.cross_entropy(logits, labels, ignore_index=-100)
    smoothed = F.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=0.2)
    (row,) = [row for row in notes.rows if row["split"] == "train"]
    assert row["nll"] == pytest.approx(float(plain), rel=1e-5)
    assert row["loss"] == pytest.approx(float(smoothed), rel=1e-5)
    assert row["loss"] != pytest.approx(row["nll"], rel=1e-4)


def test_the_page_is_written_at_each_evaluation(place: Path) -> None:
    seen: list[tuple[int, str]] = []

    class Looking(Notes):
        def log_valid(self, row: Any) -> None:
            page = Page((place / "each" / "report.html").read_text())
            curves = page.data()[0]
            seen.append((int(row["step"]), page.words()))
            assert curves[1][-1][0] == row["step"]

    run_training(task_recipe(place, "translation", place / "each", steps=9), report=Looking())
    assert [step for step, _ in seen] == [3, 6, 9]
    assert all(f"Training: step {step} of 9." in words for step, words in seen)


def test_an_interrupted_training_leaves_its_report_and_goes_on_in_it(place: Path) -> None:
    recipe = task_recipe(place, "translation", place / "stopped")

    class Stopping(Notes):
        def log_valid(self, row: Any) -> None:
            super().log_valid(row)
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)

    notes = Stopping()
    _, outcome = run_training(recipe, report=notes)
    assert outcome.status == "interrupted" and notes.said[-1] == f"report: {recipe.out}/report.html"
    record = read_run(recipe.out)
    assert record.state == "interrupted" and record.samples.examples
    assert (
        "Training was interrupted at step 3 of 6." in Page((recipe.out / "report.html").read_text()).words()
    )
    run_training(recipe, resume=True, report=Notes())
    assert read_run(recipe.out).state == "done"
    assert "Training is done: 6 steps." in Page((recipe.out / "report.html").read_text()).words()


def test_a_training_that_fails_says_so_in_its_report(place: Path) -> None:
    recipe = task_recipe(place, "translation", place / "failed", lr=1e30, clip_norm=0, steps=60)
    with pytest.raises(UserError, match="not finite"):
        run_training(recipe, report=Notes())
    assert read_run(recipe.out).state == "failed"
    assert "Training failed at step" in Page((recipe.out / "report.html").read_text()).words()


def test_a_report_without_its_json_still_shows_the_curves(place: Path) -> None:
    recipe = task_recipe(place, "translation", place / "old")
    run_training(recipe, report=Notes())
    (recipe.out / "report.json").write_text("{")
    record = read_run(recipe.out)
    assert record.state == "unknown" and not record.samples.examples and len(record.rows("train")) == 3
    assert json.loads((recipe.out / "metrics.jsonl").read_text().splitlines()[0])["nll"] > 0


def test_the_first_of_several_processes_alone_writes_it(place: Path) -> None:
    recipe = task_recipe(place, "translation", place / "together")

    def work(ranks: ProcessGroup) -> list[str]:
        written: list[str] = []
        write = report.RunReport._write_page

        def remember(self: RunReport, *given: Any) -> None:
            written.append(self.state)
            write(self, *given)

        report.RunReport._write_page = remember  # type: ignore[method-assign]
        run_training(recipe, report=Notes(), ranks=ranks)
        return written

    ends = together(2, work)
    assert [end.said for end in ends] == [["training", "training", "done"], []], ends
    assert read_run(recipe.out).samples.examples and (recipe.out / "report.html").is_file()
