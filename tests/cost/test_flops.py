import pytest
import torch
from tests.cost.cost_helpers import KINDS, make_config, make_shape

from polyhead.cache.factory import make_cache
from polyhead.core import registry
from polyhead.core.choice import Choice
from polyhead.cost import flops
from polyhead.cost.fake_tensors import compute_features, count_flops, fake_inputs, measure_flops
from polyhead.cost.parameter_count import count_model_parameters, published_config
from polyhead.cost.workload import BatchShape, UnknownFormulaError
from polyhead.models import build
from polyhead.nn.loss import cross_entropy
from polyhead.nn.stack import recompute_blocks

BASELINES = {"conv", "gated_conv", "rnn", "lstm", "gru"}  # blocks without self-attention
PARTS = [
    *({"attention": name} for name in registry.ATTENTION.names()),
    *({"attention": {"name": "linear", "feature_map": name}} for name in registry.FEATURE_MAP.names()),
    *({"attention": {"name": "kernel", "sim": name}} for name in registry.SIMILARITY.names()),
    *({"position": name} for name in registry.POSITION.names()),
    *({"norm": name} for name in registry.NORM.names()),
    *({"feed_forward": name} for name in registry.FEED_FORWARD.names()),
    {"feed_forward": {"name": "moe", "n_experts": 5, "top_k": 3, "expert": "swiglu"}},
    *(
        {"block": name, "norm_first": name == "parallel", "position": "none" if name in BASELINES else "rope"}
        for name in registry.BLOCK.names()
    ),
    {"n_kv_heads": 4},
    {"n_kv_heads": 1, "head_dim": 6, "v_head_dim": 5},
    {"attention": {"name": "linear", "chunk": 5, "feature_map": "square"}},
    {"attention": "linear", "position": "rope"},
    {"attention": {"name": "softmax", "window": 3, "sink": 1}},
    {"attention": {"name": "softmax", "tie": "kv"}},
    {"attention": {"name": "softmax", "tie": "qkv", "qk_norm": True}, "n_kv_heads": 4},
    {"attention": {"name": "softmax", "softcap": 5.0}},
    *(
        {"attention": {"name": name, "projections": "none"}, "n_kv_heads": 4}
        for name in registry.ATTENTION.names()
    ),
    {"position": {"name": "shaw", "clip": 3, "values": False}},
    {"position": {"name": "disentangled", "span": 5, "max_distance": 9}, "head_dim": 6},
    {"position": {"name": "disentangled", "span": 30, "max_distance": None, "terms": "c2p"}},
    {"position": {"name": "disentangled", "span": 3, "terms": "p2c"}},
    {"layer_pattern": ({"attention": "kernel"}, {"position": "shaw"})},
    {"layer_pattern": [{"attention": {"name": "linear", "chunk": n}} for n in (5, 3)]},
    {"layer_pattern": ({"attention": "linear"}, {"block": "gru"}, {})},
    {
        "attention": "linear",
        "layer_pattern": ({"block": {"name": "gated_conv", "kernel": 3}}, {"attention": "softmax"}, {}),
    },
    {"block": {"name": "gated_conv", "kernel": 5}, "position": "none"},
    {"block": {"name": "lstm", "units": 12, "attention": False}, "position": "none"},
    {"block": {"name": "gru", "bidirectional": False}, "position": "none", "decoder_block": "lstm"},
]


def sum_forward(config, shape):
    return sum(work.total for work in flops.count_forward(config, shape))


