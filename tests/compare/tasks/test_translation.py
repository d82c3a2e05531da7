"""Tests of compare/tasks/translation.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.compare.cost_metrics_helpers import Ready

from polyhead.compare.tasks.translation import score_validation, time_greedy_search
from polyhead.run.run import Run


@pytest.mark.usefixtures("place")
def test_validation_by_sentence_sums_to_the_loss_of_training() -> None:
    ready = Ready()
    rows = score_validation(ready.model, ready.task)
    with torch.inference_mode():
        loss = ready.task.evaluate(ready.model)["loss"]
    assert sum(nll for _, nll, _ in rows) / sum(n for _, _, n in rows) == pytest.approx(loss, rel=1e-6)
    assert [line for line, _, _ in rows] == list(range(1, 13))
    run = Run(ready.model, ready.tokenizer, ready.recipe.generation, ready.recipe)
    pairs = [Path(f"valid.{side}").read_text().splitlines() for side in ("de", "en")]
    theirs = run.score(*pairs)
    assert [nll for _, nll, _ in rows] == pytest.approx([-score.log_prob for score in theirs], rel=1e-5)
    assert [n for _, _, n in rows] == [score.tokens for score in theirs]


@pytest.mark.usefixtures("place")
def test_decoding_is_measured_in_tokens() -> None:
    ready = Ready()
    run = Run(ready.model, ready.tokenizer, ready.recipe.generation, ready.recipe)
    assert time_greedy_search(run, Path("test.de").read_text().splitlines()) > 0
