"""Tests of cli/demo_run.py: with few pairs and steps, and with all of them in a slow test."""

import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from sacrebleu import corpus_bleu
from tests.cli.demo_run_helpers import REPORT, weights
from tests.cli.demo_run_helpers import finished as finished
from tests.cli.demo_run_helpers import trained_demo as trained_demo
from tests.cli.demo_run_helpers import workdir as workdir
from tests.viz.html_pages import Page

from polyhead.checkpoint import checkpoint
from polyhead.cli import demo_run
from polyhead.cli.demo_run import DemoEvaluation, select_rows_by_length, training_seconds
from polyhead.run.recipe import load_recipe
from polyhead.train.loggers import TextLogger
from polyhead.train.tasks.translation import TranslationTask

pytest.importorskip("babel")


def test_scores_examples_and_times_of_the_demo():
    outputs, references = ["3天后", "5米 ", "5月4日", "3英尺"], ["3天后", "5米", "5月4日", "2英尺"]
    evaluation = DemoEvaluation(["in 3 days", "5 m", "May 4", "2 ft"], references, outputs, [])
    assert (evaluation.n_correct, evaluation.exact_match) == (2, 50.0)
    example = {"source": "2 ft", "output": "3英尺", "reference": "2英尺"}
    assert evaluation.select_examples([3]) == [example]
    texts = ["x" * n for n in (9, 1, 5, 7, 3, 2, 8, 4, 6, 10)]
    assert [len(texts[row]) for row in select_rows_by_length(texts, 5)] == [2, 4, 6, 8, 10]
    rows = [{"step": step, "ms_per_step": ms} for step, ms in ((10, 100.0), (20, 200.0), (25, 40.0))]
    assert training_seconds(rows) == pytest.approx(1.0 + 2.0 + 0.2)


def test_demo_trains_evaluates_and_reports(trained_demo, finished):
    out, err = ((trained_demo / name).read_text() for name in ("out.txt", "err.txt"))
    assert "English to Chinese" in out and "tok:zh" in out and "step      4/4" in err
    assert re.search(r"Exact match +0\.0 % +0 of \d+ equal their reference", out)
    corpus = Path("runs/demo/corpus")
    sources, references = ((corpus / f"test.{lang}").read_text().splitlines() for lang in ("en", "zh"))
    counts = Counter((corpus / "train.zh").read_text().splitlines())
    frequent = next(target for target, n in counts.items() if n == max(counts.values()))
    guesses = [sources, [frequent] * len(references)]
    best = max(corpus_bleu(guess, [references], tokenize="zh").score for guess in guesses)
    assert f"baseline {best:.1f}: " in out and "BLEU 0.00 is below the baseline" in out
    verdict = "it has not learned to translate yet; the validation loss was still falling"
    assert verdict in " ".join(out.split())
    assert "Baseline of BLEU" in REPORT.read_text()
    assert f"Report  {REPORT}" in out and "polyhead demo --translate" in out
    assert load_recipe("runs/demo/recipe.yaml") == demo_run.make_recipe("en", "zh", Path("runs/demo"))


def test_report_has_attention_maps_of_test_pairs(finished):
    maps = next(block for block in Page(REPORT.read_text()).data() if isinstance(block[0], dict))
    assert len(maps) == 5
    sources = Path("runs/demo/corpus/test.en").read_text(encoding="utf-8").splitlines()
    for attention in maps:
        assert attention["title"] in sources
        assert [len(layer) for layer in attention["weights"]] == [2]
        for row in (row for layer in attention["weights"] for head in layer for row in head):
            assert len(row) == len(attention["source"])
            assert sum(row) == pytest.approx(1000, abs=len(row))


def test_interrupted_training_resumes_to_same_weights(trained_demo, workdir, cli, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TextLogger, "log_train", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert "The same command continues from there." in cli("demo", code=130).out
    assert checkpoint.list_steps(Path("runs/demo/checkpoints")) == [2]
    out, err = cli("demo")
    assert "interrupted run, which continues" in out and "resumed at step 2 of 4" in err
    assert weights() == weights(trained_demo / "runs/demo")


def test_interrupted_evaluation_runs_again(workdir, cli, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "collect_facts", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        assert "The same command continues from there." in cli("demo", code=130).out
    old_weights, card = weights(), Path("runs/demo/README.md")
    assert "test bleu" not in card.read_text()
    assert "interrupted run, which continues" in cli("demo").out
    assert "test bleu" in card.read_text() and weights() == old_weights
    shutil.rmtree("runs/demo/checkpoints")  # without them it is used as it is
    card.unlink()
    assert "reused" in cli("demo").out


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_full_demo_learns_to_translate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = demo_run.open_recipe("en", "zh", Path("runs/demo"))
    demo_run.write_demo_corpus(recipe)
    run, _ = demo_run.load_or_train(recipe)
    evaluation = demo_run.evaluate_demo(run, recipe)
    assert evaluation.exact_match >= 95 and evaluation.bleu.value >= 95
    assert len(evaluation.references) >= 500
