import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.laws.conftest import SIZES, VOCAB, choices, required_options
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter, EagerAndRecordGraphs

from polyhead import Choice, ModelConfig, build
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
from polyhead.nn import block_mask
from polyhead.nn.stack import Stack

ATTENTION_OF = {"none": "linear", "sinusoidal": "kernel"}
LAYERS = [
    *({"block": part} for part in choices(BLOCK)),
    *({"attention": part, "n_kv_heads": 2} for part in choices(ATTENTION) if len(part) > 1),
    *({"attention": {"name": "linear", "feature_map": name}} for name in FEATURE_MAP.names()),
    *({"attention": {"name": "kernel", "sim": name}} for name in SIMILARITY.names()),
    *(
        {"position": p, "attention": {"name": ATTENTION_OF.get(p["name"], "softmax")}, "n_kv_heads": 2}
        for p in choices(POSITION)
    ),
]
PARTS = [(registry, part) for registry in (NORM, FEED_FORWARD) for part in choices(registry)]
PARTS += [(FEED_FORWARD, {"name": "moe", "expert": expert}) for expert in ("prelu", "geglu")]
DOCUMENTS = torch.tensor(
    [[0, 1, 2, 3, 0, 1, 2, 0, -1], [0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 1, 2, 3, 4, -1, -1]]
)
Forward = Callable[[Any], Tensor]


def mark_variants_slow(cases):
    def is_plain(changes):
        return all(len(part) == 1 for part in changes.values() if isinstance(part, dict))

    return [pytest.param(x, id=str(x), marks=[] if is_plain(x) else pytest.mark.slow) for x in cases]


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compute_gradients(model, forward):
    torch.manual_seed(5)
    model.zero_grad()
    output = forward(model)
    output.square().sum().backward()
    return [output.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())]


def assert_compiled_equal(model, compiled_model, forward):
    actual, expected = (compute_gradients(x, forward) for x in (compiled_model, model))
    largest = max(float(b.abs().max()) for b in expected)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def compile_layers(model, backend="eager"):
    compiled_model = copy.deepcopy(model)
    for stack in compiled_model.modules():
        if isinstance(stack, Stack):
            stack.compile_layers(backend=backend, fullgraph=True)
    return compiled_model


def compile_module(module):
    module = copy.deepcopy(module)
    module.compile(backend="eager", fullgraph=True)
    return module


def make_model(changes, **sizes):
    sizes = {**SIZES, "n_layers": 1, "dropout": 0.0, "kind": "decoder", **sizes, **changes}
    sizes |= required_options(changes)
    return build(ModelConfig.model_validate({"vocab_size": VOCAB, **sizes}), seed=1).train()