def measure_forward(config, shape):
    model = build(config, 1).eval()
    with torch.no_grad():
        return measure_flops(lambda: model(*fake_inputs(config, shape)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", PARTS, ids=str)
def test_closed_form_equals_the_count_of_torch(kind, changes):
    config, shape = make_config(kind, changes), make_shape(kind)
    expected = measure_forward(config, shape)
    assert sum_forward(config, shape) == expected > 0
    if config.feed_forward.name == "moe":  # the selected experts depend on numbers
        with pytest.raises(UnknownFormulaError):
            count_flops(config, shape)
    else:
        assert count_flops(config, shape) == expected  # with fake tensors


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("changes", [*PARTS, {"position": "learned", "d_embedding": 6}], ids=str)
@torch.no_grad()
def test_decoded_token_equals_the_count_of_torch(kind, changes):
    if "d_embedding" in changes:
        kind = "decoder"
    config, source = make_config(kind, changes), 9 if kind == "encoder-decoder" else 0
    model = build(config, 1).eval()
    choice = Choice("static", chunk=1) if model.cache_shape.kv_layers else None
    cache = make_cache(choice, model.cache_shape, 1, 12)
    memory = model.encode(torch.zeros(1, source, dtype=torch.int64)) if source else None
    for pos in (torch.arange(11)[None], torch.tensor([[11]])):

        def step(pos=pos):
            cache.prepare_step([0], pos)
            model.decode(torch.zeros_like(pos), pos, cache, memory)

        measured = measure_flops(step)
    assert sum(work.total for work in flops.count_token(config, 12 + bool(choice), source)) == measured


RELU_POOLINGS = [{"name": "mean", "activation": "relu", "map_first": first} for first in (False, True)]


@pytest.mark.parametrize("pooling", [*registry.POOLING.names(), *RELU_POOLINGS], ids=str)
def test_classifier_and_head_equal_the_count(pooling):
    config = make_config("encoder", {"labels": ("a", "b", "c"), "pooling": pooling})
    assert sum_forward(config, BatchShape(3, 13)) == measure_forward(config, BatchShape(3, 13))
    config, shape = make_config("encoder", {"head_transform_activation": "none"}), BatchShape(3, 13)
    assert sum_forward(config, shape) == count_flops(config, shape)
    assert "transform" not in {work.name for work in flops.count_forward(config, shape)}


def test_transform_of_a_decoder_is_counted():
    config, shape = make_config("encoder-decoder", {"head_transform": True}), make_shape("encoder-decoder")
    assert sum_forward(config, shape) == measure_forward(config, shape)
    assert flops.count_forward(config, shape)[-2].name == "transform"


@pytest.mark.parametrize("width", [6, 16, 20])
@pytest.mark.parametrize(
    "changes", [{}, {"lm_head": False}, {"labels": ("a", "b")}, {"kind": "decoder"}], ids=str
)
def test_factorized_embeddings_are_counted(changes, width):
    kind, shape = changes.get("kind", "encoder"), BatchShape(3, 13)
    config = make_config(kind, {"d_embedding": width, **changes})
    works = {work.name: work for work in flops.count_forward(config, shape)}
    total = sum(work.total for work in works.values())
    assert total == measure_forward(config, shape) == count_flops(config, shape)
    assert works["embeddings"] == ("embeddings", 1, 2 * 3 * 13 * width * 16, "2BSEH", 0)
    if not {"lm_head", "labels"} & set(changes):
        assert works["transform"] == ("transform", 1, 2 * 3 * 13 * width * 16, "2BSHE", 0)
        assert works["head"] == ("head", 1, 2 * 3 * 13 * width * 50, "2BSEV", 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes", [{}, {"feed_forward": "swiglu", "n_kv_heads": 4}, {"attention": "linear"}], ids=str
)
def test_training_step_costs_three_forward_passes(kind, changes):
    config, shape = make_config(kind, changes), make_shape(kind)
    model, labels = build(config, 1).train(), torch.ones(shape.rows, shape.length, dtype=torch.int64)

    def step():
        features = compute_features(model, fake_inputs(config, shape))
        cross_entropy(features, model.head, labels, 0.1).total.backward()

    assert flops.update_flops_factor(has_adapters=False) == 3
    assert measure_flops(step) == 3 * sum_forward(config, shape)


def test_flops_equal_those_of_the_literature():
    # Narayanan et al., 2021, of two layers
    B, S, H, V = 3, 11, 16, 50
    config = make_config("decoder", {"d_ff": 4 * H, "n_kv_heads": 4})
    works = {work.name: work.total for work in flops.count_forward(config, BatchShape(B, S))}
    assert works.pop("head") == 2 * B * S * H * V
    assert sum(works.values()) == 2 * (24 * B * S * H**2 + 4 * B * S**2 * H)

    # Brown et al., 2020, table D.1: 6 times the parameters and tokens, without scores (1/6 of S/H)
    config = published_config("gpt3-175b")
    assert 6 * count_model_parameters(config) * 300e9 == pytest.approx(3.14e23, rel=0.005)
    total = 3 * sum_forward(config, BatchShape(1, 2048)) / 2048 * 300e9
    assert 3.14e23 < total < 1.03 * 3.14e23


def count_pairs_slowly(rows, slots, causal, window, sink):
    n = 0
    for i in range(slots - rows, slots) if causal else range(rows):
        for j in range(slots):
            is_near = window is None or (i - j < window and (causal or j - i < window)) or j < sink
            n += is_near and (j <= i or not causal)
    return n


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("window", "sink"), [(None, 0), (1, 0), (4, 0), (4, 2), (3, 7), (30, 1)])
def test_visible_pairs_equal_a_count_one_by_one(causal, window, sink):
    for rows in (9, 1) if causal else (9,):
        expected = count_pairs_slowly(rows, 9, causal, window, sink)
        assert flops.count_visible_pairs(rows, 9, causal, window, sink) == expected

    # almost half of the pairs are hidden
    (work,) = (
        w for w in flops.count_forward(make_config("decoder"), BatchShape(1, 64)) if "scores" in w.name
    )
    assert work.flops_each - work.masked_flops == work.flops_each * (64 + 1) / (2 * 64)


@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_blocks_cost_their_forward_pass(kind, dropout):
    """Without dropout the backward pass does not need the last product of a block."""
    config = make_config(kind, {"dropout": dropout, "norm_first": True})
    source = 9 if kind == "encoder-decoder" else 0
    shape, measured = BatchShape(2, 11, source), []
    for recompute in (False, True):
        model = build(config, 1).train()
        recompute_blocks(model, recompute)
        inputs = fake_inputs(config, shape)
        measured.append(measure_flops(lambda m=model, x=inputs: compute_features(m, x).sum().backward()))
    tokens = 2 * config.n_layers * (11 + source)
    last_products = 0 if dropout else 2 * config.d_model * config.d_ff * tokens
    assert measured[1] - measured[0] == flops.count_recomputed(config, shape) - last_products
