import itertools
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from tests.cost.cost_helpers import KINDS, make_config, make_shape

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import OPTIMIZER
from polyhead.cost.fake_tensors import SavedActivations, compute_features, fake_inputs
from polyhead.cost.memory import activation_bytes_formula, estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.kernels.training.mode import training_kernels
from polyhead.models import build, preset_config
from polyhead.nn.loss import cross_entropy
from polyhead.train.train_state import TrainState
from polyhead.train.trainable_parameters import freeze

CHANGES = [
    {},
    {"attention": "linear", "dropout": 0.0},
    {"position": "shaw", "feed_forward": "swiglu", "norm": "rmsnorm"},
    {"attention": {"name": "softmax", "window": 3}},
    {"norm": "batchnorm", "feed_forward": "gelu"},
]
ADAMW = Choice("adamw")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *itertools.product(KINDS, CHANGES),
        *(("decoder", {"d_embedding": width, "position": "learned"}) for width in (6, 20)),
    ],
    ids=str,
)
def test_activations_equal_the_tensors_saved_by_autograd(kind, changes, precision):
    config, shape = make_config(kind, changes), make_shape(kind)
    model = build(config, 1).train()
    with SavedActivations(model) as saved, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        compute_features(model, fake_inputs(config, shape))
    # a norm of bf16 keeps statistics of 4 bytes per token, for which fake tensors take 2
    estimate = estimate_training_memory(config, shape, ADAMW, precision=precision).activations
    assert estimate == pytest.approx(saved.nbytes, abs=shape.rows * shape.length * 4)


@pytest.mark.parametrize("name", OPTIMIZER.names())
@pytest.mark.parametrize("kind", KINDS)
def test_weights_gradients_and_optimizer_equal_a_run(kind, name):
    config, shape = make_config(kind), make_shape(kind)
    model, labels = build(config, 1), torch.ones(shape.rows, shape.length, dtype=torch.int64)
    training = TrainState(model, TrainConfig(steps=5, optimizer=name, ema=0.9), config.d_model, 5)
    features = compute_features(model, fake_inputs(config, shape))
    cross_entropy(features, model.head, labels).total.backward()
    for optimizer in training.optimizers:
        optimizer.step()
    memory = estimate_training_memory(config, shape, OPTIMIZER.check(Choice(name)), ema=True)
    tensors = (*model.parameters(), *model.buffers())
    assert memory.weights == sum(x.nbytes for x in tensors)
    assert memory.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    states = [x for o in training.optimizers for state in o.state.values() for x in state.values()]
    assert memory.optimizer == sum(x.nbytes for x in states if isinstance(x, torch.Tensor))
    assert memory.average == sum(x.nbytes for x in training.ema.weights.values())
    assert estimate_training_memory(config, shape, ADAMW).average == 0


def test_frozen_parts_and_recurrent_activations():
    config = make_config("encoder")
    n_bytes = sum(p.nbytes for p in build(config, 1).encoder.stack.layers[0].parameters())
    full, partial = (
        estimate_training_memory(
            config, BatchShape(2, 5), ADAMW, prepare=lambda model, names=names: freeze(model, names)
        )
        for names in ((), ("encoder.stack.layers.0",))
    )
    assert full.gradients - partial.gradients == n_bytes
    assert partial.optimizer < full.optimizer
    # activations of an LSTM are unknown
    config = make_config("decoder", {"block": "lstm", "position": "none"})
    assert estimate_training_memory(config, BatchShape(2, 5), ADAMW).activations is None


@pytest.mark.parametrize(
    ("kind", "changes", "width", "precision"),
    [
        ("decoder", {"lm_head_bias": True}, 16, "fp32"),
        ("decoder", {"lm_head_bias": True}, 16, "bf16"),
        ("encoder", {"d_embedding": 6}, 6, "fp32"),
    ],
    ids=str,
)
def test_loss_equals_the_tensors_saved_by_autograd(kind, changes, width, precision):
    """And chunks of logits: two in fp32, and one in bf16."""
    config = make_config(kind, changes)
    model, is_bf16 = build(config, 1), precision == "bf16"
    features = torch.ones(3, 13, width, dtype=torch.bfloat16 if is_bf16 else None, requires_grad=True)
    with SavedActivations(model) as saved, torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        cross_entropy(features, model.head, torch.ones(3, 13, dtype=torch.int64))
    logits = 39 * 50 * (4 + 4 + 2 * is_bf16)
    estimate = estimate_training_memory(config, BatchShape(3, 13), ADAMW, precision=precision).loss
    copies = 39 * 50 * 2 * is_bf16 + (2 * 39 + 50) * width * (
        4 + 2 * is_bf16
    )  # selected rows, terms, roundings
    assert 0 < estimate - logits - saved.nbytes < copies


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"norm_first": True, "feed_forward": "swiglu", "lm_head": True}])
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_step_equals_the_peak_of_the_allocator(kind, kernels, changes, accumulate):
    """Of real passes, as torch's profiler records each allocation, for sizes whose activations dominate."""
    sizes = {"d_model": 64, "n_heads": 4, "n_kv_heads": 4, "d_ff": 128, "vocab_size": 300, "dropout": 0.1}
    config, shape = make_config(kind, sizes | changes), BatchShape(16, 40, 30 * (kind == "encoder-decoder"))
    model, labels = build(config, 1).train(), torch.ones(16 * 40, dtype=torch.int64)
    inputs = fake_inputs(config, shape)
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if accumulate > 1 else None
    held = sum(p.nbytes for p in model.parameters()) if accumulate > 1 else 0
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as seen:
        with training_kernels() if kernels else nullcontext():
            features = compute_features(model, inputs)
            loss = cross_entropy(features.flatten(0, -2), model.head, labels).total
            del features
        loss.backward()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    peak = held + max(itertools.accumulate(event.nbytes() for event in events))
    memory = estimate_training_memory(config, shape, ADAMW, kernels=kernels, accumulate=accumulate)
    assert memory.step == pytest.approx(peak, rel=0.02)
    assert memory.total == memory.weights + memory.optimizer + memory.step


def test_formula_equals_that_of_the_literature():
    """Korthikanti et al., 2022, with their 175B: s 2048, h 12288, a 96, b 1: 34 + 5 x 16 = 114 a layer."""
    config = preset_config("gpt3-175b", 50257)
    assert activation_bytes_formula(config, BatchShape(1, 2048)) == 96 * 2048 * 12288 * 114


@pytest.mark.parametrize("kernels", [False, True])
def test_large_batch_is_estimated_from_small_ones(monkeypatch, kernels):
    config = ModelConfig(kind="decoder", vocab_size=50, d_model=32, n_layers=2, n_heads=2, max_len=32)
    estimate = partial(estimate_training_memory, config, BatchShape(96, 32), ADAMW, kernels=kernels)
    exact = estimate()
    monkeypatch.setattr("polyhead.cost.memory._MANY_TOKENS", 1024)  # 32 and 64 rows
    assert estimate() == exact
