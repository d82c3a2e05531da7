"""Position schemes show what they add, turn or subtract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run, t5_bucket

from polyhead.explain.arrays import ArrayReader


def find_scheme(config: dict[str, Any], target: str | None = None, **options: Any) -> tuple[Any, Any, Any]:
    """The step of the scheme, the document and a reader of its arrays."""
    document = explain_walk(make_run(**config), TEXT, target, **options)
    step = next(step for step in document["walk"] if step["kind"] == "position")
    return step, document, ArrayReader.from_document(document)


def test_the_angles_of_rope() -> None:
    step, _, read = find_scheme({"kind": "decoder", "position": {"name": "rope", "theta": 100.0}})
    rate = 100.0 ** (-np.arange(0, 8, 2) / 8)
    assert read(step["values"]["rate"]) == pytest.approx(rate, rel=1e-6)
    cos, sin = read(step["values"]["cos"]), read(step["values"]["sin"])
    angle = np.arange(len(cos))[:, None] * rate
    assert cos == pytest.approx(np.cos(angle), abs=1e-6)
    assert sin == pytest.approx(np.sin(angle), abs=1e-6)
    assert step["facts"]["theta"] == 100.0


def test_the_slopes_of_alibi() -> None:
    step, document, read = find_scheme({"kind": "decoder", "position": "alibi"})
    slopes = read(step["values"]["slopes"])
    assert slopes.tolist() == pytest.approx([1 / 4, 1 / 16, 1 / 64, 1 / 256], rel=1e-6)
    attention = next(step for step in document["walk"] if step["kind"] == "attention")
    bias = read(attention["values"]["bias"])
    distance = np.abs(np.arange(bias.shape[1])[:, None] - np.arange(bias.shape[2]))
    assert bias == pytest.approx(-slopes[:, None, None] * distance, abs=1e-6)


def test_the_buckets_of_t5_in_a_window() -> None:
    step, _, read = find_scheme({"kind": "encoder", "position": "t5"}, first=2, n_shown=5)
    index = read(step["values"]["index"])
    assert index.tolist() == [[t5_bucket(s - t) for s in range(5)] for t in range(5)]


def test_a_scheme_is_shown_once_for_each_stack() -> None:
    _, document, _ = find_scheme({"position": "rope"}, TARGET)
    steps = [step for step in document["walk"] if step["kind"] == "position"]
    assert [step["path"] for step in steps] == [
        "encoder.layers.0.attn.position",
        "decoder.layers.0.attn.position",
    ]
    attentions = [step for step in document["walk"] if step["role"] == "attn"]
    rotations = [document["values"][step["values"]["q"]] for step in attentions]
    assert {value["cos"] for value in rotations} == {step["values"]["cos"] for step in steps}


def test_learned_rows_are_those_of_their_positions() -> None:
    config = {"kind": "decoder", "position": {"name": "learned", "offset": 2}}
    step, _, read = find_scheme(config, first=3, n_shown=4)
    model: Any = make_run(**config).model
    weight = model.embedding.position.weight.detach().numpy()
    assert read(step["values"]["rows"]) == pytest.approx(weight[5:9], abs=1e-6)
