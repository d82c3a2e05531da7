"""Bytes of training: weights, gradients, optimizer state, weight averages and saved activations.

Parameters are fp32, also in mixed precision, where matrix products round copies of them to bf16
(train/precision.py). These copies count as activations, because autograd saves them with the rest
(Micikevicius et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import OPTIMIZER
from polyhead.cost.fake_tensors import SavedActivations, compute_features, fake_inputs, fake_mode
from polyhead.cost.workload import BatchShape
from polyhead.models import ReplacedTokenDetector
from polyhead.models.build import model_class
from polyhead.nn.loss import LOGITS_CHUNK
from polyhead.nn.stack import Stack, recompute_blocks


class TrainingMemory(NamedTuple):
    """Bytes of training by purpose. A step needs at most their sum."""

    weights: int  # parameters and buffers
    gradients: int
    optimizer: int
    average: int  # exponential moving average of the weights, with train.ema
    activations: int | None  # None if a part fails on fake tensors
    loss: int  # gradients of the head and of its inputs, and the logits of a chunk
    block_activations: int | None = 0  # of the largest block, with train.recompute; None as above
    teachers: int = 0  # parameters and buffers of the teachers of distillation

    @property
    def total(self) -> int | None:
        known = [x for x in self if x is not None]
        return sum(known) if len(known) == len(self) else None


def estimate_training_memory(
    config: ModelConfig,
    batch_shape: BatchShape,
    optimizer: Choice,
    *,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    ema: bool = False,
    recompute: bool = False,
    prepare: Callable[[nn.Module], object] = lambda model: None,
) -> TrainingMemory:
    """Estimate the memory of one step over a batch on fake tensors, without allocating it.

    ``prepare`` is applied to the model first, for example to freeze parts. With ``recompute`` the blocks keep
    only their inputs, and the activations of one block at a time exist again in the backward pass.
    """
    with fake_mode():
        model = model_class(config)(config)
        prepare(model)
        parameters, trainable = list(model.parameters()), [p for p in model.parameters() if p.requires_grad]
        activations, largest_block = _activation_bytes(model, config, batch_shape, precision)
        if recompute:
            recompute_blocks(model)
            activations, _ = _activation_bytes(model, config, batch_shape, precision)
        return TrainingMemory(
            model_bytes(model),
            sum(p.nbytes for p in trainable),
            optimizer_state_bytes(model, optimizer),
            sum(p.nbytes for p in parameters) if ema else 0,
            activations,
            _loss_bytes(model, config, batch_shape, precision),
            largest_block if recompute else 0,
        )


def model_bytes(model: nn.Module) -> int:
    """Bytes of the parameters and buffers of a model."""
    return sum(x.nbytes for tensors in (model.parameters(), model.buffers()) for x in tensors)


def optimizer_state_bytes(model: nn.Module, optimizer: Choice) -> int:
    """Bytes of optimizer state after the first step. For a model in ``fake_mode``."""
    for p in model.parameters():
        p.grad = torch.empty_like(p) if p.requires_grad else None
    optimizers = OPTIMIZER.build(optimizer, model, 1e-3)
    for instance in optimizers:
        instance.step()
    for p in model.parameters():
        p.grad = None
    states = [state for instance in optimizers for state in instance.state.values()]
    return sum(x.nbytes for state in states for x in state.values() if isinstance(x, torch.Tensor))


def _activation_bytes(
    model: nn.Module, config: ModelConfig, batch_shape: BatchShape, precision: str
) -> tuple[int | None, int | None]:
    """Bytes that autograd saves in a forward pass over rows without padding, up to the input of the head.

    Those of the model, and those that its largest block adds; None if a part fails on fake tensors.
    """
    stacks = [part for part in model.modules() if isinstance(part, Stack)]
    is_recomputed = any(stack.recompute for stack in stacks)
    if not is_recomputed and any(isinstance(part, nn.LSTM) for part in model.modules()):
        return None, None  # oneDNN allocates a workspace whose size is known only at run time
    saved, block_sizes, last_size = SavedActivations(model.train()), [0], 0

    def start_block(*_: object) -> None:
        nonlocal last_size
        last_size = saved.nbytes

    def end_block(*_: object) -> None:
        block_sizes.append(saved.nbytes - last_size)
        start_block()

    handles = [stack.register_forward_pre_hook(start_block) for stack in stacks]
    handles += [layer.register_forward_hook(end_block) for stack in stacks for layer in {*stack.layers}]
    try:
        with (
            saved,
            torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"),  # fp16 has the same size
        ):
            compute_features(model, fake_inputs(config, batch_shape))  # type: ignore[arg-type]
    except Exception:  # a part may be user code; the estimate reports the value as unknown
        return None, None
    finally:
        for handle in handles:
            handle.remove()
    return saved.nbytes, max(block_sizes)


def activation_bytes_formula(config: ModelConfig, batch_shape: BatchShape) -> float:
    """Bytes of 16-bit activations by the formula of Korthikanti et al. (2022, sec. 4.1).

    S B H (34 + 5 n_heads S / H) per layer, for a GPT layer with dropout masks of one byte per element, stored
    attention weights and widths H and 4H.
    """
    S, H = batch_shape.length, config.d_model
    return config.n_layers * batch_shape.rows * S * H * (34 + 5 * config.n_heads * S / H)


def _loss_bytes(model: nn.Module, config: ModelConfig, batch_shape: BatchShape, precision: str) -> int:
    """Bytes of the cross-entropy, which computes its gradients in the forward pass (nn/loss.py).

    These are gradients of the inputs of the head and, if they are trained, of its weights.
    """
    if isinstance(model, ReplacedTokenDetector):
        return _loss_bytes(model.generator, config.generator_config, batch_shape, precision)
    if config.labels or not config.lm_head:
        return 0
    C, V, width = config.embedding_width, config.vocab_size, 4 if precision == "fp32" else 2
    chunk = min(LOGITS_CHUNK, batch_shape.labels)
    weight_grad_width = C if model.get_parameter("head.weight").requires_grad else 0
    gradient_bytes = batch_shape.labels * (C * width + 8) + V * (weight_grad_width + config.lm_head_bias) * 4
    rounded = 0 if precision == "fp32" else 2  # inputs of the products, rounded to 16 bits
    return gradient_bytes + chunk * V * (4 + 4 + rounded)  # logits and probabilities of a chunk
