"""Tests of estimate/report.py."""

from __future__ import annotations

import pytest
from tests.estimate.plan_helpers import begun_with
from tests.estimate.plan_helpers import home as home

from polyhead.config.model import ModelConfig
from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_details, format_si
from polyhead.run.recipe import load_recipe


def test_adapters_cost_what_they_cost(home):
    """An update takes no gradient of weights, and what learns is what the recipe's own
    training lets learn.
    """
    begun_with(home)
    whole, part = (
        estimate(load_recipe("tuned.yaml", changes), context_len=8, decode_batch=(1,), seconds=0.1)
        for changes in ([], ["train.lora={r: 4, target_modules: [attn]}"])
    )
    learn = 2 * 4 * 4 * (16 + 16)
    assert (whole.operations.times, part.operations.times) == (3, 2)
    assert part.operations.step == whole.operations.step * 2 / 3
    assert (part.memory.gradients, whole.memory.gradients) == (4 * learn, 4 * whole.parameters)
    assert part.time is not None
    assert f"{whole.parameters:,} parameters, {learn:,} trainable" in next(format_details(part))
    assert "learn" not in next(format_details(whole))
    assert "(2 x forward)" in "\n".join(format_details(part))


def test_recomputed_blocks_cost_operations_and_spare_memory(home):
    whole, part = (
        estimate(load_recipe("language-model.yaml", changes), probe=False)
        for changes in (["train.accumulate=2"], ["train.accumulate=2", "train.recompute=blocks"])
    )
    head = next(work.total for work in whole.operations.parts if work.name == "head")
    assert part.operations.recomputation == part.operations.step - whole.operations.step
    assert whole.mean == whole.largest, "or the head of the largest batch is not that of all"
    assert part.operations.recomputation == 2 * (whole.operations.forward - head)
    assert (whole.operations.recomputation, whole.memory.block_activations) == (0, 0)
    assert part.memory.activations is not None and part.memory.block_activations is not None
    assert whole.memory.activations is not None and whole.memory.total is not None
    saved = whole.memory.activations - part.memory.activations - part.memory.block_activations
    assert part.memory.total == whole.memory.total - saved
    lines = "\n".join(format_details(part))
    assert f"(3 x forward, {format_si(part.operations.recomputation)}FLOPs recomputed)" in lines
    assert f"recomputed  {format_si(part.memory.block_activations):>7}B  one block" in lines
    assert "recomputed" not in "\n".join(format_details(whole))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0.0, "0 "),
        (999.4, "999 "),
        (999_700_000, "1 G"),
        (1234567, "1.23 M"),
        (3.14e23, "3.14e+23 "),
        (2.4e10, "24 G"),
    ],
)
def test_numbers_are_short(number, said):
    assert format_si(number) == said


def test_the_rule_of_six_counts_what_a_token_passes():
    experts = {"name": "moe", "n_experts": 4, "top_k": 2}
    config = ModelConfig(
        kind="decoder", vocab_size=50, d_model=32, n_layers=2, n_heads=2, feed_forward=experts
    )
    made = estimate(config, probe=False, batch_size=3, seq_len=16)
    assert made.active == made.parameters - 2 * 2 * (2 * 32 * 128 + 128 + 32)
    assert made.operations.rule == 6 * made.active * 3 * 16
    assert f"{made.active:,} of them for each token" in next(format_details(made))
