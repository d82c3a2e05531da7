"""Layers that share their weights against a model whose layers have copies of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.config.config_sections import LoraConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, OPTIMIZER
from polyhead.cost import flops
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.parameter_count import count_model_parameters, group_parameters
from polyhead.cost.workload import BatchShape
from polyhead.introspect.compute_attention import compute_pair_attention, compute_self_attention
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import build
from polyhead.nn.kv import KV
from polyhead.nn.lora import merge_lora
from polyhead.nn.stack import Stack
from polyhead.nn.state import named_state
from polyhead.run.load import load
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.init_from import LAYER_NAME
from polyhead.train.trainable_parameters import add_lora, freeze

KINDS = ("encoder", "decoder", "encoder-decoder")
SIZES: dict[str, Any] = {"vocab_size": 50, "d_model": 32, "n_heads": 2, "n_kv_heads": 1, "n_layers": 4,
    "n_decoder_layers": 3,
                         "d_ff": 40, "max_len": 32, "dropout": 0.0}  # fmt: skip
DESIGNS: list[dict[str, Any]] = [
    {},
    {"position": "rope", "norm": "rmsnorm", "norm_first": True, "feed_forward": "swiglu"},
    {"position": "t5", "attention": {"name": "softmax", "window": 3}},
    {"attention": "linear"},
    {"block": "gru", "position": "none"},
    {"layer_pattern": [{"position": "alibi"}]},
]
SOURCE, TOKENS = (
    torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1)),
    torch.arange(16).reshape(2, 8),
)


def pair(kind: str, **changes: Any) -> tuple[Any, Any]:
    """A model that shares, and one of as many layers with copies of its weights."""
    shared, apart = (
        build(ModelConfig(**{**SIZES, "kind": kind, **changes, "share_layers": share}), seed=2).eval()
        for share in (True, False)
    )
    with torch.no_grad():
        for p in shared.parameters():
            p.add_(0.2 * torch.randn_like(p))
        given = named_state(shared)
        for name, tensor in named_state(apart).items():
            tensor.copy_(given[LAYER_NAME.sub(r"\g<1>0\3", name)])
    return shared, apart


def said(model: nn.Module) -> Tensor:
    out: Tensor = model(SOURCE, TOKENS) if hasattr(model, "encode") else model(TOKENS)
    return out


@pytest.mark.parametrize("changes", DESIGNS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_has_the_weights_of_the_first_once(kind: str, changes: dict[str, Any]) -> None:
    shared, apart = pair(kind, **changes)
    torch.testing.assert_close(said(shared), said(apart))
    one = build(ModelConfig(**{**SIZES, "kind": kind, **changes, "n_layers": 1, "n_decoder_layers": 1}))
    assert {name: x.shape for name, x in named_state(shared).items()} == {
        n: x.shape for n, x in named_state(one).items()
    }
    assert (
        count_model_parameters(shared.config)
        == count_model_parameters(one.config)
        == sum(p.numel() for p in shared.parameters())
    )
    layers = [part for part in group_parameters(shared.config) if "layer" in part.name]
    assert {part.times for part in layers} == {1}
    load = BatchShape(2, 8, 9 if kind == "encoder-decoder" else 0)
    assert flops.count_forward(shared.config, load) == flops.count_forward(apart.config, load)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_is_the_sum_of_those_of_all_layers(kind: str) -> None:
    shared, apart = pair(kind)
    for model in (shared, apart):
        said(model).square().mean().backward()
    wanted: dict[str, Tensor] = {}
    for name, p in apart.named_parameters():
        first = LAYER_NAME.sub(r"\g<1>0\3", name)
        wanted[first] = wanted.get(first, torch.zeros_like(p)) + p.grad
    for name, p in shared.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], rtol=1e-4, atol=1e-6)
    memory = estimate_training_memory(
        shared.config, BatchShape(2, 8, 9 if kind == "encoder-decoder" else 0), Choice("adamw")
    )
    assert memory.gradients == sum(p.nbytes for p in shared.parameters())


@pytest.mark.parametrize("changes", DESIGNS[:3], ids=str)
@pytest.mark.parametrize("name", [name for name in CACHE.names() if name not in ("state", "low_rank")])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@torch.inference_mode()
def test_each_layer_remembers_for_itself(kind: str, name: str, changes: dict[str, Any]) -> None:
    both = pair(kind, **changes)
    caches = []
    for model in both:
        try:
            caches.append(make_cache(Choice(name), model.cache_shape, 2, 8))
        except UserError:
            return
    memories = [model.encode(SOURCE) if kind == "encoder-decoder" else None for model in both]
    for t in range(8):
        pos, found = torch.full((2, 1), t), []
        for model, cache, memory in zip(both, caches, memories, strict=True):
            cache.prepare_step(range(2), pos)
            found.append(model.decode(TOKENS[:, t : t + 1], pos, cache, memory))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("changes", DESIGNS[:3], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_faster_form_is_that_of_the_copies(kind: str, changes: dict[str, Any], dtype: str) -> None:
    shared, apart = (pack_model(model, linear_factory(dtype)) for model in pair(kind, **changes))
    torch.testing.assert_close(said(shared), said(apart), rtol=1e-4, atol=1e-5)
    if kind == "encoder":
        return
    memory = shared.encode(SOURCE) if kind == "encoder-decoder" else None  # type: ignore[operator]
    cache, found = make_cache(None, shared.cache_shape, 2, 8), []
    for t in range(8):
        pos = torch.full((2, 1), t)
        cache.prepare_step(range(2), pos)
        found.append(shared.decode(TOKENS[:, t : t + 1], pos, cache, memory))  # type: ignore[operator]
    torch.testing.assert_close(
        torch.cat(found, 1), said(apart), rtol=1e-3, atol=1e-4 if dtype == "fp32" else 1e-1
    )


def test_attention_is_shown_layer_by_layer() -> None:
    for kind in ("encoder", "decoder"):
        found, wanted = (compute_self_attention(model, TOKENS[:1]) for model in pair(kind))
        assert found is not None and wanted is not None
        assert found.layer_numbers == wanted.layer_numbers == [1, 2, 3, 4]
        torch.testing.assert_close(found.weights, wanted.weights)
    ours, theirs = (
        compute_pair_attention(model, SOURCE[:1], TOKENS[:1]) for model in pair("encoder-decoder")
    )
    assert ours.keys() == theirs.keys() == {"cross", "encoder", "decoder"}
    for kind, layers in theirs.items():
        assert ours[kind].layer_numbers == layers.layer_numbers
        torch.testing.assert_close(ours[kind].weights, layers.weights)


@pytest.mark.parametrize("name", OPTIMIZER.names())
def test_an_optimizer_has_each_weight_once(name: str) -> None:
    shared, _ = pair("decoder")
    optimizers = OPTIMIZER.build(OPTIMIZER.check(Choice(name)), shared, 1e-3)
    held = [id(p) for one in optimizers for group in one.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in shared.parameters())


def test_adapters_are_shared_and_all_layers_are_frozen_by_the_name_of_the_first() -> None:
    shared, _ = pair("decoder")
    before = said(shared)
    add_lora(shared, LoraConfig(r=2, target_modules=("q_proj",)), seed=1)
    own = [name for name, p in shared.named_parameters() if p.requires_grad]
    assert own == [f"stack.layers.0.attn.q_proj.lora_{x}" for x in "ab"]
    with torch.no_grad():
        shared.get_parameter(own[1]).normal_()
    adapted = said(shared)
    assert not torch.allclose(adapted, before, atol=1e-3)
    merge_lora(shared)
    torch.testing.assert_close(said(shared), adapted, rtol=1e-4, atol=1e-5)
    shared, _ = pair("decoder")
    freeze(shared, ["stack.layers.0"])
    assert all(p.requires_grad == (".layers." not in name) for name, p in shared.named_parameters())
    with pytest.raises(
        UserError, match=r"no part of the model is named 'stack.layers.1'; did you mean 'stack.layers.0'"
    ):
        freeze(shared, ["stack.layers.1"])
    with pytest.raises(
        UserError, match=r"no linear layer of the model is named 'layers.1'; did you mean 'layers'"
    ):
        add_lora(shared, LoraConfig(r=2, target_modules=("layers.1",)), seed=1)
    add_lora(shared, LoraConfig(r=2, target_modules=("layers.0",)), seed=1)


def test_a_run_keeps_the_weights_once(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["a dog barks"] * 9, Choice("bpe"), 300)
    config = ModelConfig(
        **{**SIZES, "kind": "decoder", "vocab_size": tokenizer.vocab_size, "share_layers": True}
    )
    model = build(config, seed=1).eval()
    Run(model, tokenizer, GenerationConfig()).save(tmp_path)
    again: Any = load(tmp_path).model
    assert len({id(layer) for layer in again.stack.layers}) == 1 and len(again.stack.layers) == 4
    torch.testing.assert_close(said(again.eval()), said(model))


def test_a_stack_gives_each_layer_its_memory_and_ends_with_its_norm():
    class Add(nn.Module):
        def forward(self, x, pos, cache, memory, position):
            return x + (0 if memory is None else memory.k)

    class Double(nn.Module):
        def forward(self, x, pos):
            return 2 * x.relu()

    stack = Stack([Add(), Add()], Double())
    memory = [KV(torch.tensor(-3.0), torch.tensor(0.0)), KV(torch.tensor(1.0), torch.tensor(0.0))]
    x = torch.tensor([1.0, 5.0])
    assert stack(x, memory=memory).tolist() == [0.0, 6.0]
    assert stack(x).tolist() == [2.0, 10.0]
