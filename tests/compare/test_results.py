from types import SimpleNamespace

import numpy as np
import pytest
from tests.compare.result_rows import make_scored_rows

from polyhead.compare import results
from polyhead.compare.tasks.base import make_measure


@pytest.mark.parametrize(
    ("bleu", "p_values"),
    [
        ({"base": 10.0, "good": 40.0, "bad": 20.0}, [None, 0.03, None]),
        ({"base": 40.0, "good": 50.0, "bad": 20.0}, [None, 0.03, 0.03]),
    ],
)
def test_no_verdict_if_neither_design_has_learned(plan, bleu, p_values):
    rows = make_scored_rows(**bleu)
    results.withhold_verdicts(rows, plan.task.measures)
    assert [row["bleu_p"] for row in rows] == p_values


def test_interval_uses_all_seeds_and_p_shared_ones(monkeypatch):
    measure = make_measure("loss")
    rng = np.random.default_rng(0)

    def draw_units(mean):
        return {"loss": np.stack([rng.normal(mean, 0.05, 400), np.ones(400)], 1)}

    units = {"x": {seed: draw_units(float(seed)) for seed in (1, 2, 3)}, "base": {1: draw_units(1.1)}}
    task = SimpleNamespace(measures=[measure])
    plan = SimpleNamespace(designs=[SimpleNamespace(name="base")], task=task, base=None)
    monkeypatch.setattr(results, "tokenizer_fingerprint", lambda recipe: "same")
    design = SimpleNamespace(name="x", is_base=False, recipe=object())
    values = results.compute_intervals(design, plan, units)
    low, high = values["loss_interval"]
    assert low < 2 < high and high - low < 0.02
    assert values["loss_p"] == pytest.approx(0.001, abs=1e-4)
