"""Tests of compare/results.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.compare.result_rows import plan as plan
from tests.compare.result_rows import row

from polyhead.compare import results
from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.results import withhold_verdicts
from polyhead.compare.significance import BootstrapTest, mean_from_sums
from polyhead.compare.tasks.base import QualityMeasure

COPIED = {"value": 30.0, "guess": "copied source", "detail": ""}


def with_scores(**bleu: float) -> list[dict[str, Any]]:
    """Rows of these BLEU scores beside a copied source of 30."""
    return [
        row(name, 3.0 + i, bleu=value, learned=value > 30, baselines={"bleu": COPIED})
        for i, (name, value) in enumerate(bleu.items())
    ]


def test_only_two_that_have_not_learned_are_without_a_verdict(plan: ComparisonPlan) -> None:
    rows = with_scores(base=10.0, good=40.0, bad=20.0)
    withhold_verdicts(rows, plan.task.measures)
    assert [one["bleu_p"] for one in rows] == [None, 0.03, None]
    rows = with_scores(base=40.0, good=50.0, bad=20.0)
    withhold_verdicts(rows, plan.task.measures)
    assert [one["bleu_p"] for one in rows] == [None, 0.03, 0.03]


MEAN = BootstrapTest(mean_from_sums)


def test_the_interval_is_about_the_value_that_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all seeds of a design, though its base has but one of them; whether they differ is told by that
    one.
    """
    measure = QualityMeasure("loss", "loss", "validation loss", MEAN, True, 3, 3)
    rng = np.random.default_rng(0)

    def drawn(mean: float) -> dict[str, Any]:
        return {"loss": np.stack([rng.normal(mean, 0.05, 400), np.ones(400)], 1)}

    own = {seed: drawn(float(seed)) for seed in (1, 2, 3)}
    plan = SimpleNamespace(
        designs=[SimpleNamespace(name="base")], task=SimpleNamespace(measures=[measure]), base=None
    )
    monkeypatch.setattr(results, "tokenizer_fingerprint", lambda recipe: "same")
    row = SimpleNamespace(name="x", is_base=False, recipe=object())
    found = results.compute_intervals(row, plan, {"x": own, "base": {1: drawn(1.1)}})
    low, high = found["loss_interval"]
    assert low < 2 < high and high - low < 0.02
    assert found["loss_p"] == pytest.approx(0.001, abs=1e-4)
