"""Every part of the registry is one graph for ``torch.compile``, and computes in it what it does without."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.laws.conftest import SIZES, VOCAB, Pairs, choices, first
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter, EagerAndRecordGraphs

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
from polyhead.models import build
from polyhead.nn import block_mask
from polyhead.nn.packed_rows import has_several_documents, note_documents
from polyhead.nn.stack import Stack

LAYERS: list[dict[str, Any]] = [
    *({"block": part} for part in choices(BLOCK)),
    *({"attention": part, "n_kv_heads": 2} for part in choices(ATTENTION)),
    *({"attention": {"name": "linear", "feature_map": name}} for name in FEATURE_MAP.names()),
    *({"attention": {"name": "kernel", "sim": name}} for name in SIMILARITY.names()),
    *({"position": part, "n_kv_heads": 2} for part in choices(POSITION)),
]
PARTS = [(registry, part) for registry in (NORM, FEED_FORWARD) for part in choices(registry)]
PARTS += [(FEED_FORWARD, {"name": "moe", "expert": expert}) for expert in ("prelu", "geglu")]
DOCUMENTS = torch.tensor(
    [[0, 1, 2, 3, 0, 1, 2, 0, -1], [0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 1, 2, 3, 4, -1, -1]]
)


def is_plain(changes: dict[str, Any]) -> bool:
    return all(len(part) == 1 for part in changes.values() if isinstance(part, dict))


def quick_or_slow(cases: list[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    return [pytest.param(x, id=str(x), marks=[] if is_quick(x) else pytest.mark.slow) for x in cases]


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def learn(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> list[Tensor]:
    """The output, and the gradients of its square, which are 0 where there are none."""
    torch.manual_seed(5)
    out = run(model)
    out.square().sum().backward()
    return [out.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())]


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    largest = max(float(b.abs().max()) for b in wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def compile_layers(model: nn.Module, backend: str = "eager") -> nn.Module:
    compiled = copy.deepcopy(model)
    for stack in compiled.modules():
        if isinstance(stack, Stack):
            stack.compile_layers(backend=backend, fullgraph=True)
    return compiled


def make_model(changes: dict[str, Any], **sizes: Any) -> nn.Module:
    sizes = {**SIZES, "n_layers": 1, "dropout": 0.0, "kind": "decoder", **sizes, **changes, **first(changes)}
    return build(ModelConfig.model_validate({"vocab_size": VOCAB, **sizes}), seed=1).train()


@pytest.mark.parametrize("changes", quick_or_slow(LAYERS, is_plain))
def test_a_layer_with_any_part_is_one_graph(changes: dict[str, Any], pairs: Pairs) -> None:
    model = make_model(changes)

    def run(model: nn.Module) -> Tensor:
        return model.features(pairs.target, pairs.target_pos)  # type: ignore[operator, no-any-return]

    assert_same(learn(compile_layers(model), run), learn(model, run))


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCK.names())
def test_both_stacks_of_a_translator_are(block: str, pairs: Pairs) -> None:
    model = make_model({"block": {"name": block}}, kind="encoder-decoder")

    def run(model: nn.Module) -> Tensor:
        return model.features(pairs.source, pairs.target, pairs.source_pos, pairs.target_pos)  # type: ignore[operator, no-any-return]

    assert_same(learn(compile_layers(model), run), learn(model, run))


@pytest.mark.parametrize(("registry", "part"), PARTS, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_a_norm_or_feed_forward_is_one_graph(registry: Any, part: dict[str, Any], pairs: Pairs) -> None:
    sizes = (SIZES["d_model"], SIZES["d_ff"])[: 1 + (registry is FEED_FORWARD)]
    name, options = part["name"], {key: value for key, value in part.items() if key != "name"}
    model = registry.build(registry.check(Choice(name, **options)), *sizes).train()
    x = torch.randn(3, 9, SIZES["d_model"], generator=torch.Generator().manual_seed(0), requires_grad=True)
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager", fullgraph=True)
    shown = (pairs.target_pos >= 0)[:, :, None]  # not what padding becomes, which nobody reads

    def run(model: nn.Module) -> Tensor:
        return model(x, pairs.target_pos) * shown  # type: ignore[no-any-return]

    assert_same(learn(compiled, run), learn(model, run))


@pytest.mark.parametrize("name", POOLING.names())
def test_a_pooling_is_one_graph(name: str, pairs: Pairs) -> None:
    config = ModelConfig(vocab_size=VOCAB, kind="encoder", labels=("a", "b"), lm_head=False, **SIZES)  # type: ignore[arg-type]
    model = POOLING.build(POOLING.check(Choice(name)), config)
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager", fullgraph=True)
    x = torch.randn(3, 9, SIZES["d_model"], requires_grad=True)

    def run(model: nn.Module) -> Tensor:
        return model(x, pairs.target_pos)  # type: ignore[no-any-return]

    assert_same(learn(compiled, run), learn(model, run))


def test_packed_documents_and_plain_rows_have_a_graph_each(pairs: Pairs) -> None:
    """A compiled layer is told of documents by the stack, and right for the rows that come after."""
    model = make_model({"position": {"name": "rope"}}, n_layers=2)
    compiled = compile_layers(model)
    for pos in (DOCUMENTS, pairs.target_pos, DOCUMENTS, None):

        def run(model: nn.Module, pos: Tensor | None = pos) -> Tensor:
            return model.features(pairs.target, pos)  # type: ignore[operator, no-any-return]

        assert_same(learn(compiled, run), learn(model, run))
        model.zero_grad()
        compiled.zero_grad()


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@torch.no_grad()
def test_documents_are_attended_in_blocks_by_one_graph_of_each_layer(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On devices with such kernels; layers that need all weights keep their mask."""
    patterns: list[dict[str, Any]] = [
        {"attention": {"name": "softmax"}},
        {"attention": {"name": "softmax", "window": 5, "softcap": 3.0, "scale": 0.3}},
        {"attention": {"name": "softmax", "window": 7, "sink": 2, "softcap": 4.0, "scale": 0.2}},
        {"position": {"name": "alibi"}},
        {"attention": {"name": "kernel"}},
    ]
    model = make_model(
        {"position": {"name": "rope"}},
        n_layers=10,
        n_kv_heads=2,
        head_dim=16,
        kind=kind,
        layer_pattern=patterns,
    )
    compiled, graphs = copy.deepcopy(model), EagerAndRecordGraphs()
    for stack in compiled.modules():
        if isinstance(stack, Stack):
            stack.compile_layers(backend=graphs, fullgraph=True)
    tokens, shown = torch.randint(0, VOCAB, DOCUMENTS.shape), (DOCUMENTS >= 0)[:, :, None]
    wanted = model.features(tokens, DOCUMENTS) * shown  # type: ignore[operator]
    monkeypatch.setattr(block_mask, "BLOCK_SIZE", 4)
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {"cpu"})
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DTYPES", {torch.float32})
    for _ in range(2):
        found = compiled.features(tokens, DOCUMENTS.clone()) * shown  # type: ignore[operator]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    in_blocks = ["flex_attention" in graph.print_readable(print_output=False) for graph in graphs.graphs]
    assert in_blocks == [True, True, True, False, False]


