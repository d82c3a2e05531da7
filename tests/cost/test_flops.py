"""Closed forms against torch's counter, which sees what the code does, and against numbers worked by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.cost.flops_helpers import SIZES, config_of

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import (
    ATTENTION,
    BLOCK,
    FEATURE_MAP,
    FEED_FORWARD,
    NORM,
    POOLING,
    POSITION,
    SIMILARITY,
)
from polyhead.cost import flops
from polyhead.cost.fake_tensors import compute_features, count_flops, fake_inputs, measure_flops
from polyhead.cost.flops import (
    count_forward,
    count_recomputed,
    count_token,
    count_visible_pairs,
    update_flops_factor,
)
from polyhead.cost.parameter_count import count_model_parameters, published_config
from polyhead.cost.workload import BatchShape, UnknownFormulaError
from polyhead.models import build
from polyhead.nn.loss import cross_entropy
from polyhead.nn.stack import recompute_blocks

KINDS = ("decoder", "encoder", "encoder-decoder")
BASELINES = {"gated_conv", "rnn", "lstm", "gru"}  # blocks without self-attention
PARTS: list[dict[str, Any]] = [
    *({"attention": name} for name in ATTENTION.names()),
    *({"attention": {"name": "linear", "feature_map": name}} for name in FEATURE_MAP.names()),
    *({"attention": {"name": "kernel", "sim": name}} for name in SIMILARITY.names()),
    *({"position": name} for name in POSITION.names()),
    *({"norm": name} for name in NORM.names()),
    *({"feed_forward": name} for name in FEED_FORWARD.names()),
    {"feed_forward": {"name": "moe", "n_experts": 5, "top_k": 3, "expert": "swiglu"}},
    *({"block": name, "norm_first": name == "parallel",
        "position": "none" if name in BASELINES else "rope"} for name in BLOCK.names()),
    {"n_kv_heads": 1, "head_dim": 6, "v_head_dim": 5},
    {"n_kv_heads": 2, "attention": {"name": "linear", "chunk": 5, "feature_map": "square"}},
    {"attention": "linear", "position": "rope"},
    {"attention": {"name": "softmax", "window": 3, "sink": 1}},
    {"attention": {"name": "softmax", "tie": "kv"}},
    {"attention": {"name": "softmax", "tie": "qkv", "qk_norm": True}},
    {"attention": {"name": "softmax", "softcap": 5.0}},
    {"position": {"name": "shaw", "clip": 3, "values": False}},
    {"position": {"name": "disentangled", "span": 5, "max_distance": 9}, "n_kv_heads": 2, "head_dim": 6},
    {"position": {"name": "disentangled", "span": 30, "max_distance": None, "terms": "c2p"}},
    {"position": {"name": "disentangled", "span": 3, "terms": "p2c"}},
    {"layer_pattern": ({"attention": "kernel"}, {"position": "shaw"})},
    {"layer_pattern": ({"attention": {"name": "linear", "chunk": 5}}, {"attention": {"name": "linear",
        "chunk": 3}})},
    {"layer_pattern": ({"attention": "linear"}, {"block": "gru"}, {})},
    {"attention": "linear", "layer_pattern": ({"block": {"name": "gated_conv", "kernel": 3}},
        {"attention": "softmax"}, {})},
    {"block": {"name": "gated_conv", "kernel": 5}, "position": "none"},
    {"block": {"name": "lstm", "units": 12, "attention": False}, "position": "none"},
    {"block": {"name": "gru", "bidirectional": False}, "position": "none", "decoder_block": "lstm"},
]  # fmt: skip


def load_of(kind: str) -> BatchShape:
    return BatchShape(3, 13, 9 if kind == "encoder-decoder" else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", PARTS, ids=str)
def test_the_closed_form_is_what_torch_counts(kind: str, changes: dict[str, Any]) -> None:
    config, load = config_of(kind, changes), load_of(kind)
    model = build(config, 1).eval()
    with torch.no_grad():
        wanted = measure_flops(lambda: model(*fake_inputs(config, load)))
    assert sum(work.total for work in count_forward(config, load)) == wanted > 0
    if config.feed_forward.name == "moe":  # who is picked depends on numbers
        with pytest.raises(UnknownFormulaError):
            count_flops(config, load)
    else:
        assert count_flops(config, load) == wanted  # and without memory for it


def test_every_part_has_a_form() -> None:
    assert set(flops._BLOCK_COUNTERS) == set(BLOCK.names())
    assert set(flops._SCORE_COUNTERS) == set(ATTENTION.names())
    assert set(flops._KNOWN_POSITIONS) == set(POSITION.names())
    assert set(flops._MLP_MATRICES) | {"moe"} == set(FEED_FORWARD.names())
    assert set(flops._KNOWN_NORMS) == set(NORM.names())


MAPPED = {"name": "mean", "activation": "relu"}


@pytest.mark.parametrize("pooling", [*POOLING.names(), MAPPED, MAPPED | {"map_first": True}])
def test_of_a_classifier(pooling: Any) -> None:
    config = ModelConfig.model_validate(
        {**SIZES, "kind": "encoder", "labels": ("a", "b", "c"), "pooling": pooling}
    )
    load, model = BatchShape(3, 13), build(config, 1).eval()
    with torch.no_grad():
        wanted = measure_flops(lambda: model(*fake_inputs(config, load)))
    assert sum(work.total for work in count_forward(config, load)) == wanted


def test_of_scores_without_a_map_below_them() -> None:
    config, load = config_of("encoder", {"head_transform_activation": "none"}), BatchShape(3, 13)
    works = {work.name: work for work in count_forward(config, load)}
    assert sum(work.total for work in works.values()) == count_flops(config, load)
    assert "transform" not in works


@pytest.mark.parametrize("width", [6, 16, 20])
@pytest.mark.parametrize(
    "top", [{}, {"lm_head": False}, {"labels": ("a", "b")}, {"kind": "decoder"}], ids=str
)
def test_of_embeddings_with_a_width_of_their_own(top: dict[str, Any], width: int) -> None:
    config, load = config_of("encoder", {"d_embedding": width, **top}), BatchShape(3, 13)
    model = build(config, 1).eval()
    with torch.no_grad():
        wanted = measure_flops(lambda: model(*fake_inputs(config, load)))
    works = {work.name: work for work in count_forward(config, load)}
    assert sum(work.total for work in works.values()) == wanted == count_flops(config, load)
    assert works["embeddings"] == ("embeddings", 1, 2 * 3 * 13 * width * 16, "2BSEH", 0)
    scores = not {"lm_head", "labels"} & set(top)
    assert not scores or works["transform"] == ("transform", 1, 2 * 3 * 13 * width * 16, "2BSHE", 0)
    assert not scores or works["head"] == ("head", 1, 2 * 3 * 13 * width * 50, "2BSEV", 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes", [{}, {"feed_forward": "swiglu", "n_kv_heads": 2}, {"attention": "linear"}], ids=str
)
def test_a_step_of_training_costs_three_forward_passes(kind: str, changes: dict[str, Any]) -> None:
    config, load = config_of(kind, changes), load_of(kind)
    model = build(config, 1).train()
    labels = torch.ones(load.rows, load.length, dtype=torch.int64)

    def step() -> None:
        cross_entropy(
            compute_features(model, fake_inputs(config, load)), model.head, labels, 0.1
        ).total.backward()

    assert measure_flops(step) == update_flops_factor(has_adapters=False) * sum(
        work.total for work in count_forward(config, load)
    )


def test_the_formula_of_the_literature() -> None:
    B, S, H, V = 3, 11, 16, 50
    config = ModelConfig.model_validate({**SIZES, "kind": "decoder", "d_ff": 4 * H})
    works = {work.name: work.total for work in count_forward(config, BatchShape(B, S))}
    assert works.pop("head") == 2 * B * S * H * V
    assert sum(works.values()) == 2 * (
        24 * B * S * H**2 + 4 * B * S**2 * H
    )  # Narayanan et al., 2021, of two layers


def test_gpt3_took_three_times_ten_to_the_23() -> None:
    config = published_config("gpt3-175b")
    assert 6 * count_model_parameters(config) * 300e9 == pytest.approx(
        3.14e23, rel=0.005
    )  # Brown et al., 2020, table D.1
    load = BatchShape(1, 2048)
    whole = (
        update_flops_factor(has_adapters=False)
        * sum(work.total for work in count_forward(config, load))
        / 2048
        * 300e9
    )
    assert 3.14e23 < whole < 1.03 * 3.14e23  # the rule leaves out the scores, 1/6 of S/H of the products


def seen(rows: int, slots: int, causal: bool, window: int | None, sink: int) -> int:
    """By looking at every pair."""
    shown = 0
    for i in range(slots - rows, slots) if causal else range(rows):
        for j in range(slots):
            near = window is None or (i - j < window and (causal or j - i < window)) or j < sink
            shown += near and (j <= i or not causal)
    return shown


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("window", "sink"), [(None, 0), (1, 0), (4, 0), (4, 2), (3, 7), (30, 1)])
def test_pairs_that_a_mask_shows(causal: bool, window: int | None, sink: int) -> None:
    assert count_visible_pairs(9, 9, causal, window, sink) == seen(9, 9, causal, window, sink)
    if causal:
        assert count_visible_pairs(1, 9, True, window, sink) == seen(1, 9, True, window, sink)


def test_a_causal_row_hides_almost_half_of_its_pairs() -> None:
    (work,) = [
        work for work in count_forward(config_of("decoder", {}), BatchShape(1, 64)) if "scores" in work.name
    ]
    assert work.flops_each - work.masked_flops == work.flops_each * (64 + 1) / (2 * 64)


@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_blocks_cost_a_forward_pass_of_theirs(kind: str, dropout: float) -> None:
    """Without dropout the backward pass needs nothing that follows the last product of a block."""
    config = config_of(kind, {"dropout": dropout, "norm_first": True})
    source = 9 if kind == "encoder-decoder" else 0
    spent = []
    for recompute in (False, True):
        model = build(config, 1).train()
        recompute_blocks(model, recompute)
        batch = fake_inputs(config, BatchShape(2, 11, source))
        spent.append(measure_flops(lambda m=model, b=batch: compute_features(m, b).sum().backward()))
    assert config.d_ff is not None
    last_products = 2 * 2 * config.d_model * config.d_ff * (config.n_layers * 11)
    if source:
        last_products = (
            2 * 2 * config.d_model * config.d_ff * (config.n_layers * 9 + config.decoder_layers * 11)
        )
    counted = count_recomputed(config, BatchShape(2, 11, source))
    assert spent[1] - spent[0] == counted - (0 if dropout else last_products)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *itertools.product(["decoder", "encoder-decoder"], PARTS),
        ("decoder", {"d_embedding": 6, "position": "learned"}),
    ],
    ids=str,
)
def test_a_decoded_token_costs_what_torch_counts(kind: str, changes: dict[str, Any]) -> None:
    config, source = config_of(kind, changes), 9 if kind == "encoder-decoder" else 0
    model = build(config, 1).eval()
    shape = model.cache_shape
    cache = make_cache(
        Choice("static", chunk=1) if shape.kv_layers else None, shape, 1, 12
    )  # spare slots are counted
    with torch.no_grad():
        memory = model.encode(torch.zeros(1, source, dtype=torch.int64)) if source else None
        for at in (torch.arange(11), torch.tensor([11])):
            tokens, pos = torch.zeros(1, len(at), dtype=torch.int64), at[None]

            def step(tokens: torch.Tensor = tokens, pos: torch.Tensor = pos) -> None:
                cache.prepare_step([0], pos)
                model.decode(tokens, pos, cache, memory)

            spent = measure_flops(step)
    slots = 12 + 1 if shape.kv_layers else 12  # and the one that swallows padding
    assert sum(work.total for work in count_token(config, slots, source)) == spent
