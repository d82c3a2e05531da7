"""Costs of steps are those of the cost model, and add up to the whole."""

from __future__ import annotations

from typing import Any

import pytest
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run

from polyhead.cost.flops import count_forward, count_token
from polyhead.cost.workload import BatchShape


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"kind": "decoder", "n_kv_heads": 2, "feed_forward": "swiglu"},
        {"kind": "decoder", "feed_forward": "moe"},
        {"kind": "decoder", "attention": "linear"},
        {"kind": "decoder", "d_embedding": 8},
        {"kind": "encoder"},
        {"kind": "encoder", "labels": ("yes", "no")},
        {"block": "gated_conv"},
        {"block": "lstm", "position": "none"},
        {"layer_pattern": [{"block": "gru"}, {}]},
    ],
    ids=str,
)
def test_operations_of_the_steps_add_up(config: dict[str, Any]) -> None:
    run = make_run(**config)
    document = explain_walk(run, TEXT, TARGET if "kind" not in config else None)
    lengths = [len(side["tokens"]) for side in document["sides"]]
    shape = BatchShape(1, lengths[-1], lengths[0] if len(lengths) > 1 else 0)
    total = sum(work.total for work in count_forward(run.config, shape))
    assert document["costs"]["total"]["flops"] == total
    assert sum(step["cost"]["flops"] for step in document["walk"]) == total
    if run.kind in ("decoder", "encoder-decoder"):
        works = count_token(run.config, lengths[-1] + 1, shape.source)
        step = sum(work.total for work in works)
        assert document["costs"]["decode_step"]["flops"] == step < total
        assert document["costs"]["decode_step"]["parts"] == {work.name: work.total for work in works}
    for step in document["walk"]:
        assert sum(step["cost"]["parts"].values()) == step["cost"]["flops"]


def test_bytes_are_those_of_the_weights_that_are_read_and_of_what_goes_in_and_out() -> None:
    run = make_run(kind="decoder", position="learned", feed_forward={"name": "relu", "bias": False})
    document = explain_walk(run, TEXT)
    steps = {step["path"]: step["cost"] for step in document["walk"]}
    n = len(document["sides"][0]["tokens"])
    rows = 4 * n * 32
    assert steps["stack.layers.0.ffn"]["weight_bytes"] == 4 * 2 * 32 * 48
    assert steps["stack.layers.0.ffn"]["activation_bytes"] == 2 * rows
    assert steps["stack.layers.0.attn"]["weight_bytes"] == 4 * 4 * (32 * 32 + 32)
    assert steps["embedding"]["weight_bytes"] == steps["embedding.position"]["weight_bytes"] == rows
    assert steps["stack.layers.0.attn_residual"]["weight_bytes"] == 0
    assert document["costs"]["total"]["weight_bytes"] == 4 * sum(p.numel() for p in run.model.parameters())


def test_a_part_without_a_formula_has_no_operations() -> None:
    attention = {"name": "kernel", "sim": "polyhead.nn.similarity:square_similarity"}
    run = make_run(kind="decoder", attention=attention, position="none")
    document = explain_walk(run, TEXT)
    assert document["costs"]["total"]["flops"] is None
    assert {step["cost"]["flops"] for step in document["walk"] if step["kind"] == "attention"} == {None}
