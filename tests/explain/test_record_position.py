"""Position schemes show what they add, turn or subtract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
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


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_every_attention_has_the_bucket_of_each_pair_as_in_transformers(kind: str) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    position = {"name": "t5", "buckets": 8, "max_distance": 9}
    _, document, read = find_scheme({"kind": kind, "position": position}, first=2, n_shown=9)
    distance = torch.arange(9) - torch.arange(9)[:, None]
    expected = t5.T5Attention._relative_position_bucket(distance, kind == "encoder", 8, 9).tolist()
    attentions = [step for step in document["walk"] if step["kind"] == "attention"]
    assert [read(step["values"]["index"]).tolist() for step in attentions] == [expected] * 2


def test_every_attention_has_the_clipped_distance_of_each_pair_of_shaw() -> None:
    config = {"kind": "encoder", "position": {"name": "shaw", "clip": 3}}
    _, document, read = find_scheme(config, first=2, n_shown=9)
    expected = [[min(max(s - t, -3), 3) + 3 for s in range(9)] for t in range(9)]
    attentions = [step for step in document["walk"] if step["kind"] == "attention"]
    assert [read(step["values"]["index"]).tolist() for step in attentions] == [expected] * 2
    values, scale = attentions[0]["values"], attentions[0]["facts"]["scale"]
    key = read(next(step for step in document["walk"] if step["kind"] == "position")["values"]["key"])
    bias = np.einsum("htd,tsd->hts", read(values["q"]), key[np.array(expected)]) * scale
    assert read(values["bias"]) == pytest.approx(bias, abs=1e-5)


# 16 vectors in each direction are more than the text needs
@pytest.mark.parametrize(("span", "max_distance"), [(4, None), (4, 9), (16, None), (16, 20)])
@pytest.mark.parametrize("terms", ["both", "c2p", "p2c"])
def test_the_bias_of_deberta_is_two_products_with_the_distance(
    terms: str, span: int, max_distance: int | None
) -> None:
    """Query with the distance as a key, key with the distance as a query (He et al., 2021a, eq. 4)."""
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    position = {"name": "disentangled", "span": span, "max_distance": max_distance, "terms": terms}
    config = {"kind": "encoder", "position": position}
    _, document, read = find_scheme(config, first=2, n_shown=9)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    if max_distance is not None:
        distance = deberta.make_log_bucket_position(distance, span, max_distance).long()
    expected = distance.clamp(-span, span - 1) + span
    model: Any = make_run(**config).model
    for i, step in enumerate(step for step in document["walk"] if step["kind"] == "attention"):
        values, attn = step["values"], model.encoder.stack.layers[i].attn
        assert read(values["index"]).tolist() == expected.tolist()
        with torch.no_grad():
            vectors = attn.position.norm(attn.position.weight)
            queries, keys = (
                proj(vectors).double().unflatten(-1, (4, 8)).transpose(0, 1).numpy()
                for proj in (attn.q_proj, attn.k_proj)
            )
        index, scale = expected.numpy(), step["facts"]["scale"]
        products = {
            "c2p": np.einsum("htd,htsd->hts", read(values["q"]), keys[:, index]) * scale,
            "p2c": np.einsum("hsd,htsd->hts", read(values["k"]), queries[:, index]) * scale,
        }
        shown = [role for role in products if terms in ("both", role)]
        bias = sum(products[role] for role in shown)
        assert read(values["bias"]) == pytest.approx(bias, abs=1e-5)
        for role in products:
            assert (role in values) == (terms == "both")
            assert role not in values or read(values[role]) == pytest.approx(products[role], abs=1e-5)


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
