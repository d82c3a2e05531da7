"""Tests of estimate/benchmark.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.estimate.plan_helpers import RECIPES
from tests.estimate.plan_helpers import home as home

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.workload import BatchShape
from polyhead.estimate.benchmark import (
    RandomTokenTask,
    UpdateTimes,
    measure_decoding_speed,
    measure_update_times,
)
from polyhead.estimate.plan import estimate
from polyhead.models import build
from polyhead.run.recipe import load_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_probe_predicts_the_run_from_its_updates(home, name):
    before = torch.get_rng_state()
    made = estimate(load_recipe(f"{name}.yaml"), seconds=0.01, decode_batch=(2,))
    assert made.time is not None
    assert made.batches is not None
    assert made.steps is not None
    assert made.time.epoch == pytest.approx(made.time.update * made.batches)
    assert made.time.run == made.time.update * made.steps
    assert made.time.tokens_per_s == pytest.approx(made.labels / made.time.update)
    assert [speed.rows for speed in made.time.speeds] == ([] if made.decoding is None else [2])
    assert torch.equal(torch.get_rng_state(), before)


def test_seconds_follow_the_work():
    assert (
        UpdateTimes([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]).predict_seconds(10.0) == 20.0
    )  # one update of three was disturbed


KINDS: list[dict[str, Any]] = [
    {"kind": "encoder-decoder"},
    {"kind": "decoder"},
    {"kind": "encoder"},
    {"kind": "encoder", "labels": ("a", "b")},
    {"kind": "encoder", "generator_layers": 1, "n_layers": 2},
    {"kind": "encoder", "lm_head": False},
    {"kind": "encoder", "lm_head": False, "causal": True},
]


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_a_task_without_a_text_asks_for_as_much(fields):
    config = ModelConfig.model_validate(
        {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2, **fields}
    )
    load = BatchShape(3, 8, 5 if fields["kind"] == "encoder-decoder" else 0, 10)
    task = RandomTokenTask(config, load)
    batch = task.collate(None)
    assert batch[0].shape == (3, 5 if load.source else 8)
    loss = task.loss(build(config, 1), batch)
    assert loss.count == task.count_labels(batch) == (3 if config.labels else 10)
    assert loss.total.requires_grad and loss.total.isfinite()
    found = measure_update_times(config, task, TrainConfig(steps=1, accumulate=2), [batch], [5.0], 0.0)
    assert found.work == [10.0] * 3


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_decoding_is_timed_at_its_length(kind):
    config = ModelConfig(kind=kind, vocab_size=40, d_model=16, n_layers=1, n_heads=2, max_len=64)
    speed = measure_decoding_speed(config, 3, 1000, 5, None, new_tokens=4)
    assert (speed.rows, speed.context) == (3, 64 - 6)
    assert speed.tokens_per_s > 0
    if kind == "decoder":
        few = config.model_copy(update={"max_len": 12, "position": Choice("learned", offset=0)})
        assert measure_decoding_speed(few, 2, 8, 0, None).context == 1
