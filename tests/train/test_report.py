import math
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.train.conftest import Notes, user_error
from tests.train.ranks import outputs_of
from tests.train.task_runs import TASKS, task_recipe, write_texts
from tests.viz.html_pages import Page

from polyhead import build
from polyhead.core.registry import TASK
from polyhead.evaluate.run_facts import final_scores
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.report import RunReport
from polyhead.train.run_training import run_training
from polyhead.viz.run_page import measure_name
from polyhead.viz.run_record import read_run

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory)
    return directory


@pytest.fixture(scope="module", params=TASKS)
def finished(request, no_fsync, corpus_dir):
    recipe, notes = task_recipe(corpus_dir, request.param, corpus_dir / request.param), Notes()
    run_training(recipe, report=notes)
    return SimpleNamespace(task=request.param, run_dir=recipe.out, notes=notes)


def read_page(run_dir: Path) -> Page:
    return Page((run_dir / "report.html").read_text())


def test_report_has_curves_examples_and_attention(finished, tmp_path):
    assert finished.notes.lines[-1].startswith(f"report: {finished.run_dir}/report.html; next: polyhead ")
    assert not [line for line in finished.notes.lines if "the report is incomplete" in line]
    record = read_run(finished.run_dir)
    samples = record.samples
    assert record.state == "done" and samples.examples and samples.breakdowns
    groups = [group for breakdown in samples.breakdowns for group in breakdown.groups]
    assert all(group.size > 0 and math.isfinite(group.value) for group in groups)
    page = read_page(finished.run_dir)
    for example in samples.examples[:2]:
        for text in (example["source"], example["reference"]):
            assert " ".join(text.split()) in " ".join(page.words().split())
    _, scores = final_scores(record.facts)
    tiles = [text for tag, text in page.texts if tag in ("dt", "dd")][: 2 * len(scores)]
    assert scores and tiles == [word for score in scores for word in (measure_name(score.name), score.value)]
    headings = {text for tag, text in page.texts if tag == "h2"}
    sections = {"Result", "Loss", "Predicted and actual time", "Examples", "Errors by group", "Recipe"}
    assert sections <= headings
    assert samples.attention
    for attention in samples.attention:
        assert np.allclose(np.asarray(attention.weights).sum(-1), 1, atol=0.02)
    train = [[row["step"], row["nll"]] for row in record.rows("train")]
    losses = [math.log(row["ppl"]) if "ppl" in row else row["loss"] for row in record.rows("valid")]
    valid = [[row["step"], loss] for row, loss in zip(record.rows("valid"), losses, strict=True)]
    for curve, logged_points in zip(page.data()[0], [train, valid], strict=True):
        assert np.asarray(curve) == pytest.approx(np.asarray(logged_points), rel=1e-3)
    shutil.copytree(finished.run_dir, tmp_path / "copy")
    (tmp_path / "copy" / "report.json").write_text("{")
    record = read_run(tmp_path / "copy")
    assert record.state == "unknown" and not record.samples.examples and len(record.rows("train")) == 3


def test_weights_are_equal_with_and_without_report(finished, corpus_dir, monkeypatch):
    for name in ("update", "finish"):
        monkeypatch.setattr(RunReport, name, lambda *args: None)
    recipe = task_recipe(corpus_dir, finished.task, corpus_dir / f"{finished.task}-without")
    run_training(recipe, report=Notes())
    for name in ("model.safetensors", "checkpoints/step-6/model.safetensors"):
        assert (recipe.out / name).read_bytes() == (finished.run_dir / name).read_bytes()
    expected, record = read_run(finished.run_dir), read_run(recipe.out)
    assert expected.samples.examples and not record.samples.examples
    losses = [[row["loss"] for row in r.rows("valid")] for r in (expected, record)]
    assert losses[0] == losses[1]


def test_logged_nll_matches_torch(corpus_dir):
    """The first step uses the initial weights; without dropout all of it can be computed from them."""
    options = {"steps": 1, "label_smoothing": 0.2, "log_every": 1}
    recipe, notes = task_recipe(corpus_dir, "translation", corpus_dir / "nll", **options), Notes()
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dropout": 0.0})})
    run_training(recipe, report=notes)
    tokenizer = Tokenizer.load(recipe.out)
    task = TASK.get("translation").open(recipe, tokenizer, Notes())
    model = build(recipe.model.with_vocabulary(tokenizer.vocab_size, ()), recipe.train.seed)
    batch = task.collate(task.epoch_batches(0)[0])
    with torch.no_grad():
        logits = model(batch.source, batch.target, batch.source_pos, batch.target_pos).flatten(0, 1)
    nll, smoothed_loss = (
        float(F.cross_entropy(logits, batch.labels.flatten(), ignore_index=-100, label_smoothing=x))
        for x in (0.0, 0.2)
    )
    assert notes.series("nll") == pytest.approx([nll], rel=1e-5)
    assert notes.series("loss") == pytest.approx([smoothed_loss], rel=1e-5)
    assert smoothed_loss != pytest.approx(nll, rel=1e-4)


def test_report_is_written_at_each_evaluation(corpus_dir):
    pages, run_dir = [], corpus_dir / "each"

    class PageReader(Notes):
        def log_valid(self, row):
            page = read_page(run_dir)
            pages.append((int(row["step"]), page.words()))
            assert page.data()[0][1][-1][0] == row["step"]

    run_training(task_recipe(corpus_dir, "translation", run_dir, steps=9), report=PageReader())
    assert [step for step, _ in pages] == [3, 6, 9]
    assert all(f"Training: step {step} of 9." in words for step, words in pages)


def read_files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_interrupted_and_resumed_training_has_a_report(corpus_dir):
    recipe = task_recipe(corpus_dir, "translation", corpus_dir / "stopped")

    class StoppingNotes(Notes):
        def log_valid(self, row):
            super().log_valid(row)
            os.kill(os.getpid(), signal.SIGTERM)

    notes = StoppingNotes()
    _, outcome = run_training(recipe, report=notes)
    assert outcome.status == "interrupted" and notes.lines[-1] == f"report: {recipe.out}/report.html"
    record = read_run(recipe.out)
    assert record.state == "interrupted" and record.samples.examples
    assert "Training was interrupted at step 3 of 6." in read_page(recipe.out).words()
    run_training(recipe, resume=True, report=Notes())
    assert read_run(recipe.out).state == "done"
    assert "Training is done: 6 steps." in read_page(recipe.out).words()
    files = read_files(recipe.out)
    with user_error("has finished 6 steps, more than 5"):
        run_training(task_recipe(corpus_dir, "translation", recipe.out, steps=5), resume=True, report=Notes())
    assert read_run(recipe.out).state == "done" and read_files(recipe.out) == files
    recipe = task_recipe(corpus_dir, "translation", corpus_dir / "failed", lr=1e30, clip_norm=0, steps=60)
    with user_error("not finite"):
        run_training(recipe, report=Notes())
    assert read_run(recipe.out).state == "failed"
    assert "Training failed at step" in read_page(recipe.out).words()


def test_only_rank_0_writes_the_report(corpus_dir):
    recipe = task_recipe(corpus_dir, "translation", corpus_dir / "ranks")

    def work(ranks):
        states, write_page = [], RunReport._write_page

        def note_state(self, *args):
            states.append(self.state)
            write_page(self, *args)

        RunReport._write_page = note_state
        run_training(recipe, report=Notes(), ranks=ranks)
        return states

    assert outputs_of(2, work, write_report=True) == [["training", "training", "done"], []]
    assert read_run(recipe.out).samples.examples and (recipe.out / "report.html").is_file()