def test_layers_alike_share_a_graph(pairs: Pairs) -> None:
    counter = CompileCounter()
    model = make_model({"position": {"name": "rope"}}, n_layers=4)
    for stack in model.modules():
        if isinstance(stack, Stack):
            stack.compile_layers(backend=counter, fullgraph=True)
    for _ in range(2):
        model.features(pairs.target, pairs.target_pos.clone())  # type: ignore[operator]
    assert counter.frame_count == 1


def test_what_is_noted_of_documents_is_only_for_graphs() -> None:
    pos = DOCUMENTS.clone()
    note_documents(pos)
    assert pos.several_documents  # type: ignore[attr-defined]
    pos[:, 1:] = -1
    assert not has_several_documents(pos)


@pytest.mark.slow
def test_inductor_learns_the_same(pairs: Pairs) -> None:
    model = make_model(
        {"position": {"name": "rope"}, "norm": {"name": "rmsnorm"}, "feed_forward": {"name": "swiglu"}}
    )

    def run(model: nn.Module) -> Tensor:
        return model.features(pairs.target, pairs.target_pos)  # type: ignore[operator, no-any-return]

    assert_same(learn(compile_layers(model, "inductor"), run), learn(model, run))


@pytest.mark.parametrize("expert", ["gelu", "swiglu"])
def test_experts_in_bf16_are_grouped_in_a_graph(expert: str, pairs: Pairs) -> None:
    """Widths of 16 and 20: the second is not one of grouped products, and is padded."""
    model = FEED_FORWARD.build(FEED_FORWARD.check(Choice("moe", expert=expert)), 16, 20).train()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    x = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager", fullgraph=True)

    def run(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x, pairs.target_pos).float()  # type: ignore[no-any-return]

    for a, b in zip(learn(compiled, run), learn(model, run), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02 * float(b.abs().max()))
