"""Bytes without memory against the bytes of real tensors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tests.cost.memory_helpers import config_of

from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import OPTIMIZER
from polyhead.cost.fake_tensors import SavedActivations, compute_features, fake_inputs
from polyhead.cost.memory import activation_bytes_formula, estimate_training_memory
from polyhead.cost.parameter_count import count_model_parameters
from polyhead.cost.workload import BatchShape
from polyhead.models import build, preset_config
from polyhead.nn.loss import cross_entropy
from polyhead.train.train_state import TrainState
from polyhead.train.trainable_parameters import freeze

KINDS = {"decoder": BatchShape(3, 13), "encoder": BatchShape(3, 13), "encoder-decoder": BatchShape(3, 13, 9)}
CHANGES = [{}, {"attention": "linear", "dropout": 0.0}, {"position": "shaw", "feed_forward": "swiglu",
    "norm": "rmsnorm"},
           {"attention": {"name": "softmax", "window": 3}}, {"norm": "batchnorm",
               "feed_forward": "gelu"}]  # fmt: skip


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
    config = config_of("decoder", {"lm_head_bias": True})
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
