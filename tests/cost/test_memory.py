"""Bytes without memory against the bytes of real tensors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE, OPTIMIZER
from polyhead.cost.decoding import (
    bytes_by_kv_heads,
    cache_shape,
    count_source_bytes,
    measure_cache,
    token_flops,
)
from polyhead.cost.fake_tensors import SavedActivations, compute_features, fake_inputs
from polyhead.cost.memory import activation_bytes_formula, estimate_training_memory
from polyhead.cost.parameter_count import count_model_parameters
from polyhead.cost.workload import BatchShape
from polyhead.models import build, preset_config
from polyhead.nn.loss import cross_entropy
from polyhead.train.train_state import TrainState
from polyhead.train.trainable_parameters import freeze

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 16,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 24,
    "max_len": 64,
}
KINDS = {"decoder": BatchShape(3, 13), "encoder": BatchShape(3, 13), "encoder-decoder": BatchShape(3, 13, 9)}
CHANGES = [{}, {"attention": "linear", "dropout": 0.0}, {"position": "shaw", "feed_forward": "swiglu", "norm": "rmsnorm"},
           {"attention": {"name": "softmax", "window": 3}}, {"norm": "batchnorm", "feed_forward": "gelu"}]  # fmt: skip


def config_of(kind: str, changes: dict[str, Any]) -> ModelConfig:
    return ModelConfig.model_validate({**SIZES, "kind": kind, **changes})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *itertools.product(KINDS, CHANGES),
        *(("decoder", {"d_embedding": width, "position": "learned"}) for width in (6, 20)),
    ],
    ids=str,
)
def test_activations_are_what_autograd_keeps(kind: str, changes: dict[str, Any], precision: Any) -> None:
    config, load = config_of(kind, changes), KINDS[kind]
    model = build(config, 1).train()
    with SavedActivations(model) as saved, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        compute_features(model, fake_inputs(config, load))
    # a norm of bf16 keeps statistics of 4 bytes a token where tensors without numbers take them for 2
    found = estimate_training_memory(config, load, Choice("adamw"), precision=precision).activations
    assert found == pytest.approx(saved.nbytes, abs=load.rows * load.length * 4)


def test_what_is_saved_is_counted_once_and_without_the_weights() -> None:
    model = torch.nn.Linear(8, 4)
    x = torch.ones(5, 8, requires_grad=True)
    with SavedActivations(model) as saved:
        y = model(x) * 1.0
        (y @ y.T).exp()
    assert saved.nbytes == 4 * (5 * 8 + 5 * 4 + 5 * 5)  # x; y, twice a factor; what exp gives


def test_of_lstm_nothing_is_said() -> None:
    config = config_of("decoder", {"block": "lstm", "position": "none"})
    assert estimate_training_memory(config, BatchShape(2, 5), Choice("adamw")).activations is None


@pytest.mark.parametrize("name", OPTIMIZER.names())
@pytest.mark.parametrize("kind", KINDS)
def test_weights_gradients_and_optimizer_are_those_of_a_run(kind: str, name: str) -> None:
    config, load = config_of(kind, {}), KINDS[kind]
    model = build(config, 1)
    training = TrainState(model, TrainConfig(steps=5, optimizer=name, ema=0.9), config.d_model, 5)
    labels = torch.ones(load.rows, load.length, dtype=torch.int64)
    cross_entropy(compute_features(model, fake_inputs(config, load)), model.head, labels).total.backward()
    for optimizer in training.optimizers:
        optimizer.step()
    memory = estimate_training_memory(config, load, OPTIMIZER.check(Choice(name)), ema=True)
    tables = sum(x.nbytes for x in model.buffers())
    assert memory.weights == sum(p.nbytes for p in model.parameters()) + tables
    assert memory.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    states = [x for o in training.optimizers for state in o.state.values() for x in state.values()]
    assert memory.optimizer == sum(x.nbytes for x in states if isinstance(x, torch.Tensor))
    assert training.ema is not None
    assert memory.average == sum(x.nbytes for x in training.ema.weights.values())
    assert estimate_training_memory(config, load, Choice("adamw")).average == 0


def test_adamw_keeps_eight_bytes_a_parameter_and_adafactor_hardly_any() -> None:
    config = preset_config("gpt2", 50257)
    load, each = BatchShape(1, 8), count_model_parameters(config)
    adamw, muon, adafactor = (
        estimate_training_memory(config, load, Choice(name)).optimizer
        for name in ("adamw", "muon", "adafactor")
    )
    assert adamw == pytest.approx(8 * each, rel=1e-4)
    assert muon == pytest.approx(
        4 * 12 * 12 * 768**2 + 8 * (each - 12 * 12 * 768**2), rel=1e-2
    )  # one moment inside the blocks
    assert adafactor < 0.01 * adamw


def test_frozen_parts_have_no_gradients() -> None:
    config = config_of("encoder", {})
    model = build(config, 1)
    frozen = sum(p.nbytes for p in model.encoder.stack.layers[0].parameters())
    whole, part = (
        estimate_training_memory(
            config, BatchShape(2, 5), Choice("adamw"), prepare=lambda model, f=f: freeze(model, f)
        )
        for f in ((), ("encoder.stack.layers.0",))
    )
    assert whole.gradients - part.gradients == frozen
    assert part.optimizer < whole.optimizer


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_keeps_what_it_says(precision: Any) -> None:
    config = config_of("decoder", {"head_bias": True})
    load, model = BatchShape(3, 13), build(config, 1)
    features = torch.ones(
        3, 13, 16, dtype=torch.bfloat16 if precision == "bf16" else torch.float32, requires_grad=True
    )
    with SavedActivations(model) as saved, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        cross_entropy(features, model.head, torch.ones(3, 13, dtype=torch.int64))
    working = 39 * 50 * (4 + 4 + (2 if precision == "bf16" else 0))
    wanted = estimate_training_memory(config, load, Choice("adamw"), precision=precision).loss
    assert wanted - working == pytest.approx(saved.nbytes, abs=39 * 8 + 50 * 4)


def test_a_head_that_reads_narrow_vectors_keeps_as_much_less() -> None:
    config = config_of("encoder", {"d_embedding": 6})
    model, features = build(config, 1), torch.ones(3, 13, 6, requires_grad=True)
    with SavedActivations(model) as saved:
        cross_entropy(features, model.head, torch.ones(3, 13, dtype=torch.int64))
    wanted = estimate_training_memory(config, BatchShape(3, 13), Choice("adamw")).loss - 39 * 50 * (4 + 4)
    assert wanted == pytest.approx(saved.nbytes, abs=39 * 8)


def test_the_formula_of_the_literature_by_hand() -> None:
    config = preset_config("gpt3-175b", 50257)
    # Korthikanti et al., 2022, with their 175B: s 2048, h 12288, a 96, b 1: 34 + 5 x 16 = 114 a layer
    assert activation_bytes_formula(config, BatchShape(1, 2048)) == 96 * 2048 * 12288 * 114


MODELS = [
    {"position": "rope", "head_dim": 6, "v_head_dim": 4},
    {"attention": "linear"},
    {"feed_forward": "experts"},
    {"n_layers": 5, "pattern": [{"attention": "linear"}, {}, {"block": "lstm"}]},
    {
        "position": "none",
        "pattern": [{}, {"position": "alibi"}, {"attention": {"name": "softmax", "window": 3}}],
    },
]


@pytest.mark.parametrize("changes", MODELS, ids=str)
@pytest.mark.parametrize("name", CACHE.names())
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_cache_holds_what_it_says(kind: str, name: str, changes: dict[str, Any]) -> None:
    config, rows, length = config_of(kind, changes), 3, 40
    options = {"rank": 2} if name == "low_rank" else {}
    said = measure_cache(Choice(name, **options), cache_shape(config), rows, length)
    model = build(config, 1).eval()
    if said.unsupported_reason:
        windows = "pattern" in changes and name == "subgen"
        assert (name == "state") == bool(model.cache_shape.kv_layers) or windows
        return
    cache = make_cache(CACHE.check(Choice(name, **options)), model.cache_shape, rows, length)
    pos = torch.arange(length).expand(rows, -1)
    with torch.inference_mode():
        memory = model.encode(torch.zeros(rows, 9, dtype=torch.int64)) if kind == "encoder-decoder" else None
        cache.prepare_step(range(rows), pos)
        model.decode(torch.zeros(rows, length, dtype=torch.int64), pos, cache, memory)
    assert said.nbytes == cache.nbytes
    if memory is not None:
        parts = [x for x in tree_leaves(memory) if x is not None]
        assert count_source_bytes(config, 9) * rows == sum(x.nbytes for x in parts)


@pytest.mark.parametrize("rank", [3, 8, 99])
def test_directions_that_are_the_whole_head_are_counted_as_they_are_held(rank: int) -> None:
    config, choice, length = config_of("decoder", {}), Choice("low_rank", rank=rank), 40
    said, model = measure_cache(choice, cache_shape(config), 1, length), build(config, 1).eval()
    cache = make_cache(CACHE.check(choice), model.cache_shape, 1, length)
    with torch.inference_mode():
        cache.prepare_step([0], torch.arange(length)[None])
        model.decode(torch.zeros(1, length, dtype=torch.int64), torch.arange(length)[None], cache)
    assert said.nbytes == cache.nbytes


def test_heads_that_share_keys_save_in_proportion() -> None:
    config = preset_config("gpt2", 50257)
    assert (
        bytes_by_kv_heads(config, 12)[12] == 12 * 2 * 768 * 4
    )  # all heads, 12 layers, keys and values, fp32
    assert {n: bytes_by_kv_heads(config, 12)[12] / b for n, b in bytes_by_kv_heads(config, 12).items()} == {
        12: 1,
        6: 2,
        4: 3,
        3: 4,
        2: 6,
        1: 12,
    }


def test_a_bounded_cache_bounds_the_operations() -> None:
    config = config_of("decoder", {"max_len": 4096})
    whole, bounded = token_flops(config, 4096), token_flops(config, 4096, cache=Choice("h2o", budget=64))
    assert whole - bounded == 3 * 2 * 2 * 16 * (
        4096 - 64
    )  # layers, a product is two, keys and values, d_model, slots