@pytest.mark.parametrize("changes", mark_variants_slow(LAYERS))
def test_layer_with_any_part_is_one_graph(changes, pairs):
    model = make_model(changes)
    inputs = pairs.target, pairs.target_pos
    assert_compiled_equal(model, compile_layers(model), lambda model: model.features(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCK.names())
def test_layers_of_an_encoder_decoder_are_one_graph(block, pairs):
    model = make_model({"block": {"name": block}}, kind="encoder-decoder")
    inputs = pairs.source, pairs.target, pairs.source_pos, pairs.target_pos
    assert_compiled_equal(model, compile_layers(model), lambda model: model.features(*inputs))


@pytest.mark.parametrize(("registry", "part"), PARTS, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_norm_or_feed_forward_is_one_graph(registry, part, pairs):
    sizes = (SIZES["d_model"], SIZES["d_ff"])[: 1 + (registry is FEED_FORWARD)]
    choice = Choice(part["name"], **{key: value for key, value in part.items() if key != "name"})
    model = registry.build(registry.check(choice), *sizes).train()
    x = torch.randn(3, 9, SIZES["d_model"], generator=torch.Generator().manual_seed(0), requires_grad=True)
    is_token = (pairs.target_pos >= 0)[:, :, None]  # outputs of padding are not defined
    assert_compiled_equal(model, compile_module(model), lambda model: model(x, pairs.target_pos) * is_token)


@pytest.mark.parametrize("name", POOLING.names())
def test_pooling_is_one_graph(name, pairs):
    config = ModelConfig(vocab_size=VOCAB, kind="encoder", labels=("a", "b"), lm_head=False, **SIZES)
    model = POOLING.build(POOLING.check(Choice(name)), config)
    x = torch.randn(3, 9, SIZES["d_model"], requires_grad=True)
    assert_compiled_equal(model, compile_module(model), lambda model: model(x, pairs.target_pos))


def test_layers_share_graphs_and_packed_rows_differ(pairs):
    """The stack passes the documents to a compiled layer, which is also correct for the rows after them."""
    model = make_model({"position": {"name": "rope"}}, n_layers=2)
    compiled_model = compile_layers(model)
    for pos in (DOCUMENTS, pairs.target_pos, DOCUMENTS, None):
        assert_compiled_equal(model, compiled_model, lambda model, pos=pos: model.features(pairs.target, pos))
    counter = CompileCounter()
    compiled_model = compile_layers(make_model({"position": {"name": "rope"}}, n_layers=4), counter)
    for _ in range(2):
        compiled_model.features(pairs.target, pairs.target_pos.clone())
    assert counter.frame_count == 1


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@torch.no_grad()
def test_packed_documents_use_block_masks_in_graphs(kind, monkeypatch):
    """On devices with such kernels; layers that need all weights keep a dense mask."""
    window = {"name": "softmax", "window": 5, "softcap": 3.0, "scale": 0.3}
    patterns = [{"attention": {"name": "softmax"}}, {"attention": window}, {"position": {"name": "alibi"}}]
    if kind == "encoder":
        patterns = [{"attention": window | {"sink": 2}}, {"attention": {"name": "kernel"}}]
    sizes = {"n_layers": len(patterns), "n_kv_heads": 2, "head_dim": 16, "layer_pattern": patterns}
    model, backend = make_model({"position": {"name": "rope"}}, kind=kind, **sizes), EagerAndRecordGraphs()
    compiled_model = compile_layers(model, backend)
    tokens, is_token = torch.randint(0, VOCAB, DOCUMENTS.shape), (DOCUMENTS >= 0)[:, :, None]
    expected = model.features(tokens, DOCUMENTS) * is_token
    monkeypatch.setattr(block_mask, "BLOCK_SIZE", 4)
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {"cpu"})
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DTYPES", {torch.float32})
    for _ in range(2):
        actual = compiled_model.features(tokens, DOCUMENTS.clone()) * is_token
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    uses_blocks = ["flex_attention" in graph.print_readable(print_output=False) for graph in backend.graphs]
    assert uses_blocks == ([True, True, False] if kind == "decoder" else [True, False])


@pytest.mark.slow
def test_inductor_has_the_same_gradients(pairs):
    parts = {"position": {"name": "rope"}, "norm": {"name": "rmsnorm"}, "feed_forward": {"name": "swiglu"}}
    model, inputs = make_model(parts), (pairs.target, pairs.target_pos)
    compiled_model = compile_layers(model, "inductor")
    assert_compiled_equal(model, compiled_model, lambda model: model.features(*inputs))


@pytest.mark.parametrize("expert", [pytest.param("gelu", marks=pytest.mark.slow), "swiglu"])
def test_bf16_experts_are_grouped_in_a_graph(expert, pairs):
    """Widths of 16 and 20: the second is padded for grouped products."""
    model = FEED_FORWARD.build(FEED_FORWARD.check(Choice("moe", expert=expert)), 16, 20).train()
    for p in model.parameters():
        nn.init.normal_(p)
    x = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def forward(model):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x, pairs.target_pos).float()

    results = (compute_gradients(module, forward) for module in (compile_module(model), model))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02 * float(b.abs().max()))
